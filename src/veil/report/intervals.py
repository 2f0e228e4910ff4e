"""Intervals and averages: Wilson's interval for a share, mean and sample standard deviation over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist
from typing import TypedDict

CONFIDENCE = 0.95


class Spread(TypedDict):
    """Mean and sample standard deviation (None for fewer than two values) of `n` values."""

    mean: float | None
    std: float | None
    n: int


def wilson(share: float | None, n: int | None, confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Wilson's score interval of a share among n rows; None where there is no row.

    >>> low, high = wilson(0.5, 100)
    >>> round(low, 4), round(high, 4)
    (0.4038, 0.5962)
    >>> wilson(None, 0) is None
    True
    """
    if share is None or not n:
        return None
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def spread(values: Iterable[float | None]) -> Spread:
    """Mean and sample standard deviation of the values that are there.

    >>> spread([1.0, 3.0, None])
    {'mean': 2.0, 'std': 1.4142135623730951, 'n': 2}
    """
    known = [value for value in values if value is not None]
    if not known:
        return {"mean": None, "std": None, "n": 0}
    mean = math.fsum(known) / len(known)
    std = math.sqrt(math.fsum((v - mean) ** 2 for v in known) / (len(known) - 1)) if len(known) > 1 else None
    return {"mean": mean, "std": std, "n": len(known)}


def paired_p(ours: Sequence[float], others: Sequence[float]) -> float | None:
    """The p-value of a paired t-test (two-sided) over values of the same seeds; None for fewer than two.

    >>> paired_p([0.5, 0.6], [0.5, 0.6]), paired_p([0.5], [0.4])
    (1.0, None)
    """
    if len(ours) < 2:
        return None
    from scipy.stats import ttest_rel

    gaps = [a - b for a, b in zip(ours, others, strict=True)]
    if max(gaps) - min(gaps) <= 1e-12:  # every seed differs by the same: a t-test has no spread to compare with
        return 1.0 if abs(gaps[0]) <= 1e-12 else 0.0
    return float(ttest_rel(ours, others).pvalue)


def pareto(points: Sequence[tuple[float, float] | None]) -> list[bool]:
    """Which points no other point beats in both directions (larger is better).

    >>> pareto([(1, 1), (2, 0), (0, 0), None])
    [True, True, False, False]
    """

    def beaten(point: tuple[float, float]) -> bool:
        return any(
            other is not None and other[0] >= point[0] and other[1] >= point[1] and other != point for other in points
        )

    return [point is not None and not beaten(point) for point in points]
