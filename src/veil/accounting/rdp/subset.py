"""Rényi cost of the Gaussian on a subset drawn without replacement, when one row is replaced."""

from __future__ import annotations

import numpy as np

from veil.accounting.rdp.poisson import log_binomial_sums
from veil.accounting.rdp.quadrature import Floats, log_even_moments

_HIGHEST_MOMENT = 256  # above it the cheaper branch of the minimum is used alone; it is sound too
_SMALLEST_NOISE = 1.0  # below it the moment branch never is the smaller one


def _log_terms(noise: Floats, rate: Floats, highest: int) -> Floats:
    """log of q^i times the i-th term of the theorem, for i = 0 … highest (the first two are not used)."""
    i = np.arange(highest + 1, dtype=np.float64)
    variance = noise[:, None] ** 2
    terms: Floats = np.log(2.0) + i * (i - 1) / (2 * variance)
    top = min(highest + highest % 2, _HIGHEST_MOMENT)
    known = np.arange(2, min(highest, top) + 1)
    wide = np.flatnonzero(noise >= _SMALLEST_NOISE)
    if wide.size and known.size:
        moments = log_even_moments(noise[wide], top)
        pairs = (moments[:, known // 2] + moments[:, (known + 1) // 2]) / 2
        terms[np.ix_(wide, known)] = np.minimum(terms[np.ix_(wide, known)], np.log(4.0) + pairs)
    terms += i * np.log(rate)[:, None]
    return terms


def replace_one_subset(noise: Floats, rate: Floats, orders: Floats) -> Floats:
    """RDP of one Gaussian release on a uniform subset, share `rate`, noise relative to the sensitivity of the sum.

    Integer orders follow Theorem 27 of Wang, Balle and Kasiviswanathan (2019):
    e^((α−1)ε(α)) ≤ 1 + Σ_{i=2..α} C(α,i) γ^i · min(4·√(B(2⌊i/2⌋)·B(2⌈i/2⌉)), 2e^((i−1)·i/2σ²)), where B(l) is the l-th
    moment of the density ratio minus one, and for i = 2 the first branch is 4(e^(1/σ²) − 1). Between integers
    (α−1)·ε(α) is convex and hence below its chord. A subset never costs more than all rows: α/2σ².
    """
    plain = orders / (2 * noise[:, None] ** 2)
    result = np.where(rate[:, None] == 0, 0.0, plain)
    inside = np.flatnonzero((rate > 0) & (rate < 1))
    if inside.size == 0:
        return result
    low, high = np.floor(orders).astype(np.int64), np.ceil(orders).astype(np.int64)
    needed = np.unique(np.concatenate([low, high]))
    needed = needed[needed >= 2]
    sums = log_binomial_sums(
        tuple(int(order) for order in needed), _log_terms(noise[inside], rate[inside], int(needed[-1]))
    )
    cgf = np.logaddexp(0.0, sums)
    cgf = np.concatenate([np.zeros((inside.size, 1)), cgf], axis=1)  # order 1 costs nothing
    where = np.concatenate([[1], needed])
    left, right = cgf[:, np.searchsorted(where, low)], cgf[:, np.searchsorted(where, high)]
    share = orders - low
    result[inside] = np.minimum(((1 - share) * left + share * right) / (orders - 1), plain[inside])
    return result
