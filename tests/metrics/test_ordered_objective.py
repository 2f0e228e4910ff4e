"""The theory of INO-SGD: weights of Theorem 3.5 by simulation, CVaR levels, and a condition that does suffice."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.methods.method_cases import plan_for
from veil.bounding import BetaTail, StepTail
from veil.bounding.ordered import Tail
from veil.errors import InputError
from veil.metrics.ordered_objective import (
    OwnerGradient,
    change_against_budget,
    cvar_levels,
    objective_weights,
    owner_conditions,
    plan_objective,
    psi_terms,
    sigma_terms,
)
from veil.metrics.owners import OwnerPull, condition_two
from veil.problem import Problem


@pytest.mark.parametrize("tail", [BetaTail(3.0), BetaTail(4.5, 2.0, 3.0), StepTail(6.0)], ids=str)
def test_a_row_weighs_what_it_weighs_on_average_over_drawn_batches(tail: Tail) -> None:
    """20,000 batches: a mean of numbers in [0, 1] is off by 0.02 with a chance below 1e-3 for all rows together."""
    rows, rate, generator = 30, 0.3, np.random.default_rng(0)
    drawn = generator.random((20_000, rows)) < rate
    behind = drawn[:, ::-1].cumsum(axis=1)[:, ::-1] - drawn
    kept = 1.0 - (tail.lost(behind + 1.0) - tail.lost(behind.astype(float)))
    simulated = (kept * drawn).sum(axis=0) / drawn.sum(axis=0)
    weights = objective_weights(rows, rate, tail)
    assert weights == pytest.approx(simulated, abs=0.02)
    assert np.all(np.diff(weights) <= 1e-12)
    assert np.all((weights >= 0) & (weights <= 1))


def test_weights_depend_on_the_tail_in_units_of_the_threshold_only() -> None:
    assert objective_weights(20, 0.4, BetaTail(5.0), 1.0) == pytest.approx(
        objective_weights(20, 0.4, BetaTail(0.1), 0.02)
    )


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.floats(0.01, 1.0), st.floats(0.0, 5.0)), min_size=1, max_size=10))
def test_the_mixture_of_cvars_is_the_weighted_loss(pairs: list[tuple[float, float]]) -> None:
    weights, losses = (np.sort(np.array(column))[::-1] for column in zip(*pairs, strict=True))
    mixed = cvar_levels(weights)
    worst = np.cumsum(losses) / np.arange(1, len(losses) + 1)
    assert mixed.scale * float(mixed.shares @ worst) == pytest.approx(float(weights @ losses) / len(losses))
    assert mixed.shares.sum() == pytest.approx(1.0)


def test_rising_weights_are_no_mixture() -> None:
    with pytest.raises(InputError, match="must not rise"):
        cvar_levels([0.5, 1.0])


def test_with_two_owners_the_condition_is_the_papers() -> None:
    pulls = [OwnerPull(0.002, 30_000, 1.0), OwnerPull(0.019, 30_000, 0.5)]
    found = owner_conditions([[1.0, -0.3], [-0.3, 1.0]], pulls)
    assert found == pytest.approx([condition_two(-0.3, pulls[0], pulls[1]), condition_two(-0.3, pulls[1], pulls[0])])


def test_owners_without_a_gradient_have_no_condition_and_pull_nobody() -> None:
    gone = np.array([[1.0, np.nan], [np.nan, np.nan]])
    found = owner_conditions(gone, [OwnerPull(0.1, 10, 1.0), OwnerPull(0.2, 10, 1.0)])
    assert found[0] == 1.0
    assert np.isnan(found[1])


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1), st.integers(2, 4), st.floats(0.0, 0.2))
def test_above_the_threshold_the_expected_step_lowers_every_owners_loss(seed: int, owners: int, noise: float) -> None:
    generator = np.random.default_rng(seed)
    means = generator.normal(size=(owners, 3)) * generator.uniform(1.0, 5.0, (owners, 1))
    rows = [mean + noise * generator.uniform(-1, 1, (6, 3)) for mean in means]
    means = np.array([own.mean(axis=0) for own in rows])
    norms = np.linalg.norm(means, axis=1)
    clips = norms * generator.uniform(0.1, 1.0, owners)
    rates = generator.uniform(0.01, 1.0, owners)
    factors = [np.minimum(1.0, clip / np.linalg.norm(own, axis=1)) for clip, own in zip(clips, rows, strict=True)]
    step = sum(rate * (phi[:, None] * own).sum(axis=0) for rate, phi, own in zip(rates, factors, rows, strict=True))
    parts = [
        OwnerGradient(
            OwnerPull(rates[n], 6, clips[n]),
            norms[n],
            float(np.linalg.norm(rows[n] - means[n], axis=1).max()),
            float(factors[n].mean()),
        )
        for n in range(owners)
    ]
    cosines = means @ means.T / np.outer(norms, norms)
    safe = owner_conditions(cosines, [part.pull for part in parts]) > sigma_terms(cosines, parts) + 1e-9
    assume(bool(safe.any()))
    assert np.all((means @ np.asarray(step))[safe] > 0)
    assert np.all(psi_terms(parts) >= 0)


def test_private_owners_that_gain_more_give_a_falling_line_with_a_small_p_value() -> None:
    budgets = np.arange(1.0, 11.0)
    jitter = np.array([0.1, -0.2, 0.15, 0.0, -0.1, 0.2, -0.15, 0.05, 0.1, -0.1])
    found = change_against_budget(budgets, 5.0 - budgets + jitter)
    assert found.slope == pytest.approx(-1.0, abs=0.05)
    assert found.p_value < 1e-6
    assert change_against_budget(budgets, jitter).p_value > 0.05
    with pytest.raises(InputError, match="three owners"):
        change_against_budget([1.0, 2.0], [0.1, 0.2])


def test_the_objective_of_a_plan_is_that_of_its_mean_rate_and_threshold() -> None:
    """With one owner the plan's weights are the theorem's own; read at every row, both mixtures are the same."""
    problem = Problem.from_arrays([[0.0]] * 60, [0, 1] * 30, owners=["one"] * 60, budgets={"one": 1.0})
    plan = plan_for("ino-sgd", {"tail": 60.0, "clip": 0.5}, problem)
    rate = plan.details["owner_rates"]["one"]
    wanted = cvar_levels(objective_weights(60, rate, BetaTail(plan.details["tail_length"], 4.0, 0.5), 0.5))
    found = plan_objective(plan, places=60)
    assert np.allclose(found.shares, wanted.shares)
    assert found.scale == pytest.approx(wanted.scale)
    assert found.shares.sum() == pytest.approx(1.0)


def test_a_longer_tail_puts_more_on_the_worst_rows_and_idp_sgd_has_no_objective() -> None:
    problem = Problem.from_arrays([[0.0]] * 200, [0, 1] * 100, owners=["one"] * 200, budgets={"one": 1.0})
    means = []
    for tail in (30.0, 60.0, 90.0):
        found = plan_objective(plan_for("ino-sgd", {"tail": tail}, problem), places=50)
        means.append(float(found.levels @ found.shares))
    assert means == sorted(means, reverse=True)
    with pytest.raises(InputError, match="does not order"):
        plan_objective(plan_for("idp-sgd", {}, problem))
