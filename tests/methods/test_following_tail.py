"""A tail that follows the gradients: it grows as they vanish, costs what is charged, and holds every row's limit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.methods.method_cases import plan_for
from tests.metrics.test_tail_activity import linear, two_owners
from veil.accounting import Pld, Repeated
from veil.bounding import Ordered
from veil.errors import InputError
from veil.gradients import GradientEngine, PerRow
from veil.plans.controllers import first_release
from veil.plans.controllers.following_tail import FollowingTail
from veil.training.fitting import row_losses


def controller_of(**options: object) -> FollowingTail:
    found = plan_for("ino-sgd", {"tail": "auto", **options}, two_owners()).controller
    assert isinstance(found, FollowingTail)
    return found


def test_the_tail_starts_as_long_as_a_fixed_one_and_covers_what_has_vanished() -> None:
    controller = controller_of()
    assert controller.length(controller.start()) == pytest.approx(0.6 * controller.line)
    half = {"active_share": np.array([0.5])}
    assert controller.length(half) == pytest.approx((0.5 + 0.5 * 0.6) * controller.line)
    assert controller.length({"active_share": np.array([0.0])}) == pytest.approx(controller.line)


def test_the_share_follows_what_is_counted_and_stays_a_share() -> None:
    controller = controller_of()
    state = controller.start()
    for _ in range(100):  # nobody fills a threshold: every drawn row counts −½
        state = controller.observe(state, 0, {"active": np.array([-0.5 * controller.batch])})
    assert 0 <= float(state["active_share"][0]) < 0.001
    for _ in range(100):  # noise far outside of what can be
        state = controller.observe(state, 0, {"active": np.array([1e6])})
    assert float(state["active_share"][0]) == 1.0


@pytest.mark.parametrize("bound", ["clip", "normalise"])
def test_the_count_is_that_of_rows_that_fill_half_of_their_threshold(bound: str) -> None:
    controller = controller_of(bound=bound, clip=0.5)
    problem = two_owners()
    batch = problem.batch(np.arange(4))
    for model, wanted in ((linear(0.0, 0.0), 0.5), (linear(40.0, 40.0), -0.5)):
        per_row = GradientEngine(model, row_losses).norms_and_losses(batch)
        found = controller.release(controller.start(), 0).statistics[0].measure(per_row, torch.tensor([0, 1, 0, 1]))
        assert found.flatten().tolist() == [wanted] * 4


@pytest.mark.parametrize("share", [1.0, 0.6, 0.0])
def test_every_step_costs_the_same_and_all_of_them_at_most_each_budget(share: float) -> None:
    problem = two_owners()
    plan = plan_for("ino-sgd", {"tail": "auto"}, problem)
    release = plan.controller.release({"active_share": np.array([share])}, 7)
    events = release.events(plan.facts)
    assert events == first_release(plan.controller).events(plan.facts)
    for cell, event in events.items():
        budget = plan.facts.budget_of(cell, 1.0)
        assert 0.98 * budget < Pld().epsilon([Repeated(event, plan.steps)], plan.delta) <= budget


@pytest.mark.parametrize("share", [1.0, 0.6, 0.0])
def test_a_row_moves_the_weighted_sum_by_at_most_its_threshold_whatever_the_tail(share: float) -> None:
    controller = controller_of()
    bound = controller.release({"active_share": np.array([share])}, 3).bound
    assert isinstance(bound, Ordered)
    generator = np.random.default_rng(4)
    for _ in range(30):
        count = int(generator.integers(2, 40))
        vectors = generator.standard_normal((count, 3)) * generator.exponential(2.0, (count, 1))
        losses, cells = generator.exponential(size=count), torch.from_numpy(generator.integers(0, 2, count))
        norms = np.linalg.norm(vectors, axis=1)

        def total(rows: np.ndarray, vectors=vectors, losses=losses, norms=norms, cells=cells) -> np.ndarray:  # type: ignore[no-untyped-def]
            per_row = PerRow(
                torch.from_numpy(losses[rows]), torch.from_numpy(norms[rows]), torch.ones(len(rows), dtype=torch.bool)
            )
            return bound.weights(per_row, cells[rows]).numpy() @ vectors[rows]

        every = np.arange(count)
        for row in range(count):
            moved = np.linalg.norm(total(every) - total(np.delete(every, row)))
            assert moved <= bound.limits[int(cells[row])] * (1 + 1e-9)


def test_a_tail_that_follows_a_moving_threshold_is_rejected() -> None:
    with pytest.raises(InputError, match="use bound clip or normalise"):
        plan_for("ino-sgd", {"tail": "auto", "bound": "adaptive-clip"}, two_owners())
    with pytest.raises(InputError, match="or auto"):
        plan_for("ino-sgd", {"tail": -1.0}, two_owners())
