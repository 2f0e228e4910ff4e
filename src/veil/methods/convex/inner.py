"""Inner solvers of the saddle problem, each with a certificate: a proved bound on the distance to the exact solution.

`by_best_response` is the paper's algorithm 4 with a duality gap that can be computed. `accelerated` works on the primal
P of a smooth loss: P is μ_w-strongly convex, so a point with v ∈ ∇P(w) + N_W(w) is within ‖v‖/μ_w of the minimum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from veil.accounting import AccountingError
from veil.methods.convex.rows import project
from veil.methods.convex.saddle import SaddleProblem

Floats = NDArray[np.float64]
_CHECK_EVERY = 10
_MOST_ITERATIONS = 200_000


@dataclass(frozen=True)
class Solution:
    """Weights, group shares, and `distance`: ‖w − ŵ‖ is at most this. `gap` bounds the duality gap where computed."""

    weights: Floats
    shares: Floats
    distance: float
    iterations: int
    gap: float | None = None


def by_best_response(problem: SaddleProblem, iterations: int, *, late: bool = False) -> Solution:
    """Algorithm 4: subgradient steps 1/(μ_w·t) against the best response λ_t, and the averages of both.

    Certificate: F(w, λ̄) ≥ Σ_t a_t·F(w, λ_t) (entropy is concave) ≥ the same average of quadratics F(w_t, λ_t) + ⟨g_t,
    w − w_t⟩ + (μ_w/2)·‖w − w_t‖², whose minimum over the ball is known in closed form. P(w̄) less that minimum bounds
    the gap; it falls like log N/N. `late` gives step t the weight t and the step size 2/(μ_w·(t + 1)), which takes the
    logarithm away.
    """
    mu, weights = problem.mu_w, project(problem.centre, problem.radius)
    point = np.zeros_like(weights)
    shares = np.zeros(len(problem.sizes))
    constant, slope, total = 0.0, np.zeros_like(weights), 0.0
    for t in range(1, iterations + 1):
        value, gradient, best = problem.primal(weights)
        weight = float(t) if late else 1.0
        total += weight
        point += weight * weights
        shares += weight * best
        # The quadratic is constant + ⟨slope, w⟩ + (μ_w/2)·‖w‖² once everything is divided by `total`.
        constant += weight * (value - float((gradient * weights).sum()) + 0.5 * mu * float((weights**2).sum()))
        slope += weight * (gradient - mu * weights)
        rate = 2.0 / (mu * (t + 1)) if late else 1.0 / (mu * t)
        weights = project(weights - rate * gradient, problem.radius)
    point, shares, slope = point / total, shares / total, slope / total
    lowest = project(-slope / mu, problem.radius)
    below = constant / total + float((slope * lowest).sum()) + 0.5 * mu * float((lowest**2).sum())
    gap = max(problem.primal(point)[0] - below, 0.0)
    return Solution(point, shares, math.sqrt(2 * gap / mu), iterations, gap)


def accelerated(problem: SaddleProblem, tolerance: float) -> Solution:
    """A point certified to lie within `tolerance` of ŵ: L-BFGS, and projected acceleration where the ball binds.

    Both minimise a smooth, strongly convex function, so the tolerance is always reached; if rounding prevented it, the
    run stops with an error rather than release what is not certified.
    """
    if not math.isfinite(problem.constants.smoothness):
        raise AccountingError(f"the loss {problem.loss.name} is not smooth: use its smoothed form")
    from scipy.optimize import minimize  # it takes longer to load than many a run

    shape = problem.centre.shape

    def flat(vector: Floats) -> tuple[float, Floats]:
        value, gradient, _ = problem.primal(vector.reshape(shape))
        return value, gradient.ravel()

    options = {"maxiter": 2000, "maxfun": 4000, "ftol": 0.0, "gtol": 0.1 * tolerance * problem.mu_w, "maxcor": 20}
    start = project(problem.centre, problem.radius)
    found = minimize(flat, start.ravel(), jac=True, method="L-BFGS-B", options=options)  # type: ignore[call-overload]
    weights = np.asarray(found.x, dtype=np.float64).reshape(shape)
    if np.isfinite(weights).all() and np.linalg.norm(weights) <= problem.radius:
        distance, shares = certificate(problem, weights)
        if distance <= tolerance:
            return Solution(weights, shares, distance, int(found.nfev))
    else:
        weights = project(weights, problem.radius) if np.isfinite(weights).all() else start
    return _within_ball(problem, weights, tolerance, int(found.nfev))


def certificate(problem: SaddleProblem, weights: Floats) -> tuple[float, Floats]:
    """A bound on ‖w − ŵ‖ for w in the ball, and λ(w).

    On the sphere the normal cone holds every s·w with s ≥ 0; the best s is taken.
    """
    _, gradient, shares = problem.primal(weights)
    length = float(np.linalg.norm(weights))
    if length >= problem.radius * (1 - 1e-12):
        outward = max(0.0, -float((gradient * weights).sum()) / length**2)
        gradient = gradient + outward * weights
    # The radius is met up to rounding only: the last term pays for that.
    return float(np.linalg.norm(gradient)) / problem.mu_w + 4e-12 * problem.radius, shares


def _within_ball(problem: SaddleProblem, start: Floats, tolerance: float, before: int) -> Solution:
    """Accelerated projected gradient steps with a local Lipschitz estimate and a restart when progress reverses."""
    weights = previous = start
    momentum, steepness = 1.0, problem.mu_w + problem.constants.smoothness
    ceiling = steepness + problem.constants.lipschitz**2 / problem.mu_lambda
    for iteration in range(_MOST_ITERATIONS):
        if iteration % _CHECK_EVERY == 0:
            distance, shares = certificate(problem, weights)
            if distance <= tolerance:
                return Solution(weights, shares, distance, before + iteration)
        following = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        ahead = weights + (momentum - 1) / following * (weights - previous)
        value, gradient, _ = problem.primal(ahead)
        while True:
            reached = project(ahead - gradient / steepness, problem.radius)
            move = reached - ahead
            room = 1e-13 * (1 + abs(value))
            model = value + float((gradient * move).sum()) + 0.5 * steepness * float((move**2).sum())
            if steepness >= ceiling or problem.primal(reached)[0] <= model + room:
                break
            steepness = min(2 * steepness, ceiling)
        if float(((ahead - reached) * (reached - weights)).sum()) > 0:
            momentum, following = 1.0, 1.0
        previous, weights, momentum = weights, reached, following
    raise AccountingError("the inner solver could not certify its solution: nothing was released")
