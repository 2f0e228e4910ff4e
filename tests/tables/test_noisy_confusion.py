"""Figures on held-out private rows: bounded, charged before a row is read, unbiased, and marked as released."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from veil.accounting import AccountingError, Ledger, Pld, Relation
from veil.errors import InputError
from veil.foundation.randomness import Seed
from veil.metrics.noisy_confusion import ConfusionRelease, ScoredRelease, figures, noisy_metrics, predictions
from veil.noise import GaussianNoise
from veil.problem import Problem
from veil.releases import Allowance
from veil.report.usefulness import usefulness
from veil.tables.measuring import expected_rows


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


RELEASES = {
    "confusion": ConfusionRelease(2.0, Relation.ADD_REMOVE, True),
    "right or wrong": ConfusionRelease(2.0, Relation.ADD_REMOVE, False),
    "with scores": ScoredRelease(2.0, Relation.ADD_REMOVE),
}


@pytest.mark.parametrize("kind", RELEASES)
@pytest.mark.parametrize("relation", list(Relation))
def test_no_row_moves_the_counts_by_more_than_the_event_says(relation: Relation, kind: str) -> None:
    rows, net = problem(), model()
    release = replace(RELEASES[kind], relation=relation)
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


def test_without_noise_the_scores_are_the_exact_ones() -> None:
    rows, net = problem(), model()
    release = ScoredRelease(1.0, Relation.ADD_REMOVE)
    confusion, pieces = release.apart(release.make(net, rows, NoNoise()))  # type: ignore[arg-type]
    alone = ConfusionRelease(1.0, Relation.ADD_REMOVE).make(net, rows, NoNoise())  # type: ignore[arg-type]
    np.testing.assert_allclose(confusion, alone)
    chances = torch.softmax(net(rows.inputs), dim=1)[:, 1].detach().numpy()
    for group in range(2):
        for label in range(2):
            some = chances[(rows.group_of == group) & (rows.targets.numpy() == label)]
            np.testing.assert_allclose(pieces[group, label], np.histogram(some, np.arange(21) / 20)[0])


def test_scores_cost_nothing_more_and_are_of_two_classes_alone() -> None:
    spent = []
    for scores in (False, True):
        ledgers = list[Ledger]()

        def opened(terms: Any, ledgers: list[Ledger] = ledgers) -> Ledger:
            ledgers.append(Ledger(terms))
            return ledgers[-1]

        found = noisy_metrics(model(), problem(3000), allowance(open_ledger=opened), scores=scores)
        spent.append([ledgers[0].spent(cell) for cell in range(2)])
        assert (found.scores is not None) is scores
    assert spent[0] == spent[1]
    with pytest.raises(InputError, match="two classes alone"):
        noisy_metrics(model(3), problem(classes=3), allowance(), scores=True)


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
    found = figures(np.array([[0.4, 0.4], [-3.0, 18.0], [-9.0, -9.0]]), ["a", "b", "c"], [], 1.0)
    assert found.by_group["a"].n == 0
    assert math.isnan(found.by_group["c"].accuracy)
    assert found.by_group["b"].accuracy == 1.0
    assert found.worst_group == "b"


def states(seed: int, held: int) -> np.ndarray:
    """Noisy counts [group, class, prediction] of 51 groups with so many rows each, at the noise of ε = 1."""
    generator = np.random.default_rng(seed)
    exact = generator.multinomial(held, [0.25] * 4, size=51).reshape(51, 2, 2)
    return exact + 3.0 * generator.standard_normal(exact.shape)


@pytest.mark.statistical
@pytest.mark.parametrize("held", [0, 3])
def test_among_many_groups_noise_makes_no_figure_of_a_group_that_was_not_measured(held: int) -> None:
    """1,000 releases: at most 1 % may have such a figure; 25 of them would be a chance of 4e-5."""
    names = [f"r{number}" for number in range(51)]
    found = [figures(states(seed, held), names, [], 3.0) for seed in range(1000)]
    assert sum(one.worst_group is not None for one in found) < 25


def test_a_group_that_public_sizes_say_is_tiny_has_no_figure_whatever_was_counted() -> None:
    names = [f"r{number}" for number in range(51)]
    expected = {name: 200.0 if name == "r0" else 3.0 for name in names}
    for seed in range(200):
        counts = states(seed, 3)
        counts[0] += 50
        counts[33] += 20  # as luck and noise together may
        found = figures(counts, names, [], 3.0, expected)
        assert found.worst_group == "r0"
        assert math.isnan(found.by_group["r33"].accuracy)
        shown = found.as_json()
        assert shown["by_group"]["r33"] == {"n": found.by_group["r33"].n, "accuracy": None}
        assert shown["intervals"]["worst_group_accuracy"] is not None
    # The others are not looked at, so that r0 needs fewer rows than one of 51 would.
    few = np.zeros((51, 2, 2))
    few[0] = 6.0
    assert figures(few, names, [], 3.0, expected).worst_group == "r0"
    assert figures(few, names, [], 3.0).worst_group is None


@pytest.mark.parametrize(("sizes", "expected"), [("counted", 20.0), ("released", 20.0), ("declared", 16.0)])
def test_expected_rows_follow_from_public_sizes_and_the_share_held_out(sizes: Any, expected: float) -> None:
    facts = replace(problem(320).public, sizes=sizes)  # b has 80 of the rows that were trained on
    assert expected_rows(facts, 0.2, 0.2)["b"] == pytest.approx(expected)
    assert expected_rows(facts, 0.1, 0.2)["b"] == pytest.approx(expected / 2)


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


@pytest.mark.statistical
def test_the_stated_noise_of_the_overall_accuracy_is_what_repeated_releases_vary_by() -> None:
    """A ratio of 1 within an eighth: 400 releases give it to 4 %."""
    generator, counts = np.random.default_rng(0), np.tile([[6.0, 4.0], [3.0, 7.0]], (60, 1, 1))
    names = [str(group) for group in range(60)]
    found = [figures(counts + 3.0 * generator.normal(size=counts.shape), names, [], 3.0) for _ in range(400)]
    varied = np.std([one.accuracy for one in found])
    assert np.mean([one.accuracy_sigma for one in found]) == pytest.approx(varied, rel=1 / 8)
    assert found[0].as_json()["accuracy_noise"] == found[0].accuracy_sigma


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
