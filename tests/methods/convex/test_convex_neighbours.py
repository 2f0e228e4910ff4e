"""The convex solvers on neighbouring problems: no row moves a released value by more than it is charged for."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.methods.convex.convex_cases import CASES, NAMES, linear, made_problem, plan_of
from veil import methods
from veil.accounting import Gaussian, Laplace, Ledger, NoisyMax, Relation, Repeated, Tree
from veil.errors import InputError
from veil.foundation.randomness import Seed
from veil.methods.convex import phased
from veil.methods.convex.online import Game, make_pools
from veil.methods.convex.phased import PhasedErm, fold_of_rows
from veil.methods.convex.reweighting import NoisySgd
from veil.methods.convex.saddle import reach_of_one_row
from veil.methods.convex.setting import reach_of
from veil.methods.convex.sgd_plan import Asked, choice_event
from veil.plans import Plan
from veil.plans.controllers.solver import Solver
from veil.problem import Problem


def neighbour(problem: Problem, row: int, relation: Relation) -> Problem:
    if relation is Relation.ADD_REMOVE:
        return problem.without(row)
    return problem.replacing(row, -100.0 * problem.inputs[row], problem.targets[row])


def quiet(step: int, state: object) -> None:
    """Nobody watches."""


def solved(plan: Plan, problem: Problem, seed: Seed) -> NDArray[np.float64]:
    model = linear()
    assert plan.solver is not None
    plan.solver.solve(model, problem, seed, Ledger(plan.terms()), quiet)
    return np.concatenate([p.detach().double().numpy().ravel() for p in model.parameters()])


def test_every_convex_method_is_replayed_here() -> None:
    assert set(NAMES) == {row["name"] for row in methods.table() if row["family"] == "convex, with proofs"}


# Phased ERM

SADDLE = SimpleNamespace(weights=np.zeros((5, 1)))


@pytest.mark.parametrize("options", [options for name, options in CASES if name == "phased-erm"], ids=str)
def test_no_row_moves_the_solution_of_its_fold_by_more_than_its_limit(options: dict[str, Any]) -> None:
    problem = made_problem()
    plan = plan_of("phased-erm", options, problem)
    solver, seed = plan.solver, Seed.from_int(1)
    assert isinstance(solver, PhasedErm)
    assert plan.relation is not None
    folds = fold_of_rows(problem, len(solver.phases), seed)
    assert set(folds.tolist()) - {-1} == set(range(len(solver.phases)))
    moved = []
    for step, phase in list(enumerate(solver.phases))[:2]:
        rows, centre = np.flatnonzero(folds == step), np.full((5, 1), 0.1)
        whole = solver.saddle_point(problem, rows, centre, phase, True)
        for row in rows[:8].tolist():
            other = neighbour(problem, row, plan.relation)
            theirs = fold_of_rows(other, len(solver.phases), seed)
            kept = [i for i in range(len(folds)) if other.present[i]]
            assert (theirs[kept] == folds[kept]).all(), "a row changed the fold of another"
            apart = solver.saddle_point(other, np.flatnonzero(theirs == step), centre, phase, True)
            limit = reach_of(plan.relation) * phase.limits[int(problem.cell_of[row])]
            gap = float(np.linalg.norm(apart - whole))
            assert gap <= limit * (1 + 1e-9)
            moved.append(gap / limit)
    assert max(moved) > 0.02, "no row moved anything: the test shows nothing"


@pytest.mark.parametrize("owners", [True, False])
@pytest.mark.parametrize("folds", [3, 7])
def test_folds_have_the_sizes_that_the_bound_on_the_risk_assumes(owners: bool, folds: int) -> None:
    """Seven folds leave five rows of the one group and four of the other over: they stand in no fold."""
    problem = made_problem(owners=owners)
    sizes = problem.public.group_sizes
    found = fold_of_rows(problem, folds, Seed.from_int(1))
    for group, size in enumerate(sizes):
        stands = found[(problem.group_of == group) & (found >= 0)]
        assert np.bincount(stands).tolist() == [size // folds] * folds
    solver = plan_of("phased-erm", {"phases": folds}, problem).solver
    assert isinstance(solver, PhasedErm)
    read = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(phased, "accelerated", lambda saddle, tolerance: read.append(saddle) or SADDLE)
        for step in range(folds):
            solver.saddle_point(problem, np.flatnonzero(found == step), np.zeros((5, 1)), solver.phases[step], True)
    for saddle in read:
        assert saddle.sizes.tolist() == np.bincount(saddle.rows.groups).tolist(), "a mean over other than its rows"


@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
def test_a_phase_is_charged_for_the_reach_of_a_row_among_the_rows_of_one_fold(relation: str) -> None:
    problem = made_problem()
    solver = plan_of("phased-erm", {"phases": 7, "neighbours": relation}, problem).solver
    assert isinstance(solver, PhasedErm)
    folds = fold_of_rows(problem, 7, Seed.from_int(1))
    for step, phase in enumerate(solver.phases):
        rows = np.bincount(problem.group_of[folds == step])
        for cell, limit in zip(problem.public.cells, phase.limits, strict=True):
            reach = reach_of_one_row(solver.setting.constants, phase.mu_w, phase.mu_lambda)
            assert reach / rows[cell.group] < limit < 1.02 * reach / rows[cell.group]


def test_several_phases_are_refused_where_a_row_may_really_be_deleted() -> None:
    x = np.random.default_rng(0).standard_normal((120, 2))
    groups, declared = ["a", "b"] * 60, {"a": 60, "b": 60}
    problem = Problem.from_arrays(x, (x[:, 0] > 0).astype(int), groups, group_sizes=declared)
    assert problem.public.sizes == "declared"
    added = {"neighbours": "add-remove"}
    for more in ({"phases": 2}, {"schedule": "paper"}):
        with pytest.raises(InputError, match="folds of equal size"):
            plan_of("phased-erm", added | more, problem)
        assert plan_of("phased-erm", more, problem).details["phases"] > 1
    assert plan_of("phased-erm", added, problem).details["phases"] == 1


def test_the_charge_of_a_phase_is_its_noise_over_its_limit() -> None:
    problem = made_problem()
    plan = plan_of("phased-erm", {"phases": 3}, problem)
    assert isinstance(plan.solver, PhasedErm)
    for phase in plan.solver.phases:
        for cell, event in enumerate(plan.solver.events):
            assert isinstance(event, Gaussian)
            assert event.noise_multiplier <= phase.sigma / phase.limits[cell] * (1 + 1e-12)
            assert event.noise_multiplier == pytest.approx(phase.sigma / phase.limits[cell], rel=1e-9)


def test_a_larger_group_has_a_smaller_epsilon() -> None:
    problem = made_problem(owners=False)
    plan = plan_of("phased-erm", {}, problem)
    assert plan.rules is not None
    spent = [rule.guarantee(plan.delta, plan.settings.accountant_for()) for rule in plan.rules]
    assert problem.public.group_sizes == (180, 60)
    assert spent[1] == pytest.approx(1.0, rel=1e-3)
    assert spent[0] < 0.5


# Noisy SGD


@pytest.mark.parametrize(("name", "options"), [case for case in CASES if case[0].startswith("noisy")], ids=str)
def test_no_row_moves_a_gradient_or_a_loss_by_more_than_it_is_charged_for(name: str, options: dict[str, Any]) -> None:
    problem = made_problem()
    plan = plan_of(name, options, problem)
    solver, facts = plan.solver, problem.public
    assert isinstance(solver, NoisySgd)
    assert plan.relation is not None
    reach, constants = reach_of(plan.relation), solver.setting.constants
    weights = np.array([[0.5], [-1.0], [0.3], [0.0], [2.0]])

    def exact(of: Problem) -> tuple[list[NDArray[np.float64]], NDArray[np.float64]]:
        groups = [solver.setting.read(of, np.flatnonzero(of.present & (of.group_of == g)), True) for g in range(2)]
        return [solver.gradient_sum(rows, weights) for rows in groups], solver.exact_losses(groups, weights)

    sums, losses = exact(problem)
    moved = []
    for row in range(40):
        group, cell = int(problem.group_of[row]), int(problem.cell_of[row])
        other_sums, other_losses = exact(neighbour(problem, row, plan.relation))
        gap = float(np.linalg.norm(other_sums[group] - sums[group]))
        event = solver.gradient_events[cell]
        limit = solver.gradient_noise[group] / event.noise_multiplier  # type: ignore[union-attr]
        assert limit == pytest.approx(constants.lipschitz)
        assert gap <= reach * limit * (1 + 1e-9)
        assert np.array_equal(other_sums[1 - group], sums[1 - group])
        assert other_losses[1 - group] == losses[1 - group]
        step = abs(other_losses[group] - losses[group])
        assert step <= reach * constants.range / 2 / facts.group_sizes[group] * (1 + 1e-9)
        choice = solver.choice_events[cell]
        scale = solver.loss_noise[group]
        if isinstance(choice, Gaussian | Laplace):
            assert step / scale <= reach / choice.noise_multiplier * (1 + 1e-9)
        else:
            assert isinstance(choice, NoisyMax)
            assert step / scale <= choice.range * (1 + 1e-9)
        moved.append(gap / (reach * limit))
    assert max(moved) > 0.2, "no row came near its bound: the test shows nothing"


@pytest.mark.parametrize("options", [{}, {"neighbours": "add-remove"}, {"batch": 20}, {"sizes": "n-min"}], ids=str)
@pytest.mark.parametrize("share", [0.001, 0.3, 0.999])
def test_no_row_moves_the_weighted_gradient_by_more_than_it_is_charged_for(
    options: dict[str, Any], share: float
) -> None:
    """Both sides have the same noise, so that their difference is what the row moved."""
    problem = made_problem()
    plan = plan_of("noisy-sgd-mgr", options, problem)
    solver, seed, shares = plan.solver, Seed.from_int(2), np.array([1 - share, share])
    assert isinstance(solver, NoisySgd)
    assert plan.relation is not None
    weights = np.array([[0.5], [-1.0], [0.3], [0.0], [2.0]])

    def released(of: Problem) -> NDArray[np.float64]:
        names = [np.flatnonzero(of.present & (of.group_of == g)) for g in range(2)]
        groups = [solver.setting.read(of, own, True) for own in names]
        return solver.weighted_gradient(groups, names, shares, weights, seed, 3)

    whole, std, moved = released(problem), solver.weighted_std(shares), []
    for row in range(60):
        gap = float(np.linalg.norm(released(neighbour(problem, row, plan.relation)) - whole))
        kappa = solver.gradient_events[int(problem.cell_of[row])].noise_multiplier  # type: ignore[union-attr]
        moved.append(gap / std * kappa / reach_of(plan.relation))
    assert max(moved) <= 1 + 1e-6
    assert max(moved) > 0.15, "no row came near its bound: the test shows nothing"


@pytest.mark.parametrize("relation", list(Relation))
def test_a_gumbel_maximum_moves_the_odds_of_groups_by_no_more_than_the_range_of_its_event(relation: Relation) -> None:
    asked, generator, tight = Asked("ags", "gumbel", relation, None, "own", None), np.random.default_rng(0), []
    for _ in range(300):
        groups, rows = int(generator.integers(2, 6)), int(generator.integers(1, 50))
        half, scale = float(generator.uniform(0.1, 3)), float(generator.uniform(0.01, 2))
        scores, moved = generator.standard_normal(groups), None
        moved = scores.copy()
        moved[0] += reach_of(relation) * half / rows * generator.choice([-1.0, 1.0, generator.uniform(-1, 1)])

        def log_chances(of: NDArray[np.float64], scale: float = scale) -> NDArray[np.float64]:
            return np.asarray(of / scale - np.log(np.exp((of - of.max()) / scale).sum()) - of.max() / scale)

        ratio = log_chances(moved) - log_chances(scores)
        event = choice_event(asked, scale, rows, half)
        assert isinstance(event, NoisyMax)
        assert ratio.max() - ratio.min() <= event.range * (1 + 1e-9) + 1e-12
        tight.append((ratio.max() - ratio.min()) / event.range)
    assert max(tight) > 0.999


# DP online convex optimisation


def test_every_row_is_in_one_pool_and_replacing_one_moves_no_other() -> None:
    problem, seed = made_problem(), Seed.from_int(2)
    pools = make_pools(problem, seed)
    everything = np.concatenate([part for pool in pools for part in pool])
    assert sorted(everything.tolist()) == list(range(240))
    other = make_pools(neighbour(problem, 7, Relation.REPLACE_ONE), seed)
    assert all(
        np.array_equal(a, b)
        for mine, theirs in zip(pools, other, strict=True)
        for a, b in zip(mine, theirs, strict=True)
    )


def test_a_leaf_and_a_loss_move_by_no_more_than_the_tree_event_pays_for() -> None:
    problem = made_problem()
    plan = plan_of("dp-oco", {"rows_per_round": 3}, problem)
    game = plan.solver
    assert isinstance(game, Game)
    event = game.events[0]
    assert isinstance(event, Tree)
    constants, size, weights = (
        game.setting.constants,
        game.rows_per_round,
        np.array([[1.0], [0.0], [-2.0], [0.4], [0.1]]),
    )
    assert game.node_noise >= event.noise_multiplier * constants.lipschitz / size * (1 - 1e-12)
    assert game.loss_noise >= event.as_gaussian().noise_multiplier * constants.range / 2 / size * (1 - 1e-12)
    for row in range(30):
        rows = np.array([row, row + 1, row + 2])
        mine = game.setting.read(problem, rows, True)
        theirs = game.setting.read(neighbour(problem, row, Relation.REPLACE_ONE), rows, True)
        gap = np.linalg.norm(game.gradient_sum(mine, weights) - game.gradient_sum(theirs, weights))
        assert gap <= 2 * constants.lipschitz * (1 + 1e-9)
        change = abs(game.centred_losses(mine, weights).sum() - game.centred_losses(theirs, weights).sum())
        assert change <= constants.range * (1 + 1e-9)


def test_a_row_is_seen_once_and_changes_nothing_before_that(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, seed = made_problem(), Seed.from_int(3)
    plan = plan_of("dp-oco", {"rows_per_round": 2}, problem)
    seen: list[list[float]] = []
    losses: list[float] = []
    first = Game.gradient_sum
    heard = Game.noisy_loss

    def watched(self: Game, rows: Any, weights: Any) -> Any:
        seen.append(rows.features[:, 0].tolist())
        return first(self, rows, weights)

    def listened(self: Game, rows: Any, weights: Any, seed: Seed, step: int) -> float:
        losses.append(heard(self, rows, weights, seed, step))
        return losses[-1]

    monkeypatch.setattr(Game, "gradient_sum", watched)
    monkeypatch.setattr(Game, "noisy_loss", listened)
    solved(plan, problem, seed)
    flat = [value for batch in seen for value in batch]
    assert len(flat) == len(set(flat)), "a row was used twice"
    ours, pools = list(losses), make_pools(problem, seed)
    row = int(pools[0][0][4])
    losses.clear()
    solved(plan, neighbour(problem, row, Relation.REPLACE_ONE), seed)
    assert losses[:2] == ours[:2]
    assert losses != ours, "the row never mattered: the test shows nothing"


# All four


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_public_constants_are_equal_on_neighbouring_problems_and_budgets_hold(
    name: str, options: dict[str, Any]
) -> None:
    problem = made_problem()
    ours, theirs = plan_of(name, options, problem), plan_of(name, options, problem.without(7))
    assert theirs.terms() == ours.terms()
    assert theirs.solver == ours.solver
    assert ours.rules is not None
    accountant = ours.settings.accountant_for()
    spent = [rule.guarantee(ours.delta, accountant) for rule in ours.rules]
    for cell, epsilon in enumerate(spent):
        assert epsilon <= ours.facts.budget_of(cell, 1.0) * (1 + 1e-9)
    assert max(e / ours.facts.budget_of(cell, 1.0) for cell, e in enumerate(spent)) > 0.98


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_the_whole_cost_is_reserved_before_a_row_is_read(
    name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = made_problem()
    plan = plan_of(name, options, problem)
    ledger, read, before = Ledger(plan.terms()), Problem.batch, []

    def watched(self: Problem, rows: Any) -> Any:
        before.append([set(ledger.spent(cell)) for cell in range(len(plan.facts.cells))])
        return read(self, rows)

    monkeypatch.setattr(Problem, "batch", watched)
    assert plan.solver is not None
    plan.solver.solve(linear(), problem, Seed.from_int(1), ledger, quiet)
    assert plan.rules is not None
    tokens = [set(rule.tokens) for rule in plan.rules]  # type: ignore[attr-defined]
    assert before
    assert all(reserved == tokens for reserved in before)


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_whose_tokens_are_too_few_reads_no_row(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from veil.accounting import BudgetExceeded, TokenBucket

    problem = made_problem()
    plan = plan_of(name, {}, problem)
    poor = tuple(
        TokenBucket((Repeated(Gaussian(99.0, plan.relation or Relation.REPLACE_ONE)),)) for _ in plan.facts.cells
    )
    touched: list[int] = []
    monkeypatch.setattr(Problem, "batch", lambda self, rows: touched.append(len(rows)))
    solver: Solver | None = plan.solver
    assert solver is not None
    with pytest.raises(BudgetExceeded):
        solver.solve(linear(), problem, Seed.from_int(1), Ledger(replace(plan, rules=poor).terms()), quiet)
    assert touched == []


@pytest.mark.parametrize("name", NAMES)
def test_a_row_that_is_not_finite_contributes_nothing_and_breaks_nothing(name: str) -> None:
    problem = made_problem()
    broken = problem.inputs.clone()
    broken[3] = math.nan
    spoiled = Problem(broken, problem.targets, problem.cell_of, problem.public, problem.present)
    assert np.isfinite(solved(plan_of(name, {}, problem), spoiled, Seed.from_int(1))).all()
    assert torch.isfinite(problem.inputs).all()
