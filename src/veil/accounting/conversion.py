"""From Rényi cost to (ε, δ) and back, and the exact (ε, δ) curve of the Gaussian mechanism.

The Rényi conversion is that of Balle et al. (2020) and Canonne, Kamath and Steinke (2020): a cost ρ at order α gives
ε = ρ + log((α−1)/α) − (log δ + log α)/(α−1). The Gaussian curve is that of Balle and Wang (2018), with μ the
sensitivity over the noise's standard deviation: δ(ε) = Φ(μ/2 − ε/μ) − e^ε·Φ(−μ/2 − ε/μ).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from veil.accounting.events import AccountingError

Floats = NDArray[np.float64]


def check_delta(delta: float) -> None:
    """Reject a δ that no (ε, δ) statement can have."""
    if not 0.0 < delta < 1.0:
        raise AccountingError(f"delta is {delta}: it must be strictly between 0 and 1")


def check_epsilon(epsilon: float) -> None:
    """Reject a negative or undefined ε."""
    if not epsilon >= 0.0:
        raise AccountingError(f"epsilon is {epsilon}: it must be 0 or more")


def check_orders(orders: Floats) -> None:
    """Reject orders at which no Rényi divergence is computed here."""
    if orders.size == 0 or not np.all(np.isfinite(orders) & (orders > 1)):
        raise AccountingError(f"orders are {orders.tolist()}: each must be finite and above 1")


def total_variation_bound(rho: ArrayLike) -> Floats:
    """The largest total variation distance that a Rényi cost ρ at any order above 1 allows.

    ρ bounds the KL divergence; then Pinsker gives √(ρ/2) and Bretagnolle–Huber √(1 − e^−ρ).

    >>> float(total_variation_bound(0.02).round(6))
    0.1
    """
    cost = np.asarray(rho, dtype=np.float64)
    with np.errstate(over="ignore"):
        bound: Floats = np.minimum(np.sqrt(cost / 2), np.sqrt(-np.expm1(-cost)))
    return bound


def _terms(orders: Floats) -> Floats:
    """(α−1)·log((α−1)/α) − log α: what the conversion adds to the log-moment."""
    terms: Floats = (orders - 1) * np.log1p(-1 / orders) - np.log(orders)
    return terms


def moment_epsilon(rho: Floats, orders: Floats, log_delta: float) -> Floats:
    """ε by the Rényi conversion alone, for checked arguments; below 0 where it proves more than was asked."""
    epsilon: Floats = rho + (_terms(orders) - log_delta) / (orders - 1)
    return epsilon


def epsilon_at_order(rho: ArrayLike, order: ArrayLike, delta: float) -> Floats:
    """ε proved at δ by a Rényi cost `rho` at `order`, element by element; never below 0.

    >>> float(epsilon_at_order(0.5, 8.0, 1e-5).round(4))
    1.7141
    """
    check_delta(delta)
    cost, orders = np.broadcast_arrays(np.asarray(rho, dtype=np.float64), np.asarray(order, dtype=np.float64))
    check_orders(orders)
    epsilon = np.maximum(moment_epsilon(cost, orders, math.log(delta)), 0.0)
    result: Floats = np.where(total_variation_bound(cost) <= delta, 0.0, epsilon)
    return result


def moment_log_delta(rho: Floats, orders: Floats, epsilon: float) -> Floats:
    """log δ by the Rényi conversion alone, for checked arguments; above 0 where it proves nothing."""
    result: Floats = (orders - 1) * (rho - epsilon) + _terms(orders)
    return result


def log_delta_at_order(rho: ArrayLike, order: ArrayLike, epsilon: float) -> Floats:
    """log δ proved at ε by a Rényi cost `rho` at `order`, element by element; never above 0."""
    check_epsilon(epsilon)
    cost, orders = np.broadcast_arrays(np.asarray(rho, dtype=np.float64), np.asarray(order, dtype=np.float64))
    check_orders(orders)
    with np.errstate(divide="ignore"):
        variation = np.log(total_variation_bound(cost))
    result: Floats = np.minimum(np.minimum(moment_log_delta(cost, orders, epsilon), variation), 0.0)
    return result


def rho_for_budget(epsilon: float, delta: float, order: float) -> float:
    """The largest Rényi cost at `order` that still converts to ε at δ: the budget of a filter at that order.

    >>> rho = rho_for_budget(1.0, 1e-5, 20.0)
    >>> bool(epsilon_at_order(rho, 20.0, 1e-5) <= 1.0)
    True
    """
    check_delta(delta)
    check_epsilon(epsilon)
    orders = np.asarray([order], dtype=np.float64)
    check_orders(orders)
    overhead = float((_terms(orders)[0] - math.log(delta)) / (order - 1))
    if overhead >= epsilon:
        raise AccountingError(
            f"at order {order:g} and delta {delta:g} the conversion alone costs epsilon {overhead:.4g}, so nothing is "
            f"left of {epsilon:g}: choose a higher order"
        )
    rho = epsilon - overhead
    while float(epsilon_at_order(rho, order, delta)) > epsilon:
        rho = math.nextafter(rho, 0.0)
    return rho


def gaussian_log_delta(mu: float, epsilon: float) -> float:
    """log δ(ε) of a Gaussian release whose neighbours lie μ standard deviations apart, far into the tail."""
    if mu <= 0.0:
        return -math.inf
    near, far = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    if near < -5.0:
        # δ is close to 1; e^ε·Φ(−far) = e^(−near²/2)·erfcx(far/√2)/2 is a small correction.
        lost = float(special.ndtr(near)) + math.exp(-near * near / 2) * float(special.erfcx(far / math.sqrt(2))) / 2
        return math.log1p(-lost)
    scale = float(special.erfcx(near / math.sqrt(2)) - special.erfcx(far / math.sqrt(2))) / 2
    return math.log(scale) - near * near / 2 if scale > 0 else -math.inf


def gaussian_delta(mu: float, epsilon: float) -> float:
    """δ(ε) of a Gaussian release whose neighbours lie μ standard deviations apart: exact.

    >>> round(gaussian_delta(1.0, 1.0), 6)
    0.126937
    """
    check_epsilon(epsilon)
    if not mu >= 0:
        raise AccountingError(f"mu is {mu}: it must be 0 or more")
    return math.exp(gaussian_log_delta(mu, epsilon)) if math.isfinite(mu) else 1.0


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a falling function is 0, to 14 digits: Chandrupatla's method, which needs as few values as Brent's.

    That of scipy.optimize takes longer to load than most plans take.

    >>> _root(lambda x: 2.0 - x * x, 0.0, 9.0) == math.sqrt(2.0)
    True
    """
    new, old, newest = low, high, function(low)
    of_old, share = function(high), 0.5
    while True:
        place = new + share * (old - new)
        value = function(place)
        if (value > 0) == (newest > 0):
            third, of_third = new, newest
        else:
            third, old, of_third, of_old = old, new, of_old, newest
        new, newest = place, value
        best = new if abs(newest) < abs(of_old) else old
        width = abs(old - new)
        if newest == 0 or of_old == 0 or width <= 1e-14 * abs(best):
            return best
        # By the parabola through three points, inverted, where it falls between them; else by half.
        along, level = (new - old) / (third - old), (newest - of_old) / (of_third - of_old)
        share = 0.5
        if 1 - math.sqrt(1 - along) < level < math.sqrt(along):
            share = newest / (of_old - newest) * of_third / (of_old - of_third) + (third - new) / (old - new) * (
                newest / (of_third - newest) * of_old / (of_third - of_old)
            )
        least = 0.5e-14 * abs(best) / width
        share = min(max(share, least), 1 - least)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest ε with δ(ε) ≤ `delta` for a Gaussian release at distance μ; the root lands on the private side.

    >>> round(gaussian_epsilon(1.0, 1e-5), 4)
    4.3772
    """
    check_delta(delta)
    if not mu >= 0:
        raise AccountingError(f"mu is {mu}: it must be 0 or more")
    if math.isinf(mu):
        return math.inf
    target = math.log(delta)
    if gaussian_log_delta(mu, 0.0) <= target:
        return 0.0
    high = mu * mu / 2 + mu * math.sqrt(-2 * target)  # what zero-concentrated privacy proves
    root = _root(lambda e: gaussian_log_delta(mu, e) - target, 0.0, high)
    slack = 1e-15
    while gaussian_log_delta(mu, root) > target:
        root *= 1 + slack
        slack *= 2
    return root


def analytic_gaussian_noise(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """The smallest standard deviation at which a Gaussian release of this sensitivity is (ε, δ)-private.

    >>> round(analytic_gaussian_noise(1.0, 1e-5), 3)
    3.731
    """
    check_delta(delta)
    check_epsilon(epsilon)
    if not (sensitivity >= 0 and math.isfinite(sensitivity)):
        raise AccountingError(f"sensitivity is {sensitivity}: it must be finite and 0 or more")
    if sensitivity == 0:
        return 0.0
    target = math.log(delta)
    low = high = 0.0  # log μ
    while gaussian_log_delta(math.exp(low), epsilon) > target:
        low -= 1.0
    while gaussian_log_delta(math.exp(high), epsilon) <= target:
        high += 1.0
    root = _root(lambda x: gaussian_log_delta(math.exp(x), epsilon) - target, low, high)
    slack = 1e-15
    while gaussian_log_delta(math.exp(root), epsilon) > target:
        root -= slack
        slack *= 2
    return sensitivity * math.exp(-root)
