"""The table of figures against fairlearn, scikit-learn and counts by hand; NaN with a count, never 0."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from fairlearn.metrics import (
    MetricFrame,
    demographic_parity_difference,
    equal_opportunity_difference,
    equalized_odds_difference,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.integrate import trapezoid
from sklearn.metrics import accuracy_score, balanced_accuracy_score, confusion_matrix, log_loss, roc_auc_score

from veil.metrics import evaluate
from veil.metrics.bootstrap import intervals
from veil.metrics.definitions import ACROSS, BY_COUNTS, BY_ROWS, OVERALL, across, judged_names
from veil.metrics.groups import outcomes_of
from veil.metrics.outcomes import Outcomes
from veil.problem import Problem

NAMES = ("a", "b", "c")


def outcomes(seed: int = 0, rows: int = 600, classes: int = 2, least: int = 5) -> Outcomes:
    generator = np.random.default_rng(seed)
    targets = generator.integers(0, classes, rows)
    scores = generator.normal(size=(rows, classes)) + np.eye(classes)[targets]
    groups = generator.choice(3, rows, p=[0.6, 0.3, 0.1])
    return outcomes_of(
        torch.from_numpy(scores), torch.from_numpy(targets), groups[:, None] == np.arange(3)[None, :], NAMES, least
    )


def rows_of(found: Outcomes, group: int) -> NDArray[np.bool_]:
    return found.memberships[:, group]


def test_the_figures_of_each_group_are_those_of_scikit_learn() -> None:
    found = outcomes()
    for index, name in enumerate(NAMES):
        own = found.figures["by_group"][name]
        rows = rows_of(found, index)
        targets, predicted, chance = found.targets[rows], found.predicted[rows], found.probabilities[rows]
        assert own["n"] == rows.sum()
        assert own["accuracy"] == pytest.approx(accuracy_score(targets, predicted))
        assert own["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(targets, predicted))
        assert own["auroc"] == pytest.approx(roc_auc_score(targets, chance[:, 1]))
        assert own["loss"] == pytest.approx(log_loss(targets, chance))
        assert own["confusion"] == confusion_matrix(targets, predicted).tolist()
        assert own["tpr"] == pytest.approx(predicted[targets == 1].mean())
        assert own["fpr"] == pytest.approx(predicted[targets == 0].mean())
        low, high = own["accuracy_interval"]
        assert low < own["accuracy"] < high


def test_figures_across_groups_are_those_of_metric_frame_and_fairlearn() -> None:
    found = outcomes()
    groups = found.memberships.argmax(axis=1)
    frame = MetricFrame(metrics=accuracy_score, y_true=found.targets, y_pred=found.predicted, sensitive_features=groups)
    asked = {"y_true": found.targets, "y_pred": found.predicted, "sensitive_features": groups}
    figures = found.figures
    assert figures["worst_group_accuracy"] == pytest.approx(frame.group_min())
    assert figures["disparity"] == pytest.approx(frame.difference())
    assert figures["ratio"] == pytest.approx(frame.ratio())
    assert figures["accuracy"] == pytest.approx(frame.overall)
    assert figures["average_group_accuracy"] == pytest.approx(frame.by_group.mean())
    assert figures["parity"] == {
        "demographic_parity": pytest.approx(demographic_parity_difference(**asked)),
        "equal_opportunity": pytest.approx(equal_opportunity_difference(**asked)),
        "equalised_odds": pytest.approx(equalized_odds_difference(**asked)),
    }


def test_calibration_error_is_the_weighted_distance_of_the_calibration_curve() -> None:
    found = outcomes()
    own = found.figures["by_group"]["a"]
    curve = own["calibration"]
    gaps = [abs(c - a) * n for c, a, n in zip(curve["confidence"], curve["accuracy"], curve["rows"], strict=True)]
    assert own["ece"] == pytest.approx(sum(gaps) / sum(curve["rows"]))
    assert sum(curve["rows"]) == own["n"]


def test_the_roc_curve_encloses_the_auroc() -> None:
    own = outcomes(rows=6000).figures["by_group"]["a"]
    assert trapezoid(own["roc"]["tpr"], own["roc"]["fpr"]) == pytest.approx(own["auroc"], abs=0.01)
    assert (own["roc"]["fpr"][0], own["roc"]["tpr"][0]) == (0.0, 0.0)
    assert (own["roc"]["fpr"][-1], own["roc"]["tpr"][-1]) == (1.0, 1.0)


def test_many_classes_have_what_does_not_need_two() -> None:
    figures = outcomes(classes=4).figures
    assert figures["parity"] == {}
    own = figures["by_group"]["a"]
    assert "auroc" not in own
    assert np.array(own["confusion"]).shape == (4, 4)
    assert own["ece"] is not None


@pytest.mark.parametrize("rows", [0, 1, 4])
def test_an_empty_or_tiny_group_has_a_count_and_no_figure(rows: int) -> None:
    labels = ["big"] * 60 + ["tiny"] * rows
    inputs = np.linspace(-1, 1, len(labels), dtype=np.float32)[:, None]
    problem = Problem.from_arrays(inputs, [0, 1] * (len(labels) // 2) + [0] * (len(labels) % 2), labels)
    found = evaluate(torch.nn.Linear(1, 2), problem, ["big", "tiny"])
    record = found.as_json()
    tiny = record["by_group"]["tiny"]
    assert tiny["n"] == rows
    assert {key: value for key, value in tiny.items() if key != "n" and value is not None} == {}
    assert record["tiny_groups"] == {"tiny": rows}
    assert record["worst_group"] == "big"
    assert record["worst_group_accuracy"] == record["by_group"]["big"]["accuracy"]
    assert math.isnan(found.by_group["tiny"].accuracy)


def test_a_group_of_one_class_is_never_given_a_rate_of_zero() -> None:
    found = outcomes()
    one_class = Outcomes(
        found.targets,
        found.probabilities,
        found.losses,
        np.stack([found.targets == 0, found.targets == 1], axis=1),
        ("negative", "positive"),
    )
    groups = one_class.figures["by_group"]
    assert groups["negative"]["tpr"] is None
    assert groups["negative"]["auroc"] is None
    assert groups["positive"]["fpr"] is None
    assert one_class.figures["parity"]["equal_opportunity"] is None
    assert one_class.figures["parity"]["demographic_parity"] is not None


def test_a_row_in_two_groups_counts_in_both_and_once_overall() -> None:
    found = outcomes()
    everybody = np.ones(len(found.targets), dtype=bool)
    both = Outcomes(
        found.targets,
        found.probabilities,
        found.losses,
        np.column_stack([everybody, found.memberships[:, 0]]),
        ("all", "a"),
    )
    figures = both.figures
    assert figures["by_group"]["all"]["n"] == len(found.targets)
    assert figures["by_group"]["a"]["accuracy"] == found.figures["by_group"]["a"]["accuracy"]
    assert figures["accuracy"] == figures["by_group"]["all"]["accuracy"] == found.figures["accuracy"]


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.lists(st.one_of(st.none(), st.floats(0, 1)), min_size=1, max_size=6))
def test_what_is_said_across_groups_leaves_out_what_is_not_known(values: list[float | None]) -> None:
    known = [value for value in values if value is not None]
    given_ = np.array([math.nan if value is None else value for value in values])
    worst, average = (float(across(n).over(given_)) for n in ("worst_group_accuracy", "average_group_accuracy"))
    if not known:
        assert math.isnan(worst)
        assert math.isnan(average)
    else:
        assert worst == min(known)
        assert average == pytest.approx(float(np.mean(known)))
        assert float(across("disparity").over(given_)) == max(known) - min(known)


@pytest.mark.statistical
def test_bootstrap_intervals_cover_the_truth_as_often_as_they_say() -> None:
    """400 draws of 300 rows with accuracy 0.8: coverage 0.95 ± 0.05; false alarm below 1e-4, and the seed is fixed."""
    generator = np.random.default_rng(3)
    hits = 0
    for right in generator.binomial(300, 0.8, size=400):
        low, high = intervals(np.array([[[float(right), 300.0 - right], [0.0, 0.0]]]), resamples=400).by_group[0] or []
        hits += low <= 0.8 <= high
    assert 0.90 <= hits / 400 <= 0.99


def test_noise_in_the_counts_makes_intervals_wider() -> None:
    counts = np.array([[[40.0, 10.0], [12.0, 38.0]]])
    exact, noisy = (intervals(counts, noise).by_group[0] or [] for noise in (0.0, 10.0))
    assert noisy[1] - noisy[0] > 1.2 * (exact[1] - exact[0])


def test_the_same_counts_always_give_the_same_interval() -> None:
    counts = np.array([[[40.0, 10.0], [12.0, 38.0]], [[5.0, 3.0], [2.0, 9.0]]])
    assert intervals(counts) == intervals(counts)


def test_every_name_of_the_table_is_there_once() -> None:
    names = judged_names()
    assert len(names) == len(set(names))
    assert {"worst_group_accuracy", "privacy_cost_gap", "equalised_odds", "loss", "epsilon"} <= set(names)
    assert {f.name for f in ACROSS} | set(OVERALL) <= set(names)
    read = {name for figure in ACROSS for name in figure.reads}
    assert read <= {figure.name for figure in (*BY_COUNTS, *BY_ROWS)}


def test_the_disparity_of_losses_is_that_of_group_means_and_is_not_made_from_noisy_counts() -> None:
    found = outcomes()
    means = [found.losses[rows_of(found, group)].mean() for group in range(3)]
    assert found.figures["loss_disparity"] == pytest.approx(max(means) - min(means))
    assert found.figures["loss_disparity"] > 0
    assert "loss_disparity" not in intervals(found.counts).across
