"""Noisy SGD over groups: by weights that follow released losses (MGR), or on the one a noisy maximum finds (AGS).

    every step:  pick group i;  g = (Σ over its drawn rows of ∇ℓ(w) + N(0, (κ_i·L)²·I)) / (q_i·n_i)
                 w ← Proj_W(w − η·g);   the run's weights are the average of all w
    MGR:  i ~ λ;   L̃_j = L_j(w) + noise for every group j;   λ_j ← λ_j·e^(η_λ·L̃_j), normalised
    MGR on all groups:  g = Σ_j λ_j·(Σ over drawn rows of j of ∇ℓ(w))/(q_j·n_j) + N(0, s²·I),
                        s = max_j λ_j·κ_j·L/(q_j·n_j),   η_t = √2·r/√(Σ_{k ≤ t} (L²·(1 + 1/m) + d·s_k²))
    AGS:  i = the largest L_j(w) after Gumbel (or Laplace) noise

Upper bounds on the expected excess worst-group empirical risk, for T steps (r: radius of W, d weights):

    weights:  r²/(2ηT) + (η/2)·(L²·(1 + 1/m) + d·s²),   s: the largest noise of a group's mean gradient, m: rows drawn
    MGR:      + log p/(η_λ·T) + η_λ·(B²/8 + v/2) + √(2·v·log p/T),   v: the largest variance of a released loss
    all groups: 2·√2·r·√((L²·(1 + 1/m) + d·s²)/T) in place of the first line; η_t knows the noise that there really was
    AGS:      + b·log p (Gumbel of scale b), or + 2·b·H_p (Laplace; H_p = 1 + … + 1/p)

The term √(2·v·log p/T) is the price of comparing with the group that noise favoured. Laplace noise of scale b has log
E e^(s·y) ≤ 1.2·s²b² for s·b ≤ 1/2: then v/2 becomes 1.2·b², the last term b·(√(4.8·log p/T) + 4·log p/T), and η_λ
stays below 1/(2b).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from veil.accounting import Event, Ledger, Relation
from veil.foundation.randomness import Seed
from veil.methods.convex.realised import RealisedRegret
from veil.methods.convex.rows import LinearRows, install, project, weight_shape
from veil.methods.convex.saddle import bounded_slopes, group_losses
from veil.methods.convex.setting import LinearSetting, LinearSolver
from veil.noise import GaussianNoise, GumbelNoise, LaplaceNoise
from veil.plans.controllers.solver import Report
from veil.problem import Problem

Floats = NDArray[np.float64]
Choice = Literal["mgr", "ags"]
Release = Literal["gaussian", "gumbel", "laplace"]
Gradient = Literal["one-group", "all-groups"]
GRADIENTS, CHOICES = "group gradient", "group losses"


@dataclass(frozen=True)
class NoisySgd(LinearSolver):
    """T projected noisy steps.

    `gradient_noise` is κ_i·L per group, `loss_noise` the scale on each group's mean loss.
    """

    relation: Relation
    choice: Choice
    release: Release
    steps: int
    rates: tuple[float, ...]
    gradient_noise: tuple[float, ...]
    loss_noise: tuple[float, ...]
    step_size: float
    weight_step: float
    gradient_events: tuple[Event, ...]
    choice_events: tuple[Event, ...]
    secure: bool = False
    part: Gradient = "one-group"

    def solve(self, model: nn.Module, problem: Problem, seed: Seed, ledger: Ledger, report: Report) -> None:
        """Every group is charged as if it had all the weight at every step, for all steps, before a row is read."""
        layer, setting = self.setting.layer(model), self.setting
        bias = layer.bias is not None
        ledger.reserve(GRADIENTS, 0, self.steps, dict(enumerate(self.gradient_events)))
        if len(setting.facts.groups) > 1:
            ledger.reserve(CHOICES, 0, self.steps, dict(enumerate(self.choice_events)))
        names = [np.flatnonzero(problem.present & (problem.group_of == g)) for g in range(len(self.rates))]
        groups = [setting.read(problem, own, bias) for own in names]
        weights = np.zeros(weight_shape(setting.facts, bias))
        mean, shares = np.zeros_like(weights), np.full(len(groups), 1.0 / len(groups))
        regret, energy = self.regret(), 0.0
        for step in range(self.steps):
            mean += (weights - mean) / (step + 1)
            group, losses = self.choose(groups, weights, shares, seed, step)
            if self.part == "all-groups":
                gradient = self.weighted_gradient(groups, names, shares, weights, seed, step)
                regret.add(weights, shares, losses, gradient, self.weighted_std(shares))
                energy += self.energy(shares)
                pace = math.sqrt(2 / energy) * setting.weight_radius
            else:
                gradient = self.gradient(groups[group], names[group], group, weights, seed, step)
                pace = self.step_size
            weights = project(weights - pace * gradient, setting.weight_radius)
            shares = self.reweighed(shares, losses)
            # The averaged weights are what may be shown: they are what the run releases.
            install(layer, mean, bias)
            report(step, self.told(group, shares, regret))

    def told(self, group: int, shares: Floats, regret: RealisedRegret) -> dict[str, Floats]:
        """What a step shows: weights or the chosen group and, where they are proved, the bounds of `realised`."""
        if self.choice == "ags":
            return {"chosen": np.array([float(group)])}
        if not self.certifies:
            return {"weights": shares}
        nothing = regret.excess_of_nothing()
        bounds = [regret.bound(), math.inf if nothing is None else nothing]
        return {"weights": shares, "realised_excess_risk": np.array(bounds)}

    @property
    def certifies(self) -> bool:
        """Whether released values bound the regret: all rows of all groups take part, and noise is Gaussian."""
        return self.part == "all-groups" and self.release == "gaussian" and min(self.rates) == 1.0

    def regret(self) -> RealisedRegret:
        """An empty account of the run's regret."""
        largest = max(self.weighted_stds(np.ones(len(self.rates))))
        return RealisedRegret(self.setting, self.steps, np.array(self.loss_noise), largest)

    def energy(self, shares: Floats) -> float:
        """The expected square of the released weighted gradient, at most."""
        drawn = float((np.array(self.rates) * self.setting.sizes).min())
        exact = self.setting.constants.lipschitz**2 * (1 + 1 / drawn)
        return exact + self.setting.dimension * self.weighted_std(shares) ** 2

    def weighted_stds(self, shares: Floats) -> Floats:
        """The noise that each group needs, in each coordinate of the weighted gradient."""
        rows = np.array(self.rates) * self.setting.sizes
        return np.asarray(shares * np.array(self.gradient_noise) / rows)

    def weighted_std(self, shares: Floats) -> float:
        """The noise of the weighted gradient: what the group needs that it weighs most on."""
        return float(self.weighted_stds(shares).max())

    def choose(
        self, groups: list[LinearRows], weights: Floats, shares: Floats, seed: Seed, step: int
    ) -> tuple[int, Floats]:
        """The group of this step and, for MGR, the released losses of all groups."""
        count = len(self.rates)
        if count == 1:
            return 0, np.zeros(1)
        exact = self.exact_losses(groups, weights)
        if self.choice == "ags":
            if self.release == "gumbel":
                noise = GumbelNoise(seed, secure=self.secure)
                return noise.largest(step, exact, self.loss_noise[0], CHOICES), exact * 0.0
            laplace = LaplaceNoise(seed, secure=self.secure).add(step, exact, self.loss_noise[0], CHOICES)
            return int(np.argmax(laplace)), exact * 0.0
        group = int(seed.generator("lottery", step).choice(count, p=shares / shares.sum()))
        return group, self.noisy_losses(exact, seed, step)

    def exact_losses(self, groups: list[LinearRows], weights: Floats) -> Floats:
        """Each group's sum of centred losses over its declared size: private until noise is added."""
        loss, constants, sizes = self.setting.loss, self.setting.constants, self.setting.sizes
        parts = [group_losses(loss, constants, own, own.features @ weights, sizes) for own in groups]
        return np.asarray(np.sum(parts, axis=0))

    def noisy_losses(self, exact: Floats, seed: Seed, step: int) -> Floats:
        """Every group's mean loss with noise for its own size."""
        scale = np.array(self.loss_noise)
        if self.release == "laplace":
            return np.asarray(LaplaceNoise(seed, secure=self.secure).add(step, exact / scale, 1.0, CHOICES) * scale)
        units = {"losses": torch.from_numpy(exact / scale)}
        return np.asarray(
            GaussianNoise(seed, secure=self.secure).add(step, units, 1.0, CHOICES)["losses"].numpy() * scale
        )

    def gradient(
        self,
        rows: LinearRows,
        names: NDArray[np.int64],
        group: int,
        weights: Floats,
        seed: Seed,
        step: int,
    ) -> Floats:
        """The noisy mean gradient of one group over rows that each joined with the group's public rate."""
        setting, rate = self.setting, self.rates[group]
        total = self.gradient_sum(self.drawn(rows, names, group, seed, step), weights)
        noise = GaussianNoise(seed, secure=self.secure)
        noisy = noise.add(step, {"gradient": torch.from_numpy(total)}, self.gradient_noise[group], GRADIENTS)
        return np.asarray(noisy["gradient"].numpy() / (rate * setting.facts.group_sizes[group]))

    def weighted_gradient(
        self,
        groups: list[LinearRows],
        names: list[NDArray[np.int64]],
        shares: Floats,
        weights: Floats,
        seed: Seed,
        step: int,
    ) -> Floats:
        """Σ λ_j·(mean gradient of group j), with noise once, for the group that needs most."""
        total = np.zeros_like(weights)
        for group, rows in enumerate(groups):
            drawn = self.drawn(rows, names[group], group, seed, step)
            total += shares[group] / (self.rates[group] * self.setting.sizes[group]) * self.gradient_sum(drawn, weights)
        noise = GaussianNoise(seed, secure=self.secure)
        noisy = noise.add(step, {"gradient": torch.from_numpy(total)}, self.weighted_std(shares), GRADIENTS)
        return np.asarray(noisy["gradient"].numpy())

    def drawn(self, rows: LinearRows, names: NDArray[np.int64], group: int, seed: Seed, step: int) -> LinearRows:
        """The rows of a group that take part, each with the group's public rate."""
        rate = self.rates[group]
        if rate == 1.0:
            return rows
        # One number per place, so that no row's draw depends on who else is there.
        luck = seed.generator("group batch", step).random(int(names.max(initial=0)) + 1)
        return rows.take(np.flatnonzero(luck[names] < rate))

    def gradient_sum(self, rows: LinearRows, weights: Floats) -> Floats:
        """Σ ∇ℓ over rows, each at most L long."""
        scores, ones = rows.features @ weights, np.ones(len(rows))
        slopes = bounded_slopes(self.setting.loss, self.setting.constants, rows, scores, ones)
        return np.asarray(rows.features.T @ slopes)

    def reweighed(self, shares: Floats, losses: Floats) -> Floats:
        """λ_j·e^(η_λ·L̃_j), normalised."""
        logits = np.log(np.maximum(shares, 1e-300)) + self.weight_step * losses
        raised = np.exp(logits - logits.max())
        return np.asarray(raised / raised.sum())


@dataclass(frozen=True)
class Rates:
    """Step sizes that minimise the upper bound, and the bound."""

    step_size: float
    weight_step: float
    bound: float


def best_rates(
    setting: LinearSetting,
    choice: Choice,
    release: Release,
    steps: int,
    gradient_std: float,
    loss_scale: float,
    drawn: float,
    part: Gradient = "one-group",
) -> Rates:
    """The step sizes of this module's docstring; `gradient_std` and `loss_scale` are the largest over the groups.

    With all groups the step size is that of the first step at the largest noise: it follows the noise from there.
    """
    constants, groups, radius = setting.constants, len(setting.facts.groups), setting.weight_radius
    second = constants.lipschitz**2 * (1 + 1 / drawn) + setting.dimension * gradient_std**2
    moving = part == "all-groups"
    step_size = radius * math.sqrt(2 / second) if moving else radius / math.sqrt(steps * second)
    bound = (2 * math.sqrt(2) if moving else 1.0) * radius * math.sqrt(second / steps) + setting.bias_of_loss
    if groups == 1:
        return Rates(step_size, 0.0, bound)
    logs = math.log(groups)
    if choice == "ags":
        harmonic = sum(1.0 / k for k in range(1, groups + 1))
        return Rates(step_size, 0.0, bound + loss_scale * (logs if release == "gumbel" else 2 * harmonic))
    laplace = release == "laplace"
    curvature = constants.range**2 / 8 + loss_scale**2 * (1.2 if laplace else 0.5)
    weight_step = math.sqrt(logs / (steps * curvature))
    if laplace:
        weight_step = min(weight_step, 1 / (2 * loss_scale))
        luck = loss_scale * (math.sqrt(4.8 * logs / steps) + 4 * logs / steps)
    else:
        luck = loss_scale * math.sqrt(2 * logs / steps)
    return Rates(step_size, weight_step, bound + logs / (weight_step * steps) + weight_step * curvature + luck)
