"""Losses: their constants hold over the ball, and a row outside the ball is brought into it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from veil.errors import InputError
from veil.methods.convex.losses import Constants, Hinge, Logistic, Loss, SmoothedHinge, Softmax, Squared, certified
from veil.methods.convex.rows import into_ball, project

LOSSES: tuple[Loss, ...] = (Logistic(), SmoothedHinge(0.5), SmoothedHinge(3.0), Hinge(), Squared(1.0), Softmax(3))


def drawn(loss: Loss, seed: int, feature_radius: float, radius: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows and weights anywhere in their balls, most of them on the sphere, with scores and targets."""
    generator = np.random.default_rng(seed)
    outputs = 3 if isinstance(loss, Softmax) else 1
    x = into_ball(
        generator.standard_normal((40, 5)) * generator.choice([0.1, 10.0], (40, 1)) * feature_radius, feature_radius
    )
    weights = project(generator.standard_normal((5, outputs)) * 10, radius)
    x[0] = feature_radius * weights[:, 0] / max(np.linalg.norm(weights[:, 0]), 1e-12)
    targets = generator.integers(0, 3, 40).astype(float) if outputs == 3 else generator.choice([-1.0, 1.0], 40)
    return x, weights, targets


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__ + str(getattr(loss, "width", "")))
@settings(deadline=None, derandomize=True, max_examples=40)
@given(st.integers(0, 10**6), st.floats(0.2, 3.0), st.floats(0.2, 4.0))
def test_no_row_is_steeper_or_further_off_than_the_constants_say(
    loss: Loss, seed: int, feature_radius: float, radius: float
) -> None:
    constants = certified(loss, feature_radius, radius)
    x, weights, targets = drawn(loss, seed, feature_radius, radius)
    scores = x @ weights
    values, slopes = loss.values(scores, targets), loss.slopes(scores, targets)
    assert values.min() >= constants.low - 1e-9
    assert values.max() <= constants.high + 1e-9
    lengths = np.linalg.norm(x, axis=1) * np.linalg.norm(slopes, axis=1)
    assert lengths.max() <= constants.lipschitz * (1 + 1e-9)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__ + str(getattr(loss, "width", "")))
def test_slopes_are_subgradients_and_change_no_faster_than_the_smoothness(loss: Loss) -> None:
    x, weights, targets = drawn(loss, 1, 1.0, 2.0)
    other = project(weights + 0.3 * np.random.default_rng(2).standard_normal(weights.shape), 2.0)
    here, there = x @ weights, x @ other
    slope = loss.slopes(here, targets)
    below = loss.values(here, targets) + (slope * (there - here)).sum(axis=1)
    assert (loss.values(there, targets) >= below - 1e-12).all()
    smoothness = loss.constants(1.0, 2.0).smoothness
    if np.isfinite(smoothness):
        moved = np.linalg.norm((slope - loss.slopes(there, targets)), axis=1) * np.linalg.norm(x, axis=1)
        assert (moved <= smoothness * np.linalg.norm(weights - other) * (1 + 1e-9)).all()


def test_the_logistic_range_is_the_product_of_the_radii() -> None:
    constants = Logistic().constants(2.0, 3.0)
    assert constants.range == pytest.approx(6.0)
    assert constants.lipschitz < 2.0


def test_a_loss_that_understates_its_constants_is_refused() -> None:
    @dataclass(frozen=True)
    class Boastful(Logistic):
        def constants(self, feature_radius: float, weight_radius: float) -> Constants:
            true = Logistic.constants(self, feature_radius, weight_radius)
            return Constants(true.steepness / 2, true.lipschitz / 2, true.low, true.high, true.smoothness)

    with pytest.raises(InputError, match="do not hold"):
        certified(Boastful(), 1.0, 1.0)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=3, max_size=3), st.floats(0.1, 5.0))
def test_every_row_ends_inside_the_feature_ball(row: list[float], radius: float) -> None:
    inside = into_ball(np.array([row]), radius)
    assert np.isfinite(inside).all()
    assert np.linalg.norm(inside) <= radius
    if np.isfinite(row).all() and 0 < math.hypot(*row) <= radius * (1 - 1e-9):
        assert np.allclose(inside[0], row, rtol=1e-9)


def test_shortening_a_row_changes_no_predicted_class() -> None:
    generator = np.random.default_rng(0)
    rows, weights = generator.standard_normal((200, 4)) * 5, generator.standard_normal((4, 3))
    assert ((into_ball(rows, 1.0) @ weights).argmax(axis=1) == (rows @ weights).argmax(axis=1)).all()
