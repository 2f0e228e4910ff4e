"""Adaptive clip: a threshold that falls takes neither the updates nor the privacy with it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.methods.method_cases import plan_for, small_problem
from veil.methods.adaptive_clip import AdaptiveClipSgd
from veil.plans.controllers import AdaptiveClip


def controller_with(**options: object) -> AdaptiveClip:
    controller = plan_for("adaptive-clip", options, small_problem()).controller
    assert isinstance(controller, AdaptiveClip)
    return controller


def test_updates_keep_their_unit_when_the_threshold_falls() -> None:
    controller = controller_with(clip=2.0)
    first, later = (controller.release({"clip": np.array([clip])}, 0) for clip in (2.0, 0.02))
    assert first.divisor == later.divisor == pytest.approx(controller.batch / 2.0)


def test_without_a_steady_length_updates_fall_with_the_threshold() -> None:
    controller = controller_with(clip=2.0, steady_length=False)
    first, later = (controller.release({"clip": np.array([clip])}, 0) for clip in (2.0, 0.02))
    assert first.divisor is not None
    assert later.divisor == pytest.approx(100 * first.divisor)


def test_the_cost_of_a_step_does_not_depend_on_the_threshold() -> None:
    problem = small_problem()
    for steady in (True, False):
        controller = controller_with(steady_length=steady)
        first, later = (controller.release({"clip": np.array([clip])}, 0) for clip in (1.0, 1e-4))
        assert first.events(problem.public) == later.events(problem.public)


def test_rows_that_are_still_wrong_keep_their_length_where_most_gradients_have_vanished() -> None:
    """Seven rows in ten have a vanished gradient: the default threshold stays near the others', the median does not."""
    norms = np.array([1e-3] * 7 + [1.0] * 3)
    ends = {}
    for quantile in (AdaptiveClipSgd().quantile, 0.5):
        controller = controller_with(quantile=quantile)
        state = controller.start()
        for step in range(400):
            below = controller.batch * (float((norms <= state["clip"][0]).mean()) - 0.5)
            state = controller.observe(state, step, {"below_clip": np.array([below])})
        ends[quantile] = float(state["clip"][0])
    assert ends.pop(0.5) < 2e-3
    assert all(clip > 0.8 for clip in ends.values())
    assert len(ends) == 1
