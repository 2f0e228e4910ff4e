"""DPSUR: every try is charged, the test is bounded, and a rejection leaves no trace but in the momentum."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import veil
from tests.methods.method_cases import NoNoise, plan_for, small_engine, small_problem
from veil.accounting import Ledger, Relation, TokenBucket
from veil.datasets import GroupSpec, generate
from veil.errors import InputError
from veil.foundation.randomness import Seed
from veil.plans import Plan
from veil.plans.controllers.gate import Gate
from veil.problem import Problem
from veil.training.fitting import row_losses
from veil.training.loop import Loop


def looped(plan: Plan, problem: Problem, ledger: Ledger | None = None) -> Loop:
    return Loop(small_engine().model, problem, plan, row_losses, Seed.from_int(5), ledger)


def test_every_try_and_every_test_is_in_the_ledger_whatever_was_kept() -> None:
    problem = small_problem()
    for threshold in (-1.0, 0.0, 1.0):
        plan = plan_for("dpsur", {"threshold": threshold}, problem)
        ledger = Ledger(plan.terms())
        loop = looped(plan, problem, ledger)
        loop.run()
        for cell, rule in enumerate(plan.rules or ()):
            assert isinstance(rule, TokenBucket)
            assert {(item.event, item.times) for item in ledger.spent(cell)} == {
                (token.event, token.times) for token in rule.tokens
            }
            assert sum(item.times for item in ledger.spent(cell)) == 2 * plan.steps


def test_the_guarantee_counts_tests_too() -> None:
    plan = plan_for("dpsur", {}, small_problem())
    without = [TokenBucket(rule.tokens[:1]) for rule in plan.rules or () if isinstance(rule, TokenBucket)]
    accountant = plan.settings.accountant_for()
    assert (plan.rules or ())[0].guarantee(plan.delta, accountant) > 1.005 * without[0].guarantee(
        plan.delta, accountant
    )


def test_refusing_everything_leaves_model_and_optimizer_as_they_were() -> None:
    problem = small_problem()
    for settings in ({"momentum": 0.9}, {"optimizer": "adam"}, {"noise_filter": "disk", "ema": 0.9}):
        plan = plan_for("dpsur", {}, problem, **settings)
        assert plan.gate is not None
        never = replace(plan, gate=replace(plan.gate, threshold=-1e9, sigma=1e-9), rules=None)
        loop = looped(never, problem)
        before = [p.detach().clone() for p in loop.model.parameters()]
        loop.run()
        assert [value[0] for value in (record["accepted"] for record in loop.reporter.history)] == [0.0] * plan.steps
        for old, new in zip(before, loop.model.parameters(), strict=True):
            assert torch.equal(old, new)
        assert not loop.optimizer.slots()


def test_keeping_everything_is_dp_sgd() -> None:
    problem = small_problem()
    plan = plan_for("dpsur", {}, problem)
    assert plan.gate is not None
    always = looped(replace(plan, gate=replace(plan.gate, threshold=1e9), rules=None), problem)
    plain = looped(replace(plan, gate=None, rules=None), problem)
    always.run()
    plain.run()
    for one, other in zip(always.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_momentum_starts_anew_after_a_refusal() -> None:
    """With the momentum of before, a try that went too far would be followed by the same try for ever."""
    problem = small_problem()
    plan = plan_for("dpsur", {}, problem, momentum=0.9)
    assert plan.gate is not None
    loop = looped(replace(plan, rules=None), problem)
    gradient = {name: torch.ones_like(p) for name, p in loop.model.named_parameters()}
    loop.optimizer.update(dict(gradient), 0)
    take_back = loop.optimizer.snapshot()
    loop.optimizer.update({name: 100 * value for name, value in gradient.items()}, 1)
    take_back()
    loop.optimizer.update(dict(gradient), 2)
    other = looped(replace(plan, rules=None), problem)
    other.optimizer.update(dict(gradient), 0)
    other.optimizer.load_slots({})
    other.optimizer.update(dict(gradient), 2)
    for one, two in zip(loop.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(one, two)


def test_tries_pass_again_after_refusals_with_momentum() -> None:
    """Fast steps on easy rows: momentum overshoots again and again, and later tries must still be kept."""
    problem = generate([GroupSpec("only", 2000)], features=4)
    plan = plan_for("dpsur", {}, problem, epsilon=50.0, steps=60, batch_size=200, learning_rate=5.0, momentum=0.95)
    loop = Loop(nn.Linear(4, 2), problem, replace(plan, rules=None), row_losses, Seed.from_int(5), None)
    loop.run()
    kept = [record["accepted"][0] for record in loop.reporter.history]
    assert 0 < sum(kept[:30]) < 30
    assert sum(kept[30:]) > 0


def gate(limit: float = 0.1, rate: float = 0.3) -> Gate:
    return Gate(rate, limit, 1.0, 0.0, Relation.ADD_REMOVE)


def test_no_row_moves_the_test_by_more_than_its_limit() -> None:
    problem = small_problem()
    chosen, seed = gate(), Seed.from_int(3)
    old, new = small_engine().model, small_engine().model
    with torch.no_grad():
        for parameter in new.parameters():
            parameter.add_(0.3)

    def change(of: Problem) -> float:
        rows = chosen.rows(of.strata(), seed, 4)
        with torch.no_grad():
            before, after = row_losses(old, of.batch(rows)), row_losses(new, of.batch(rows))
        mean = chosen.judge(before, after, of.public, 4, NoNoise()).change  # type: ignore[arg-type]
        return mean * chosen.rate * of.public.rows

    drawn = chosen.rows(problem.strata(), seed, 4)
    moved = [abs(change(problem.without(int(row))) - change(problem)) for row in drawn[:30]]
    assert max(moved) <= chosen.limit * (1 + 1e-9)
    assert max(moved) > 0.9 * chosen.limit
    absent = next(row for row in range(240) if row not in drawn)
    assert change(problem.without(absent)) == change(problem)


def test_the_test_draws_other_rows_than_the_gradient() -> None:
    problem = small_problem()
    plan = plan_for("dpsur", {}, problem)
    assert plan.gate is not None
    sampler = plan.controller.release({}, 0).draw.sampler(problem.strata())
    mine = sampler.draw(Seed.from_int(5), 0)
    assert not np.array_equal(plan.gate.rows(problem.strata(), Seed.from_int(5), 0), mine)


def test_losses_that_are_not_finite_count_as_no_change() -> None:
    before, after = torch.tensor([1.0, float("nan"), 1.0]), torch.tensor([0.95, 1.0, float("inf")])
    verdict = gate(rate=1.0).judge(before, after, small_problem().public, 0, NoNoise())  # type: ignore[arg-type]
    assert verdict.change == pytest.approx((-0.05 + 0.0 + 0.1) / 240, rel=1e-5)
    assert not verdict.accepted


def test_an_update_that_helps_clearly_is_kept_and_one_that_hurts_is_not() -> None:
    facts = small_problem().public
    before = torch.ones(72)
    assert gate().judge(before, before - 0.05, facts, 0, NoNoise()).accepted  # type: ignore[arg-type]
    assert not gate().judge(before, before + 0.05, facts, 0, NoNoise()).accepted  # type: ignore[arg-type]


def test_the_history_shows_what_was_kept() -> None:
    run = veil.fit(small_engine().model, small_problem(), method="dpsur", epsilon=1.0, steps=5, batch_size=24, seed=1)
    assert set(run.history["accepted"].map(lambda value: value[0])) <= {0.0, 1.0}


@pytest.mark.parametrize("options", [{"test_clip": 0.0}, {"test_noise": 0.0}, {"threshold": 2.0}])
def test_wrong_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InputError):
        plan_for("dpsur", options, small_problem())
