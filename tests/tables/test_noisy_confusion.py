"""Figures on held-out private rows: bounded, charged before a row is read, unbiased, and marked as released."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from veil.accounting import AccountingError, Ledger, Pld, Relation
from veil.foundation.randomness import Seed
from veil.metrics.noisy_confusion import ConfusionRelease, figures, noisy_metrics, predictions
from veil.noise import GaussianNoise
from veil.problem import Problem
from veil.releases import Allowance
from veil.report.usefulness import usefulness


def problem(rows: int = 300, classes: int = 2) -> Problem:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(rows, 3, generator=generator)
    targets = torch.randint(0, classes, (rows,), generator=generator)
    return Problem.from_arrays(inputs, targets, ["a" if i % 4 else "b" for i in range(rows)], classes=range(classes))


def model(classes: int = 2) -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Linear(3, classes)


class NoNoise:
    def add(self, step: int, values: dict[str, torch.Tensor], std: float, purpose: str) -> dict[str, torch.Tensor]:
        return dict(values)


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("relation", list(Relation))
def test_no_row_moves_the_counts_by_more_than_the_event_says(relation: Relation, full: bool) -> None:
    rows, net = problem(), model()
    release = ConfusionRelease(2.0, relation, full)
    whole = release.make(net, rows, NoNoise())  # type: ignore[arg-type]
    gaps = []
    for row in range(40):
        other = (
            rows.without(row)
            if relation is Relation.ADD_REMOVE
            else rows.replacing(row, -rows.inputs[row], 1 - rows.targets[row])
        )
        changed = release.make(net, other, NoNoise())  # type: ignore[arg-type]
        gaps.append(float(np.linalg.norm(whole - changed)))
    allowed = release.sigma / release.event().noise_multiplier
    assert max(gaps) <= allowed * (1 + 1e-12)
    assert max(gaps) == pytest.approx(allowed), "no row reached the bound: the test shows nothing"


def test_without_noise_the_figures_are_the_exact_ones() -> None:
    rows, net = problem(classes=3), model(3)
    counts = ConfusionRelease(1.0, Relation.ADD_REMOVE, full=True).make(net, rows, NoNoise())  # type: ignore[arg-type]
    found = figures(counts, rows.public.groups, [], 0.0)
    right = predictions(net, rows) == rows.targets.numpy()
    for index, name in enumerate(rows.public.groups):
        of = rows.group_of == index
        assert found.by_group[name].n == of.sum()
        assert found.by_group[name].accuracy == pytest.approx(right[of].mean())
    assert found.accuracy == pytest.approx(right.mean())


def allowance(epsilon: float = 1.0, relation: Relation = Relation.ADD_REMOVE, **more: Any) -> Allowance:
    return Allowance(epsilon, 1e-5, relation, Pld(), GaussianNoise(Seed.from_int(1)), **more)


@pytest.mark.parametrize("relation", list(Relation))
def test_the_cost_is_within_epsilon_and_on_disk(relation: Relation, tmp_path: Path) -> None:
    found = noisy_metrics(
        model(),
        problem(),
        allowance(relation=relation, open_ledger=lambda terms: Ledger(terms, tmp_path / "evaluation.jsonl")),
        groups=("a", "b", "c"),
    )
    ledger = Ledger.open(tmp_path / "evaluation.jsonl")
    assert 0.99 < Pld().epsilon(ledger.spent(0), 1e-5) <= 1.0
    record = found.as_json()
    assert record["released"] is True
    assert record["noise"] == found.sigma > 3
    assert record["by_group"]["c"] == {"n": 0, "accuracy": None}


def test_rows_are_not_read_when_the_reservation_fails(tmp_path: Path) -> None:
    (tmp_path / "evaluation.jsonl").touch()

    class Unread(torch.nn.Module):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            raise AssertionError("rows were read before the cost was reserved")

    with pytest.raises(AccountingError, match="never overwritten"):
        noisy_metrics(
            Unread(),
            problem(),
            allowance(open_ledger=lambda terms: Ledger(terms, tmp_path / "evaluation.jsonl")),
        )


def test_the_smallest_budget_of_any_owner_decides() -> None:
    rows = Problem.from_arrays(
        torch.zeros(40, 3), [0, 1] * 20, owners=["x", "y"] * 20, budgets={"x": 0.5, "y": 4.0}, classes=[0, 1]
    )
    strict = noisy_metrics(model(), rows, allowance(epsilon=4.0))
    alone = noisy_metrics(model(), problem(), allowance(epsilon=0.5))
    assert strict.sigma == pytest.approx(alone.sigma)


def test_noise_never_makes_a_group_out_of_nothing_or_a_share_outside_0_and_1() -> None:
    found = figures(np.array([[0.4, 0.4], [-3.0, 8.0], [-9.0, -9.0]]), ["a", "b", "c"], [], 1.0)
    assert found.by_group["a"].n == 0
    assert math.isnan(found.by_group["c"].accuracy)
    assert found.by_group["b"].accuracy == 1.0
    assert found.worst_group == "b"


@pytest.mark.statistical
def test_the_noisy_accuracy_is_centred_on_the_true_one() -> None:
    """400 seeds; the mean's standard error is below 0.002, so 0.01 is five of them (false alarm below 1e-6)."""
    rows, net = problem(2000), model()
    right = (predictions(net, rows) == rows.targets.numpy()).mean()
    values = [
        figures(
            ConfusionRelease(4.0, Relation.ADD_REMOVE).make(net, rows, GaussianNoise(Seed.from_int(seed))),
            rows.public.groups,
            [],
            4.0,
        ).accuracy
        for seed in range(400)
    ]
    assert abs(np.mean(values) - right) < 0.01
    assert np.std(values) > 0


def test_overall_accuracy_counts_no_noise_as_rows() -> None:
    """A group below 0 takes away what noise has put into another; with too little in all, nothing is said."""
    counts = np.array([[100.0, 300.0], [-60.0, 40.0]])
    assert figures(counts, ["a", "b"], [], 20.0).accuracy == pytest.approx(340 / 380)
    assert math.isnan(figures(counts, ["a", "b"], [], 100.0).accuracy)


def test_counts_by_class_say_whether_predictions_of_three_classes_follow_the_truth() -> None:
    """A model that always gives one class is no better than a constant answer; one that follows the truth is."""
    rows = problem(3000, classes=3)
    good = problem(3000, classes=3)
    good.inputs[:] = 6 * torch.nn.functional.one_hot(good.targets, 3)
    constant, knowing = torch.nn.Linear(3, 3), torch.nn.Identity()
    with torch.no_grad():
        constant.weight.zero_()
        constant.bias.copy_(torch.tensor([0.0, 1.0, 0.0]))
    bad = noisy_metrics(constant, rows, allowance()).as_json()
    found = usefulness(bad)
    assert found is not None
    assert found["sentence"] == "No better than a constant answer: do not use this model."
    assert bad["balanced_accuracy"] == pytest.approx(1 / 3, abs=0.05)
    followed = usefulness(noisy_metrics(knowing, good, allowance()).as_json())
    assert followed is not None
    assert followed["useful"] is True
    assert [sum(pair) for pair in bad["by_class"].values()] == pytest.approx([1000] * 3, abs=150)
