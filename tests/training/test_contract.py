"""The privacy contract of ARCHITECTURE.md, rule by rule."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import veil
from veil.accounting import AccountingError, BudgetExceeded, Ledger, Relation, Repeated, TokenBucket
from veil.accounting.events import PoissonGaussian
from veil.bounding import Bound, Clip, Normalise, UnitClip
from veil.datasets import GroupSpec, generate
from veil.errors import InputError
from veil.foundation.randomness import Seed
from veil.gradients import GradientEngine, GradientError, PerRow
from veil.noise import GaussianNoise
from veil.plans import Settings
from veil.plans.plan import CLASSES_READ, EMPTY_PLACE, NAMES_PUBLIC, SIZES, UNTRIED
from veil.problem import Problem
from veil.releases import GradientRelease, Statistic, clamp_to_limits
from veil.sampling.draws import Poisson
from veil.training.fitting import row_losses
from veil.training.loop import Loop

NOISE = GaussianNoise(Seed.from_int(0))
TWO_GROUPS = [GroupSpec("large", 300), GroupSpec("small", 60, angle=1.0)]


def small_model(features: int = 10) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(features, 8), nn.Tanh(), nn.Linear(8, 2))


def fitted(problem: Problem, **changes: object) -> veil.Run:
    settings: dict[str, object] = {"method": "dp-sgd", "epsilon": 1.0, "steps": 6, "batch_size": 40, "seed": 4}
    return veil.fit(small_model(), problem, **(settings | changes))  # type: ignore[arg-type]


def weights(run: veil.Run) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in run.model.parameters()])


# Rule 1: reserve, then touch


def test_the_cost_is_on_disk_before_a_row_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    covered: list[int] = []
    read = Problem.batch

    def watched(self: Problem, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        covered.append(sum(item.times for item in Ledger.open(tmp_path / "run" / "ledger.jsonl").spent(0)))
        return read(self, rows)

    monkeypatch.setattr(Problem, "batch", watched)
    fitted(generate(TWO_GROUPS), steps=250, out=tmp_path / "run")
    assert len(covered) == 250
    assert all(reserved >= step + 1 for step, reserved in enumerate(covered))


def test_a_step_over_budget_is_refused_before_a_row_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = generate(TWO_GROUPS)
    plan = veil.methods.create("dp-sgd").plan(problem.public, Settings.checked(steps=5, batch_size=40, seed=1))
    terms = plan.terms()
    poor = [TokenBucket(tuple(Repeated(t.event, 3) for t in a.rule.tokens)) for a in terms.accounts]  # type: ignore[attr-defined]
    accounts = tuple(type(a)(a.group, a.owner, a.budget, rule) for a, rule in zip(terms.accounts, poor, strict=True))
    ledger = Ledger(type(terms)(terms.relation, terms.delta, terms.accountant, accounts))
    touched: list[int] = []
    monkeypatch.setattr(Problem, "batch", lambda self, rows: touched.append(len(rows)))
    with pytest.raises(BudgetExceeded):
        Loop(small_model(), problem, plan, row_losses, Seed.from_int(1), ledger).run()
    assert touched == []


def test_a_plan_that_exceeds_a_budget_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    honest = veil.methods.create("dp-sgd")

    class Careless:
        def plan(self, facts: object, settings: Settings) -> object:
            plan = honest.plan(facts, settings.model_copy(update={"epsilon": 5.0}))  # type: ignore[arg-type]
            return replace(plan, settings=settings)

    with pytest.raises(AccountingError, match="more than its budget of 1"):
        fitted(generate(TWO_GROUPS), method=Careless(), out=tmp_path / "run")
    assert not (tmp_path / "run" / "ledger.jsonl").exists()


# Rule 2: one source of truth


@pytest.mark.statistical
def test_the_noise_added_over_the_largest_contribution_is_the_multiplier_in_the_ledger() -> None:
    """The spread of n draws is within 4 standard errors σ/√(2n) of the truth but for one run in 16,000."""
    problem = generate([GroupSpec("large", 300, margin=1.0)], features=40)
    problem = problem.replacing(0, torch.full((40,), 1e4), torch.tensor(0))
    model = nn.Linear(40, 2)
    plan = veil.methods.create("dp-sgd", {"clip": 0.37}).plan(problem.public, Settings.checked(steps=5, batch_size=300))
    release = plan.controller.release({}, 0)
    engine = GradientEngine(model, row_losses)
    sampler = release.draw.sampler(problem.strata())
    seed, draws = Seed.from_int(2), []
    for step in range(200):
        noisy = release.make(engine, problem, sampler, seed, step, GaussianNoise(seed))
        exact = engine.weighted_sum(problem.batch(noisy.view.rows), lambda _f, w=noisy.view.weights: w).sums[0]  # type: ignore[misc]
        draws += [(noisy.gradient[n] * release.divisor - exact[n]).flatten() for n in exact]
        assert float((noisy.view.weights * noisy.view.per_row.norms).max()) == pytest.approx(0.37, rel=2e-4)
    sample = torch.cat(draws).double()
    event = release.events(problem.public)[0]
    assert isinstance(event, PoissonGaussian) or event.noise_multiplier  # type: ignore[union-attr]
    spread = float(sample.std()) / 0.37
    error = 4 * event.noise_multiplier / np.sqrt(2 * len(sample))  # type: ignore[union-attr]
    assert abs(spread - event.noise_multiplier) < error  # type: ignore[union-attr]
    assert abs(float(sample.mean())) < 4 * float(sample.std()) / np.sqrt(len(sample))


def test_what_the_ledger_holds_is_what_the_releases_say(tmp_path: Path) -> None:
    run = fitted(generate(TWO_GROUPS), out=tmp_path / "run")
    ledger = Ledger.open(tmp_path / "run" / "ledger.jsonl")
    expected = run.plan.controller.release({}, 0).events(run.plan.facts)
    for cell, event in expected.items():
        assert ledger.spent(cell) == (Repeated(event, 6),)


# Rule 3: relations and public constants


def test_a_problem_built_without_one_row_has_the_same_public_facts_when_sizes_are_declared() -> None:
    problem = generate(TWO_GROUPS)
    names = [problem.public.groups[g] for g in problem.group_of]
    sizes = {"large": 300, "small": 60}
    build = {"group_sizes": sizes, "classes": [0, 1]}
    whole = Problem.from_arrays(problem.inputs, problem.targets, names, **build)  # type: ignore[arg-type]
    lacking = Problem.from_arrays(problem.inputs[1:], problem.targets[1:], names[1:], **build)  # type: ignore[arg-type]
    assert whole.public == lacking.public
    settings = Settings.checked(steps=5, batch_size=40)
    plans = [veil.methods.create("dp-sgd").plan(p.public, settings) for p in (whole, lacking)]
    assert plans[0].terms() == plans[1].terms()


def test_the_divisor_is_the_public_expected_batch_not_the_drawn_one() -> None:
    problem = generate(TWO_GROUPS)
    plan = veil.methods.create("dp-sgd").plan(problem.public, Settings.checked(steps=5, batch_size=40))
    release = plan.controller.release({}, 0)
    drawn = {len(release.draw.sampler(problem.strata()).draw(Seed.from_int(1), step)) for step in range(5)}
    assert len(drawn) > 1
    assert release.divisor == pytest.approx(40.0)


def test_subsets_are_refused_under_add_remove() -> None:
    with pytest.raises(InputError, match="replace-one only"):
        fitted(generate(TWO_GROUPS), method=veil.method("dp-sgd", sampling="wor", neighbours="add-remove"))


# Rule 7: bad rows cost nothing and break nothing


def test_a_row_whose_gradient_is_not_finite_contributes_nothing() -> None:
    problem = generate(TWO_GROUPS)
    broken = problem.inputs.clone()
    broken[3] = float("inf")
    spoiled = Problem(broken, problem.targets, problem.cell_of, problem.public, problem.present)
    with_bad, without = fitted(spoiled), fitted(problem.without(3))
    assert torch.isfinite(weights(with_bad)).all()
    assert torch.allclose(weights(with_bad), weights(without), atol=1e-6)


def test_an_empty_batch_is_a_step_of_noise_only() -> None:
    run = fitted(generate([GroupSpec("a", 50)]), batch_size=1, steps=30)
    assert torch.isfinite(weights(run)).all()
    assert run.certificate.epsilon == pytest.approx(1.0, rel=0.01)


# Rule 8: per-row independence


@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_is_refused_with_the_fix_named(affine: bool) -> None:
    model = nn.Sequential(nn.Linear(10, 8), nn.BatchNorm1d(8, affine=affine), nn.Linear(8, 2))
    with pytest.raises(ValueError, match="GroupNorm"):
        veil.fit(model, generate(TWO_GROUPS), method="dp-sgd", steps=2, batch_size=20, seed=1)


# Rule 10: what a person sees is a release too


def test_no_exact_figure_of_a_private_row_is_in_the_run_folder(tmp_path: Path) -> None:
    marker = 8675309.25
    problem = generate(TWO_GROUPS)
    problem = problem.replacing(5, torch.full((10,), marker), torch.tensor(1))
    fitted(problem, out=tmp_path / "run", evaluation=generate(TWO_GROUPS, seed=1))
    for path in (tmp_path / "run").iterdir():
        content = path.read_bytes()
        assert b"8675309" not in content, path.name
        assert np.float32(marker).tobytes() not in content, path.name


def test_the_history_holds_only_public_and_released_columns() -> None:
    allowed = {"step", "epsilon", "worst_group_accuracy", "average_group_accuracy", "accuracy", "group_accuracy"}
    history = fitted(generate(TWO_GROUPS), evaluation=generate(TWO_GROUPS, seed=1)).history
    assert set(history.columns) <= allowed


# Rule 11: counter-based randomness


def test_the_same_seed_gives_the_same_model_and_another_seed_another() -> None:
    problem = generate(TWO_GROUPS)
    assert torch.equal(weights(fitted(problem)), weights(fitted(problem)))
    assert not torch.equal(weights(fitted(problem)), weights(fitted(problem, seed=5)))


@pytest.mark.parametrize("micro_batch", [1, 7, 1000])
def test_micro_batches_change_nothing(micro_batch: int) -> None:
    problem = generate(TWO_GROUPS)
    whole, split = fitted(problem), fitted(problem, micro_batch=micro_batch)
    assert torch.allclose(weights(whole), weights(split), atol=1e-6)


def test_a_system_seed_is_nowhere_and_a_given_seed_is_stated(tmp_path: Path) -> None:
    given = fitted(generate(TWO_GROUPS), seed=4, out=tmp_path / "given")
    assert any("seed was given" in sentence for sentence in given.certificate.assumptions)
    fresh = fitted(generate(TWO_GROUPS), seed=None, out=tmp_path / "fresh")
    assert not any("seed was given" in sentence for sentence in fresh.certificate.assumptions)
    assert json.loads((tmp_path / "fresh" / "run.json").read_text())["seed_given"] is False
    assert not torch.equal(weights(fresh), weights(fitted(generate(TWO_GROUPS), seed=None)))


def test_a_certificate_asks_nobody_to_accept_noise_without_its_tail() -> None:
    problem = generate(TWO_GROUPS)
    fast, secure = fitted(problem).certificate.assumptions, fitted(problem, secure_noise=True).certificate.assumptions
    (said,) = set(fast) - set(secure)
    assert "rounding" in said
    assert "standard deviations" not in said


def test_relations_reach_the_certificate() -> None:
    run = fitted(generate(TWO_GROUPS), method=veil.method("dp-sgd", neighbours="replace-one"))
    assert run.certificate.relation == Relation.REPLACE_ONE.value


@pytest.mark.parametrize("method", ["dp-sgd", "asc", "azb"])
def test_subsets_of_fewer_rows_than_declared_are_refused(method: str) -> None:
    """250 of 300 rows are no sample of 30,000: the charge would be far too small."""
    problem = generate(TWO_GROUPS)
    facts = problem.public
    larger = replace(facts, cells=tuple(replace(cell, rows=100 * cell.rows) for cell in facts.cells))
    wrong = replace(problem, public=larger)
    with pytest.raises(InputError, match="needs the true sizes"):
        subsets = veil.method(method, sampling="wor")
        veil.fit(small_model(), wrong, method=subsets, epsilon=1.0, steps=3, batch_size=40)


def test_a_step_is_never_made_twice() -> None:
    problem = generate(TWO_GROUPS)
    plan = veil.methods.create("dp-sgd").plan(problem.public, Settings.checked(epsilon=1.0, steps=3, batch_size=40))
    loop = Loop(small_model(), problem, plan, row_losses, Seed.from_int(1), Ledger(plan.terms()))
    loop.run()
    with pytest.raises(AccountingError, match="step 0 was already made"):
        loop.run()


HOSTILE = [
    [math.nan, 1, 1],
    [math.inf, 0, 0],
    [math.inf, -math.inf, math.nan],
    [1e308, 1e308, 1e308],
    [1e-320, 0, 0],
    [5e-324, 1e300, 0],
    [1e154, 1e154, 0],
]


@pytest.mark.parametrize("hostile", HOSTILE, ids=str)
def test_no_row_moves_a_statistic_by_more_than_its_limit(hostile: list[float]) -> None:
    rows = torch.cat([torch.linspace(-2, 2, 60, dtype=torch.float64).view(20, 3), torch.tensor([hostile]).double()])
    release = GradientRelease(Poisson((1.0,)), Clip((1.0,)), 1.0, 1.0, Relation.ADD_REMOVE)

    def total(values: torch.Tensor) -> np.ndarray:
        count = len(values)
        facts = PerRow(torch.zeros(count), torch.zeros(count), torch.ones(count, dtype=torch.bool))
        statistic = Statistic("s", lambda *_: values, 0.7, 0.0)
        return release._statistic(statistic, facts, torch.zeros(count, dtype=torch.long), 0, NOISE)

    assert np.linalg.norm(total(rows) - total(rows[:-1])) <= 0.7 * (1 + 1e-9)


def test_a_statistic_that_looks_at_other_rows_is_refused() -> None:
    def release(measure: object) -> GradientRelease:
        statistic = Statistic("s", measure, 1.0, 1.0)  # type: ignore[arg-type]
        return GradientRelease(Poisson((0.1, 0.1)), Clip((1.0, 1.0)), 1.0, 10.0, Relation.ADD_REMOVE, (statistic,))

    release(lambda per_row, cells: torch.stack([per_row.norms.clamp(max=1.0), (cells == 1).double()], 1)).check_rows(2)
    with pytest.raises(InputError, match='statistic "s" computes the value of a row from other rows'):
        release(lambda per_row, cells: (per_row.norms > per_row.norms.median()).double()[:, None]).check_rows(2)


@pytest.mark.parametrize("bound", [Clip((1e-4,)), Normalise((1.0,), 1e-6), Normalise((1.0,), 1e-30), UnitClip(1e-5, 1)])
@pytest.mark.parametrize("large", [1.0, 1e6, 1.8e19])
def test_norms_that_underflow_keep_their_limit(bound: Bound, large: float) -> None:
    """A slope of e⁻⁵² squares to 0 in single precision, but its product with a huge feature is a gradient."""
    model = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[26.0, 0.0], [-26.0, 0.0]]))
    batch = torch.tensor([[1.0, large], [1.0, 0.0]]), torch.tensor([0, 0])
    limit = torch.tensor([bound.limits[0]] * 2)
    cells = torch.zeros(2, dtype=torch.long)
    weigh = lambda rows: clamp_to_limits(bound.weights(rows, cells), rows.norms, limit)  # noqa: E731
    engine = GradientEngine(model, row_losses)
    for _ in range(2):  # once recorded, once by the short way
        total = engine.weighted_sum(batch, weigh, rows=2).sums[0]["weight"]
        assert float(total.double().norm()) <= 2 * bound.limits[0]


@pytest.mark.parametrize("limits", [(0.7,) * 3, (0.0, 0.7, 1e-20), (0.0,) * 3])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_a_clip_weighs_a_row_as_a_bound_that_is_held_to_its_limits(
    limits: tuple[float, ...], kind: torch.dtype
) -> None:
    """The short way for clips gives the bits of the long one, from norms of 0 to those that are not finite."""
    norms = torch.tensor([0.0, 1e-45, 1e-30, 1e-12, 0.3, 0.7, 0.70001, 2.0, 1e20, 3e38, torch.inf, torch.nan] * 3)
    norms = norms.to(kind)
    per_row = PerRow(torch.zeros_like(norms), norms, torch.isfinite(norms))
    cell_of = np.arange(3).repeat(len(norms) // 3)
    problem = Problem.from_arrays(np.zeros((len(norms), 1)), np.arange(len(norms)) % 2, cell_of.astype(str))
    release = GradientRelease(Poisson((1.0,) * 3), Clip(limits), 1.0, 1.0, Relation.ADD_REMOVE)
    weigh, cells = release.weigh(problem, np.arange(len(norms))), torch.from_numpy(problem.cell_of)
    halves = [PerRow(norms[part], norms[part], per_row.finite[part]) for part in (slice(20), slice(20, None))]
    found = torch.cat([weigh(half) for half in halves])
    wanted = clamp_to_limits(Clip(limits).weights(per_row, cells), norms, torch.tensor(limits, dtype=kind)[cells])
    assert torch.equal(found.nan_to_num(-1.0), wanted.nan_to_num(-1.0))


def squared_error(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return (model(batch[0]).flatten(1).sum(1) - batch[1]) ** 2


@pytest.mark.parametrize("bound", [Clip((1e-4,)), Normalise((1.0,), 1e-30), UnitClip(1e-5, 1)])
@pytest.mark.parametrize(
    ("model", "shape", "slope"),
    [
        (nn.Linear(1000, 1, bias=False), (1000,), 1.6e19),
        (nn.Linear(1000, 1000, bias=False), (3, 1000), 4e17),
        (nn.Conv2d(64, 64, 2, bias=False), (64, 3, 3), 4e17),
    ],
    ids=["one position", "three positions", "convolution"],
)
def test_inputs_that_underflow_keep_their_limit_under_a_huge_slope(
    model: nn.Module, shape: tuple[int, ...], slope: float, bound: Bound
) -> None:
    """The square of 2.5e-23 is 0 in single precision, but its product with a slope of 1e19 is a gradient."""
    batch = torch.full((2, *shape), 2.5e-23), torch.tensor([slope / 2, 0.0])
    limit = torch.tensor([bound.limits[0]] * 2)
    cells = torch.zeros(2, dtype=torch.long)
    weigh = lambda rows: clamp_to_limits(bound.weights(rows, cells), rows.norms, limit)  # noqa: E731
    engine = GradientEngine(model, squared_error)
    for _ in range(2):  # once recorded, once by the short way where there is one
        total = engine.weighted_sum(batch, weigh, rows=2).sums[0]["weight"]
        assert float(total.double().norm()) <= 2 * bound.limits[0]


def test_a_negative_weight_is_bounded_too() -> None:
    limits = torch.ones(1, dtype=torch.float64)
    assert float(clamp_to_limits(torch.tensor([-1000.0]), torch.ones(1), limits).abs()) <= 1.0


class Centred(nn.Module):
    """Looks harmless, and mixes rows."""

    def __init__(self, when_training: bool = False) -> None:
        super().__init__()
        self.inner, self.when_training = nn.Linear(10, 2), when_training

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.inner(rows - rows.mean(0) if self.training or not self.when_training else rows)


def balanced(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    losses = row_losses(model, batch)
    return losses * losses.mean()


@pytest.mark.parametrize(
    ("model", "loss"), [(Centred(), row_losses), (Centred(when_training=True), row_losses), (small_model(), balanced)]
)
def test_models_and_losses_that_mix_rows_are_refused_before_a_row_is_read(
    model: nn.Module, loss: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    touched: list[int] = []
    monkeypatch.setattr(Problem, "batch", lambda self, rows: touched.append(len(rows)))
    with pytest.raises(GradientError, match="changes the output of other rows"):
        veil.fit(model, generate(TWO_GROUPS), method="dp-sgd", loss=loss, steps=3, seed=1)  # type: ignore[arg-type]
    assert touched == []


def test_dropout_mixes_no_rows() -> None:
    model = nn.Sequential(nn.Linear(10, 8), nn.Dropout(0.5), nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    run = veil.fit(model, generate(TWO_GROUPS), method="dp-sgd", steps=3, seed=1)
    assert UNTRIED not in run.certificate.not_covered


def test_a_certificate_says_when_made_up_rows_could_not_be_tried() -> None:
    problem = generate(TWO_GROUPS)
    known = {tuple(row.tolist()) for row in problem.inputs}

    def only_known_rows(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        if any(tuple(row.tolist()) not in known for row in batch[0]):
            raise ValueError("not a row of the table")
        return row_losses(model, batch)

    run = fitted(problem, loss=only_known_rows)
    assert UNTRIED in run.certificate.not_covered


def test_what_stays_fixed_when_a_row_is_removed_is_said_by_where_sizes_come_from() -> None:
    problem = generate(TWO_GROUPS)
    sizes = dict(zip(problem.public.groups, problem.public.group_sizes, strict=True))
    groups = [problem.public.groups[group] for group in problem.group_of]
    declared = Problem.from_arrays(problem.inputs, problem.targets, groups, group_sizes=sizes)
    made = {"counted": problem, "declared": declared, "released": declared.with_sizes_released()}
    for origin, rows in made.items():
        said = fitted(rows).certificate
        assert SIZES[origin] in said.assumptions
        assert not any(SIZES[other] in said.assumptions for other in SIZES if other != origin)
        assert (EMPTY_PLACE in said.assumptions) == (origin == "counted")
        assert NAMES_PUBLIC in said.assumptions
        assert ("its place was empty" in said.statement) == (origin == "counted")


def test_a_group_of_declared_size_needs_no_row() -> None:
    """Else a run would be refused, or not, by whether one row is there."""
    problem = Problem.from_arrays([[0.0], [1.0]] * 20, [0, 1] * 20, ["a"] * 40, group_sizes={"a": 40, "b": 5})
    assert problem.public.groups == ("a", "b")
    run = veil.fit(nn.Linear(1, 2), problem, method="dp-sgd", epsilon=1.0, steps=3, batch_size=10, seed=1)
    assert set(run.certificate.by_group) == {"a", "b"}


def test_classes_that_were_read_off_rows_are_named(tmp_path: Path) -> None:
    problem = generate(TWO_GROUPS)
    read = fitted(problem.with_classes_read()).certificate.assumptions
    declared = fitted(replace(problem, public=replace(problem.public, classes_declared=True))).certificate.assumptions
    assert CLASSES_READ in read
    assert CLASSES_READ not in declared


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (nn.Linear(7, 2), "the model does not accept rows of shape 10 (float32)"),
        (nn.Linear(10, 1), "it must give 2 numbers per row, one per class"),
    ],
)
def test_a_model_that_does_not_fit_the_rows_is_refused_before_any_is_read(model: nn.Module, said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        veil.fit(model, generate(TWO_GROUPS), method="dp-sgd", epsilon=1.0, steps=2, batch_size=40)


def test_rows_for_evaluation_must_be_a_problem() -> None:
    rows = torch.zeros(4, 10), torch.zeros(4)
    with pytest.raises(InputError, match="evaluation must be a veil"):
        fitted(generate(TWO_GROUPS), evaluation=rows)


# Updates: what was released is what the weights move by


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_an_update_does_not_depend_on_how_weights_lie_in_memory(optimizer: str) -> None:
    """Fused optimizers read memory side by side: a gradient laid out in another way would be taken for another one."""
    images = torch.randn(60, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    problem = Problem.from_arrays(images, np.arange(60) % 2, np.repeat(["a", "b"], 30))
    models = [nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(144, 2)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    convolution = models[1][0]
    convolution.weight.data = convolution.weight.data.contiguous(memory_format=torch.channels_last)
    assert convolution.weight.stride() != models[0][0].weight.stride()
    runs = [
        veil.fit(model, problem, method="dp-sgd", epsilon=5.0, steps=3, batch_size=20, seed=1, optimizer=optimizer)
        for model in models
    ]
    assert torch.allclose(weights(runs[0]), weights(runs[1]), atol=1e-5)
