"""Scores of the benchmark of tables, against values that were computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from benchmarks.tables.rows import bounded, group_weights, one_hot
from benchmarks.tables.scoring import regret, score

# Three of four rows of group a are right, one of two of group b, none of one of group c.
LABELS = np.array(["yes", "no", "no", "yes", "yes", "no", "no"])
GROUPS = np.array(["a", "a", "a", "a", "b", "b", "c"])
YES = np.array([0.9, 0.2, 0.1, 0.4, 0.3, 0.45, 0.8])


def test_worst_group_average_and_overall_count_what_they_say() -> None:
    found = score(np.stack([1 - YES, YES], axis=1), ("no", "yes"), LABELS, GROUPS, least=2)
    assert (found.worst_group, found.groups_scored) == ("b", 2)
    assert found.worst_group_accuracy == pytest.approx(1 / 2)
    assert found.average_group_accuracy == pytest.approx((3 / 4 + 1 / 2) / 2)
    assert found.accuracy == pytest.approx(4 / 7)
    assert found.by_group == {"a": (4, 3 / 4), "b": (2, 1 / 2), "c": (1, 0.0)}


def test_auc_is_the_share_of_pairs_in_the_right_order() -> None:
    found = score(np.stack([1 - YES, YES], axis=1), ("no", "yes"), LABELS, GROUPS, least=2)
    # Of 3 × 4 pairs: 0.9 is above all four, 0.4 above 0.2 and 0.1, 0.3 above 0.2 and 0.1.
    assert found.auc == pytest.approx((4 + 2 + 2) / 12)


def test_auc_of_three_classes_is_the_mean_of_each_against_the_rest() -> None:
    labels = np.array(["a", "b", "c", "a"])
    chances = np.array([[0.8, 0.1, 0.1], [0.3, 0.4, 0.3], [0.5, 0.3, 0.2], [0.4, 0.5, 0.1]])
    found = score(chances, ("a", "b", "c"), labels, np.array(["g"] * 4), least=1)
    # a: (0.8, 0.4) against (0.3, 0.5); b: 0.4 against (0.1, 0.3, 0.5); c: 0.2 against (0.1, 0.3, 0.1)
    assert found.auc == pytest.approx((3 / 4 + 2 / 3 + 2 / 3) / 3)


def test_a_table_without_a_large_group_has_no_worst_group() -> None:
    found = score(np.stack([1 - YES, YES], axis=1), ("no", "yes"), LABELS, GROUPS)
    assert math.isnan(found.worst_group_accuracy)
    assert math.isnan(found.average_group_accuracy)
    assert found.accuracy == pytest.approx(4 / 7)


@pytest.mark.parametrize("wrong", [np.ones((7, 3)), np.full((7, 2), math.nan), np.ones((6, 2))])
def test_probabilities_of_another_shape_or_without_a_value_are_refused(wrong: np.ndarray) -> None:
    with pytest.raises(ValueError, match="one finite number per row and class"):
        score(wrong, ("no", "yes"), LABELS, GROUPS)


def test_regret_is_in_points_and_below_zero_for_a_better_figure() -> None:
    assert regret(0.70, 0.75) == pytest.approx(5.0)
    assert regret(0.80, 0.75) == pytest.approx(-5.0)


def test_group_weights_give_every_group_the_same_total() -> None:
    frame = pd.DataFrame({"sex": ["f", "m", "m", "m"], "part": ["x", "x", "y", "y"]})
    assert group_weights(frame, ("sex",)).tolist() == pytest.approx([2, 2 / 3, 2 / 3, 2 / 3])
    assert group_weights(frame, ("sex", "part")).tolist() == pytest.approx([4 / 3, 4 / 3, 2 / 3, 2 / 3])


def test_rows_stay_within_their_public_bounds_and_unknown_words_are_zeros() -> None:
    frame = pd.DataFrame({"age": [0, 50, 200], "town": ["A", "C", "B"]})
    assert bounded(frame, {"age": (0, 100)}).tolist() == [[-1.0], [0.0], [1.0]]
    assert one_hot(frame, {"town": ("A", "B")}).tolist() == [[1, 0], [0, 0], [0, 1]]
