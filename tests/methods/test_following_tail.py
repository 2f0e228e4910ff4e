"""A tail that follows the gradients: it grows as they vanish, costs what is charged, and holds every row's limit."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from tests.methods.method_cases import NoNoise, plan_for, small_engine, small_problem
from tests.metrics.test_tail_activity import linear, two_owners
from veil import methods
from veil.accounting import Pld, PoissonGaussian, Rdp, Repeated
from veil.bounding import Ordered
from veil.errors import InputError
from veil.foundation.randomness import Seed
from veil.gradients import GradientEngine, PerRow
from veil.noise import GaussianNoise
from veil.plans import Plan, Settings
from veil.plans.controllers import first_release
from veil.plans.controllers.following_tail import MEMORY, FollowingTail
from veil.problem import Cell, Problem, PublicFacts
from veil.releases import GradientRelease, Released
from veil.training import fit
from veil.training.fitting import row_losses

TAILS = [60.0, 80.0, 100.0]


def planned(problem: Problem | None = None, batch_size: int = 48, **options: object) -> Plan:
    """Six steps: of so few rows, noise hides a count in plans with many."""
    return plan_for("ino-sgd", dict(options), problem or small_problem(), batch_size=batch_size, steps=6)


def controller_of(problem: Problem | None = None, batch_size: int = 48, **options: object) -> FollowingTail:
    found = planned(problem, batch_size, **options).controller
    assert isinstance(found, FollowingTail)
    return found


def long(percent: float) -> dict[str, Any]:
    return {"tail_percent": np.array([percent])}


def made(
    release: GradientRelease, problem: Problem, step: int = 0, noise: Any = None, engine: GradientEngine | None = None
) -> Released:
    sampler = release.draw.sampler(problem.strata())
    return release.make(engine or small_engine(), problem, sampler, Seed.from_int(2), step, noise or NoNoise())


def test_the_tail_starts_as_long_as_a_fixed_one_and_covers_what_has_vanished() -> None:
    controller = controller_of()
    assert controller.start() == long(60.0)
    for percent in TAILS:
        bound = controller.release(long(percent), 3).bound
        assert isinstance(bound, Ordered)
        assert bound.tail.length == pytest.approx(percent / 100 * controller.line)


def test_every_count_moves_the_tail_half_of_the_way_and_noise_never_beyond_the_line() -> None:
    controller = controller_of()
    vanished = -0.5 * controller.batch
    state = controller.observe(controller.start(), 0, {"filled": np.array([vanished])})
    assert float(state["tail_percent"][0]) == pytest.approx(60 + MEMORY * 40)
    assert controller.observe(state, 1, {}) == state
    for noisy, end in ((-1e6, 100.0), (1e6, 60.0)):
        for step in range(40):
            state = controller.observe(state, step, {"filled": np.array([noisy])})
        assert float(state["tail_percent"][0]) == pytest.approx(end)


def test_where_nothing_has_vanished_noise_hardly_moves_the_tail() -> None:
    """Counts of batches whose gradients all fill their thresholds: the draw of rows and the noise are all there is."""
    controller, generator = controller_of(), np.random.default_rng(0)
    state, found = controller.start(), []
    for step in range(2000):
        drawn = generator.poisson(controller.batch)
        count = 0.5 * drawn + generator.normal(0.0, controller.count_sigma)
        state = controller.observe(state, step, {"filled": np.array([count])})
        found.append(float(state["tail_percent"][0]))
    assert np.mean(found) < 60.5
    assert controller.margin < 0.5


@pytest.mark.parametrize("bound", ["clip", "normalise"])
def test_the_count_is_that_of_rows_that_fill_half_of_their_threshold(bound: str) -> None:
    problem = two_owners()
    controller = controller_of(problem, bound=bound, clip=0.5)
    batch = problem.batch(np.arange(4))
    for model, wanted in ((linear(0.0, 0.0), 0.5), (linear(40.0, 40.0), -0.5)):
        per_row = GradientEngine(model, row_losses).norms_and_losses(batch)
        found = controller.release(controller.start(), 0).statistics[0].measure(per_row, torch.tensor([0, 1, 0, 1]))
        assert found.flatten().tolist() == [wanted] * 4


def test_a_count_comes_with_every_tenth_step_and_with_no_other() -> None:
    controller, problem = controller_of(), small_problem()
    counted = [bool(made(controller.release(long(70.0), step), problem, step).statistics) for step in range(21)]
    assert [step for step, here in enumerate(counted) if here] == [0, 10, 20]


@pytest.mark.parametrize("variant", ["sample", "scale", "both"])
@pytest.mark.parametrize("bound", ["clip", "normalise"])
def test_every_step_costs_the_same_and_all_of_them_at_most_each_budget(variant: str, bound: str) -> None:
    """Two accountants on the joint noise that is computed here from what is applied: κ = (C²/σ² + (½/σ_count)²)^-½."""
    plan = planned(variant=variant, bound=bound)
    controller = plan.controller
    first = first_release(controller).events(plan.facts)
    for step in (0, 1, 9, 10, 11):
        for percent in TAILS:
            release = controller.release(long(percent), step)
            assert release.events(plan.facts) == first
            (count,) = release.statistics
            for cell, limit in enumerate(release.bound.limits):
                kappa = 1.0 / math.hypot(limit / release.sigma, 0.5 / count.sigma)
                event = first[cell]
                assert isinstance(event, PoissonGaussian)
                assert event.noise_multiplier == pytest.approx(kappa, rel=1e-12)
                assert event.rate == release.draw.rates[cell]  # type: ignore[attr-defined]
    for cell, event in first.items():
        budget, all_steps = plan.facts.budget_of(cell, 1.0), [Repeated(event, plan.steps)]
        assert 0.98 * budget < Pld().epsilon(all_steps, plan.delta) <= budget
        assert Rdp().epsilon(all_steps, plan.delta) >= Pld().epsilon(all_steps, plan.delta)


def test_the_count_is_paid_for_by_the_thresholds_and_not_by_the_budget() -> None:
    """Forgetting the count in the thresholds would overrun every budget; in the charge, it would be hidden."""
    plan, fixed = planned(), planned(tail=60)
    release, plain = first_release(plan.controller), first_release(fixed.controller)
    for cell in range(len(plan.facts.cells)):
        alone = release.sigma / release.bound.limits[cell]
        together = release.noise_multiplier(cell)
        assert together is not None
        assert together < alone
        assert together == pytest.approx(plain.noise_multiplier(cell), rel=1e-9)
        assert plain.bound.limits[cell] * 0.979 <= release.bound.limits[cell] < plain.bound.limits[cell]


@pytest.mark.parametrize("percent", TAILS)
@pytest.mark.parametrize("variant", ["sample", "scale"])
def test_what_any_row_moves_is_what_it_is_charged_and_some_row_moves_that_much(percent: float, variant: str) -> None:
    """Gradient and count together, each in units of its noise, against the reciprocal of the charged κ.

    The row that comes nearest uses more than the gradient's part of the charge: without the count in it, it would
    be above.
    """
    problem = small_problem()
    plan = planned(variant=variant)
    release, engine = plan.controller.release(long(percent), 0), small_engine()
    (count,) = release.statistics
    whole, events = made(release, problem, engine=engine), release.events(plan.facts)
    used, over = [], []
    for row in whole.view.rows.tolist():
        other = made(release, problem.without(row), engine=engine)
        cell = int(problem.cell_of[row])
        gap = torch.cat([(whole.total[name] - other.total[name]).flatten() for name in whole.total]).double().norm()
        moved = float(gap) / release.sigma
        counted = float(np.abs(whole.statistics["filled"] - other.statistics["filled"])[0])
        assert counted <= 0.5
        kappa = events[cell].noise_multiplier  # type: ignore[union-attr]
        used.append(math.hypot(moved, counted / count.sigma) * kappa)
        over.append(used[-1] - release.bound.limits[cell] / release.sigma * kappa)
    assert max(used) <= 1 + 1e-4
    if percent < 100:  # the hardest row of a line that is longer than its tail weighs fully
        assert max(used) > 1 - 1e-3
        assert max(over) > 0.002, "the test would not see a count that is not charged"


def test_the_noise_on_the_count_is_what_the_charge_needs() -> None:
    """The charge and the thresholds alone say how much noise it must be; half of it has a χ² that is never seen."""
    problem = small_problem()
    plan = planned()
    release, engine, draws = first_release(plan.controller), small_engine(), 200
    event = release.events(plan.facts)[0]
    needed = 0.5 / math.sqrt(event.noise_multiplier**-2 - (release.bound.limits[0] / release.sigma) ** 2)  # type: ignore[union-attr]
    exact = made(release, problem, engine=engine).statistics["filled"]
    noise = [
        made(release, problem, 0, GaussianNoise(Seed.from_int(k)), engine).statistics["filled"] for k in range(draws)
    ]
    spread = float(sum((one - exact)[0] ** 2 for one in noise)) / needed**2
    assert stats.chi2.ppf(1e-7, draws) < spread < stats.chi2.ppf(1 - 1e-7, draws)
    assert spread / 4 < stats.chi2.ppf(1e-7, draws), "half of the noise would pass: the test shows nothing"


@pytest.mark.parametrize("percent", TAILS)
def test_a_row_moves_the_weighted_sum_by_at_most_its_threshold_whatever_the_tail(percent: float) -> None:
    bound = controller_of(two_owners()).release(long(percent), 3).bound
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


def test_rows_that_are_missing_or_not_finite_add_nothing_to_the_count() -> None:
    """Of a row that is not finite, nothing is counted; of a batch without rows, noise alone is released."""
    problem, controller = small_problem(), controller_of()
    release = controller.release(controller.start(), 0)
    whole = made(release, problem)
    row = int(whole.view.rows[0])
    broken = problem.replacing(row, problem.inputs[row] * float("inf"), problem.targets[row])
    assert made(release, broken).statistics["filled"] == made(release, problem.without(row)).statistics["filled"]
    empty = problem
    for one in whole.view.rows.tolist():
        empty = empty.without(one)
    assert made(release, empty).statistics["filled"].tolist() == [0.0]
    assert made(release, empty, noise=GaussianNoise(Seed.from_int(1))).statistics["filled"][0] != 0.0


def followed(problem: Problem, **settings: Any) -> Any:
    chosen = {"delta": 1e-4, "steps": 25, "batch_size": 48, "seed": 5, "learning_rate": 1.0, **settings}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 2)
    return fit(model, problem, method="ino-sgd", **chosen)


def test_the_tail_of_a_run_grows_as_gradients_vanish_and_is_told_with_it(tmp_path: Path) -> None:
    run = followed(small_problem(), out=tmp_path / "run")
    assert run.plan.details["tail"] == "follows the gradients, counted every 10 steps"
    record = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    lengths = [value for (value,) in record["history"]["tail_percent"]]
    assert len(set(lengths)) == 3
    assert lengths[0] == lengths[9] != lengths[10] == lengths[19] != lengths[20]
    assert lengths[-1] > 75
    counts = record["history"]["filled"]
    assert [step for step, count in enumerate(counts) if count is not None] == [0, 10, 20]


def test_micro_batches_give_the_same_tail() -> None:
    runs = [followed(small_problem(), micro_batch=micro) for micro in (None, 7)]
    assert runs[0].history["tail_percent"].tolist() == runs[1].history["tail_percent"].tolist()


def test_one_owner_with_one_budget_for_all_has_a_tail_that_follows() -> None:
    problem = Problem.from_arrays(small_problem().inputs, small_problem().targets, classes=[0, 1])
    run = followed(problem, epsilon=2.0)
    assert isinstance(run.plan.controller, FollowingTail)
    assert 1.98 < max(run.certificate.by_group.values()) <= 2.0


@pytest.mark.parametrize(
    ("options", "settings", "why"),
    [
        ({"bound": "adaptive-clip"}, {}, "under an adaptive clip"),
        ({}, {"steps": 1}, "there is one step only"),
        ({}, {"steps": 200}, "the noise on a count of gradients would be"),
        ({"tail": 60}, {}, "fixed"),
    ],
)
def test_where_the_tail_cannot_follow_it_is_the_fixed_one_and_the_plan_says_why(
    options: dict[str, object], settings: dict[str, object], why: str
) -> None:
    problem = small_problem()
    plan = plan_for("ino-sgd", options, problem, **settings)
    fixed = plan_for("ino-sgd", {**options, "tail": 60}, problem, **settings)
    assert plan.controller == fixed.controller
    assert plan.rules == fixed.rules
    assert plan.details["tail"].startswith("fixed")
    assert why in plan.details["tail"]


def test_an_unknown_tail_is_rejected() -> None:
    with pytest.raises(InputError, match="or auto"):
        plan_for("ino-sgd", {"tail": -1.0}, two_owners())


def test_a_tail_that_would_grow_too_long_for_the_rounding_of_weights_is_rejected_before_the_run() -> None:
    """At 60 % of the line it is still short enough: the run would begin, and end where gradients vanish."""
    cells = (Cell(0, 0, 20_000), Cell(0, 1, 80_000))
    facts = PublicFacts(("all",), ("low", "high"), cells, (4,), classes=("0", "1"), budgets=(0.01, 8.0))

    def planned_by(tail: object) -> Plan:
        made = Settings.checked(epsilon=1.0, steps=50, batch_size=8192)
        return methods.create("ino-sgd", {"variant": "scale", "tail": tail}).plan(facts, made)

    assert first_release(planned_by(60).controller).bound.limits
    with pytest.raises(InputError, match="too small for the rounding"):
        planned_by("auto")
