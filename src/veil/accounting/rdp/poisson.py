"""Rényi cost of the Poisson-sampled Gaussian at many noises, rates and orders at once, for both relations."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from veil.accounting.rdp.quadrature import Floats, log_gap_add_remove, log_gap_replace_one

_CHUNK = 1 << 18  # numbers held at once by the binomial sums: they stay in the cache


@dataclass(frozen=True, slots=True, eq=False)
class _Ragged:
    """The (order, k) pairs of all binomial sums laid end to end, k from 2 to the order."""

    k: NDArray[np.int64]
    log_binomial: Floats
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]


@functools.lru_cache(maxsize=256)
def _ragged(orders: tuple[int, ...]) -> _Ragged:
    lengths = np.array([order - 1 for order in orders], dtype=np.int64)
    starts = np.concatenate(([0], np.cumsum(lengths)[:-1])).astype(np.int64)
    k = np.concatenate([np.arange(2, order + 1) for order in orders])
    order_of = np.repeat(np.array(orders), lengths)
    gammaln = special.gammaln(np.arange(max(orders) + 2, dtype=np.float64))
    return _Ragged(k, gammaln[order_of + 1] - gammaln[k + 1] - gammaln[order_of - k + 1], starts, lengths)


def log_binomial_sums(orders: tuple[int, ...], log_terms: Floats) -> Floats:
    """log Σ_{k=2..α} C(α, k)·exp(log_terms[:, k]) for every row and every integer order α ≥ 2."""
    ragged = _ragged(orders)
    result = np.empty((log_terms.shape[0], len(orders)))
    rows = max(1, _CHUNK // ragged.k.size)
    for first in range(0, log_terms.shape[0], rows):
        values = log_terms[first : first + rows].take(ragged.k, axis=1)
        values += ragged.log_binomial
        top = np.maximum.reduceat(values, ragged.starts, axis=1)
        values -= np.repeat(top, ragged.lengths, axis=1)
        np.exp(values, out=values)
        result[first : first + rows] = np.log(np.add.reduceat(values, ragged.starts, axis=1)) + top
    return result


def _add_remove_integer(noise: Floats, rate: Floats, orders: tuple[int, ...]) -> Floats:
    """log(A − 1) = log Σ_{k≥2} C(α,k) (1−q)^(α−k) q^k (e^(k(k−1)/2σ²) − 1): every term is positive."""
    k = np.arange(max(orders) + 1, dtype=np.float64)
    exponent = k * (k - 1) / (2 * noise[:, None] ** 2)
    with np.errstate(divide="ignore"):
        log_term = exponent + np.log(-np.expm1(-exponent))
    rest = np.log1p(-rate)[:, None]
    log_term += k * (np.log(rate)[:, None] - rest)
    gap: Floats = log_binomial_sums(orders, log_term) + np.array(orders) * rest
    return gap


def _finish(gap: Floats, orders: Floats, plain: Floats) -> Floats:
    """RDP from log(A − 1), never above the release without sampling."""
    result: Floats = np.minimum(np.logaddexp(0.0, gap) / (orders - 1), plain)
    return result


def _each(gap: Callable[[Floats, Floats, Floats], Floats], noise: Floats, rate: Floats, orders: Floats) -> Floats:
    """An integral for every pair of event and order."""
    rows = np.repeat(noise, orders.size), np.repeat(rate, orders.size), np.tile(orders, noise.size)
    return gap(*rows).reshape(noise.size, orders.size)


def add_remove(noise: Floats, rate: Floats, orders: Floats) -> Floats:
    """RDP of adding or removing one row of the Poisson-sampled Gaussian: one row per event, one column per order.

    The pair is P = (1−q)N(0) + qN(1) against Q = N(0), with σ in units of the bound. Of the two directions the one
    reported, D_α(P‖Q), is the larger for every α > 1 (Mironov, Talwar, Zhang 2019, Theorem 5). Integer orders are an
    exact binomial sum, the others an exact integral; both are arranged so that a cost of 1e-12 keeps its digits.
    """
    plain = orders / (2 * noise[:, None] ** 2)
    result = np.where(rate[:, None] == 0, 0.0, plain)
    inside = np.flatnonzero((rate > 0) & (rate < 1))
    if inside.size == 0:
        return result
    sigma, q = noise[inside], rate[inside]
    gap = np.empty((inside.size, orders.size))
    whole = orders == np.round(orders)
    if whole.any():
        gap[:, whole] = _add_remove_integer(sigma, q, tuple(int(order) for order in orders[whole]))
    if not whole.all():
        gap[:, ~whole] = _each(log_gap_add_remove, sigma, q, orders[~whole])
    result[inside] = _finish(gap, orders, plain[inside])
    return result


def replace_one(noise: Floats, rate: Floats, orders: Floats) -> Floats:
    """RDP of replacing one row of the Poisson-sampled Gaussian: one row per event, one column per order.

    The pair is P = (1−q)N(0) + qN(+C) against Q = (1−q)N(0) + qN(−C). It dominates every other pair: let the row's
    value be u in one table and v in the other, |u|, |v| ≤ C, and take any set S with N(0)-measure p. Moving a normal
    by u raises the measure of S to at most Φ(Φ⁻¹(p) + |u|/σ), and moving it by v lowers it to at least
    Φ(Φ⁻¹(p) − |v|/σ) (Neyman–Pearson). The half space that looks along e has both at once when u = Ce and v = −Ce.
    So P(S) − a·Q(S) is largest, for every a ≥ 0, for collinear opposite values and a half space: the privacy profile
    of the one-dimensional pair bounds all others, and with it every Rényi divergence.

    The integral is exact up to the stated quadrature safety. Where it would take too many points (a huge order at a
    small noise, where no ε is ever found) the cost is that of the release without sampling, 2α/κ², which bounds it.
    """
    plain = 2 * orders / noise[:, None] ** 2
    result = np.where(rate[:, None] == 0, 0.0, plain)
    inside = np.flatnonzero((rate > 0) & (rate < 1))
    if inside.size:
        gap = _each(log_gap_replace_one, noise[inside], rate[inside], orders)
        result[inside] = _finish(gap, orders, plain[inside])
    return result
