"""Attack curves: how well guesses about membership do, and the ceiling that a guarantee puts on every attack."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from scipy.integrate import trapezoid

from veil.accounting import Pld, TokenBucket
from veil.accounting.accountant import Accountant
from veil.accounting.spending_rules import SpendingRule
from veil.errors import require

Floats = NDArray[np.float64]
Inside = NDArray[np.bool_]

LOW_RATES = (0.001, 0.01, 0.1)
GRID = np.concatenate([[0.0], np.logspace(-4, 0, 81)])
"""False positive rates at which curves are kept."""


def tpr_at(scores: Floats, inside: Inside, rates: ArrayLike) -> Floats:
    """The true positive rate at each false positive rate; ties are broken against the attacker.

    >>> tpr_at(np.array([3.0, 2.0, 1.0, 0.0]), np.array([True, True, False, False]), [0.0, 1.0]).tolist()
    [1.0, 1.0]
    """
    members, others = np.sort(scores[inside]), np.sort(scores[~inside])[::-1]
    require(len(members) > 0 and len(others) > 0, "an attack needs members and non-members: one side is empty")
    allowed = np.floor(np.asarray(rates, dtype=np.float64) * len(others) + 1e-9).astype(np.int64)
    # Just above the first score that may not raise an alarm.
    thresholds = np.append(others, -np.inf)[np.minimum(allowed, len(others))]
    return 1.0 - np.searchsorted(members, thresholds, side="right") / len(members)


def auroc(scores: Floats, inside: Inside) -> float:
    """The chance that a member scores above another row; ties count half.

    >>> auroc(np.array([3.0, 2.0, 1.0, 0.0]), np.array([True, False, True, False]))
    0.75
    """
    members, others = int(inside.sum()), int((~inside).sum())
    require(members > 0 and others > 0, "an attack needs members and non-members: one side is empty")
    ranks = stats.rankdata(scores)
    return float((ranks[inside].sum() - members * (members + 1) / 2) / (members * others))


@dataclass(frozen=True)
class Ceiling:
    """The highest true positive rate that a guarantee allows, at the rates of `GRID`."""

    tpr: Floats

    @property
    def auroc(self) -> float:
        """The area under it, to three digits: no attack has a larger one."""
        return float(trapezoid(self.tpr, GRID))

    def at(self, rate: float) -> float:
        """The ceiling at one false positive rate."""
        return float(np.interp(rate, GRID, self.tpr))


def ceiling(rule: SpendingRule, accountant: Accountant) -> Ceiling:
    """What the trade-off curve of a spending rule allows, whatever was chosen under it.

    A token bucket is composed by PLD. Other rules give ε at every δ, and each such pair is a pair of straight lines
    that the curve lies under. Both are never below the truth.

    >>> from veil.accounting import Gaussian, Repeated
    >>> round(ceiling(TokenBucket((Repeated(Gaussian(3.73), 1),)), Pld()).auroc, 3)
    0.575
    """
    if isinstance(rule, TokenBucket):
        tpr = (
            1.0 - Pld(1e-3, getattr(accountant, "rows", 1)).tradeoff(rule.tokens, GRID) if rule.tokens else GRID.copy()
        )
        return Ceiling(np.maximum(tpr, GRID))
    return ceiling_from_pairs([(rule.guarantee(delta, accountant), delta) for delta in np.logspace(-9, -0.05, 60)])


def ceiling_from_pairs(pairs: Sequence[tuple[float, float]]) -> Ceiling:
    """TPR ≤ e^ε·FPR + δ and 1 − TPR ≥ e^−ε·(1 − δ − FPR), for every pair (ε, δ) that holds."""
    best = np.ones(len(GRID))
    for epsilon, delta in pairs:
        if math.isfinite(epsilon) and epsilon < 700:
            best = np.minimum(best, math.exp(epsilon) * GRID + delta)
            best = np.minimum(best, 1.0 - math.exp(-epsilon) * np.maximum(1.0 - delta - GRID, 0.0))
    return Ceiling(np.maximum(best, GRID))


@dataclass(frozen=True)
class AttackCurve:
    """One attack on the rows of one group or owner, pooled over target models, beside its ceiling.

    `auroc_low` and `auroc_high` are a Student interval over target models where there are three or more, else
    Hanley and McNeil's interval over rows. `tpr_low_rates` has (rate, tpr, tpr_low, tpr_high), by Clopper and Pearson.
    """

    rows: int
    auroc: float
    auroc_low: float
    auroc_high: float
    tpr: Floats
    tpr_low_rates: tuple[tuple[float, float, float, float], ...]
    ceiling: Ceiling | None = field(default=None)

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        record: dict[str, Any] = {
            "rows": self.rows,
            "auroc": self.auroc,
            "auroc_low": self.auroc_low,
            "auroc_high": self.auroc_high,
            "auroc_ceiling": None if self.ceiling is None else self.ceiling.auroc,
            "tpr_at": {
                f"{rate:g}": {
                    "tpr": tpr,
                    "low": low,
                    "high": high,
                    "ceiling": None if self.ceiling is None else self.ceiling.at(rate),
                }
                for rate, tpr, low, high in self.tpr_low_rates
            },
            "curve": {"fpr": GRID.round(6).tolist(), "tpr": np.round(self.tpr, 5).tolist()},
        }
        if self.ceiling is not None:
            record["curve"]["ceiling"] = np.round(self.ceiling.tpr, 5).tolist()
        return record


def attack_curve(scores: Floats, inside: Inside, bound: Ceiling | None = None, confidence: float = 0.95) -> AttackCurve:
    """A curve from scores of shape (target models, rows); each target has its own threshold, rates are pooled."""
    scores, inside = np.atleast_2d(scores), np.atleast_2d(inside)
    targets = [(s, i) for s, i in zip(scores, inside, strict=True) if i.any() and not i.all()]
    require(len(targets) > 0, "an attack needs members and non-members: one side is empty")
    areas = np.array([auroc(s, i) for s, i in targets])
    members = int(sum(i.sum() for _, i in targets))
    others = int(sum((~i).sum() for _, i in targets))
    curve = np.average([tpr_at(s, i, GRID) for s, i in targets], axis=0, weights=[i.sum() for _, i in targets])
    mean = float(areas.mean())
    reach = _reach(areas, members, others, confidence)
    return AttackCurve(
        rows=scores.shape[1],
        auroc=mean,
        auroc_low=max(mean - reach, 0.0),
        auroc_high=min(mean + reach, 1.0),
        tpr=curve,
        tpr_low_rates=tuple(_low_rate(targets, rate, members, confidence) for rate in LOW_RATES),
        ceiling=bound,
    )


def _reach(areas: Floats, members: int, others: int, confidence: float) -> float:
    if len(areas) >= 3:
        spread = float(areas.std(ddof=1)) / math.sqrt(len(areas))
        return float(stats.t.ppf((1 + confidence) / 2, len(areas) - 1)) * spread
    area = float(areas.mean())
    one, two = area / (2 - area), 2 * area**2 / (1 + area)
    variance = area * (1 - area) + (members - 1) * (one - area**2) + (others - 1) * (two - area**2)
    return float(stats.norm.ppf((1 + confidence) / 2)) * math.sqrt(max(variance, 0.0) / (members * others))


def _low_rate(
    targets: Sequence[tuple[Floats, Inside]], rate: float, members: int, confidence: float
) -> tuple[float, float, float, float]:
    hits = round(sum(float(tpr_at(s, i, rate)) * int(i.sum()) for s, i in targets))
    interval = stats.binomtest(hits, members).proportion_ci(confidence, method="exact")
    return rate, hits / members, float(interval.low), float(interval.high)


def curves_by(
    scores: Floats,
    inside: Inside,
    labels: NDArray[np.int64],
    names: Sequence[str],
    ceilings: Mapping[str, Ceiling] | None = None,
    confidence: float = 0.95,
) -> dict[str, AttackCurve]:
    """A curve for the rows of each group or owner; one that has rows on one side only is left out."""
    found = {}
    for index, name in enumerate(names):
        own = labels == index
        mine, there = np.atleast_2d(scores)[:, own], np.atleast_2d(inside)[:, own]
        if own.any() and any(line.any() and not line.all() for line in there):
            found[name] = attack_curve(mine, there, (ceilings or {}).get(name), confidence)
    return found
