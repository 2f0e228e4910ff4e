"""`make quick` ends within a minute: what was slow the last time is left out, what is new is not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.quick import KEY, Quick


class Config:
    """What pytest tells about a run, and what it keeps between runs."""

    def __init__(self, kept: dict[str, Any], within: float | None, **more: Any) -> None:
        self.cache = SimpleNamespace(get=kept.get, set=kept.__setitem__)
        self.hook = SimpleNamespace(pytest_deselected=lambda items: self.left_out.extend(items))
        self.left_out: list[Any] = []
        self._within = within
        vars(self).update(more)

    def getoption(self, name: str) -> float | None:
        assert name == "--within"
        return self._within


def ran(config: Config, **seconds: float) -> None:
    quick = Quick(config)  # type: ignore[arg-type]
    for name, duration in seconds.items():
        for part in (0.25, 0.5, 0.25):  # setup, call, teardown
            quick.pytest_runtest_logreport(SimpleNamespace(nodeid=name, duration=part * duration))  # type: ignore[arg-type]
    quick.pytest_sessionfinish()


def chosen(config: Config, *names: str) -> list[str]:
    items: list[Any] = [SimpleNamespace(nodeid=name) for name in names]
    Quick(config).pytest_collection_modifyitems(items)  # type: ignore[arg-type]
    assert [item.nodeid for item in items + config.left_out] == sorted(names, key=lambda name: name in left(config))
    return [item.nodeid for item in items]


def left(config: Config) -> list[str]:
    return [item.nodeid for item in config.left_out]


def test_the_slowest_tests_of_the_last_run_are_left_out_and_new_ones_run() -> None:
    kept: dict[str, Any] = {}
    ran(Config(kept, None), slow=8.0, fast=0.5, middle=1.5)
    assert chosen(Config(kept, 2.0), "slow", "fast", "new", "middle") == ["fast", "new", "middle"]
    assert chosen(Config(kept, 1.0), "slow", "fast", "new", "middle") == ["fast", "new"]
    assert chosen(Config(kept, None), "slow", "fast") == ["slow", "fast"]
    ran(Config(kept, 1.0), fast=9.0, new=1.0)  # what was left out keeps its time
    assert kept[KEY] == {"slow": 8.0, "fast": 9.0, "middle": 1.5, "new": 1.0}


def test_a_process_that_runs_for_another_one_writes_nothing() -> None:
    kept: dict[str, Any] = {}
    ran(Config(kept, None, workerinput={}), a=1.0)
    assert kept == {}
