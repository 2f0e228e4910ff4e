"""Progression: raised budgets are spent and not overrun, lowered ones go back to where they held, ledgers are true."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.methods.method_cases import plan_for, small_engine, small_problem
from veil.accounting import Ledger, Repeated
from veil.errors import InputError
from veil.foundation.randomness import Seed
from veil.noise import GaussianNoise
from veil.plans import Plan
from veil.plans.controllers import first_release
from veil.plans.controllers.following_tail import FollowingTail
from veil.problem import Problem
from veil.training.fitting import Job, execute, row_losses
from veil.training.owner_curves import OwnerCurves
from veil.training.progression import (
    LATER_IS_GONE,
    CheckpointEvery,
    raise_budgets,
    raised_plan,
    roll_back,
)
from veil.training.run import Run


def finished(problem: Problem, name: str = "ino-sgd", callbacks: tuple[object, ...] = (), **options: object) -> Run:
    plan = plan_for(name, dict(options), problem, accountant="rdp")
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    return execute(Job(model, problem, None, row_losses, callbacks, ()), plan, None)  # type: ignore[arg-type]


@cache
def base_run(name: str = "ino-sgd", variant: str = "sample") -> Run:
    """A finished run that several tests go on from; going on works on a copy."""
    return finished(small_problem(), name, **({"variant": variant} if name != "dp-sgd" else {}))


def rate_of(plan: Plan, owner: str) -> float:
    rate: float = plan.details["owner_rates"][owner]
    return rate


@pytest.mark.parametrize(("name", "variant"), [("ino-sgd", "sample"), ("idp-sgd", "scale"), ("dp-sgd", "")])
def test_old_and_new_releases_together_use_the_raised_budget_and_no_more(name: str, variant: str) -> None:
    problem = small_problem()
    run = base_run(name, variant)
    more = raise_budgets(run, problem, {"careful": 1.5}, 15)
    accountant = more.plan.settings.accountant_for()
    old = first_release(run.plan.controller).events(run.plan.facts)
    new = first_release(more.plan.controller).events(more.plan.facts)
    for index, cell in enumerate(more.plan.facts.cells):
        owner = more.plan.facts.owners[cell.owner]
        parts = [Repeated(old[index], run.plan.steps)]
        if owner == "careful":
            both = accountant.epsilon([*parts, Repeated(new[index], 15)], more.plan.delta)
            assert 0.99 * 1.5 <= both <= 1.5
            assert more.certificate.by_owner[owner] == pytest.approx(both)
        else:
            assert index not in new
            assert more.certificate.by_owner[owner] == pytest.approx(accountant.epsilon(parts, more.plan.delta))
            assert more.certificate.by_owner[owner] <= more.certificate.budgets[owner]


def test_the_ledger_on_disk_records_both_parts(tmp_path: Path) -> None:
    problem = small_problem()
    run = base_run()
    raise_budgets(run, problem, {"careful": 1.5}, 15, out=tmp_path / "more")
    ledger = Ledger.open(tmp_path / "more" / "ledger.jsonl")
    entries = [(entry["purpose"], entry["count"]) for entry in ledger.entries]
    assert entries == [("earlier gradient", 20), ("gradient", 15)]
    careful = next(i for i, account in enumerate(ledger.terms.accounts) if account.owner == "careful")
    free = next(i for i, account in enumerate(ledger.terms.accounts) if account.owner == "open")
    assert sum(item.times for item in ledger.spent(careful)) == 35
    assert sum(item.times for item in ledger.spent(free)) == 20


def test_going_on_changes_a_copy_and_only_rows_of_raised_owners_take_part() -> None:
    problem = small_problem()
    run = base_run()
    before = run.model.weight.detach().clone()
    more = raise_budgets(run, problem, {"careful": 1.5}, 15)
    assert torch.equal(run.model.weight, before)
    assert not torch.equal(more.model.weight, before)
    assert rate_of(more.plan, "open") == 0.0
    assert rate_of(more.plan, "careful") > 0.0
    release = first_release(more.plan.controller)
    drawn = release.draw.sampler(problem.strata()).draw(Seed.from_int(1), 0)
    owners = {problem.public.owners[owner] for owner in problem.owner_of[drawn]}
    assert owners == {"careful"}


def line_of(plan: Plan) -> float:
    release = first_release(plan.controller)
    return sum(
        cell.rows * rate * limit
        for cell, rate, limit in zip(plan.facts.cells, release.draw.rates, release.bound.limits, strict=True)
    )


@pytest.mark.parametrize("tail", ["auto", 60])
def test_the_tail_keeps_its_share_of_the_new_line(tail: object) -> None:
    plan = raised_plan(plan_for("ino-sgd", {"tail": tail}, small_problem()), {"careful": 1.5}, 15)
    assert first_release(plan.controller).bound.tail.length == pytest.approx(0.6 * line_of(plan))


def test_a_tail_that_follows_goes_on_in_a_continued_run_at_one_cost_for_all_steps() -> None:
    plan = raised_plan(plan_for("ino-sgd", {}, small_problem(), batch_size=60), {"careful": 3.0, "open": 6.0}, 15)
    controller = plan.controller
    assert isinstance(controller, FollowingTail)
    assert controller.counts
    assert plan.details["tail"] == "follows the gradients, counted every 10 steps"
    state = controller.observe(controller.start(), 0, {"filled": np.array([-0.5 * controller.batch])})
    assert controller.release(state, 1).bound.tail.length == pytest.approx(0.8 * line_of(plan))
    events = [controller.release(state, step).events(plan.facts) for step in range(15)]
    assert all(found == events[0] for found in events)


def test_a_count_that_noise_would_hide_in_a_continued_run_is_not_made_and_the_plan_says_so() -> None:
    """One of two owners goes on, with a few rows a step: the noise on the count stays, the batch does not."""
    problem = small_problem()
    plan = raised_plan(plan_for("ino-sgd", {}, problem), {"careful": 0.52}, 15)
    controller = plan.controller
    assert isinstance(controller, FollowingTail)
    assert not controller.counts
    assert "the noise on a count of gradients would be" in plan.details["tail"]
    release = controller.release(controller.start(), 0)
    made = release.make(
        small_engine(),
        problem,
        release.draw.sampler(problem.strata()),
        Seed.from_int(1),
        0,
        GaussianNoise(Seed.from_int(1)),
    )
    assert made.statistics == {}


@pytest.mark.parametrize(
    ("budgets", "message"),
    [
        ({"careful": 0.4}, "roll back"),
        ({"careful": 0.5}, "raise at least one"),
        ({"stranger": 3.0}, "does not exist in this run"),
        ({"careful": -1.0}, "above 0"),
    ],
)
def test_budgets_that_are_not_raised_are_refused(budgets: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        raised_plan(base_run().plan, budgets, 5)


def test_methods_whose_steps_differ_are_refused() -> None:
    problem = small_problem()
    with pytest.raises(InputError, match="differ"):
        raised_plan(plan_for("ino-sgd", {"bound": "adaptive-clip"}, problem), {"careful": 1.5}, 5)
    with pytest.raises(InputError, match="not private"):
        raised_plan(plan_for("erm", {}, problem), {"careful": 1.5}, 5)


def test_rolling_back_gives_the_last_weights_at_which_the_budget_held() -> None:
    problem = small_problem()
    points = CheckpointEvery(2)
    run = finished(problem, callbacks=(points,))
    back = roll_back(run, points.kept, {"open": 1.2})
    accountant, release = run.plan.settings.accountant_for(), first_release(run.plan.controller)
    events = release.events(run.plan.facts)
    free = next(i for i, cell in enumerate(run.plan.facts.cells) if run.plan.facts.owners[cell.owner] == "open")

    def cost(steps: int) -> float:
        return accountant.epsilon([Repeated(events[free], steps)], run.plan.delta)

    steps = back.plan.steps
    assert 0 < steps < run.plan.steps
    assert cost(steps) <= 1.2 < cost(steps + 2)
    assert back.certificate.by_owner["open"] == pytest.approx(cost(steps))
    kept = next(point for point in points.kept if point.steps == steps)
    assert torch.equal(back.model.weight, kept.weights["weight"])
    assert len(back.history) == steps
    assert LATER_IS_GONE in back.certificate.not_covered
    assert back.certificate.facts["rolled_back_from"] == run.plan.steps


def test_a_checkpoint_is_what_a_shorter_run_would_have_given() -> None:
    """Weights at a step are a function of the releases up to it: the same plan cut short ends there."""
    problem = small_problem()
    points = CheckpointEvery(5)
    finished(problem, callbacks=(points,))

    class StopAtFive(CheckpointEvery):
        def on_step(self, report: object) -> None:
            super().on_step(report)  # type: ignore[arg-type]
            if self.kept:
                from veil.training.callbacks import StopTraining

                raise StopTraining("enough")

    short = StopAtFive(5)
    finished(problem, callbacks=(short,))
    assert torch.equal(short.kept[0].weights["weight"], points.kept[0].weights["weight"])


def test_a_budget_that_held_nowhere_is_refused() -> None:
    problem = small_problem()
    points = CheckpointEvery(10)
    run = finished(problem, callbacks=(points,))
    with pytest.raises(InputError, match="every checkpoint exceeds"):
        roll_back(run, points.kept, {"open": 0.01})


def test_owner_curves_are_kept_with_the_run() -> None:
    problem = small_problem()
    curves = OwnerCurves(problem, every=5)
    run = finished(problem, callbacks=(curves,))
    assert run.findings["OwnerCurves"]["steps"] == [1, 5, 10, 15, 20]
    assert set(run.findings["OwnerCurves"]["accuracy"]) == {"careful", "open"}
