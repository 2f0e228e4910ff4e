"""Global-Adapt: one scale for rows up to Z, the ceiling from a released share, one constant joint cost."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.methods.method_cases import plan_for, small_problem
from veil.bounding import GlobalScale, check_row_local
from veil.errors import InputError
from veil.gradients import PerRow
from veil.plans.controllers.global_scale import AdaptiveScale


def controller(**options: object) -> AdaptiveScale:
    plan = plan_for("global-adapt", options, small_problem())
    assert isinstance(plan.controller, AdaptiveScale)
    return plan.controller


@settings(deadline=None, derandomize=True, max_examples=50)
@given(
    norms=st.lists(st.floats(0.0, 1e6), min_size=1, max_size=20), ceiling=st.floats(1e-3, 1e3), clip=st.floats(0.01, 10)
)
def test_short_rows_keep_their_proportions_and_no_row_exceeds_the_clip(
    norms: list[float], ceiling: float, clip: float
) -> None:
    lengths = torch.tensor(norms, dtype=torch.float64)
    facts = PerRow(torch.zeros_like(lengths), lengths, torch.ones(len(norms), dtype=torch.bool))
    scaled = GlobalScale((clip,), ceiling).weights(facts, torch.zeros(len(norms), dtype=torch.long)) * lengths
    short = lengths <= ceiling
    assert torch.allclose(scaled[short], lengths[short] * clip / ceiling)
    assert torch.allclose(scaled[~short], torch.full_like(scaled[~short], clip))


def test_the_ceiling_grows_when_many_rows_are_above_it_and_shrinks_when_few_are() -> None:
    chosen = controller(rate=0.1)
    state = {"ceiling": np.array([2.0])}
    half = chosen.observe(state, 0, {"above_ceiling": np.array([chosen.batch / 2])})
    none = chosen.observe(state, 0, {"above_ceiling": np.array([0.0])})
    assert half["ceiling"][0] == pytest.approx(2.0 * math.exp(0.4))
    assert none["ceiling"][0] == pytest.approx(2.0 * math.exp(-0.1))


def test_the_share_is_over_the_expected_batch() -> None:
    chosen = controller(rate=0.1)
    assert chosen.batch == pytest.approx(24.0)
    moved = chosen.observe({"ceiling": np.array([1.0])}, 0, {"above_ceiling": np.array([2.4])})
    assert moved["ceiling"][0] == pytest.approx(1.0)


def test_one_wild_draw_does_not_throw_the_ceiling() -> None:
    chosen = controller(rate=0.1)
    for wild in (1e9, -1e9):
        moved = chosen.observe({"ceiling": np.array([1.0])}, 0, {"above_ceiling": np.array([wild])})
        assert 0.3 < moved["ceiling"][0] < 3.0


def test_the_cost_is_joint_and_the_same_whatever_the_ceiling_is() -> None:
    problem = small_problem()
    plan = plan_for("global-adapt", {"count_noise": 10.0, "clip": 0.5}, problem)
    events = [
        plan.controller.release({"ceiling": np.array([z])}, 0).events(problem.public)[0] for z in (0.1, 1.0, 50.0)
    ]
    assert events[0] == events[1] == events[2]
    kappa = plan.details["noise_multiplier"]
    joint = (kappa**-2 + (10 * kappa) ** -2) ** -0.5
    assert events[0].noise_multiplier == pytest.approx(joint, rel=1e-12)  # type: ignore[union-attr]


def test_the_bound_looks_at_one_row_at_a_time() -> None:
    check_row_local(GlobalScale((1.0, 1.0), 3.0), 2)


@pytest.mark.parametrize("options", [{"rate": 0.0}, {"start_ceiling": -1.0}, {"tau": 0.0}, {"count_noise": 0.0}])
def test_wrong_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InputError):
        plan_for("global-adapt", options, small_problem())
