"""The bound from released values, where it is tight: a player of the weights who never moves."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from veil.methods.convex import realised
from veil.methods.convex.realised import RealisedRegret

STEPS, RADIUS, SLOPE, NOISE = 40, 2.0, 0.3, 1.0
SETTING = SimpleNamespace(weight_radius=RADIUS, bias_of_loss=0.0, constants=SimpleNamespace(middle=0.0))


def shares_of(held: float) -> float:
    """How often the bound holds in 600 runs of two equal groups that lose `SLOPE`·w, where w stays at the edge.

    Without noise the bound is exactly the excess, 2·`SLOPE`·r: whatever it forgets shows at once. `held` scales the
    noise that the account is told of.
    """
    generator, kept = np.random.default_rng(3), 0
    weights, even = np.array([[RADIUS]]), np.full(2, 0.5)
    for _ in range(600):
        regret = RealisedRegret(SETTING, STEPS, held * np.full(2, NOISE), held * NOISE)  # type: ignore[arg-type]
        for _ in range(STEPS):
            losses = SLOPE * RADIUS + NOISE * generator.standard_normal(2)
            gradient = SLOPE + NOISE * generator.standard_normal((1, 1))
            regret.add(weights, even, losses, gradient, held * NOISE)
        kept += regret.bound() >= 2 * SLOPE * RADIUS
    return kept / 600


@pytest.mark.statistical
def test_the_bound_fails_in_no_more_runs_than_it_says() -> None:
    """0.95 less three standard errors of 600 runs is 0.923."""
    assert shares_of(1.0) >= 1 - realised.WRONG


@pytest.mark.statistical
def test_a_bound_that_knows_too_little_noise_would_be_caught() -> None:
    """Told of a tenth of the noise it fails in many runs: the test above can fail."""
    assert shares_of(0.1) < 0.9


def test_without_noise_the_bound_is_the_excess() -> None:
    regret = RealisedRegret(SETTING, STEPS, np.full(2, 1e-12), 1e-12)  # type: ignore[arg-type]
    for _ in range(STEPS):
        regret.add(np.array([[RADIUS]]), np.full(2, 0.5), np.full(2, SLOPE * RADIUS), np.array([[SLOPE]]), 1e-12)
    assert regret.bound() == pytest.approx(2 * SLOPE * RADIUS, abs=1e-9)
