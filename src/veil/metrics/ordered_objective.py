"""The theory of INO-SGD as functions: what it minimises, and when every owner's loss falls (Tian et al.).

    w_k = E[ρ of a row with Bin(K − k, q) drawn rows behind it]      weight of the k-th largest loss (Theorem 3.5)
    (1/K)·Σ w_k·ℓ_(k) = (Σ w / K)·Σ_j p_j·CVaR_{j/K}(ℓ),   p_j = j·(w_j − w_{j+1}) / Σ w      (mixed CVaR)
    1 + Σ_{m≠n} cos ∠_nm·s_m/s_n > ς_n,   s = q·|D|·C      the loss of owner n falls (Cond. (2), Theorem 3.1)

Corrections: Cond. (2) is stated for two owners, here for any number. The paper's ς adds ς_m as it is; the step before
gives it times ‖∇L_m‖·|cos ∠|/‖∇L_n‖, which is used here. We know of no case in which the paper's fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from veil.bounding.ordered import Ordered, Tail
from veil.errors import InputError, require
from veil.metrics.owners import OwnerPull
from veil.plans import Plan
from veil.plans.controllers import first_release
from veil.sampling.draws import Poisson

Floats = NDArray[np.float64]


def objective_weights(rows: int, rate: float, tail: Tail, clip: float = 1.0) -> Floats:
    """w_k of Theorem 3.5 for k = 1 … `rows`: the share that INO-SGD keeps of the k-th largest loss, on average.

    Rows are drawn at one `rate` and have one threshold `clip`; the tail's length is in units of the threshold.

    >>> from veil.bounding import BetaTail
    >>> objective_weights(4, 1.0, BetaTail(2.0)).tolist()
    [1.0, 1.0, 0.75, 0.25]
    """
    require(rows >= 1, f"rows is {rows}: at least one is needed")
    require(0 < rate <= 1, f"rate is {rate}: it must be above 0 and at most 1")
    require(clip > 0, f"clip is {clip}: it must be above 0")
    kept = _kept(rows, tail, clip)
    return np.array([_expected(behind, rate, kept) for behind in range(rows - 1, -1, -1)])


def _kept(rows: int, tail: Tail, clip: float) -> Floats:
    """ρ of a row by the number of drawn rows behind it."""
    edges = clip * np.arange(rows + 1, dtype=np.float64)
    return np.asarray(1.0 - np.diff(tail.lost(edges)) / clip)


def _expected(behind: int, rate: float, kept: Floats) -> float:
    """The mean of ρ over Bin(`behind`, `rate`) drawn rows."""
    from scipy import stats  # half a second that most runs never need

    low, high = (int(end) for end in stats.binom.interval(1 - 1e-14, behind, rate)) if behind else (0, 0)
    counts = np.arange(max(low, 0), min(high, behind) + 1)
    chances = stats.binom.pmf(counts, behind, rate)
    return float(chances @ kept[counts] / chances.sum())


@dataclass(frozen=True)
class MixedCvar:
    """A weighted mean of worst-case losses: `shares[j]` of it is the mean loss of the worst `levels[j]` of all rows.

    `scale` is the mean weight: the objective is `scale` times the mixture.
    """

    levels: Floats
    shares: Floats
    scale: float


def cvar_levels(weights: ArrayLike) -> MixedCvar:
    """The mixture of CVaR levels that falling `weights` of ordered losses stand for.

    >>> cvar_levels([1.0, 1.0, 0.5, 0.5]).shares.round(3).tolist()
    [0.0, 0.333, 0.0, 0.667]
    """
    falling = np.asarray(weights, dtype=np.float64)
    require(falling.ndim == 1 and falling.size > 0 and falling.sum() > 0, "weights must be numbers with a sum above 0")
    steps = falling - np.append(falling[1:], 0.0)
    require(bool(np.all(steps >= -1e-9)), "weights must not rise from one loss to the next smaller one")
    places = np.arange(1, len(falling) + 1)
    return MixedCvar(places / len(falling), places * steps.clip(min=0.0) / falling.sum(), float(falling.mean()))


def plan_objective(plan: Plan, places: int = 200) -> MixedCvar:
    """The worst-case losses that a plan of `ino-sgd` stands for, at `places` equal distances along its rows.

    The theorem is for one rate and one threshold: the plan's means over the rows that it expects to draw are taken.

    Raises:
        InputError: The plan has no order.
    """
    release = first_release(plan.controller)
    if not isinstance(release.bound, Ordered) or not isinstance(release.draw, Poisson):
        raise InputError(f"{plan.method} does not order its rows: plan ino-sgd with a tail above 0")
    rows, drawn = plan.facts.rows, release.draw.expected_batch(plan.facts)
    limits = zip(plan.facts.cells, release.draw.rates, release.bound.limits, strict=True)
    clip = sum(cell.rows * rate * limit for cell, rate, limit in limits) / drawn
    kept = _kept(rows, release.bound.tail, clip)
    behind = np.linspace(rows - 1, 0, places).round().astype(int).tolist()
    return cvar_levels([_expected(count, drawn / rows, kept) for count in behind])


def owner_conditions(cosines: ArrayLike, pulls: Sequence[OwnerPull]) -> Floats:
    """The left side of Cond. (2) for every owner n: 1 + Σ_{m≠n} cos ∠_nm · s_m/s_n. At or below 0 its loss may rise.

    `cosines` is what `owner_cosines` returns. An owner that does not take part, or whose gradient is 0, has NaN.

    >>> owner_conditions([[1.0, -0.5], [-0.5, 1.0]], [OwnerPull(0.01, 1000, 1.0), OwnerPull(0.04, 1000, 1.0)]).tolist()
    [-1.0, 0.875]
    """
    table, strengths = np.asarray(cosines, dtype=np.float64), np.array([pull.strength for pull in pulls])
    require(table.shape == (len(pulls), len(pulls)), f"{len(pulls)} owners need as many lines and columns of cosines")
    known = np.where(np.isnan(table), 0.0, table)  # who has no gradient pulls nobody
    np.fill_diagonal(known, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = known @ strengths / strengths
    return np.where(np.isnan(np.diag(table)) | (strengths <= 0), np.nan, found)


@dataclass(frozen=True, slots=True)
class OwnerGradient:
    """An owner's part in a step: its pull, ‖∇L‖, ξ (how far a row's gradient may lie from ∇L), φ̄ (mean clip factor)."""

    pull: OwnerPull
    norm: float
    reach: float
    factor: float


def psi_terms(owners: Sequence[OwnerGradient]) -> Floats:
    """ψ of every owner n: Σ_m q_m|D_m|·φ̄_m·ξ_m / ‖∇L_n‖."""
    total = sum(one.pull.rate * one.pull.rows * one.factor * one.reach for one in owners)
    return np.array([total / one.norm for one in owners])


def sigma_terms(cosines: ArrayLike, owners: Sequence[OwnerGradient]) -> Floats:
    """ς of every owner: if its `owner_conditions` lies above, its loss falls for a small enough learning rate.

    Holds where every threshold is at most its owner's ‖∇L‖, as the paper assumes; else an owner has infinity.
    """
    table = np.abs(np.asarray(cosines, dtype=np.float64))
    require(
        table.shape == (len(owners), len(owners)), f"{len(owners)} owners need as many lines and columns of cosines"
    )
    drawn = np.array([one.pull.rate * one.pull.rows for one in owners])
    norms, clips = np.array([one.norm for one in owners]), np.array([one.pull.clip for one in owners])
    reaches = np.array([one.reach for one in owners])
    if np.any(clips > norms):
        return np.full(len(owners), np.inf)
    each = clips * reaches / np.maximum(norms - reaches, clips) ** 2  # Eqs. (13) and (14)
    errors = table @ (drawn * each * norms) / norms
    found: Floats = norms * (errors + psi_terms(owners)) / (drawn * clips)
    return found


@dataclass(frozen=True, slots=True)
class BudgetTrend:
    """The line through changes against budgets: change per unit of ε, Pearson's correlation and its p-value."""

    slope: float
    intercept: float
    correlation: float
    p_value: float


def change_against_budget(budgets: ArrayLike, changes: ArrayLike) -> BudgetTrend:
    """Whether owners with small budgets gain more: a line through their changes, with a two-sided p-value.

    >>> change_against_budget([1, 2, 3, 4], [3.0, 2.1, 0.9, 0.0]).slope < 0
    True
    """
    x, y = np.asarray(budgets, dtype=np.float64), np.asarray(changes, dtype=np.float64)
    require(x.shape == y.shape and x.ndim == 1, "there must be one change for each budget")
    require(len(np.unique(x)) >= 2 and len(x) >= 3, "a trend needs at least three owners, not all with the same budget")
    from scipy import stats

    line = stats.linregress(x, y)
    return BudgetTrend(float(line.slope), float(line.intercept), float(line.rvalue), float(line.pvalue))
