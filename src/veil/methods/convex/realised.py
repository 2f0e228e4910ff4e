"""Realised regret: a bound on the excess worst-group risk of a finished run, from released values alone.

Steps w_t with group weights λ_t, the released losses L̃_t = L(w_t) + ξ_t and the released gradient of Σ λ_t,g·L_g, which
is g̃_t = G_t + ζ_t. By convexity, for w̄ = Σ w_t/T and every fixed w in the ball of radius r,

    max_g L_g(w̄) − max_g L_g(w) ≤ max_g ΣL_g(w_t)/T − Σλ_t·L(w_t)/T + Σ⟨G_t, w_t − w⟩/T

and each term is released up to noise of known size:

    max_g ΣL_g(w_t)/T  ≤ max_g (ΣL̃_t,g/T + s_g·√(2·ln(3p/β)/T))              s_g: the noise of a released loss, p groups
    Σλ_t·L(w_t)        ≥ Σλ_t·L̃_t − M(Σ_t Σ_g (λ_t,g·s_g)²)
    Σ⟨G_t, w_t − w⟩    ≤ Σ⟨g̃_t, w_t⟩ + r·‖Σg̃_t‖ + M(Σ_t s_t²·(‖w_t‖ + r)²)    s_t: the noise of g̃_t in each coordinate

M(V) is the martingale term: noise of step t is independent of λ_t and w_t, so exp(θ·Σ − θ²·V/2) is a supermartingale
for every θ fixed beforehand, and Σ ≤ θ·V/2 + ln(1/β')/θ with probability 1 − β'. A few θ are fixed and β' is divided
among them. All together hold with probability 1 − β. Nothing is read but releases: the bound costs no privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from veil.methods.convex.setting import LinearSetting

Floats = NDArray[np.float64]
WRONG = 0.05
PACES = (1.0, 2.0, 4.0, 8.0)


@dataclass
class RealisedRegret:
    """Adds up what is released. `loss_stds` are the s_g, `largest_std` is the largest that any s_t can be."""

    setting: LinearSetting
    steps: int
    loss_stds: Floats
    largest_std: float
    seen: int = 0
    losses: Floats = field(init=False)
    gradients: Floats | float = 0.0
    played: float = 0.0
    moved: float = 0.0
    loss_variance: float = 0.0
    gradient_variance: float = 0.0

    def __post_init__(self) -> None:
        self.losses = np.zeros(len(self.loss_stds))

    def add(self, weights: Floats, shares: Floats, losses: Floats, gradient: Floats, std: float) -> None:
        """One step: w_t, λ_t, L̃_t, g̃_t and s_t."""
        self.seen += 1
        self.losses = self.losses + losses
        self.gradients = self.gradients + gradient
        self.played += float(shares @ losses)
        self.moved += float(np.sum(gradient * weights))
        self.loss_variance += float(np.square(shares * self.loss_stds).sum())
        reach = float(np.linalg.norm(weights)) + self.setting.weight_radius
        self.gradient_variance += (std * reach) ** 2

    def worst_loss(self) -> float:
        """What the worst group loses at the averaged weights, at most."""
        apart = np.sqrt(2 * math.log(3 * len(self.losses) / WRONG) / self.seen)
        return float((self.losses / self.seen + self.loss_stds * apart).max()) + self.setting.constants.middle

    def bound(self) -> float:
        """The excess worst-group risk on the training rows, at most, with probability 1 − `WRONG`."""
        radius = self.setting.weight_radius
        regret = self.moved + radius * float(np.linalg.norm(self.gradients))
        regret += self._martingale(self.gradient_variance, 2 * radius * self.largest_std)
        excess = regret / self.seen + self.setting.bias_of_loss
        if len(self.losses) == 1:
            return excess
        played = self.played - self._martingale(self.loss_variance, float(self.loss_stds.max()))
        return excess + self.worst_loss() - self.setting.constants.middle - played / self.seen

    def excess_of_nothing(self) -> float | None:
        """The excess of w = 0, at least, where its loss is the same for every row: ℓ(0) less the worst loss here."""
        if len(self.losses) == 1 or self.setting.facts.task != "classification":
            return None
        return self.setting.loss_at_zero - self.worst_loss()

    def _martingale(self, variance: float, largest: float) -> float:
        """M(V): `largest` is the largest standard deviation that a step can have, which the θ are chosen by."""
        logs = math.log(3 * len(PACES) / WRONG)
        first = math.sqrt(2 * logs / self.steps) / largest
        return min(pace * first * variance / 2 + logs / (pace * first) for pace in PACES)
