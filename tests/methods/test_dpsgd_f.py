"""DPSGD-F: thresholds from released counts of all groups, one constant joint cost."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.methods.method_cases import NoNoise, plan_for, small_engine, small_problem
from veil.bounding import UnitGroupClip, check_row_local
from veil.errors import InputError
from veil.foundation.randomness import Seed
from veil.gradients import PerRow
from veil.plans.controllers.thresholds import GroupThresholds


def controller(**options: object) -> GroupThresholds:
    plan = plan_for("dpsgd-f", {"memory": 0.0, **options}, small_problem())
    assert isinstance(plan.controller, GroupThresholds)
    return plan.controller


def after(counts: list[float], **options: object) -> np.ndarray:
    chosen = controller(**options)
    return chosen.observe(chosen.start(), 0, {"clipped_counts": np.array(counts)})["thresholds"]


def test_a_group_that_is_clipped_more_gets_a_higher_threshold() -> None:
    expected = controller().expected
    assert expected == pytest.approx((20.0, 4.0))
    # Shares 0.25 and 0.75 of the expected rows; 8 of 24 rows over all.
    assert after([5.0, 3.0]) == pytest.approx([1 + 0.25 / (8 / 24), 1 + 0.75 / (8 / 24)])


def test_a_negative_count_is_nobody_clipped() -> None:
    assert after([-7.0, 2.0])[0] == 1.0
    assert after([-7.0, -2.0]).tolist() == [1.0, 1.0]


def test_a_threshold_never_passes_its_public_ceiling() -> None:
    assert after([0.1, 4.0], largest_ratio=2.0)[1] == pytest.approx(3.0)


def test_the_cost_is_the_same_whatever_the_thresholds_are() -> None:
    problem = small_problem()
    plan = plan_for("dpsgd-f", {}, problem)
    start = plan.controller.start()
    moved = plan.controller.observe(start, 0, {"clipped_counts": np.array([3.0, 4.0])})
    assert moved["thresholds"].tolist() != start["thresholds"].tolist()
    first, later = (plan.controller.release(state, 1).events(problem.public) for state in (start, moved))
    assert first == later


def test_the_noise_follows_the_largest_threshold_even_of_a_group_that_was_not_drawn() -> None:
    """The released mean's noise is κ·max C / b: a function of the state, not of who stands in the batch."""
    problem = small_problem()
    chosen = controller()
    state = {**chosen.start(), "thresholds": np.array([1.0, 5.0])}
    release = chosen.release(state, 1)
    assert release.sigma / release.divisor == pytest.approx(chosen.kappa * 5.0 / chosen.batch)  # type: ignore[operator]
    sampler = release.draw.sampler(problem.strata())
    made = release.make(small_engine(), problem, sampler, Seed.from_int(9), 0, NoNoise())  # type: ignore[arg-type]
    lengths = made.view.weights * made.view.per_row.norms * 5.0
    groups = torch.from_numpy(problem.group_of[made.view.rows])
    assert float(lengths[groups == 0].max()) <= 1.0 + 1e-5
    assert float(lengths[groups == 1].max()) <= 5.0 + 1e-5
    assert float(lengths[groups == 1].max()) > 1.1, "no row shows that its group has the higher threshold"


def test_averaging_starts_at_the_first_count_and_forgets() -> None:
    chosen = controller(memory=0.5)
    state = chosen.observe(chosen.start(), 0, {"clipped_counts": np.array([10.0, 2.0])})
    assert state["shares"] == pytest.approx([0.5, 0.5])
    for step in range(1, 30):
        state = chosen.observe(state, step, {"clipped_counts": np.array([0.0, 4.0])})
    assert state["shares"] == pytest.approx([0.0, 1.0], abs=1e-6)


def test_the_bound_looks_at_one_row_at_a_time() -> None:
    bound = UnitGroupClip((0.5, 2.0))
    check_row_local(bound, 2)
    facts = PerRow(torch.zeros(2), torch.tensor([0.1, 0.1]), torch.ones(2, dtype=torch.bool))
    assert bound.weights(facts, torch.tensor([0, 1])).tolist() == pytest.approx([0.5, 0.5]), (
        "short rows are not clipped"
    )


@pytest.mark.parametrize("options", [{"clip": 0.0}, {"memory": 1.0}, {"count_noise": -1.0}, {"largest_ratio": 0.0}])
def test_wrong_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InputError):
        plan_for("dpsgd-f", options, small_problem())
