"""Scores of predicted numbers: errors by group and overall, in standard deviations of the target over measured rows.

1 is the error of the best constant answer on these rows, so that tables with different units can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.tables.scoring import LEAST

METRICS = ("worst_group_error", "average_group_error", "error", "worst_group_absolute", "r2")
# Of the others less is better.
HIGHER = ("r2",)


@dataclass(frozen=True)
class NumberScores:
    """One model on the measured rows: root mean squared errors, the largest mean absolute error of a group, and R²."""

    worst_group_error: float
    average_group_error: float
    error: float
    worst_group_absolute: float
    r2: float
    worst_group: str
    groups_scored: int
    by_group: Mapping[str, tuple[int, float]]

    def said(self) -> str:
        """The figures to watch while it runs."""
        return f"worst group {100 * self.worst_group_error:.1f}, R² {100 * self.r2:.1f}"


def score_numbers(
    predicted: NDArray[np.float64],
    numbers: NDArray[np.float64],
    groups: NDArray[np.str_],
    bounds: tuple[float, float],
    least: int = LEAST,
) -> NumberScores:
    """Errors of predictions that are cut to the public bounds; worst and average count groups of `least` rows.

    >>> scores = score_numbers(np.array([0.0, 9.0]), np.array([0.0, 2.0]), np.array(["a", "b"]), (0.0, 2.0), least=1)
    >>> scores.error, scores.r2
    (0.0, 1.0)
    """
    if predicted.shape != numbers.shape or not np.isfinite(predicted).all():
        raise ValueError(f"predictions are {predicted.shape}: one finite number per row is needed")
    off = (np.clip(predicted, *bounds) - numbers) / numbers.std()
    names = [str(name) for name in np.unique(groups)]
    every = {name: (int((groups == name).sum()), _root(off[groups == name])) for name in names}
    large = {name: error for name, (count, error) in every.items() if count >= least}
    worst = max(large, key=lambda name: large[name], default="")
    return NumberScores(
        worst_group_error=large.get(worst, math.nan),
        average_group_error=sum(large.values()) / len(large) if large else math.nan,
        error=_root(off),
        worst_group_absolute=max((float(np.abs(off[groups == name]).mean()) for name in large), default=math.nan),
        r2=1.0 - _root(off) ** 2,
        worst_group=worst,
        groups_scored=len(large),
        by_group=every,
    )


def _root(off: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.mean(off**2)))
