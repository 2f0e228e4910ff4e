"""Errors of predicted numbers: exact on public rows, and counts with noise on held-out rows."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import mean_absolute_error, r2_score
from torch import nn

from veil.accounting import Gaussian, Ledger, Pld, Relation, Terms
from veil.foundation.randomness import Seed
from veil.metrics import evaluate
from veil.metrics.errors import EDGES, VALUES, ErrorMetrics, ErrorRelease, errors_of_counts, noisy_errors
from veil.noise import GaussianNoise
from veil.problem import Problem
from veil.releases import Allowance


def problem(rows: int = 400, seed: int = 0) -> tuple[Problem, nn.Module]:
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, 3)).astype(np.float32)
    y = np.clip(x @ [0.3, -0.2, 0.1] + random.normal(0, 0.1, rows), -1, 1)
    groups = np.where(random.random(rows) < 0.3, "few", "many")
    made = Problem.from_arrays(x, y, groups, task="regression").with_target_range(0.0, 50.0)
    model = nn.Linear(3, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.25, -0.2, 0.0]]))
        model.bias.zero_()
    return made, model


def test_figures_on_public_rows_are_those_of_scikit_learn_in_the_unit_of_the_target() -> None:
    rows, model = problem()
    found = evaluate(model, rows)
    assert isinstance(found, ErrorMetrics)
    true = 25 * (rows.targets.numpy() + 1)
    said = 25 * (model(rows.inputs).detach().numpy()[:, 0].clip(-1, 1) + 1)
    assert found.overall.mean_absolute_error == pytest.approx(mean_absolute_error(true, said), rel=1e-5)
    assert found.overall.r2 == pytest.approx(r2_score(true, said), rel=1e-4)
    few = rows.group_of == rows.public.groups.index("few")
    own = math.sqrt(np.mean((true - said)[few] ** 2))
    assert found.errors["few"].root_mean_squared_error == pytest.approx(own, rel=1e-5)
    assert found.worst_group_error == max(one.root_mean_squared_error for one in found.errors.values())
    assert found.as_json()["by_group"]["few"]["accuracy"] is None


@pytest.mark.parametrize("relation", [Relation.ADD_REMOVE, Relation.REPLACE_ONE])
def test_a_neighbour_moves_the_counts_by_no_more_than_is_charged(relation: Relation) -> None:
    rows, model = problem(60)
    release = ErrorRelease(0.0, relation)
    silent = GaussianNoise(Seed.from_int(0))
    whole = release.make(model, rows, silent)
    assert whole.sum() == 2 * 60
    furthest = 0.0
    for row in range(60):
        neighbour = rows.without(row)
        if relation is Relation.REPLACE_ONE:
            neighbour = rows.replacing(row, 9 * torch.ones(3), torch.tensor(-1.0))
        furthest = max(furthest, float(np.linalg.norm(release.make(model, neighbour, silent) - whole)))
    assert furthest <= release.distance + 1e-9
    assert furthest == pytest.approx(release.distance), "the charge is for a neighbour that exists"


def test_the_noise_is_that_of_the_reserved_event() -> None:
    rows, model = problem(200)
    ledgers: list[Ledger] = []

    def opened(terms: Terms) -> Ledger:
        ledgers.append(Ledger(terms))
        return ledgers[-1]

    noise = GaussianNoise(Seed.from_int(1))
    allowance = Allowance(1.0, 1e-5, Relation.ADD_REMOVE, Pld(), noise, opened)
    found = noisy_errors(model, rows, allowance, rows.public.groups)
    for cell in range(2):
        ((event, times),) = ((one.event, one.times) for one in ledgers[0].spent(cell))
        assert times == 1
        assert isinstance(event, Gaussian)
        assert found.sigma == pytest.approx(event.noise_multiplier * math.sqrt(2.0))
        assert Pld().epsilon([event], 1e-5) <= 1.0


def counts(scale: float, rows: int, random: np.random.Generator) -> np.ndarray:
    errors, values = np.abs(random.normal(0, scale, rows)), random.normal(0, 0.3, rows).clip(-1, 1)
    by_size = np.histogram(np.clip(errors / 2, 0, 1), EDGES)[0]
    return np.stack([by_size, np.histogram(values, VALUES)[0]]).astype(float)


def test_small_groups_get_a_figure_near_the_truth_and_tiny_ones_none() -> None:
    """Means over 100 draws; a mean that is off by a tenth would be five standard errors away."""
    random, sigma = np.random.default_rng(3), 5.3
    found = []
    for _ in range(100):
        exact = np.stack([counts(0.15, 250, random), counts(0.1, 3000, random), counts(0.1, 20, random)])
        groups, whole = errors_of_counts(exact + random.normal(0, sigma, exact.shape), sigma)
        found.append((groups[0].root_mean_squared_error / 0.15, whole.root_mean_squared_error / 0.1))
        assert math.isnan(groups[2].root_mean_squared_error)
    small, whole_ = np.mean(found, axis=0)
    assert small == pytest.approx(1.0, abs=0.1)
    assert whole_ == pytest.approx(1.04, abs=0.05)
    assert np.std([one for one, _ in found]) < 0.2


@pytest.mark.parametrize(("groups", "rows", "within"), [(2, 180, 0.25), (4, 1000, 0.1), (13, 1000, 0.1)])
@pytest.mark.parametrize("spread", ["normal", "laplace"])
@pytest.mark.parametrize("skewed", [False, True])
def test_few_rows_make_no_model_look_better_or_worse(
    groups: int, rows: int, within: float, spread: str, skewed: bool
) -> None:
    """What noise hides at the ends is not left out: errors of 180 rows would be half as large as they are."""
    rng, sigma, found = np.random.default_rng(0), 5.3, []
    for _ in range(60):
        truth = np.clip(rng.exponential(0.3, rows) - 1 if skewed else rng.normal(0, 0.25, rows), -1, 1)
        away = np.abs(getattr(rng, spread)(0, 0.1, rows))
        counts, group = np.zeros((groups, 2, len(EDGES) - 1)), rng.integers(0, groups, rows)
        for kind, (values, edges) in enumerate(((away / 2, EDGES), (truth, VALUES))):
            place = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
            np.add.at(counts[:, kind], (group, place), 1.0)
        whole = errors_of_counts(counts + rng.normal(0, sigma, counts.shape), sigma)[1]
        squared = float((away**2).mean())
        told = whole.root_mean_squared_error / math.sqrt(squared), whole.mean_absolute_error / away.mean()
        share = abs(whole.r2 - (1 - squared / truth.var())) < 3 * whole.r2_noise
        found.append([*told, whole.error_of_the_mean / truth.std(), share])
    *ratios, covered = zip(*found, strict=True)
    for ratio in ratios:
        assert np.nanmedian(ratio) == pytest.approx(1.0, abs=within)
    assert np.mean(covered) > 0.8
