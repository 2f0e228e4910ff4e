"""Thresholds for an aim: those that a search over all rows finds, and a sentence where figures cannot carry one."""

from __future__ import annotations

import numpy as np
import pytest

from veil.errors import InputError
from veil.metrics.outcomes import Outcomes
from veil.metrics.score_counts import EDGES, score_counts, thresholds_for

ROWS = 3000


def outcomes(rows: int = ROWS) -> Outcomes:
    """Rows whose second group gets lower probabilities for the same truth."""
    draw = np.random.default_rng(0)
    truth, group = draw.integers(0, 2, rows), draw.integers(0, 2, rows)
    chance = 1 / (1 + np.exp(-(2.0 * truth - 1.4 - 0.8 * group + draw.normal(size=rows))))
    chance[:3] = EDGES[[0, 100, -1]]  # on the edges themselves
    both = np.column_stack([1 - chance, chance])
    members = group[:, None] == np.arange(2)[None, :]
    return Outcomes(truth, both, np.zeros(rows), members, ("a", "b"))


FOUND = outcomes()
RECORD = score_counts(FOUND) or {}


def right(threshold: float, rows: np.ndarray) -> float:
    return float(((FOUND.probabilities[rows, 1] >= threshold) == (FOUND.targets[rows] == 1)).mean())


def recall(threshold: float, rows: np.ndarray) -> float:
    return float((FOUND.probabilities[rows & (FOUND.targets == 1), 1] >= threshold).mean())


EVERYBODY = np.ones(ROWS, dtype=bool)
GROUPS = {name: FOUND.memberships[:, place] for place, name in enumerate(FOUND.names)}


def test_the_threshold_for_accuracy_is_the_best_of_all_edges() -> None:
    chosen = thresholds_for("accuracy", RECORD)
    assert right(chosen.overall, EVERYBODY) == max(right(edge, EVERYBODY) for edge in EDGES[1:-1])
    assert chosen.reached == f"accuracy {right(chosen.overall, EVERYBODY):.3f}"


def test_the_threshold_for_the_worst_group_is_the_best_of_all_edges() -> None:
    chosen = thresholds_for("worst-group", RECORD)
    worst = [min(right(edge, rows) for rows in GROUPS.values()) for edge in EDGES[1:-1]]
    assert min(right(chosen.overall, rows) for rows in GROUPS.values()) == max(worst)


def test_a_rate_and_a_recall_are_reached() -> None:
    chosen = thresholds_for("rate=0.2", RECORD)
    assert abs((FOUND.probabilities[:, 1] >= chosen.overall).mean() - 0.2) < 0.01
    chosen = thresholds_for("recall=0.9", RECORD)
    assert 0.9 <= recall(chosen.overall, EVERYBODY) < 0.92


def test_equal_recall_gives_each_group_a_threshold_of_its_own() -> None:
    chosen = thresholds_for("equal-recall=0.8", RECORD)
    assert chosen.by_group["b"] < chosen.by_group["a"]
    assert all(0.8 <= recall(chosen.by_group[name], rows) < 0.82 for name, rows in GROUPS.items())
    as_now = thresholds_for("equal-recall", RECORD)
    assert all(abs(recall(as_now.by_group[n], r) - recall(0.5, EVERYBODY)) < 0.02 for n, r in GROUPS.items())


@pytest.mark.parametrize(
    ("aim", "sentence"),
    [("fairness", "use accuracy, worst-group, rate=SHARE"), ("rate=1.5", "between 0 and 1"), ("rate=1.2.3", "share")],
)
def test_an_unknown_aim_is_a_sentence(aim: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        thresholds_for(aim, RECORD)


def test_figures_that_cannot_carry_an_aim_are_a_sentence() -> None:
    few = score_counts(outcomes(60)) or {}
    with pytest.raises(InputError, match="its recall cannot be told"):
        thresholds_for("equal-recall", few)
    large = {"all": [[2**63] * 200] * 2, "by_group": {}}
    for damaged in ({}, {"all": [[1]], "by_group": {}}, {"all": RECORD["all"], "by_group": 3}, large):
        with pytest.raises(InputError, match=r"scores\.json of the run is damaged"):
            thresholds_for("accuracy", damaged)
    three = Outcomes(FOUND.targets, np.full((ROWS, 3), 1 / 3), FOUND.losses, FOUND.memberships, FOUND.names)
    assert score_counts(three) is None
