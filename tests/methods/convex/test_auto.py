"""Auto: no row moves a release by more than it is charged for, groups that lose get louder, and the cut serves them."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import veil
from tests.methods.convex.test_group_gd import RELATIONS, Transcript, made_problem, mahalanobis, neighbour
from tests.problem.people_cases import in_people
from veil import methods
from veil.accounting import Ledger, Pld, Rdp, Relation, Repeated, certify
from veil.errors import InputError
from veil.foundation.randomness import Seed
from veil.methods import auto
from veil.methods.auto import crossed_for, knots_for
from veil.methods.convex import cross_choice, knot_places, steered_descent, steered_rows, whitening
from veil.methods.convex import steering as steering_module
from veil.methods.convex.cross_choice import CROSSES, CrossRelease
from veil.methods.convex.group_descent import GRADIENTS
from veil.methods.convex.knot_places import KNOTS, KnotRelease
from veil.methods.convex.offsets import BINS, SENSITIVITY, OffsetChoice, counted, cuts
from veil.methods.convex.steered_descent import ERRORS, OFFSET, SteeredDescent
from veil.methods.convex.steering import HEARD, Steering, Units, known_to, rows_to_be_heard, units_of
from veil.methods.convex.whitening import MEAN, MOMENTS
from veil.models import build_model
from veil.models.knots import Knots
from veil.models.whitened import Projection
from veil.noise import GaussianNoise
from veil.plans import Plan, Settings
from veil.problem import Cell, Problem, PublicFacts, sums

AIMS = ("worst-group", "balanced", "overall")


def plan_of(problem: Problem, options: dict[str, Any] | None = None, **settings: Any) -> Plan:
    given = {"epsilon": 60.0, "delta": 1e-4, "steps": 6} | settings
    return methods.create("auto", {"every": 2} | (options or {})).plan(problem.public, Settings.checked(**given))


def loud_problem() -> Problem:
    """A problem without budgets of its own, which would be too small to hear its groups."""
    problem = made_problem()
    groups = [problem.public.groups[g] for g in problem.group_of]
    return Problem.from_arrays(problem.inputs, problem.targets.numpy(), groups, classes=[0, 1])


def solver_of(plan: Plan) -> SteeredDescent:
    assert isinstance(plan.solver, SteeredDescent)
    return plan.solver


def replayed(plan: Plan, problem: Problem, monkeypatch: pytest.MonkeyPatch, given: list[Tensor] | None) -> Transcript:
    transcript = Transcript(given)
    monkeypatch.setattr(steered_descent, "GaussianNoise", lambda *_, **__: transcript)
    crossed = 3 if solver_of(plan).noises.crosses else 0
    model = build_model("additive", problem.public, Seed.from_int(0), numbers=[0, 2], knots=5, crossed=crossed)
    solver_of(plan).solve(model, problem, Seed.from_int(0), Ledger(plan.terms()), lambda *_: None)
    return transcript


@pytest.mark.parametrize("people", [False, True], ids=["rows", "people"])
@pytest.mark.parametrize("asked", RELATIONS)
def test_nobody_moves_a_release_by_more_than_they_are_charged_for(
    asked: str, people: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "CARRIES_CROSSES", 0.0)
    monkeypatch.setattr(steering_module, "HEARD", 0.3)
    problem = in_people(loud_problem()) if people else loud_problem()
    plan = plan_of(problem, {"neighbours": asked})
    assert plan.relation is not None
    charged = {purpose: event for purpose, _, event in solver_of(plan).events()}
    bound = {OFFSET: SENSITIVITY, GRADIENTS: solver_of(plan).clip, KNOTS: 2**0.5, CROSSES: 2.0}
    whole = replayed(plan, problem, monkeypatch, None)
    closest = dict.fromkeys((KNOTS, CROSSES, MEAN, MOMENTS, GRADIENTS, ERRORS, OFFSET), 0.0)
    for row in [*range(0, 240, 13), 6, 12]:
        other = replayed(plan, neighbour(problem, row, plan.relation), monkeypatch, whole.released)
        for (purpose, ours), (_, theirs), sigma in zip(whole.sums, other.sums, whole.sigmas, strict=True):
            event = charged[purpose]
            assert sigma == pytest.approx(event.noise_multiplier * bound.get(purpose, 1.0)) or purpose == MOMENTS
            moved = float((ours - theirs).norm()) / sigma / mahalanobis(event)
            assert moved <= 1 + 1e-9, f"{purpose} moved by {moved:.3f} of what was charged"
            closest[purpose] = max(closest[purpose], moved)
    assert all(value > 0.2 for value in closest.values()), f"no row came near its bound: {closest}"


def test_the_replay_would_catch_rows_that_are_not_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for user in (steered_descent, cross_choice):
        monkeypatch.setattr(user, "shortened", lambda rows: rows)
    with pytest.raises(AssertionError, match=r"(feature mean|crosses) moved by"):
        test_nobody_moves_a_release_by_more_than_they_are_charged_for("add-remove", False, monkeypatch)


def test_the_replay_would_catch_a_weight_above_the_loudest(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = Steering.weights
    monkeypatch.setattr(Steering, "weights", lambda self, q: (torch.tensor([1.0, -3.0]).double(), weights(self, q)[1]))
    with pytest.raises(AssertionError, match="gradient moved by"):
        test_nobody_moves_a_release_by_more_than_they_are_charged_for("add-remove", False, monkeypatch)


def counted_one_by_one(seen: Any) -> Any:
    """The same rows, where each counts as if it were alone."""
    if isinstance(seen, whitening.Features):
        return replace(seen, part=counted_one_by_one(seen.part))
    if isinstance(seen, sums.Part):
        return replace(seen, shares=torch.ones_like(seen.shares))
    alone = copy.copy(seen)
    alone.shares = torch.ones_like(seen.shares)
    return alone


@pytest.mark.parametrize("release", ["knots", "crosses", "feature mean", "feature moments", "gradient", "offset"])
def test_the_replay_would_catch_people_whose_rows_are_counted_one_by_one(
    release: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    measures: dict[str, type] = {
        "knots": knot_places.Counts,
        "crosses": cross_choice.Joint,
        "feature mean": whitening.Total,
        "feature moments": whitening.Moments,
        "gradient": steered_rows.Pull,
        "offset": steered_rows.Cuts,
    }
    measure: Any = measures[release]
    shared = measure.__call__
    monkeypatch.setattr(measure, "__call__", lambda self, seen: shared(self, counted_one_by_one(seen)))
    with pytest.raises(AssertionError, match=f"({release}|group errors) moved by"):
        test_nobody_moves_a_release_by_more_than_they_are_charged_for("add-remove", True, monkeypatch)


def test_what_is_reserved_is_what_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = loud_problem()
    plan = plan_of(problem)
    made = [purpose for purpose, _ in replayed(plan, problem, monkeypatch, None).sums]
    assert {purpose: made.count(purpose) for purpose in made} == {
        purpose: count for purpose, count, _ in solver_of(plan).events()
    }


@pytest.mark.parametrize("aim", AIMS)
@pytest.mark.parametrize("asked", RELATIONS)
def test_every_owner_stays_within_its_budget_and_the_tightest_uses_it(asked: str, aim: str) -> None:
    plan = plan_of(made_problem(), {"neighbours": asked, "aim": aim})
    spent = certify(Ledger(plan.terms()), Pld()).by_owner
    assert 0.495 < spent["careful"] <= 0.5
    assert spent["open"] <= 2.0


def test_two_accountants_agree_on_a_plan() -> None:
    problem = loud_problem()
    by_pld, by_rdp = (solver_of(plan_of(problem, accountant=name, epsilon=1.0)) for name in ("pld", "rdp"))
    assert 1.0 <= by_rdp.noises.gradients / by_pld.noises.gradients < 1.3
    tokens = [Repeated(event, count) for _, count, event in by_pld.events()]
    assert 1.0 - 1e-3 <= Rdp().epsilon(tokens, 1e-4) < 1.3


def test_a_row_that_is_not_finite_poisons_nothing() -> None:
    problem = loud_problem()
    for row, value in ((5, float("nan")), (6, float("inf")), (7, 3e38)):
        problem = problem.replacing(row, torch.full((6,), value), problem.targets[row])
    run = fitted(problem, steps=5)
    assert all(torch.isfinite(value).all() for value in run.model.state_dict().values())


@pytest.mark.parametrize("value", [1e200, 1.7e308])
def test_a_row_of_double_precision_that_overflows_moves_no_release_by_more(
    value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = loud_problem()
    for row in (5, 6):
        huge = torch.full((6,), value, dtype=torch.float64)
        problem = replace(problem, inputs=problem.inputs.double()).replacing(row, huge, torch.tensor(row % 2))
    assert_removed_rows_stay_within_their_charge(problem, [5, 6], monkeypatch)


def test_how_a_row_is_rounded_does_not_follow_from_how_many_others_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand(24, 500, generator=torch.Generator().manual_seed(0))
    problem = Problem.from_arrays(x, [0, 1] * 12, ["a", "b"] * 12, classes=[0, 1])
    plan, model = plan_of(problem, steps=1), nn.Sequential(nn.Flatten(), Projection(500, 40), nn.Linear(40, 2))

    def sum_of(rows: range) -> Tensor:
        transcript = Transcript()
        monkeypatch.setattr(steered_descent, "GaussianNoise", lambda *_, **__: transcript)
        some = replace(problem, present=np.isin(np.arange(24), rows))
        solver_of(plan).solve(model, some, Seed.from_int(0), Ledger(plan.terms()), lambda *_: None)
        return dict(transcript.sums)[MEAN]

    alone = torch.stack([sum_of(range(row, row + 1)) for row in range(24)]).sum(dim=0)
    torch.testing.assert_close(sum_of(range(24)), alone, rtol=0.0, atol=1e-12)


@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize("shape", [(3,), (1_100,), (1, 8, 8)])
def test_the_last_row_can_be_removed(
    shape: tuple[int, ...], task: Literal["classification", "regression"], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error where no row is left would tell that there was one."""
    monkeypatch.setattr(auto, "CARRIES_CROSSES", 0.0)
    classes = [0, 1] if task == "classification" else None
    problem = Problem.from_arrays(torch.rand(2, *shape), [0, 1], ["a", "a"], task=task, classes=classes)
    assert_removed_rows_stay_within_their_charge(problem.without(0), [1], monkeypatch)


def assert_removed_rows_stay_within_their_charge(
    problem: Problem, rows: list[int], monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> None:
    plan = plan_of(problem, **settings)
    charged = {purpose: event for purpose, _, event in solver_of(plan).events()}
    whole = replayed(plan, problem, monkeypatch, None)
    for row in rows:
        other = replayed(plan, problem.without(row), monkeypatch, whole.released)
        for (purpose, ours), (_, theirs), sigma in zip(whole.sums, other.sums, whole.sigmas, strict=True):
            moved = float((ours - theirs).norm()) / sigma / mahalanobis(charged[purpose])
            assert moved <= 1 + 1e-9, f"{purpose} moved by {moved} of what was charged"


def fitted(problem: Problem, **settings: Any) -> veil.Run:
    model = build_model("additive", problem.public, Seed.from_int(0))
    return veil.fit(model, problem, method="auto", **({"epsilon": 1.0, "delta": 1e-4, "seed": 1} | settings))


@pytest.mark.parametrize("model", [nn.Linear(6, 2, bias=False), nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2))])
def test_other_models_are_refused_with_the_way_out(model: nn.Module) -> None:
    with pytest.raises(InputError, match='choose the model "additive"'):
        veil.fit(model, loud_problem(), method="auto", seed=1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"aim": "best"}, "it must be one of worst-group, balanced, overall"),
        ({"mean_share": 0.5, "moment_share": 0.5}, "less than 1"),
        ({"cap": 0.5}, "at least 1"),
        ({"every": 0}, "at least 1"),
        ({"momentum": 1.0}, "below 1"),
        ({"neighbours": "all"}, "it must be add-remove or replace-one"),
    ],
)
def test_wrong_options_are_one_sentence(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        plan_of(loud_problem(), options)


def test_folded_weights_give_the_scores_of_whitened_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    rows, mean = torch.randn(9, 5, generator=generator).double(), torch.randn(5, generator=generator).double()
    white = steered_rows.Whitened(mean, torch.randn(5, 5, generator=generator).double(), torch.ones(5).double())
    weights = torch.randn(3, 6, generator=generator).double()
    weight, bias = white.folded(weights)
    torch.testing.assert_close(rows @ weight.T + bias, white.rows(rows) @ weights.T)


def test_wide_rows_and_images_are_projected() -> None:
    generator = torch.Generator().manual_seed(0)
    for x, width in ((torch.randn(60, 1100, generator=generator), 1024), (torch.rand(60, 1, 8, 8), 324)):
        targets = (x.flatten(1)[:, 0] > 0.3).long().numpy()
        problem = Problem.from_arrays(x, targets, ["a", "b"] * 30, classes=[0, 1])
        run = fitted(problem, steps=2)
        assert run.model[-1].weight.shape == (2, width)  # type: ignore[index]


def test_features_that_could_mix_rows_are_refused() -> None:
    model = nn.Sequential(nn.BatchNorm1d(6, affine=False), nn.Linear(6, 2))
    with pytest.raises(InputError, match='choose the model "additive"'):
        solver_of(plan_of(loud_problem())).check(model)


def numbers_problem() -> Problem:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(3_000, 3, generator=generator) * 2 - 1
    y = (0.5 * x[:, 0] - 0.3 * x[:, 1].abs() + 0.1 * torch.randn(3_000, generator=generator)).clamp(-1, 1)
    return Problem.from_arrays(x, y, ["a", "b"] * 1_500, task="regression")


def test_numbers_are_predicted_and_no_row_moves_more_than_it_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = numbers_problem()
    assert OFFSET not in {purpose for purpose, _, _ in solver_of(plan_of(problem, epsilon=2.0)).events()}
    assert_removed_rows_stay_within_their_charge(problem, list(range(0, 3_000, 401)), monkeypatch, epsilon=2.0)
    monkeypatch.undo()
    model = build_model("additive", problem.public, Seed.from_int(0), numbers=[0, 1, 2], knots=5)
    run = veil.fit(model, problem, method="auto", epsilon=2.0, seed=1)
    off = run.model(problem.inputs).squeeze(1) - problem.targets
    assert off.square().mean() < 0.4 * problem.targets.var()


@pytest.mark.parametrize(("rows", "epsilon"), [(2_000, 8.0), (20_000, 8.0), (60_000, 1.0)])
def test_numbers_settle_where_few_columns_meet_many_rows(rows: int, epsilon: float) -> None:
    """Each step of the plan would lead 2 to 20 times as far as squared errors allow."""
    random = np.random.default_rng(0)
    words, other = random.integers(0, 2, rows), random.integers(0, 3, rows)
    true = (0.5 * words + 0.3 * (other == 1) - 0.4).astype(np.float32)
    x = np.concatenate([np.eye(2)[words], np.eye(3)[other]], axis=1).astype(np.float32)
    y = (true + random.normal(0, 0.1, rows)).astype(np.float32)
    problem = Problem.from_arrays(x, y, np.where(words, "a", "b"), task="regression")
    run = veil.fit(build_model("additive", problem.public, Seed.from_int(1)), problem, method="auto", epsilon=epsilon)
    with torch.no_grad():
        off = run.model(torch.from_numpy(x)).squeeze(1) - torch.from_numpy(true)
    assert float(off.square().mean().sqrt()) < 0.03


def test_crosses_that_the_plan_does_not_carry_stay_zeros() -> None:
    problem = loud_problem()
    model = build_model("additive", problem.public, Seed.from_int(0), crossed=3)
    run = veil.fit(model, problem, method="auto", epsilon=1.0, seed=1)
    assert not run.model[2].levels.any()  # type: ignore[index]
    assert CROSSES not in {purpose for purpose, _, _ in solver_of(run.plan).events()}


def test_rows_that_do_not_fit_into_memory_give_the_same_model_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = fitted(loud_problem())
    kept: list[int] = []
    monkeypatch.setattr(sums, "ROWS_AT_ONCE", 50)
    monkeypatch.setattr(sums, "memory", lambda: 10_000)
    seen = sums.HeldRows.total

    def watched(held: sums.HeldRows, chain: sums.Chain, measure: sums.Measure) -> torch.Tensor:
        found = seen(held, chain, measure)
        kept.append(len(held._kept[1]))
        return found

    monkeypatch.setattr(sums.HeldRows, "total", watched)
    pieces = fitted(loud_problem())
    assert max(kept) < len(loud_problem()) // 50, "some pieces do not fit, so they are made anew in every pass"
    for ours, theirs in zip(pieces.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-6)


def test_columns_that_matter_are_crossed_and_those_of_groups_in_any_case() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(20_000, 5, generator=generator) * 2 - 1
    y = ((x[:, 1] * x[:, 3] > 0.1) | (x[:, 1] > 0.8)).long()
    facts = PublicFacts(("all",), ("all",), (Cell(0, 0, 20_000),), (5,), classes=("0", "1"))
    model = build_model("additive", facts, Seed.from_int(0), numbers=range(5), knots=7, crossed=2, first=[3])
    curves, layer = model[1], model[2]  # type: ignore[index]
    rows = sums.sums_of(Problem.from_arrays(x, y))
    CrossRelease(10.0, Relation.ADD_REMOVE).make(layer, curves, rows, 2, GaussianNoise(Seed.from_int(0)))
    found = [{column for column in range(5) if layer.levels[layer.blocks[column], place].any()} for place in range(2)]
    assert found == [{3}, {1}]
    assert layer(curves(x)).shape[1] == 5 + 5 * 7 + 16
    torch.testing.assert_close(layer(curves(x))[:, -16:].sum(dim=1), torch.full((20_000,), 5**0.5))


@pytest.mark.parametrize(("rows", "crossed"), [(2_000, 0), (60_000, 6)])
def test_only_tables_that_carry_it_are_crossed(rows: int, crossed: int) -> None:
    facts = PublicFacts(("all",), ("all",), (Cell(0, 0, rows),), (1,))
    assert crossed_for(facts, Settings.checked(epsilon=1.0)) == crossed


def placed(values: torch.Tensor, noise: float, stages: int = 3) -> torch.Tensor:
    layer = Knots([0], 9)
    rows = sums.sums_of(Problem.from_arrays(values[:, None], torch.zeros(len(values)).long(), classes=[0, 1]))
    KnotRelease(noise, Relation.ADD_REMOVE, stages, 48).make(layer, rows, GaussianNoise(Seed.from_int(0)))
    return layer.places[0]


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 8.0])
@pytest.mark.parametrize("rows", [5_000, 30_000, 10_000_000])
def test_no_step_is_longer_than_what_settles_and_errors_are_released_as_often(rows: int, epsilon: float) -> None:
    facts = PublicFacts(("f", "m"), ("all",), (Cell(0, 0, rows // 2), Cell(1, 0, rows // 2)), (3,), classes=("0", "1"))
    plan = methods.create("auto", {}).plan(facts, Settings.checked(epsilon=epsilon))
    solver = solver_of(plan)
    assert auto.STEPS <= plan.steps <= auto.MOST_STEPS
    assert solver.travel / plan.steps <= auto.LONGEST_STEP + 1e-9
    assert 8 <= len(solver.steering.releases(plan.steps)) <= 10


def test_knots_follow_the_rows_and_stay_even_in_noise() -> None:
    values = torch.from_numpy(np.random.default_rng(0).exponential(0.02, 20_000).clip(0, 1) * 2 - 1)
    # The root of this density falls half as fast: its quantiles are those of twice the scale.
    expected = 2 * torch.tensor([-0.04 * math.log(1 - k / 8) for k in range(1, 6)]) - 1
    assert (placed(values, 5.0)[1:6] - expected).abs().max() < 0.04
    torch.testing.assert_close(placed(values, 1e6), torch.linspace(-1, 1, 9), atol=0.2, rtol=0.0)


def test_a_number_that_most_rows_share_leaves_knots_for_the_others() -> None:
    """With as many rows between each two knots, seven of nine would stand at that number."""
    others = torch.from_numpy(np.random.default_rng(0).uniform(-1, 1, 2_000))
    values = torch.cat([torch.full((18_000,), -1.0).double(), others])
    assert (placed(values, 5.0) > -0.7).sum() >= 6


def test_equal_errors_leave_every_group_as_loud_as_it_was() -> None:
    units = Units((0, 1), (900, 100), (True, True))
    steering = Steering(units, 4, 1.5, 0.5, 4.0)
    moved = steering.moved(torch.zeros(2).double(), torch.tensor([90.0, 10.0]).double(), 5.0, 0)
    torch.testing.assert_close(moved, torch.zeros(2).double())


def test_noise_alone_hardly_moves_a_small_group() -> None:
    """Both groups lose alike; the small one's release is mostly noise and is not believed."""
    units = Units((0, 1), (9_000, 100), (True, True))
    steering, generator = Steering(units, 4, 1.5, 0.0, 4.0), torch.Generator().manual_seed(1)
    moves = []
    for _ in range(400):
        errors = torch.tensor([1_800.0, 20.0]).double() + 50 * torch.randn(2, generator=generator).double()
        moves.append(steering.moved(torch.zeros(2).double(), errors, 50.0, 0)[1])
    believed = 1.5 * 50 / 100
    assert torch.stack(moves).square().mean().sqrt() < 0.6 * believed


def test_a_group_that_loses_gets_louder_and_the_rest_of_it_is_a_margin() -> None:
    steering = Steering(Units((0, 1), (900, 100), (True, True)), 4, 1.5, 0.5, 2.0)
    louder = steering.moved(torch.zeros(2).double(), torch.tensor([90.0, 90.0]).double(), 1.0, 0)
    assert louder[1] > 1 > louder[0]
    weights, margins = steering.weights(louder)
    assert weights[1] == 2.0
    assert (weights * torch.tensor([900.0, 100.0])).sum() == pytest.approx(1000.0, rel=0.1)
    torch.testing.assert_close((torch.log(weights) + margins).diff(), louder.diff())


def test_a_small_group_is_steered_with_a_group_of_its_own_class() -> None:
    """Its errors are answered by weights that cost the rows of the other class: those of its sex are no kin."""
    names, sizes = ("f × no", "f × yes", "m × no", "m × yes"), (1_900, 100, 2_700, 1_200)
    facts = PublicFacts(names, ("all",), tuple(Cell(g, 0, n) for g, n in enumerate(sizes)), (1,), classes=("no", "yes"))
    assert units_of(facts, 200.0).of_group == (0, 2, 1, 2)
    # Where no group of its class is large enough, it is steered apart from the others.
    assert units_of(facts, 1_500.0).of_group == (0, 2, 1, 2)
    # Merged groups have no class of their own.
    merged = replace(facts, groups=(*names, "other groups"), cells=(*facts.cells, Cell(4, 0, 50)))
    assert units_of(merged, 200.0).of_group == (0, 2, 1, 2, 3)
    # Of groups that are not crossed with the class, the largest that shares most is kin.
    apart = replace(facts, classes=("low", "high"))
    assert units_of(apart, 200.0).of_group == (0, 0, 1, 2)


def test_small_groups_are_heard_with_their_kin() -> None:
    names = ("f × a", "f × b", "f × c", "m × a", "x × z")
    sizes = (500, 400, 3, 300, 2)
    facts = PublicFacts(names, ("all",), tuple(Cell(g, 0, n) for g, n in enumerate(sizes)), (1,))
    units = units_of(facts, 100.0)
    assert units.of_group == (0, 1, 0, 2, 3)
    assert units.heard == (True, True, True, False)
    assert units.pooled(names, sizes, 100.0) == {"f × c": "f × a", "x × z": "other small groups"}


@pytest.mark.parametrize("count", [1, 500])
def test_groups_of_one_row_and_many_groups_train(count: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(600, 3, generator=generator)
    groups = ["everybody"] * (600 - count) + [f"group {i}" for i in range(count)]
    problem = Problem.from_arrays(x, (x[:, 0] > 0).long().numpy(), groups, classes=[0, 1])
    run = fitted(problem)
    assert run.plan.details["heard_together"]["group 0"] == "other small groups"
    assert run.plan.details["rows_to_be_heard"] > 20


def test_a_group_is_heard_where_noise_and_luck_leave_its_errors_known() -> None:
    """Without noise too: of 40 rows nobody can tell whether a model is wrong for 20 % or for 35 % of such people."""
    assert rows_to_be_heard(0.0) > 40
    for noise in (0.0, 1.5, 9.0, 40.0):
        assert known_to(noise, rows_to_be_heard(noise)) == pytest.approx(HEARD)
    trained, met = np.random.default_rng(0).binomial(50, 0.5, (2, 20_000)) / 50
    assert (trained - met).std() == pytest.approx(known_to(0.0, 50), rel=0.02)


def test_counts_at_every_cut_are_those_of_the_rows() -> None:
    generator = np.random.default_rng(0)
    scores = torch.from_numpy(generator.normal(size=200))
    targets = torch.from_numpy((generator.random(200) < 0.5).astype(np.int64))
    units = torch.from_numpy(generator.integers(0, 2, 200))
    found = counted(scores, targets, units, torch.ones(len(scores), dtype=torch.float64), 2)
    half = BINS // 2
    for cut in range(BINS + 1):
        moved = found[:, 1 + half : 1 + cut].sum(1) if cut >= half else -found[:, 1 + cut : 1 + half].sum(1)
        correct = ((scores >= cuts()[cut]) == (targets == 1)).double()
        expected = torch.zeros(2).double().index_add_(0, units, correct)
        torch.testing.assert_close(found[:, 0] + moved, expected)


def test_the_cut_serves_the_aim() -> None:
    """Rows of class 1 are rare and lie lower: the worst group wants a low cut, all rows together a high one."""
    generator = np.random.default_rng(0)
    targets = torch.from_numpy((generator.random(20_000) < 0.1).astype(np.int64))
    scores = torch.from_numpy(generator.normal(size=20_000)) + torch.where(targets == 1, 0.0, -1.5)
    rows = tuple(int(n) for n in torch.bincount(targets))
    units = Units((0, 1), rows, (True, True))
    released = counted(scores, targets, targets, torch.ones(len(scores), dtype=torch.float64), 2)
    chosen = {aim: OffsetChoice(units, aim).choose(released, 1.0) for aim in AIMS}  # type: ignore[arg-type]
    assert chosen["worst-group"] == pytest.approx(-0.75, abs=0.31)
    assert chosen["balanced"] == pytest.approx(-0.75, abs=0.31)
    assert chosen["overall"] > 0.5


@pytest.mark.statistical
def test_the_aim_decides_who_is_served() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(12_000, 5, generator=generator)
    y = (x[:, 0] + 0.7 * torch.randn(12_000, generator=generator) > 1.5).long()
    problem = Problem.from_arrays(x, y.numpy(), [str(label.item()) for label in y], classes=[0, 1])
    found = {}
    for aim in AIMS:
        model = build_model("additive", problem.public, Seed.from_int(0))
        method = methods.create("auto", {"aim": aim})
        found[aim] = veil.fit(model, problem, method=method, evaluation=problem, epsilon=2.0, seed=1).metrics
    worst = {aim: metrics.worst_group_accuracy for aim, metrics in found.items() if metrics}
    overall = {aim: metrics.accuracy for aim, metrics in found.items() if metrics}
    assert worst["worst-group"] > worst["overall"] + 0.1
    assert worst["balanced"] > worst["overall"] + 0.1
    assert overall["overall"] > overall["worst-group"] + 0.01


def test_more_rows_and_more_budget_carry_more_knots() -> None:
    def knots(rows: int, epsilon: float) -> int:
        facts = PublicFacts(("all",), ("all",), (Cell(0, 0, rows),), (1,))
        return knots_for(facts, Settings.checked(epsilon=epsilon))

    assert knots(1_000, 1.0) < knots(1_000, 8.0) < knots(90_000, 1.0)
    assert knots(10**9, 1.0) == 65
