"""Numbers that the pages of the convex methods state, and bounds that measured risks must not exceed."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import veil
from tests.methods.convex.convex_cases import NAMES, made_problem, plan_of
from veil.accounting import Gaussian, Laplace, Pld, Repeated
from veil.accounting.calibration import noise_multiplier
from veil.methods.convex.losses import Constants
from veil.methods.convex.phased import PhasedErm, excess_risk
from veil.methods.convex.reweighting import NoisySgd
from veil.methods.convex.setting import excess_risk_line
from veil.problem import Problem


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


def test_a_bound_above_the_range_of_the_loss_is_said_to_say_nothing() -> None:
    constants = made_setting_constants()
    assert "is vacuous" in excess_risk_line(99.0, constants, "population")
    assert "upper bound" in excess_risk_line(0.1, constants, "population")


def made_setting_constants() -> Constants:
    plan = plan_of("phased-erm", {}, made_problem())
    assert isinstance(plan.solver, PhasedErm)
    return plan.solver.setting.constants


@pytest.mark.statistical
@pytest.mark.parametrize("name", NAMES)
def test_the_measured_excess_risk_lies_below_the_bound(name: str) -> None:
    """The bound is on the mean and several times the measured excess: no run in a million would come near it.

    Rows are ±e_j with labels that lean the same way in both groups; in the straight part of the hinge the best weights
    in the ball point to the mean, so the excess has a closed form.
    """
    generator, radius, lean = np.random.default_rng(5), 0.5, 0.6
    x = np.where(generator.random((4000, 4)) < (1 + lean) / 2, 0.5, -0.5)
    groups = ["a", "b"] * 2000
    problem = Problem.from_arrays(x, np.ones(4000, dtype=int), groups, classes=[0, 1])
    model = torch.nn.Linear(4, 2, bias=False)
    run = veil.fit(
        model,
        problem,
        method=veil.method(name, loss="smoothed-hinge", weight_radius=radius),
        epsilon=2.0,
        seed=1,
        **({"steps": 60} if name.startswith("noisy") else {}),
    )
    weights = (model.weight[1] - model.weight[0]).detach().double().numpy()
    mean = np.full(4, lean / 2)
    excess = radius * float(np.linalg.norm(mean)) - float(mean @ weights)
    assert -1e-9 <= excess <= run.plan.details["excess_risk_bound"]
