"""Numbers that the pages of the convex methods state, and bounds that measured risks must not exceed."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

import veil
from tests.methods.convex.convex_cases import NAMES, linear, made_problem, plan_of
from veil.accounting import Gaussian, Laplace, Pld, Repeated
from veil.accounting.calibration import noise_multiplier
from veil.methods.convex.losses import SmoothedHinge
from veil.methods.convex.phased import Phase, PhasedErm, excess_risk
from veil.methods.convex.reweighting import NoisySgd
from veil.methods.convex.setting import LinearSetting
from veil.problem import Cell, Problem, PublicFacts
from veil.report.page import build_twin, render_page


def test_gaussian_losses_are_less_noisy_than_laplace_ones_at_a_thousand_steps() -> None:
    gaussian = noise_multiplier(lambda k: [Repeated(Gaussian(k), 1000)], 1.0, 1e-5, Pld())
    laplace = noise_multiplier(lambda k: [Repeated(Laplace(k), 1000)], 1.0, 1e-5, Pld()) * math.sqrt(2)
    assert gaussian == pytest.approx(118, abs=1)
    assert laplace == pytest.approx(167, abs=1.5)


def test_the_papers_gaussian_noise_fails_from_epsilon_eight_on() -> None:
    for epsilon, holds in ((1.0, True), (4.0, True), (8.5, False), (12.0, False)):
        kappa = math.sqrt(2 * math.log(1e5)) / epsilon
        assert (Pld().epsilon([Gaussian(kappa)], 1e-5) <= epsilon) is holds


def test_the_schedule_has_a_smaller_bound_than_the_papers_and_than_other_numbers_of_phases() -> None:
    problem = made_problem(4000, owners=False)
    bounds = {}
    for phases in (None, 1, 2, 4):
        plan = plan_of("phased-erm", {"phases": phases}, problem)
        assert isinstance(plan.solver, PhasedErm)
        bounds[phases] = plan.details["excess_risk_bound"]
        assert bounds[phases] == pytest.approx(excess_risk(plan.solver.setting, plan.solver.phases))
    paper = plan_of("phased-erm", {"schedule": "paper"}, problem).details["excess_risk_bound"]
    assert bounds[None] <= min(bounds[1], bounds[2], bounds[4]) * (1 + 1e-9)
    assert bounds[None] < paper


def test_the_noise_of_the_last_phase_counts_in_full() -> None:
    """Two groups with slopes of 1 and −1, where 0 is best: noise ξ leaves an excess of |ξ|, 0.8·σ on average."""
    cells = (Cell(0, 0, 10**9), Cell(1, 0, 10**9))
    facts, loss = PublicFacts(("a", "b"), ("all",), cells, (1,), classes=("0", "1")), SmoothedHinge(0.5)
    setting = LinearSetting("test", facts, loss, loss.constants(1.0, 0.5), 1.0, 0.5)
    bound = excess_risk(setting, (Phase(1e-6, 1e-6, 0.1, 0.0, (1.0, 1.0)),))
    assert 0.1 * math.sqrt(2 / math.pi) <= bound < 0.2


@pytest.mark.parametrize("name", NAMES)
def test_more_rows_and_more_budget_lower_the_bound(name: str) -> None:
    bounds = [
        plan_of(name, {}, made_problem(rows, owners=False), epsilon=epsilon).details["excess_risk_bound"]
        for rows, epsilon in ((400, 1.0), (4000, 1.0), (4000, 4.0))
    ]
    assert bounds[0] > bounds[1] > bounds[2]


def test_larger_groups_have_less_noise_with_their_own_sizes_and_a_smaller_epsilon_with_the_smallest_size() -> None:
    problem = made_problem(owners=False)
    own, shared = (plan_of("noisy-sgd-mgr", {"sizes": sizes}, problem) for sizes in ("own", "n-min"))
    assert isinstance(own.solver, NoisySgd)
    assert isinstance(shared.solver, NoisySgd)
    assert own.solver.gradient_noise[0] / 180 < own.solver.gradient_noise[1] / 60
    assert shared.solver.gradient_noise[0] / 180 == pytest.approx(shared.solver.gradient_noise[1] / 60)
    for plan, equal in ((own, True), (shared, False)):
        assert plan.rules is not None
        large, small = (rule.guarantee(plan.delta, Pld()) for rule in plan.rules)
        assert small == pytest.approx(1.0, rel=1e-3)
        assert (large == pytest.approx(1.0, rel=1e-3)) is equal


@pytest.mark.parametrize("name", NAMES)
def test_a_bound_no_better_than_that_of_zero_weights_is_said_to_say_nothing(name: str) -> None:
    setting = plan_of(name, {}, made_problem()).solver.setting  # type: ignore[union-attr]
    line = setting.loss_at_zero - setting.constants.low
    assert line == pytest.approx(math.log(2) - setting.constants.low)
    assert line < setting.constants.range / 2, "the range of the loss would be a weaker line"
    assert "says nothing" in setting.excess_risk(1.01 * line, "population")["sentence"]
    below = setting.excess_risk(0.99 * line, "population")
    assert "says nothing" not in below["sentence"]
    assert f"between 0 and {line:.3g}" in below["uncompared"], "no release tells where w = 0 lies"


@pytest.mark.parametrize("name", NAMES)
def test_the_report_of_a_real_run_shows_its_bound(name: str) -> None:
    problem = made_problem()
    run = veil.fit(linear(), problem, method=name, delta=1e-4, seed=5, **({"steps": 6} if "noisy" in name else {}))
    shown = build_twin([run.as_json()])["verdict"]["expected_excess_risk"]
    assert shown["value"] > 0
    assert "upper bound" in shown["sentence"]
    assert "Expected excess risk" in render_page([run.as_json()])


def leaning(rows: int, radius: float) -> tuple[Problem, Callable[[torch.nn.Linear], float]]:
    """Rows whose labels lean one way in both groups, and the excess worst-group risk of a model on these very rows.

    In the straight part of the hinge a group's risk is a constant less ⟨mean row, w⟩, so that the best worst group in
    the ball is r·min over λ of ‖Σ λ_g·mean_g‖ below it (the two players' order does not matter).
    """
    x = np.where(np.random.default_rng(5).random((rows, 4)) < 0.8, 0.5, -0.5)
    problem = Problem.from_arrays(x, np.ones(rows, dtype=int), ["a", "b"] * (rows // 2), classes=[0, 1])
    means = np.array([x[0::2].mean(axis=0), x[1::2].mean(axis=0)])
    mixed = [np.linalg.norm(share * means[0] + (1 - share) * means[1]) for share in np.linspace(0, 1, 1001)]

    def excess(model: torch.nn.Linear) -> float:
        weights = (model.weight[1] - model.weight[0]).detach().double().numpy()
        return radius * float(min(mixed)) - float((means @ weights).min())

    return problem, excess


@pytest.mark.statistical
@pytest.mark.parametrize("name", NAMES)
def test_the_measured_excess_risk_lies_below_the_bound(name: str) -> None:
    """Bounds are on the mean and at least twice the measured excess, and far below the largest possible one."""
    problem, excess = leaning(40_000, 0.5)
    model = torch.nn.Linear(4, 2, bias=False)
    method = veil.method(name, loss="smoothed-hinge", weight_radius=0.5)
    run = veil.fit(model, problem, method=method, epsilon=8.0, seed=1)
    opposite = torch.nn.Linear(4, 2, bias=False)
    with torch.no_grad():
        opposite.weight.copy_(torch.tensor([[0.125] * 4, [-0.125] * 4]))
    bound = run.plan.details["excess_risk_bound"]
    assert bound < 0.5 * excess(opposite), "no weights could exceed the bound: the test shows nothing"
    assert -1e-3 <= excess(model) <= bound


@pytest.mark.statistical
def test_the_bound_from_released_values_holds() -> None:
    """20 runs at little budget: a bound of probability 0.95 fails in more than four of them once in 400 such tests."""
    problem, excess = leaning(1000, 0.5)
    wrong, tight = 0, []
    for seed in range(20):
        model = torch.nn.Linear(4, 2, bias=False)
        method = veil.method("noisy-sgd-mgr", loss="smoothed-hinge", weight_radius=0.5)
        run = veil.fit(model, problem, method=method, epsilon=0.5, steps=60, seed=seed)
        bound, nothing = run.history["realised_excess_risk"].iloc[-1]
        wrong += excess(model) > bound
        tight.append(excess(model) / bound)
        zero = torch.nn.Linear(4, 2, bias=False)
        torch.nn.init.zeros_(zero.weight)
        assert nothing <= excess(zero) + 1e-3
    assert wrong <= 4
    assert np.median(tight) > 0.05, "the bound is far from anything measured: the test shows little"


def test_where_noise_is_small_released_values_say_more_than_the_plan_and_the_report_shows_it() -> None:
    problem, excess = leaning(4000, 0.5)
    model = torch.nn.Linear(4, 2, bias=False)
    method = veil.method("noisy-sgd-mgr", loss="smoothed-hinge", weight_radius=0.5)
    run = veil.fit(model, problem, method=method, epsilon=2.0, steps=400, seed=1)
    bound, nothing = run.history["realised_excess_risk"].iloc[-1]
    assert excess(model) <= bound < 0.8 * run.plan.details["excess_risk_bound"]
    assert bound < nothing, "the bound says nothing"
    shown = build_twin([run.as_json()])["verdict"]["expected_excess_risk"]
    assert shown["value"] == pytest.approx(bound)
    assert "released values" in shown["sentence"]
    assert "says nothing" not in shown["sentence"]
