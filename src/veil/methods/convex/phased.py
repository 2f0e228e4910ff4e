"""Minimax phased ERM: one regularised saddle problem after the other on disjoint rows, each solution released once.

    phase t:  ŵ_t = saddle point on fold t around w_{t−1};  w_t = Proj(ŵ_t + N(0, σ_t²·I)),  σ_t = κ·(reach of one row)

The upper bound on the excess worst-group population risk, with every constant, for weights in a ball of radius r:

    Σ_t [ (μ_t/2)·E‖ξ_{t−1}‖² + μ_λt·log p + c·L·ρ_t/√n_t + 2·B·√(log p/(2·n_t)) + L·tol_t ] + L·E‖ξ_T‖

ξ_0 = w_0 − w* (at most r), E‖ξ_t‖² = d·σ_t². The third and fourth term bound sup |L_S − L_D| over the ball of radius
ρ_t = min(2r, L/μ_t) around w_{t−1} that holds ŵ_t, by Rademacher averages (c = 2; 2·√(2k) for k scores) and bounded
differences: for linear scores this needs no stability argument and no dimension.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from veil.accounting import Event, Ledger, Relation
from veil.foundation.randomness import Seed
from veil.methods.convex.inner import accelerated
from veil.methods.convex.losses import Constants
from veil.methods.convex.rows import install, project, weight_shape
from veil.methods.convex.saddle import SaddleProblem, reach_of_one_row
from veil.methods.convex.setting import LinearSetting, LinearSolver, reach_of
from veil.noise import GaussianNoise
from veil.plans.controllers.solver import Report
from veil.problem import Problem

Floats = NDArray[np.float64]
# The inner solver's error in units of what one row moves: small enough not to matter, large enough to be quick.
_ERROR = 0.005
PURPOSE = "weights of one fold"


@dataclass(frozen=True)
class Phase:
    """The public constants of one phase; `limits` says how far one row of each cell can move the solution."""

    mu_w: float
    mu_lambda: float
    sigma: float
    tolerance: float
    limits: tuple[float, ...]


@dataclass(frozen=True)
class PhasedErm(LinearSolver):
    """Runs the phases. Every row stands in one fold, so a run costs a row one release."""

    phases: tuple[Phase, ...]
    events: tuple[Event, ...]
    secure: bool = False

    def solve(self, model: nn.Module, problem: Problem, seed: Seed, ledger: Ledger, report: Report) -> None:
        """One release of the weights per fold; their cost, the same in every fold, is reserved once."""
        layer, setting = self.setting.layer(model), self.setting
        bias = layer.bias is not None
        ledger.reserve(PURPOSE, 0, 1, dict(enumerate(self.events)))
        folds = fold_of_rows(problem, len(self.phases), seed)
        weights = np.zeros(weight_shape(setting.facts, bias))
        noise = GaussianNoise(seed, secure=self.secure)
        for step, phase in enumerate(self.phases):
            exact = self.saddle_point(problem, np.flatnonzero(folds == step), weights, phase, bias)
            noisy = noise.add(step, {"weights": torch.from_numpy(exact)}, phase.sigma, "fold")["weights"].numpy()
            weights = project(noisy, setting.weight_radius)
            install(layer, weights, bias)
            report(step, {"noise": np.array([phase.sigma])})

    def saddle_point(
        self, problem: Problem, rows: NDArray[np.int64], centre: Floats, phase: Phase, bias: bool
    ) -> Floats:
        """The certified solution on one fold: private until noise is added."""
        setting = self.setting
        saddle = SaddleProblem(
            setting.read(problem, rows, bias),
            rows_of_a_fold(setting.sizes, len(self.phases)),
            setting.loss,
            setting.constants,
            centre,
            phase.mu_w,
            phase.mu_lambda,
            setting.weight_radius,
        )
        return accelerated(saddle, phase.tolerance).weights


def fold_of_rows(problem: Problem, folds: int, seed: Seed) -> NDArray[np.int64]:
    """The fold of each row, −1 for a row that was taken out; it depends on no row's values.

    Every group is cut into folds of exactly equal size, as the bound on the risk assumes, by a permutation of its
    places; the few that are left over stand in no fold and have −1 too. A row that is replaced or taken out leaves its
    place, so no row's fold depends on who else is there.
    """
    fold = np.full(len(problem.cell_of), -1, dtype=np.int64)
    strata, cells = problem.strata().members, problem.public.cells
    for group in range(len(problem.public.groups)):
        members = np.concatenate([strata[cell] for cell, own in enumerate(cells) if own.group == group])
        order = seed.generator("fold", 0, group).permutation(len(members))
        folded = order // max(1, len(members) // folds)
        stands = (members >= 0) & (folded < folds)
        fold[members[stands]] = folded[stands]
    return fold


def rows_of_a_fold(sizes: Floats, folds: int) -> Floats:
    """How many rows of each group stand in one fold.

    >>> rows_of_a_fold(np.array([7.0, 3.0]), 3)
    array([2., 1.])
    """
    return np.asarray(np.floor(sizes / folds))


def make_phases(
    setting: LinearSetting, regularisers: list[tuple[float, float]], kappas: Floats, relation: Relation
) -> tuple[Phase, ...]:
    """Limits, tolerance and noise of every phase from its regularisers and the noise multiplier each cell needs."""
    facts, count = setting.facts, len(regularisers)
    rows = rows_of_a_fold(np.array([facts.group_sizes[cell.group] for cell in facts.cells]), count)
    made = []
    for mu_w, mu_lambda in regularisers:
        moves = reach_of_one_row(setting.constants, mu_w, mu_lambda) / rows
        tolerance = _ERROR * float(moves.min())
        limits = moves + 2 * tolerance / reach_of(relation)
        sigma = float((kappas * limits).max())
        made.append(Phase(mu_w, mu_lambda, sigma, tolerance, tuple(limits.tolist())))
    return tuple(made)


def excess_risk(setting: LinearSetting, phases: tuple[Phase, ...]) -> float:
    """The upper bound of this module's docstring for given phases."""
    rows, groups = float(rows_of_a_fold(setting.sizes, len(phases)).min()), len(setting.facts.groups)
    scores = weight_shape(setting.facts, bias=True)[1]
    total, away = setting.bias_of_loss, setting.weight_radius**2
    for phase in phases:
        total += phase.mu_w / 2 * away + phase.mu_lambda * math.log(groups)
        total += float(deviation(setting.constants, setting.weight_radius, phase.mu_w, rows, groups, scores))
        total += setting.constants.lipschitz * phase.tolerance
        away = setting.dimension * phase.sigma**2
    return total + setting.constants.lipschitz * math.sqrt(away)


def deviation(
    constants: Constants, radius: float, mu_w: float | Floats, rows: float, groups: int, scores: int
) -> Floats:
    """How far empirical and true group risks are apart, in expectation, at ŵ and at the point it is compared with."""
    near = np.minimum(2 * radius, constants.lipschitz / np.asarray(mu_w))
    factor = 2.0 if scores == 1 else 2.0 * math.sqrt(2.0 * scores)
    found = factor * constants.lipschitz * near / math.sqrt(rows)
    found = found + 2 * constants.range * math.sqrt(math.log(groups) / (2 * rows))
    return np.asarray(found, dtype=np.float64)


def paper_regularisers(setting: LinearSetting, epsilon: float, delta: float) -> list[tuple[float, float]]:
    """Algorithm 1 with the η of Theorem 2: log₂ n phases, μ_w doubled from one to the next, μ_λ the same in all."""
    rows, groups = float(setting.sizes.min()), len(setting.facts.groups)
    constants, total = setting.constants, rows * groups
    largest = max(constants.lipschitz, constants.range)
    private = epsilon / math.sqrt(72 * setting.dimension * math.log(rows) * math.log(1 / delta))
    statistical = math.sqrt(groups) / (math.log(total) ** 0.75 * math.sqrt(total))
    eta = 2 * setting.weight_radius / largest * min(private, statistical)
    count = max(1, math.floor(math.log2(rows)))
    return [(2.0**t * count / (eta * rows), 1.0 / (eta * rows)) for t in range(1, count + 1)]


def best_regularisers(setting: LinearSetting, kappas: Floats, phases: int | None = None) -> list[tuple[float, float]]:
    """Number of phases, first μ_w, its growth and μ_λ that make the upper bound smallest; public numbers only.

    `kappas` are the noise multipliers of the cells: σ_t is the largest κ over rows of a fold, times the reach of a row.
    """
    facts, constants, rows = setting.facts, setting.constants, float(setting.sizes.min())
    of_cells = np.array([facts.group_sizes[cell.group] for cell in facts.cells])
    groups, scores = len(setting.facts.groups), weight_shape(setting.facts, bias=True)[1]
    natural = constants.lipschitz / setting.weight_radius
    firsts = natural * np.geomspace(1e-4, 1e2, 73)[:, None]
    balances = np.geomspace(1e-3, 1e2, 31)[None, :]
    log_groups = math.log(groups)
    best, found = math.inf, [(natural, natural)]
    for count in range(1, max(1, math.floor(math.log2(max(rows, 2.0)))) + 1) if phases is None else [phases]:
        noise_per_row, least = float((kappas / rows_of_a_fold(of_cells, count)).max()), float(rows // count)
        for growth in (2.0, 4.0, 8.0, 16.0):
            total, away = np.zeros((firsts.size, balances.size)), np.full((1, 1), setting.weight_radius**2)
            for t in range(count):
                mu_w = firsts * growth**t
                # μ_λ in units at which both parts of the reach are alike.
                mu_lambda = balances * constants.range**2 * mu_w / (16 * constants.lipschitz**2)
                total = total + mu_w / 2 * away + mu_lambda * log_groups
                total = total + deviation(constants, setting.weight_radius, mu_w, least, groups, scores)
                half = constants.lipschitz / (2 * mu_w)
                reach = half + np.sqrt(half**2 + constants.range**2 / (64 * mu_w * mu_lambda))
                away = setting.dimension * (reach * noise_per_row * (1 + 2 * _ERROR)) ** 2
            total = total + constants.lipschitz * np.sqrt(away)
            at = np.unravel_index(int(np.argmin(total)), total.shape)
            if total[at] < best:
                best, first, share = float(total[at]), float(firsts[at[0], 0]), float(balances[0, at[1]])
                unit = share * constants.range**2 / (16 * constants.lipschitz**2)
                found = [(first * growth**t, unit * first * growth**t) for t in range(count)]
            if count == 1:
                break
    return found
