"""The learning rate that nobody gave: from public constants, the same from every front."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import veil
from tests.methods.method_cases import CASES, plan_for, small_engine, small_problem
from veil.errors import InputError
from veil.estimators import FairPrivateClassifier, FairPrivateRegressor
from veil.foundation.randomness import Seed
from veil.models import build_model, with_head
from veil.models.pretrained import UnitLength
from veil.models.whitened import Projection
from veil.plans import Plan, Settings
from veil.plans.controllers import first_release
from veil.plans.controllers.thresholds import GroupThresholds
from veil.problem import Cell, Problem, PublicFacts
from veil.problem.strata import Strata
from veil.problem.targets import Task
from veil.sampling import OneGroupSampler
from veil.training.learning_rate import LARGEST, SCORE, WANDER, automatic_rate, longest_row, with_learning_rate
from veil.training.losses import label_losses, row_losses


def weights_of(run: veil.Run) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in run.model.parameters()])


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
@pytest.mark.parametrize("weights", [10, 100_000_000])
def test_noise_alone_never_carries_a_model_further_than_it_may(
    name: str, options: dict[str, object], weights: int
) -> None:
    plan = plan_for(name, options, small_problem())
    release, momentum = first_release(plan.controller), plan.settings.momentum
    rate = automatic_rate(plan, weights)
    noise = release.update_noise(plan.facts)
    assert 0 < rate <= LARGEST["sgd"]
    # What a test takes back has a test of its own below.
    momentum *= plan.gate is None
    assert rate / (1 - momentum) * noise * math.sqrt(weights * plan.steps) <= WANDER * 1.01


def test_thresholds_that_rise_during_a_run_do_not_carry_the_model_further() -> None:
    """Group `a` is clipped whole and no other: its threshold rises as far as it can, and the noise with it."""
    plan = plan_for("dpsgd-f", {}, small_problem())
    controller, state = plan.controller, plan.controller.start()
    assert isinstance(controller, GroupThresholds)
    counts = np.array(controller.expected) * (np.arange(len(controller.expected)) == 0)
    for step in range(20):
        state = controller.observe(state, step, {"clipped_counts": counts})
    release = controller.release(state, 20)
    assert release.divisor is not None
    assert release.divisor < 0.5 * (first_release(controller).divisor or 0.0)
    rate = automatic_rate(plan, 100_000_000)
    carried = rate / (1 - plan.settings.momentum) * release.sigma / release.divisor * math.sqrt(1e8 * plan.steps)
    assert carried <= WANDER * 1.01


def test_a_length_that_is_restored_during_a_run_does_not_carry_the_model_further() -> None:
    """Every gradient is as long as counts, so updates get back five times their length, and so does the noise."""
    plan = plan_for("fdpg", {"restore_length": True}, small_problem())
    controller, state = plan.controller, plan.controller.start()
    for step in range(plan.steps - 1):
        sums = np.full(2 * len(plan.facts.groups), 24.0)
        state = controller.observe(state, step, {"norms": sums})
    release, first = controller.release(state, plan.steps - 1), first_release(controller)
    assert release.update_noise(plan.facts) == pytest.approx(5 * first.update_noise(plan.facts))
    rate = automatic_rate(plan, 100_000_000)
    carried = rate / (1 - plan.settings.momentum) * release.update_noise(plan.facts) * math.sqrt(1e8 * plan.steps)
    assert carried <= WANDER * 1.01


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_noise_whose_every_other_step_is_taken_back_goes_as_far_as_any_other(momentum: float) -> None:
    """Momentum starts anew after a step that failed its test; noise alone fails half of them."""
    plan = plan_for("dpsur", {}, small_problem(), momentum=momentum)
    rate, steps = automatic_rate(plan, 100_000_000), 4000
    generator = np.random.default_rng(3)
    steps_of_noise, kept = generator.normal(size=(steps, 300)), generator.random((steps, 300)) < 0.5
    place, speed = np.zeros(300), np.zeros(300)
    for noise, stays in zip(steps_of_noise, kept, strict=True):
        speed = np.where(stays, momentum * speed + noise, 0.0)
        place += speed
    # Of 300 walks the root mean square is within a few percent: ten standard errors are 40 %.
    walked = math.sqrt(float(np.mean(place**2)) / steps)
    carried = rate * walked * first_release(plan.controller).update_noise(plan.facts) * math.sqrt(1e8 * plan.steps)
    assert carried == pytest.approx(WANDER, rel=0.15)


def test_a_test_that_lets_steps_of_noise_pass_leaves_the_rate_as_it_is() -> None:
    passing, strict = (plan_for("dpsur", {"threshold": limit}, small_problem()) for limit in (0.5, -0.5))
    assert automatic_rate(strict, 100_000_000) > 5 * automatic_rate(passing, 100_000_000)


@pytest.mark.parametrize("name", ["azb", "azb-prop"])
def test_a_lottery_of_groups_does_not_carry_the_model_further_than_other_draws(name: str) -> None:
    """A step with a small group is divided by its few rows, and such steps have most of the noise: summed as drawn."""
    problem = small_problem()
    plan = plan_for(name, {}, problem, batch_size=160)
    release = first_release(plan.controller)
    sampler = release.draw.sampler(Strata.from_labels(problem.cell_of))
    assert isinstance(sampler, OneGroupSampler)
    steps = [sampler.expected_of(sampler.chosen(Seed.from_int(7), step)) for step in range(4000)]
    noise = release.sigma * math.sqrt(np.mean(np.square(1.0 / np.array(steps))))
    assert noise > 1.2 * release.sigma / np.mean(steps)
    carried = automatic_rate(plan, 100_000_000) / (1 - plan.settings.momentum) * noise * math.sqrt(1e8 * plan.steps)
    # The sample of steps is within a few percent of the lottery's mean.
    assert carried <= WANDER * 1.05


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
@pytest.mark.parametrize("length", [0.5, 1.0, 50.0])
def test_noise_alone_never_moves_a_score_of_a_linear_model_further_than_it_may(
    name: str, options: dict[str, object], length: float
) -> None:
    plan = plan_for(name, options, small_problem())
    release, momentum = first_release(plan.controller), plan.settings.momentum
    rate = automatic_rate(plan, 10, length)
    noise = release.update_noise(plan.facts)
    assert rate == automatic_rate(plan, 100_000_000, length) > 0
    momentum *= plan.gate is None
    assert rate / (1 - momentum) * noise * math.sqrt(plan.steps) * length <= SCORE * 1.01


def updates(plan: Plan, rate: float, length: float, classes: int) -> float:
    """The largest weight after many updates with momentum where the loss is a parabola of the assumed curvature."""
    curvature, weight, speed = length**2 / classes, 1.0, 0.0
    for _ in range(200):
        speed = plan.settings.momentum * speed + curvature * weight
        weight -= rate * speed
    return abs(weight)


@pytest.mark.parametrize("length", [0.5, 1.0, 50.0])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_without_noise_a_linear_model_settles_and_at_three_times_the_rate_it_would_not(
    length: float, momentum: float
) -> None:
    plan = plan_for("erm", {}, small_problem(), momentum=momentum)
    rate = automatic_rate(plan, 10, length)
    assert updates(plan, rate, length, classes=2) < 1e-3
    assert updates(plan, 3 * rate, length, classes=2) > 1e3


def facts_of(*shape: int) -> PublicFacts:
    return PublicFacts(("all",), ("all",), (Cell(0, 0, 10),), shape, classes=("no", "yes"))


UNIT = nn.Sequential(nn.Flatten(), UnitLength(), nn.Linear(4, 2))
TWO_LAYERS = nn.Sequential(UnitLength(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))


@pytest.mark.parametrize(
    ("model", "length"),
    [
        (UNIT, math.sqrt(2)),
        (nn.Sequential(UnitLength(), nn.Identity(), nn.Linear(4, 2, bias=False)), 1.0),
        (with_head(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), 4, 2), math.sqrt(2)),
        (with_head(nn.Linear(4, 4), 4, 2, train="all"), None),
        (nn.Sequential(Projection(4, 2), nn.Linear(2, 2)), math.sqrt(2)),
        (build_model("whitened", facts_of(4), Seed.from_int(1)), 1.0),
        (build_model("additive", facts_of(4), Seed.from_int(1)), math.sqrt(2)),
        (build_model("logistic", facts_of(4), Seed.from_int(1), feature_radius=3.0), None),
        (build_model("logistic", facts_of(4), Seed.from_int(1)), None),
        (nn.Sequential(UnitLength(), nn.ReLU(), nn.Linear(4, 2)), None),
        (TWO_LAYERS, None),
    ],
    ids=str,
)
def test_a_length_is_known_where_the_model_itself_keeps_rows_to_it(model: nn.Module, length: float | None) -> None:
    found = longest_row(model)
    assert found is None if length is None else found == pytest.approx(length)


@pytest.mark.parametrize("model", [UNIT, with_head(nn.Identity(), 4, 2)], ids=["unit", "head"])
def test_no_row_is_longer_than_what_the_rate_is_taken_for(model: nn.Module) -> None:
    rows, seen = 1e4 * torch.randn(50, 4), list[torch.Tensor]()
    layer = [part for part in model.modules() if isinstance(part, nn.Linear)][-1]
    layer.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    model(rows)
    length = longest_row(model)
    assert length is not None
    assert float(torch.cat([seen[0], torch.ones(50, 1)], dim=1).norm(dim=1).max()) <= length * 1.0001


def test_a_length_that_is_known_alone_changes_the_rate() -> None:
    problem = small_problem()
    unit = replace(problem, inputs=UnitLength()(problem.inputs))
    run = {"epsilon": 8.0, "delta": 1e-4, "steps": 4, "batch_size": 200, "seed": 5, "method": "dp-sgd"}
    known = veil.fit(nn.Sequential(UnitLength(), nn.Linear(4, 2)), problem, **run).plan.settings.learning_rate  # type: ignore[arg-type]
    unknown = veil.fit(nn.Linear(4, 2), unit, **run).plan.settings.learning_rate  # type: ignore[arg-type]
    assert known is not None
    assert known > LARGEST["sgd"] == unknown


@pytest.mark.parametrize("task", ["regression", "multi-label"])
def test_the_rate_without_noise_knows_the_loss_of_the_task(task: Task) -> None:
    targets = torch.zeros(60) if task == "regression" else torch.zeros(60, 3)
    problem = Problem.from_arrays(torch.randn(60, 3), targets, task=task)
    plan = plan_for("erm", {}, problem, momentum=0.0)
    outputs = problem.public.outputs
    scores = torch.zeros(outputs, dtype=torch.float64)
    losses = label_losses if task == "multi-label" else row_losses

    def loss(scores: torch.Tensor) -> torch.Tensor:
        return losses(nn.Identity(), (scores[None], targets[:1].double()))[0]

    curvature = torch.linalg.eigvalsh(torch.autograd.functional.hessian(loss, scores)).max()  # type: ignore[no-untyped-call]
    assert automatic_rate(plan, 4, 2.0) == pytest.approx(float(1 / (4 * curvature)), rel=0.01)


def test_a_given_rate_is_used_as_it_is() -> None:
    plan = plan_for("asc", {}, small_problem(), learning_rate=0.5)
    assert with_learning_rate(plan, small_engine().model) is plan


def test_a_run_without_a_rate_is_the_run_with_the_rate_that_it_reports() -> None:
    def run(**settings: object) -> veil.Run:
        chosen = {"epsilon": 0.05, "delta": 1e-4, "steps": 40, "batch_size": 24, "seed": 5, **settings}
        return veil.fit(small_engine().model, small_problem(), method="dp-sgd", **chosen)  # type: ignore[arg-type]

    auto = run()
    rate = auto.plan.settings.learning_rate
    assert rate is not None
    assert rate < 0.5
    assert torch.equal(weights_of(auto), weights_of(run(learning_rate=rate)))
    assert not torch.equal(weights_of(auto), weights_of(run(learning_rate=0.5)))


def test_a_session_and_an_estimator_take_the_same_rate_as_fit() -> None:
    problem, model = small_problem(), small_engine().model
    given = {"delta": 1e-4, "batch_size": 24, "seed": 5, "steps": 4, "momentum": 0.999}
    fitted = veil.fit(small_engine().model, problem, method="dp-sgd", **given)  # type: ignore[arg-type]
    session = veil.session(model, problem, method="dp-sgd", **given)  # type: ignore[arg-type]
    for rows, targets in session:
        session.step(torch.nn.functional.cross_entropy(model(rows), targets, reduction="none"))
    rate = session.finish().plan.settings.learning_rate
    assert rate is not None
    assert rate == fitted.plan.settings.learning_rate < 0.5

    # What an estimator does not give, the loop settles.
    assert FairPrivateClassifier().learning_rate is None
    assert FairPrivateRegressor().learning_rate is None


def test_methods_that_bound_no_gradient_get_a_rate_for_long_ones() -> None:
    plan = plan_for("erm", {}, small_problem())
    assert automatic_rate(plan, 1000) == 0.05


def test_adam_gets_a_rate_of_its_own() -> None:
    plan = plan_for("dp-sgd", {}, small_problem(), optimizer="adam")
    assert automatic_rate(plan, 10) == 0.01
    assert automatic_rate(plan, 100_000_000) * math.sqrt(100_000_000 * plan.steps) <= WANDER * 1.01


def test_a_rate_may_be_auto_and_must_be_above_zero() -> None:
    assert Settings.checked(learning_rate="auto").learning_rate is None
    with pytest.raises(InputError, match="learning_rate is 0"):
        Settings.checked(learning_rate=0)
    with pytest.raises(InputError, match='learning_rate is "fast"'):
        Settings.checked(learning_rate="fast")
