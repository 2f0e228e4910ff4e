"""The regularised saddle problem over groups, its primal, and how far one row can move its solution.

    F(w, λ) = Σ_i λ_i·L_i(w) + (μ_w/2)·‖w − c‖² − μ_λ·Σ_i λ_i·log λ_i,   w in a ball, λ in the simplex
    P(w) = max_λ F(w, λ) = μ_λ·log Σ_i e^(L_i(w)/μ_λ) + (μ_w/2)·‖w − c‖²

L_i is the sum of the losses (less the middle of their range) of group i's rows over the public number n_i.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from veil.methods.convex.losses import Constants, Loss
from veil.methods.convex.rows import LinearRows

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class SaddleProblem:
    """Rows with their groups, the public divisors n_i, and the two regularisers."""

    rows: LinearRows
    sizes: Floats
    loss: Loss
    constants: Constants
    centre: Floats
    mu_w: float
    mu_lambda: float
    radius: float

    def group_losses(self, scores: Floats) -> Floats:
        """L_i: centred losses, clamped to their certified range, summed by group over the public divisor."""
        return group_losses(self.loss, self.constants, self.rows, scores, self.sizes)

    def primal(self, weights: Floats) -> tuple[float, Floats, Floats]:
        """P(w), ∇P(w) and the best response λ(w)."""
        scores = self.rows.features @ weights
        losses = self.group_losses(scores)
        top = losses.max()
        raised = np.exp((losses - top) / self.mu_lambda)
        shares = raised / raised.sum()
        away = weights - self.centre
        value = top + self.mu_lambda * math.log(raised.sum()) + 0.5 * self.mu_w * float((away**2).sum())
        return value, self._slope(scores, shares) + self.mu_w * away, shares

    def value(self, weights: Floats, shares: Floats) -> float:
        """F(w, λ)."""
        losses = self.group_losses(self.rows.features @ weights)
        entropy = -float((shares * np.log(np.maximum(shares, 1e-300))).sum())
        away = float(((weights - self.centre) ** 2).sum())
        return float(shares @ losses) + 0.5 * self.mu_w * away + self.mu_lambda * entropy

    def _slope(self, scores: Floats, shares: Floats) -> Floats:
        factors = (shares / self.sizes)[self.rows.groups]
        return np.asarray(
            self.rows.features.T @ (bounded_slopes(self.loss, self.constants, self.rows, scores, factors))
        )


def group_losses(loss: Loss, constants: Constants, rows: LinearRows, scores: Floats, sizes: Floats) -> Floats:
    """Σ over each group's rows of (loss − middle), clamped to ±B/2, over the public sizes."""
    half = constants.range / 2
    centred = np.clip(loss.values(scores, rows.targets) - constants.middle, -half, half)
    return np.asarray(np.bincount(rows.groups, centred, minlength=len(sizes)) / sizes)


def bounded_slopes(loss: Loss, constants: Constants, rows: LinearRows, scores: Floats, factors: Floats) -> Floats:
    """Each row's slope times its factor; never steeper than the certified constant."""
    slopes = loss.slopes(scores, rows.targets)
    lengths = np.abs(slopes[:, 0]) if slopes.shape[1] == 1 else np.linalg.norm(slopes, axis=1)
    return np.asarray(slopes * (factors * np.minimum(1.0, constants.steepness / np.maximum(lengths, 1e-300)))[:, None])


def reach_of_one_row(constants: Constants, mu_w: float, mu_lambda: float) -> float:
    """n_i times how far the exact solution ŵ moves when one row of group i comes or goes; twice that if replaced.

    Add the variational inequalities of both problems at each other's solution. The w-part is μ_w-strongly monotone,
    the λ-part μ_λ-strongly in the ℓ₁ norm (Pinsker twice). One row changes ∇_w F by at most L/n_i, and one coordinate
    of ∇_λ F by at most B/(2·n_i), against |Δλ_i| ≤ ‖Δλ‖₁/2. With a = ‖Δw‖ and b = ‖Δλ‖₁:

        μ_w·a² + μ_λ·b² ≤ (L·a + (B/4)·b)/n_i,  so  a ≤ (1/n_i)·[L/(2μ_w) + √(L²/(4μ_w²) + B²/(64·μ_w·μ_λ))]

    >>> from veil.methods.convex.losses import Logistic
    >>> round(reach_of_one_row(Logistic().constants(1.0, 2.0), 0.1, 0.1), 3)
    9.468
    """
    half = constants.lipschitz / (2 * mu_w)
    return half + math.sqrt(half**2 + constants.range**2 / (64 * mu_w * mu_lambda))
