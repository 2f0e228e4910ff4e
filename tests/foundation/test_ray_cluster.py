"""What Ray reports of itself does not get between a program and those who read its standard output."""

from types import SimpleNamespace

from veil.foundation.ray_cluster import _tell_on_standard_error


def test_reports_of_dead_machines_go_to_standard_error_once_redirected():
    told = []
    worker = SimpleNamespace(print_to_stdstream=lambda data, ignore_prefix: told.append((data, ignore_prefix)))
    for _ in range(2):
        _tell_on_standard_error(worker)
    given = {"lines": ["a machine died"], "is_err": False}
    worker.print_to_stdstream(given, ignore_prefix=True)
    assert told == [({"lines": ["a machine died"], "is_err": True}, True)]
    assert not given["is_err"]


def test_a_ray_that_reports_in_another_way_is_left_as_it_is():
    other = SimpleNamespace()
    _tell_on_standard_error(other)
    _tell_on_standard_error(None)
    assert vars(other) == {}
