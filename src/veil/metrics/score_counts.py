"""Counts of public rows by group, class and probability, and thresholds that are chosen from them for an aim.

A threshold that follows from these counts is a function of public rows and of the released model: it costs no ε.
Figures on held-out private rows are counts at one threshold alone, and cannot carry another.
"""

from __future__ import annotations

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
AIMS = "accuracy, worst-group, rate=SHARE, recall=SHARE or equal-recall"
# With fewer rows of the second class the share of them that is found says little.
FEWEST_POSITIVES = 30
Counts = NDArray[np.int64]


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
    places = np.searchsorted(EDGES, outcomes.probabilities[:, 1], side="right") - 1
    places = np.clip(places, 0, BINS - 1)

    def counted(rows: NDArray[np.bool_]) -> list[list[int]]:
        return [np.bincount(places[rows & (outcomes.targets == of)], minlength=BINS).tolist() for of in (0, 1)]

    everybody = np.ones(len(places), dtype=bool)
    groups = {name: counted(outcomes.memberships[:, place]) for place, name in enumerate(outcomes.names)}
    return {"bins": BINS, "all": counted(everybody), "by_group": groups}


def thresholds_for(aim: str, record: Mapping[str, Any]) -> Thresholds:
    """The thresholds that serve an aim best on the rows that were counted.

    Args:
        aim: `accuracy`, `worst-group`, `rate=SHARE`, `recall=SHARE`, `equal-recall` or `equal-recall=SHARE`.
        record: What `score_counts` gave.

    Raises:
        InputError: The aim is unknown, or the counts cannot carry it.
    """
    kind, share = _parsed(aim)
    try:
        whole = np.asarray(record["all"], dtype=np.int64)
        groups = {str(name): np.asarray(counts, dtype=np.int64) for name, counts in record["by_group"].items()}
        right_shape = all(counts.shape == (2, BINS) for counts in (whole, *groups.values()))
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError):
        right_shape = False
    require(right_shape, "scores.json of the run is damaged: restore it, or train again")
    if kind == "accuracy":
        return _best(_accuracy(whole), "accuracy")
    if kind == "worst-group":
        known = [counts for counts in groups.values() if counts.sum() >= FEWEST_POSITIVES]
        require(bool(known), f"no group of the public rows has {FEWEST_POSITIVES} rows: use --threshold-for accuracy")
        return _best(np.min([_accuracy(counts) for counts in known], axis=0), "worst-group accuracy")
    if kind == "rate":
        rates = _above(whole.sum(axis=0)) / max(1, whole.sum())
        place = 1 + int(np.abs(rates[1:-1] - (share or 0.0)).argmin())
        return Thresholds(float(EDGES[place]), reached=f"a share of {rates[place]:.3f} predicted as the second class")
    target = _recall(whole)[BINS // 2] if share is None else share
    overall = _for_recall(whole, target, "the public rows")
    if kind == "recall":
        return Thresholds(overall, reached=f"recall {_recall(whole)[_place(overall)]:.3f}")
    by_group = {name: _for_recall(counts, target, f'group "{name}"') for name, counts in groups.items()}
    found = [_recall(counts)[_place(by_group[name])] for name, counts in groups.items()]
    reached = f"recall from {min(found):.3f} to {max(found):.3f} over groups, aimed at {target:.3f}"
    return Thresholds(overall, by_group, reached)


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


def _above(counts: Counts) -> Counts:
    """Rows at or above each edge."""
    return np.append(np.cumsum(counts[::-1])[::-1], 0)


def _accuracy(counts: Counts) -> NDArray[np.float64]:
    right = _above(counts[1]) + counts[0].sum() - _above(counts[0])
    return np.asarray(right / max(1, counts.sum()), dtype=np.float64)


def _recall(counts: Counts) -> NDArray[np.float64]:
    return np.asarray(_above(counts[1]) / max(1, counts[1].sum()), dtype=np.float64)


def _best(figure: NDArray[np.float64], name: str) -> Thresholds:
    """The edge where a figure is largest; of several the one nearest to 1/2."""
    inner = figure[1:-1]
    best = np.flatnonzero(inner >= inner.max() - 1e-12) + 1
    place = int(best[np.abs(best - BINS // 2).argmin()])
    return Thresholds(float(EDGES[place]), reached=f"{name} {figure[place]:.3f}")


def _for_recall(counts: Counts, target: float, where: str) -> float:
    """The largest edge from which at least so large a share of the second class is found."""
    positives = int(counts[1].sum())
    require(
        positives >= FEWEST_POSITIVES,
        f"{where} has {positives} rows of the second class among the public rows, fewer than {FEWEST_POSITIVES}: its "
        "recall cannot be told, so choose another --threshold-for or a larger --test",
    )
    reached = np.flatnonzero(_recall(counts)[1:-1] >= target) + 1
    return float(EDGES[int(reached[-1]) if len(reached) else 1])


def _place(threshold: float) -> int:
    return round(threshold * BINS)
