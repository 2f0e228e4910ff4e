"""On neighbouring problems with the same randomness, no row moves a released sum by more than its own bound."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.methods.method_cases import CASES, NoNoise, plan_for, small_engine, small_problem
from tests.problem.people_cases import in_people
from veil.accounting import Relation
from veil.foundation.randomness import Seed
from veil.gradients import GradientEngine
from veil.problem import Problem
from veil.releases import GradientRelease, Released
from veil.training.losses import row_losses
from veil.training.person_losses import by_person


def engine_for(problem: Problem) -> GradientEngine:
    """That of a run on this problem or on its neighbours: it sees all their batches."""
    engine = small_engine()
    return engine if problem.several is None else GradientEngine(engine.model, by_person(problem, row_losses)[1])


def released(release: GradientRelease, problem: Problem, step: int, engine: GradientEngine | None = None) -> Released:
    sampler, engine = release.draw.sampler(problem.strata()), engine or engine_for(problem)
    problem, _ = by_person(problem, row_losses)
    return release.make(engine, problem, sampler, Seed.from_int(9), step, NoNoise())  # type: ignore[arg-type]


def distance(release: GradientRelease, one: Released, other: Released) -> float:
    """How far the bounded sums are apart (the divisor is undone)."""
    moved = [(one.gradient[name] - other.gradient[name]).flatten() for name in one.gradient]
    return float(torch.cat(moved).double().norm()) * one.divisor


def neighbours(problem: Problem, row: int, relation: Relation) -> Problem:
    if relation is Relation.ADD_REMOVE:
        return problem.without(row)
    return problem.replacing(row, -100.0 * problem.inputs[row], 1 - problem.targets[row])


@pytest.mark.parametrize("people", [False, True], ids=["rows", "people"])
@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_nobody_moves_the_sum_by_more_than_their_bound(name: str, options: dict[str, object], people: bool) -> None:
    problem = in_people(small_problem()) if people else small_problem()
    plan = plan_for(name, options, problem)
    assert plan.relation is not None
    reach = 1 if plan.relation is Relation.ADD_REMOVE else 2
    release = plan.controller.release(plan.controller.start(), 0)
    own, theirs, moved = engine_for(problem), engine_for(problem), []
    for step in range(3):
        whole = released(release, problem, step, own)
        for row in [*whole.view.rows[:12].tolist(), 1, 2]:
            other = released(release, neighbours(problem, int(row), plan.relation), step, theirs)
            limit = release.bound.limits[problem.cell_of[int(row)]]
            gap = distance(release, whole, other)
            assert gap <= reach * limit * (1 + 1e-4)
            moved.append(gap / limit)
            for statistic in release.statistics:
                change = np.linalg.norm(whole.statistics[statistic.name] - other.statistics[statistic.name])
                assert change <= reach * statistic.limit * (1 + 1e-9)
    assert max(moved) > 0.5, "no row came near its bound: the test shows nothing"


@pytest.mark.parametrize("name", ["dp-sgd", "auto-s", "adaptive-clip"])
def test_no_weight_of_a_row_lets_it_move_more_than_its_bound(name: str) -> None:
    """Weights above the public largest one count as that, and a row of weight 0 moves nothing."""
    plain = small_problem()
    given = np.array([0.0, 0.5, 1e9])[np.arange(len(plain)) % 3]
    problem = plain.with_weights(given, largest=1.0)
    plan = plan_for(name, {}, problem)
    release = plan.controller.release(plan.controller.start(), 0)
    whole, moved = released(release, problem, 0), []
    for row in map(int, whole.view.rows[:15]):
        gap = distance(release, whole, released(release, problem.without(row), 0))
        limit = min(given[row], 1.0) * release.bound.limits[problem.cell_of[row]]
        assert gap <= limit * (1 + 1e-4)
        moved.append(gap)
    assert max(moved) > 0.5 * min(release.bound.limits), "no row came near its bound: the test shows nothing"


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_a_row_that_was_not_drawn_moves_nothing(name: str, options: dict[str, object]) -> None:
    problem = small_problem()
    plan = plan_for(name, options, problem)
    release = plan.controller.release(plan.controller.start(), 0)
    whole = released(release, problem, 0)
    absent = next(row for row in range(len(problem)) if row not in whole.view.rows)
    assert plan.relation is not None
    assert distance(release, whole, released(release, neighbours(problem, absent, plan.relation), 0)) == 0.0


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_every_public_constant_is_equal_on_neighbouring_problems(name: str, options: dict[str, object]) -> None:
    problem = small_problem()
    ours = plan_for(name, options, problem)
    theirs = plan_for(name, options, problem.without(7))
    assert theirs.facts == ours.facts
    assert theirs.rules == ours.rules
    assert theirs.details == ours.details
    assert theirs.terms() == ours.terms()


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_every_owner_stays_within_its_budget(name: str, options: dict[str, object]) -> None:
    problem = small_problem()
    plan = plan_for(name, options, problem)
    assert plan.rules is not None
    accountant = plan.settings.accountant_for()
    for cell, rule in enumerate(plan.rules):
        if name == "azb-weak" and plan.facts.groups[plan.facts.cells[cell].group] != "majority":
            continue  # it says on the certificate that it exceeds the minority's budget
        spent = rule.guarantee(plan.delta, accountant)
        assert spent <= plan.facts.budget_of(cell, plan.settings.epsilon) * (1 + 1e-9)


def test_individual_budgets_are_used_up_to_one_percent() -> None:
    problem = small_problem()
    for variant in ("sample", "scale", "both"):
        plan = plan_for("idp-sgd", {"variant": variant}, problem)
        assert plan.rules is not None
        for cell, rule in enumerate(plan.rules):
            budget = plan.facts.budget_of(cell, 1.0)
            assert rule.guarantee(plan.delta, plan.settings.accountant_for()) >= 0.99 * budget
