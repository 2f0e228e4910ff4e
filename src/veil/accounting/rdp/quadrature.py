"""Integrals against the normal density that the Rényi bounds need, by the trapezoid rule in log space.

All integrands here are positive and analytic in a strip around the real line, times a normal density. On such
functions the trapezoid rule with step h is wrong by at most a factor e^(−2πd/h) times what the integrand weighs on the
lines Im z = ±d. Steps are chosen so that this, and the tails that are cut off, stay near 1e-13 of the integral;
`SAFETY` is then added on top, which covers the quadrature and the rounding of the sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SAFETY = 1e-10  # relative, added to every integral
_TAIL = 9.0  # half-width of the window in standard deviations beyond the last peak: e^-40 is left outside
_LOG_ERROR = 32.0  # the discretisation error is about e^-32
_CHUNK = 1 << 16  # numbers held at once: they stay in the cache
_MOST_POINTS = 8192  # beyond this an integral is not attempted; callers fall back to a closed bound


def log_sum_exp(values: Floats) -> Floats:
    """log Σ exp over the last axis."""
    top: Floats = values.max(axis=-1, keepdims=True)
    total: Floats = np.log(np.exp(values - top).sum(axis=-1)) + top[..., 0]
    return total


def log_bernoulli_gap(log_ratio: Floats, order: Floats) -> Floats:
    """log[(1+t)^α − 1 − αt] from log(1+t): never negative for α > 1 and t > −1 (Bernoulli), without cancellation."""
    power = order * log_ratio
    scaled = order * np.expm1(np.minimum(log_ratio, 500.0))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        gap = np.expm1(np.minimum(power, 30.0)) - scaled
        small = np.flatnonzero(np.abs(scaled) < 0.02)
        if small.size:
            a = np.broadcast_to(order, power.shape).reshape(-1)[small]
            t = scaled.reshape(-1)[small] / a
            tail = 1 + (a - 3) * t / 4 * (1 + (a - 4) * t / 5 * (1 + (a - 5) * t / 6))
            gap.reshape(-1)[small] = a * (a - 1) / 2 * t * t * (1 + (a - 2) * t / 3 * tail)
        result: Floats = np.log(gap)
    large = np.flatnonzero(power >= 30.0)
    if large.size:
        a = np.broadcast_to(order, power.shape).reshape(-1)[large]
        x, step = power.reshape(-1)[large], log_ratio.reshape(-1)[large]
        result.reshape(-1)[large] = x + np.log1p((a - 1) * np.exp(-x) - a * np.exp(step - x))
    return result


def log_mixture(rate: Floats, exponent: Floats) -> Floats:
    """log(1 − q + q·e^w) for every w, accurate near w = 0 and safe for large w."""
    capped = np.minimum(exponent, 500.0)
    result: Floats = np.log1p(rate * np.expm1(capped)) + (exponent - capped)
    return result


def _buckets(points: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Index sets of rows that need about the same number of points, so that few are wasted."""
    if points.size == 1:
        yield np.zeros(1, dtype=np.int64)
        return
    size = np.ceil(np.log2(np.maximum(points, 1))).astype(np.int64)
    for value in np.unique(size):
        yield np.flatnonzero(size == value)


def _trapezoid(
    start: Floats, stop: Floats, step: Floats, integrand: Callable[[NDArray[np.int64], Floats], Floats]
) -> Floats:
    """log ∫ e^(integrand) φ(z) dz on [start, stop] per row; +inf where it would take too many points."""
    points = np.ceil((stop - start) / step).astype(np.int64) + 1
    result = np.full(start.shape, math.inf)
    feasible = np.flatnonzero(points <= _MOST_POINTS)
    for bucket in _buckets(points[feasible]):
        count = int(points[feasible[bucket]].max())
        grid = np.arange(count)
        for first in range(0, bucket.size, max(1, _CHUNK // count)):
            rows = feasible[bucket[first : first + max(1, _CHUNK // count)]]
            z = start[rows, None] + step[rows, None] * grid
            total = log_sum_exp(integrand(rows, z) - z * z / 2)
            result[rows] = total + np.log(step[rows] / math.sqrt(2 * math.pi)) + SAFETY
    return result


def log_gap_add_remove(noise: Floats, rate: Floats, order: Floats) -> Floats:
    """log(A − 1) with A = E_Q[(P/Q)^α] for P = (1−q)N(0) + qN(1) and Q = N(0), at any order above 1, row by row.

    With u = P/Q − 1 and E_Q[u] = 0, A − 1 = E_Q[(1+u)^α − 1 − αu]: a positive integrand.
    """
    reach = np.minimum(0.9 * math.pi * noise, 8.5)
    step = 2 * math.pi * reach / (_LOG_ERROR + reach**2 / 2)

    def integrand(rows: NDArray[np.int64], z: Floats) -> Floats:
        sigma = noise[rows, None]
        return log_bernoulli_gap(log_mixture(rate[rows, None], z / sigma - 0.5 / sigma**2), order[rows, None])

    return _trapezoid(np.full(noise.shape, -_TAIL), order / noise + _TAIL, step, integrand)


def log_gap_replace_one(noise: Floats, rate: Floats, order: Floats) -> Floats:
    """log(A − 1) with A = E_Q[(P/Q)^α] for P = (1−q)N(0) + qN(1) and Q = (1−q)N(0) + qN(−1), row by row.

    With t = P/Q − 1 and E_Q[t] = 0, A − 1 = E_Q[(1+t)^α − 1 − αt]. On the line Im z = d the density ratio Q/N(0)
    shrinks by cos(d/2σ) at most, and the step has to pay for the (1−α)-th power of that.
    """
    angle = np.minimum(math.pi / 2, np.sqrt(288.0 / (order - 1)))
    reach = np.minimum(angle * noise, 8.5)
    growth = -(order - 1) * np.log(np.cos(reach / (2 * noise)))
    step = 2 * math.pi * reach / (_LOG_ERROR + reach**2 / 2 + growth)
    # Right of α/σ the share of the far component in Q only falls, so the log-integrand falls like −(z − peak)²/2.
    exponent = -(order + 0.5) / noise**2
    share = rate * np.exp(exponent - log_mixture(rate, exponent))
    peak = (order + (order - 1) * share) / noise

    def integrand(rows: NDArray[np.int64], z: Floats) -> Floats:
        sigma, q = noise[rows, None], rate[rows, None]
        scaled, centre = z / sigma, 0.5 / sigma**2
        down = log_mixture(q, -scaled - centre)
        return down + log_bernoulli_gap(log_mixture(q, scaled - centre) - down, order[rows, None])

    return _trapezoid(-_TAIL - 1 / noise, peak + _TAIL, step, integrand)


def log_even_moments(noise: Floats, highest: int) -> Floats:
    """log E[(N(1)/N(0) − 1)^l] under N(0) for l = 0, 2, 4 … `highest`: one row per noise, column j is l = 2j.

    These are the forward differences of k ↦ e^(k(k−1)/2σ²) at 0, but summed without alternating signs.
    """
    powers = np.arange(0, highest + 1, 2, dtype=np.float64)
    start = np.full(noise.shape, -_TAIL - math.sqrt(highest))
    stop = (highest + 1) / noise + math.sqrt(highest) + _TAIL
    step = 0.35
    result = np.full((noise.size, powers.size), math.inf)
    points = np.ceil((stop - start) / step).astype(np.int64) + 1
    for rows in _buckets(points):
        z = start[rows, None] + step * np.arange(points[rows].max())
        sigma = noise[rows, None]
        exponent = z / sigma - 0.5 / sigma**2
        with np.errstate(divide="ignore"):
            # log|e^w − 1| = max(w, 0) + log(1 − e^−|w|)
            magnitude = np.maximum(exponent, 0.0) + np.log(-np.expm1(-np.abs(exponent)))
        magnitude = np.maximum(magnitude, -1e300 / max(highest, 1))
        weight = -z * z / 2 + math.log(step / math.sqrt(2 * math.pi))
        result[rows] = log_sum_exp(powers[None, :, None] * magnitude[:, None, :] + weight[:, None, :]) + SAFETY
    return result
