"""Strata are a partition: every row in one place, in order, and never changed afterwards."""

import numpy as np
import pytest

from veil.problem import HOLE, Strata


def test_labels_become_strata_with_every_row_once():
    labels = np.array([2, 0, 1, 0, 2, 2])
    strata = Strata.from_labels(labels)
    assert strata.names == ("0", "1", "2")
    assert [rows.tolist() for rows in strata.members] == [[1, 3], [2], [0, 4, 5]]
    assert strata.sizes == (2, 1, 3)


@pytest.mark.parametrize(
    ("members", "names", "message"),
    [
        ((), (), "at least one stratum"),
        (([0, 1], [1, 2]), (), "row 1 is in more than one stratum"),
        (([1, 0],), (), "ascending"),
        (([0, 0],), (), "ascending"),
        (([0, -2],), (), "ids start at 0"),
        (([0], [1]), ("a",), "different names"),
        (([0], [1]), ("a", "a"), "different names"),
        (([0.5],), (), "integer row ids"),
        (([[0]],), (), "one-dimensional"),
    ],
)
def test_what_is_not_a_partition_is_refused(members, names, message):
    with pytest.raises(ValueError, match=message):
        Strata(tuple(np.asarray(rows) for rows in members), names)


def test_holes_may_repeat_and_keep_the_public_sizes():
    strata = Strata((np.array([0, HOLE, 3]), np.array([HOLE, 1])))
    assert strata.sizes == (3, 2)
    assert strata.without_row(3).sizes == (3, 2)
    assert strata.without_row(3).members[0].tolist() == [0, HOLE, HOLE]


@pytest.mark.parametrize("row", [7, HOLE])
def test_a_row_that_is_not_there_cannot_be_taken_away(row):
    with pytest.raises(ValueError, match="not in any stratum"):
        Strata((np.array([0, HOLE, 3]),)).without_row(row)


def test_members_cannot_be_changed_through_the_strata():
    strata = Strata.of_size(3)
    with pytest.raises(ValueError, match="read-only"):
        strata.members[0][0] = 9
