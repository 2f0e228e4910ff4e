"""Inner solvers: a certificate never lies below the truth, and falls at the stated rate."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from tests.methods.convex.convex_cases import saddle_problem
from veil.accounting import AccountingError
from veil.methods.convex.inner import accelerated, by_best_response, certificate
from veil.methods.convex.losses import Hinge, Logistic, Loss, SmoothedHinge, Squared
from veil.methods.convex.rows import LinearRows, project
from veil.methods.convex.saddle import SaddleProblem

SMOOTH: tuple[Loss, ...] = (Logistic(), SmoothedHinge(0.5), Squared(1.0))


def two_sides(scale: float = 0.6) -> SaddleProblem:
    """Group 0 wants w = +a, group 1 wants w = −a: by symmetry the saddle point is w = 0, λ = (1/2, 1/2)."""
    rows = LinearRows(np.ones((2, 1)), np.array([scale, -scale]), np.array([0, 1]))
    loss = Squared(1.0)
    return SaddleProblem(rows, np.ones(2), loss, loss.constants(1.0, 1.0), np.zeros((1, 1)), 0.5, 0.3, 1.0)


def one_side(radius: float) -> SaddleProblem:
    """One group, one row (w − 1)²/2 around 0: the solution is 1/(1 + μ), or the end of the ball."""
    rows = LinearRows(np.ones((1, 1)), np.array([1.0]), np.array([0]))
    loss = Squared(1.0)
    return SaddleProblem(rows, np.ones(1), loss, loss.constants(1.0, radius), np.zeros((1, 1)), 0.25, 1.0, radius)


def true_gap(problem: SaddleProblem, weights: np.ndarray, shares: np.ndarray) -> float:
    """max_λ F(w, λ) − min_w F(w, λ), the second by brute force."""
    shape = weights.shape
    best = min(
        minimize(
            lambda v: problem.value(project(v.reshape(shape), problem.radius), shares),
            start.ravel(),
            method="Nelder-Mead",
            options={"xatol": 1e-10, "fatol": 1e-14, "maxiter": 20000},
        ).fun
        for start in (weights, np.zeros(shape))
    )
    return float(problem.primal(weights)[0] - best)


@pytest.mark.parametrize("radius", [2.0, 0.5])
def test_known_solutions_are_found_inside_the_ball_and_on_its_edge(radius: float) -> None:
    found = accelerated(one_side(radius), 1e-8)
    assert abs(float(found.weights[0, 0]) - min(0.8, radius)) <= found.distance <= 1e-8
    symmetric = accelerated(two_sides(), 1e-8)
    assert abs(float(symmetric.weights[0, 0])) <= 1e-8
    assert symmetric.shares == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize("loss", SMOOTH, ids=lambda loss: loss.name)
@pytest.mark.parametrize("radius", [2.0, 0.3])
def test_the_certified_distance_is_never_below_the_true_distance(loss: Loss, radius: float) -> None:
    generator = np.random.default_rng(4)
    for seed in range(10):
        problem = saddle_problem(seed, loss, radius)
        exact = accelerated(problem, 1e-9).weights
        for _ in range(10):
            point = project(exact + generator.standard_normal(exact.shape) * generator.choice([1e-4, 0.1, 3.0]), radius)
            assert np.linalg.norm(point - exact) <= certificate(problem, point)[0] + 1e-9


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("loss", [Logistic(), Hinge()], ids=lambda loss: loss.name)
def test_the_certified_gap_is_never_below_the_true_gap(loss: Loss, late: bool) -> None:
    for seed in range(3):
        problem = saddle_problem(seed, loss, 1.0, rows=24)
        for iterations in (3, 30, 300):
            found = by_best_response(problem, iterations, late=late)
            assert found.gap is not None
            assert found.gap >= true_gap(problem, found.weights, found.shares) - 1e-9


@pytest.mark.parametrize("late", [False, True])
def test_the_gap_of_the_papers_solver_falls_at_least_like_one_over_n_up_to_a_logarithm(late: bool) -> None:
    problem = saddle_problem(1, Hinge(), 2.0)
    gaps = [by_best_response(problem, n, late=late).gap for n in (30, 300, 3000)]
    slope = np.polyfit(np.log([30, 300, 3000]), np.log(np.array(gaps, dtype=float)), 1)[0]
    assert slope < (-0.95 if late else -0.75)
    steep = problem.constants.lipschitz + 2 * problem.mu_w * problem.radius
    assert gaps[0] is not None
    assert gaps[0] <= steep**2 / (2 * problem.mu_w) * (1 + np.log(30)) / 30 * (4 if late else 1)


def test_the_papers_solver_and_the_fast_one_agree_within_their_certificates() -> None:
    for seed in range(5):
        problem = saddle_problem(seed)
        slow, fast = by_best_response(problem, 2000, late=True), accelerated(problem, 1e-8)
        assert np.linalg.norm(slow.weights - fast.weights) <= slow.distance + fast.distance


def test_a_loss_with_a_corner_is_not_given_to_the_smooth_solver() -> None:
    with pytest.raises(AccountingError, match="is not smooth"):
        accelerated(saddle_problem(0, Hinge()), 1e-3)


def test_the_primal_is_the_maximum_over_shares_and_its_gradient_is_right() -> None:
    problem = saddle_problem(3)
    weights = np.array([[0.3], [-0.2], [0.5]])
    value, gradient, shares = problem.primal(weights)
    assert problem.value(weights, shares) == pytest.approx(value)
    for other in np.random.default_rng(0).dirichlet(np.ones(4), 50):
        assert problem.value(weights, other) <= value + 1e-12
    for axis in range(3):
        step = np.zeros((3, 1))
        step[axis] = 1e-6
        slope = (problem.primal(weights + step)[0] - problem.primal(weights - step)[0]) / 2e-6
        assert slope == pytest.approx(float(gradient[axis, 0]), abs=1e-6)
