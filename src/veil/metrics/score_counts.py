"""Counts of rows by group, class and probability, and thresholds that are chosen from them for an aim.

A threshold that follows from these counts costs no ε: they are of public rows, or of held-out rows and released with
noise (`veil.metrics.noisy_confusion.ScoredRelease`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veil.errors import InputError, require
from veil.metrics.outcomes import Outcomes

BINS = 200
EDGES = np.arange(BINS + 1) / BINS
# Counts of held-out rows: fewer pieces have less noise together.
RELEASED_BINS = 20
AIMS = "accuracy, worst-group, rate=SHARE, recall=SHARE or equal-recall"
# With fewer rows of the second class the share of them that is found says little.
FEWEST_POSITIVES = 30
_MOST = 2.0**53
Counts = NDArray[np.float64]


@dataclass(frozen=True)
class Thresholds:
    """The probability from which the second class is predicted: of each group that has its own, and of all others."""

    overall: float
    by_group: Mapping[str, float] = field(default_factory=dict)
    reached: str = ""


def score_counts(outcomes: Outcomes) -> dict[str, Any] | None:
    """Rows of each class by probability of the second one, of all rows and of each group; None but for two classes."""
    if outcomes.classes != 2 or not len(outcomes.targets):
        return None
    places = pieces_of(outcomes.probabilities[:, 1], BINS)

    def counted(rows: NDArray[np.bool_]) -> list[list[int]]:
        return [np.bincount(places[rows & (outcomes.targets == of)], minlength=BINS).tolist() for of in (0, 1)]

    everybody = np.ones(len(places), dtype=bool)
    groups = {name: counted(outcomes.memberships[:, place]) for place, name in enumerate(outcomes.names)}
    return {"bins": BINS, "all": counted(everybody), "by_group": groups}


def pieces_of(probabilities: NDArray[np.float64], bins: int) -> NDArray[np.int64]:
    """The piece of each probability, of so many equal ones; what is no number is in the first."""
    edges = np.arange(bins + 1) / bins
    return np.clip(np.searchsorted(edges, np.nan_to_num(probabilities), side="right") - 1, 0, bins - 1)


def released_scores(by_group: Mapping[str, Counts], noise: float) -> dict[str, Any]:
    """Noisy counts [class, piece] of each group as a record; `noise` is the standard deviation of one of them."""
    listed = {name: np.round(counts, 2).tolist() for name, counts in by_group.items()}
    whole = np.round(np.sum(list(by_group.values()), axis=0), 2).tolist()
    return {"bins": RELEASED_BINS, "all": whole, "by_group": listed, "noise": noise}


@dataclass(frozen=True)
class _Counted:
    """Rows [class, piece], and the noise of one such count."""

    counts: Counts
    noise: float

    @property
    def rows(self) -> float:
        return max(1.0, float(self.counts.sum()))

    @property
    def positives(self) -> float:
        return float(self.counts[1].sum())

    def above(self, of: Counts) -> Counts:
        """Rows at or above each edge."""
        return np.append(np.cumsum(of[::-1])[::-1], 0)

    def accuracy(self) -> NDArray[np.float64]:
        right = self.above(self.counts[1]) + self.counts[0].sum() - self.above(self.counts[0])
        return np.asarray(right / self.rows, dtype=np.float64)

    def recall(self) -> NDArray[np.float64]:
        return np.asarray(self.above(self.counts[1]) / max(1.0, self.positives), dtype=np.float64)

    def enough(self, rows: float, counts: int) -> bool:
        """Whether so many rows, a sum of so many counts, are not few and stand out of their noise."""
        return rows >= max(FEWEST_POSITIVES, 3 * self.noise * math.sqrt(counts))

    def for_recall(self, target: float, where: str) -> float:
        """The largest edge from which at least so large a share of the second class is found."""
        bins = self.counts.shape[1]
        require(
            self.enough(self.positives, bins),
            f"{where} has too few rows of the second class among those that were counted, about "
            f"{max(0.0, self.positives):.0f}: its recall cannot be told, so choose another --threshold-for, or measure "
            "more rows",
        )
        reached = np.flatnonzero(self.recall()[1:-1] >= target) + 1
        return float((reached[-1] if len(reached) else 1) / bins)


def thresholds_for(aim: str, record: Mapping[str, Any]) -> Thresholds:
    """The thresholds that serve an aim best on the rows that were counted.

    Args:
        aim: `accuracy`, `worst-group`, `rate=SHARE`, `recall=SHARE`, `equal-recall` or `equal-recall=SHARE`.
        record: What `score_counts` or `released_scores` gave.

    Raises:
        InputError: The aim is unknown, or the counts cannot carry it.
    """
    kind, share = _parsed(aim)
    whole, groups = _read(record)
    bins = whole.counts.shape[1]
    if kind == "accuracy":
        return _best(whole.accuracy(), "accuracy")
    if kind == "worst-group":
        known = [one for one in groups.values() if one.enough(float(one.counts.sum()), 2 * bins)]
        require(bool(known), "no group has enough rows among those that were counted: use --threshold-for accuracy")
        return _best(np.min([one.accuracy() for one in known], axis=0), "worst-group accuracy")
    if kind == "rate":
        rates = whole.above(whole.counts.sum(axis=0)) / whole.rows
        place = 1 + int(np.abs(rates[1:-1] - (share or 0.0)).argmin())
        return Thresholds(place / bins, reached=f"a share of {rates[place]:.3f} predicted as the second class")
    target = float(whole.recall()[bins // 2]) if share is None else share
    overall = whole.for_recall(target, "the table")
    if kind == "recall":
        return Thresholds(overall, reached=f"recall {whole.recall()[round(overall * bins)]:.3f}")
    by_group = {name: one.for_recall(target, f'group "{name}"') for name, one in groups.items()}
    found = [one.recall()[round(by_group[name] * bins)] for name, one in groups.items()]
    reached = f"recall from {min(found):.3f} to {max(found):.3f} over groups, aimed at {target:.3f}"
    return Thresholds(overall, by_group, reached)


def _read(record: Mapping[str, Any]) -> tuple[_Counted, dict[str, _Counted]]:
    """The counts of all rows and of each group."""
    try:
        noise = float(record.get("noise", 0.0))
        whole = np.asarray(record["all"], dtype=np.float64)
        groups = {str(name): np.asarray(counts, dtype=np.float64) for name, counts in record["by_group"].items()}
        shape = (2, RELEASED_BINS if "noise" in record else BINS)
        right = all(one.shape == shape and bool((np.abs(one) < _MOST).all()) for one in (whole, *groups.values()))
        right &= math.isfinite(noise) and noise >= 0
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError):
        right = False
    require(right, "scores.json of the run is damaged: restore it, or train again")
    found = {name: _Counted(counts, noise) for name, counts in groups.items()}
    return _Counted(whole, noise * math.sqrt(max(1, len(groups)))), found


def _parsed(aim: str) -> tuple[str, float | None]:
    wanted = re.fullmatch(r"(accuracy|worst-group|equal-recall)|(rate|recall|equal-recall)=([0-9.]+)", aim)
    if wanted is None:
        raise InputError(f'--threshold-for is "{aim}": use {AIMS}')
    if wanted[1]:
        return wanted[1], None
    try:
        share = float(wanted[3])
    except ValueError as error:
        raise InputError(f'--threshold-for is "{aim}": {wanted[2]} needs a share between 0 and 1') from error
    require(0 < share < 1, f'--threshold-for is "{aim}": {wanted[2]} needs a share between 0 and 1')
    return wanted[2], share


def _best(figure: NDArray[np.float64], name: str) -> Thresholds:
    """The edge where a figure is largest; of several the one nearest to 1/2."""
    inner = figure[1:-1]
    best = np.flatnonzero(inner >= inner.max() - 1e-12) + 1
    bins = len(figure) - 1
    place = int(best[np.abs(best - bins // 2).argmin()])
    return Thresholds(place / bins, reached=f"{name} {figure[place]:.3f}")
