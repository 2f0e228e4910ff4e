"""Conversions between Rényi cost and (ε, δ), and the exact Gaussian curve far into its tails."""

from __future__ import annotations

import math
from itertools import pairwise

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from veil.accounting.conversion import (
    analytic_gaussian_noise,
    epsilon_at_order,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_log_delta,
    log_delta_at_order,
    rho_for_budget,
    total_variation_bound,
)
from veil.accounting.events import AccountingError

EXAMPLES = settings(deadline=None, derandomize=True, max_examples=100)


def exact_log_delta(mu: float, epsilon: float) -> float:
    with mp.workdps(60):
        m, e = mp.mpf(mu), mp.mpf(epsilon)
        near, far = e / m - m / 2, e / m + m / 2
        delta = mp.erfc(near / mp.sqrt(2)) / 2 - mp.exp(e) * mp.erfc(far / mp.sqrt(2)) / 2
        return float(mp.log(delta))


@pytest.mark.parametrize(
    ("mu", "epsilon"),
    [
        (1.0, 0.0),
        (1.0, 1.0),
        (0.03, 1.0),
        (1e-6, 0.0),
        (1e-3, 1e-3),
        (140.0, 1e4),
        (100.0, 1e4),
        (200.0, 1e4),
        (10.0, 5.0),
        (5.0, 100.0),
        (30.0, 0.0),
    ],
)
def test_the_gaussian_curve_equals_sixty_digits(mu: float, epsilon: float) -> None:
    assert gaussian_log_delta(mu, epsilon) == pytest.approx(exact_log_delta(mu, epsilon), rel=1e-10, abs=1e-300)


@pytest.mark.parametrize("delta", [1e-300, 1e-100, 1e-12, 1e-5, 0.3])
@pytest.mark.parametrize("mu", [1e-3, 0.1, 1.0, 10.0, 100.0])
def test_the_gaussian_epsilon_is_private_and_tight(mu: float, delta: float) -> None:
    epsilon = gaussian_epsilon(mu, delta)
    assert gaussian_log_delta(mu, epsilon) <= math.log(delta)
    assert epsilon == 0 or gaussian_log_delta(mu, epsilon * (1 - 1e-9)) > math.log(delta)


@pytest.mark.parametrize("epsilon", [0.0, 1e-3, 1.0, 8.0, 1e4])
@pytest.mark.parametrize("delta", [1e-300, 1e-9, 0.1])
def test_the_gaussian_noise_is_private_and_tight(epsilon: float, delta: float) -> None:
    sigma = analytic_gaussian_noise(epsilon, delta, sensitivity=3.0)
    assert gaussian_log_delta(3.0 / sigma, epsilon) <= math.log(delta) + 1e-9
    assert gaussian_log_delta(3.0 / (sigma * (1 - 1e-9)), epsilon) > math.log(delta)


def test_the_classical_noise_formula_fails_where_the_exact_one_does_not() -> None:
    # √(2 ln(1/δ))/ε is too little noise from about ε = 8 at δ = 1e-5
    classical = math.sqrt(2 * math.log(1e5)) / 9.0
    assert gaussian_delta(1 / classical, 9.0) > 1e-5
    assert analytic_gaussian_noise(9.0, 1e-5) > classical


def test_no_distance_costs_nothing_and_infinite_distance_everything() -> None:
    assert gaussian_delta(0.0, 0.0) == 0.0
    assert gaussian_epsilon(0.0, 1e-5) == 0.0
    assert gaussian_delta(math.inf, 3.0) == 1.0
    assert gaussian_epsilon(math.inf, 1e-5) == math.inf
    assert analytic_gaussian_noise(1.0, 1e-5, 0.0) == 0.0


@EXAMPLES
@given(st.floats(0.05, 20.0), st.floats(-30.0, -1.0).map(math.exp))
def test_converting_a_gaussian_cost_never_goes_below_its_exact_epsilon(mu: float, delta: float) -> None:
    orders = 1 + np.geomspace(1e-3, 1e4, 400)
    found = epsilon_at_order(orders * mu**2 / 2, orders, delta)
    assert np.all(found >= gaussian_epsilon(mu, delta) * (1 - 1e-12))
    exact = gaussian_log_delta(mu, 1.0)
    assert np.all(log_delta_at_order(orders * mu**2 / 2, orders, 1.0) >= exact - 1e-12)


@EXAMPLES
@given(st.floats(-12.0, 5.0).map(math.exp), st.floats(1.01, 1000.0), st.floats(-30.0, -0.1).map(math.exp))
def test_epsilon_and_delta_at_one_order_are_inverse(rho: float, order: float, delta: float) -> None:
    epsilon = float(epsilon_at_order(rho, order, delta))
    assert epsilon >= 0
    assert float(log_delta_at_order(rho, order, epsilon)) <= math.log(delta) + 1e-9


@EXAMPLES
@given(st.floats(0.01, 50.0), st.floats(1.5, 500.0), st.floats(-30.0, -2.0).map(math.exp))
def test_the_budget_at_one_order_is_the_largest_that_still_converts(epsilon: float, order: float, delta: float) -> None:
    try:
        rho = rho_for_budget(epsilon, delta, order)
    except AccountingError:
        assert float(epsilon_at_order(1e-3, order, delta)) > epsilon or delta > 0.02
        return
    assert float(epsilon_at_order(rho, order, delta)) <= epsilon
    assert float(epsilon_at_order(rho * (1 + 1e-6) + 1e-9, order, delta)) > epsilon or delta > 0.02


def test_a_budget_smaller_than_the_conversion_is_refused_with_the_reason() -> None:
    with pytest.raises(AccountingError, match="choose a higher order"):
        rho_for_budget(0.1, 1e-5, 4.0)


def test_no_cost_is_no_epsilon_at_any_order() -> None:
    assert not epsilon_at_order(np.zeros(3), np.array([1.1, 8.0, 500.0]), 1e-9).any()
    assert np.all(log_delta_at_order(np.zeros(2), np.array([2.0, 9.0]), 0.0) == -math.inf)


def test_an_infinite_cost_proves_nothing() -> None:
    assert epsilon_at_order(math.inf, 2.0, 1e-5) == math.inf
    assert log_delta_at_order(math.inf, 2.0, 5.0) == 0.0


def test_total_variation_bounds_hold_for_gaussians_and_stay_below_one() -> None:
    for mu in (1e-6, 0.1, 1.0, 5.0):
        assert gaussian_delta(mu, 0.0) <= float(total_variation_bound(mu**2 / 2)) < 1
    assert float(total_variation_bound(1e9)) == 1.0


def test_epsilon_falls_as_delta_grows() -> None:
    values = [float(epsilon_at_order(0.5, 8.0, delta)) for delta in (1e-300, 1e-12, 1e-5, 1e-2)]
    assert all(left > right for left, right in pairwise(values))


@pytest.mark.parametrize("delta", [0.0, 1.0, -1.0, math.nan])
def test_a_delta_outside_the_open_unit_interval_is_refused(delta: float) -> None:
    for ask in (lambda: gaussian_epsilon(1.0, delta), lambda: epsilon_at_order(1.0, 2.0, delta)):
        with pytest.raises(AccountingError, match="delta is"):
            ask()
    with pytest.raises(AccountingError, match="delta is"):
        analytic_gaussian_noise(1.0, delta)
    with pytest.raises(AccountingError, match="delta is"):
        rho_for_budget(1.0, delta, 2.0)


def test_negative_and_undefined_arguments_are_refused() -> None:
    with pytest.raises(AccountingError, match="mu is"):
        gaussian_delta(-1.0, 0.0)
    with pytest.raises(AccountingError, match="mu is"):
        gaussian_epsilon(math.nan, 1e-5)
    with pytest.raises(AccountingError, match="epsilon is"):
        gaussian_delta(1.0, math.nan)
    with pytest.raises(AccountingError, match="sensitivity is"):
        analytic_gaussian_noise(1.0, 1e-5, -1.0)
    with pytest.raises(AccountingError, match="above 1"):
        rho_for_budget(1.0, 1e-5, 1.0)


@pytest.mark.parametrize("delta", [1e-2, 1e-6, 1e-15])
@pytest.mark.parametrize("value", [0.02, 0.7, 3.0, 40.0])
def test_roots_of_the_gaussian_curve_are_those_of_another_method(value: float, delta: float) -> None:
    target = math.log(delta)
    low, high = -20.0, 20.0
    noise = brentq(lambda x: gaussian_log_delta(math.exp(x), value) - target, low, high, rtol=1e-14)
    assert analytic_gaussian_noise(value, delta) == pytest.approx(math.exp(-noise), rel=1e-9)
    if gaussian_log_delta(value, 0.0) > target:
        largest = value * value / 2 + value * math.sqrt(-2 * target)
        epsilon = brentq(lambda e: gaussian_log_delta(value, e) - target, 0.0, largest, rtol=1e-14)
        assert gaussian_epsilon(value, delta) == pytest.approx(epsilon, rel=1e-9)
