"""The learning rate that nobody gave: from public constants, the same from every front."""

from __future__ import annotations

import math

import pytest
import torch

import veil
from tests.methods.method_cases import CASES, plan_for, small_engine, small_problem
from veil.errors import InputError
from veil.estimators import FairPrivateClassifier, FairPrivateRegressor
from veil.plans import Settings
from veil.plans.controllers import first_release
from veil.training.learning_rate import LARGEST, WANDER, automatic_rate, with_learning_rate


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
    noise = release.sigma / (release.divisor or release.draw.expected_batch(plan.facts))
    assert 0 < rate <= LARGEST["sgd"]
    assert rate / (1 - momentum) * noise * math.sqrt(weights * plan.steps) <= WANDER * 1.01


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
