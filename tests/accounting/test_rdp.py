"""The Rényi accountant against exact formulas, high-precision integrals and its own laws."""

from __future__ import annotations

import math
from itertools import pairwise

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from veil import accounting as dp
from veil.accounting.accountant import Accountant
from veil.accounting.conversion import epsilon_at_order, gaussian_epsilon
from veil.accounting.rdp import DEFAULT_ORDERS, Rdp, quick_epsilon, rdp
from veil.accounting.rdp.closed import negative_binomial_mean, selection_negative_binomial, selection_poisson
from veil.accounting.rdp.poisson import add_remove, replace_one
from veil.accounting.rdp.quadrature import log_even_moments
from veil.accounting.rdp.subset import replace_one_subset

ADD, REPLACE = dp.Relation.ADD_REMOVE, dp.Relation.REPLACE_ONE
EXAMPLES = settings(deadline=None, derandomize=True, max_examples=40)

noises = st.floats(-1.2, 6.9).map(math.exp)  # 0.3 … 1000
rates = st.floats(-16.1, 0.0).map(math.exp)  # 1e-7 … 1


def poisson_sum(noise: float, rate: float, order: int) -> float:
    """The binomial sum in 50 digits, as printed in the papers, without any rearrangement."""
    with mp.workdps(50):
        s, q = mp.mpf(noise), mp.mpf(rate)
        terms = (
            mp.binomial(order, k) * (1 - q) ** (order - k) * q**k * mp.exp(k * (k - 1) / (2 * s * s))
            for k in range(order + 1)
        )
        return float(mp.log(mp.fsum(terms)) / (order - 1))


def poisson_integral(noise: float, rate: float, order: float, relation: dp.Relation) -> float:
    """log ∫ P^α Q^(1−α) / (α−1) by Gauss–Legendre in 40 digits."""
    with mp.workdps(40):
        s, q, a = mp.mpf(noise), mp.mpf(rate), mp.mpf(order)

        def integrand(z: mp.mpf) -> mp.mpf:
            p = 1 + q * mp.expm1(z / s - 1 / (2 * s * s))
            r = 1 + q * mp.expm1(-z / s - 1 / (2 * s * s)) if relation is REPLACE else mp.mpf(1)
            return mp.npdf(z) * p**a * r ** (1 - a)

        edges = np.linspace(-12 - 1 / noise, 12 + 2 * order / noise, 2 + int((24 + 2 * order / noise) / 3))
        return float(mp.log(mp.quad(integrand, [mp.mpf(edge) for edge in edges], maxdegree=5)) / (a - 1))


@pytest.mark.parametrize("noise", [0.3, 1.0, 5.0, 1000.0])
@pytest.mark.parametrize("rate", [1e-7, 1e-3, 0.3, 0.999])
@pytest.mark.parametrize("order", [2, 7, 64, 300])
def test_whole_orders_equal_the_binomial_sum_in_high_precision(noise: float, rate: float, order: int) -> None:
    found = rdp(dp.PoissonGaussian(noise, rate), [order])[0]
    assert found == pytest.approx(poisson_sum(noise, rate, order), rel=1e-9)


@pytest.mark.parametrize(
    ("noise", "rate", "order"),
    [(0.5, 0.01, 1.05), (1.0, 0.2, 2.5), (2.0, 1e-4, 7.7), (1.0, 0.9, 4.5), (30.0, 1e-6, 12.5), (1000.0, 1e-7, 3.3)],
)
@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_orders_between_whole_ones_equal_the_integral_in_high_precision(
    noise: float, rate: float, order: float, relation: dp.Relation
) -> None:
    found = rdp(dp.PoissonGaussian(noise, rate, relation), [order])[0]
    assert found == pytest.approx(poisson_integral(noise, rate, order, relation), rel=1e-8)


@pytest.mark.parametrize("order", [2.0, 5.0, 20.0])
def test_replace_one_equals_the_integral_at_whole_orders(order: float) -> None:
    found = rdp(dp.PoissonGaussian(1.5, 0.05, REPLACE), [order])[0]
    assert found == pytest.approx(poisson_integral(1.5, 0.05, order, REPLACE), rel=1e-8)


def test_the_integral_and_the_binomial_sum_agree_where_both_apply() -> None:
    noise, rate = np.array([0.4, 1.0, 3.0, 100.0]), np.array([1e-5, 0.01, 0.5, 0.9])
    whole = add_remove(noise, rate, np.array([3.0, 17.0, 60.0]))
    beside = add_remove(noise, rate, np.array([3.0, 17.0, 60.0]) * (1 + 1e-13))
    np.testing.assert_allclose(beside, whole, rtol=1e-8)


def test_the_reported_direction_is_the_larger_one() -> None:
    def reverse(noise: float, rate: float, order: float) -> float:
        z = np.linspace(-40, 40, 400_001)
        log_mix = np.log1p(rate * np.expm1(z / noise - 0.5 / noise**2))
        return float(np.log(np.trapezoid(np.exp((1 - order) * log_mix - z * z / 2), z) / math.sqrt(2 * math.pi))) / (
            order - 1
        )

    for noise, rate, order in [(1.0, 0.1, 2.0), (2.0, 0.5, 8.0), (0.7, 0.3, 3.5), (5.0, 0.01, 30.0)]:
        assert rdp(dp.PoissonGaussian(noise, rate), [order])[0] >= reverse(noise, rate, order) - 1e-12


@EXAMPLES
@given(noises, rates, st.floats(1.01, 200.0))
def test_sampling_never_costs_more_than_no_sampling(noise: float, rate: float, order: float) -> None:
    orders = np.array([order, math.ceil(order)])
    for function, reach in ((add_remove, 1), (replace_one, 2)):
        cost = function(np.array([noise]), np.array([rate]), orders)[0]
        assert np.all(cost >= 0)
        assert np.all(cost <= orders * reach**2 / (2 * noise**2))


@EXAMPLES
@given(noises, rates, st.floats(1.01, 60.0))
def test_replacing_a_row_costs_at_least_what_removing_one_does(noise: float, rate: float, order: float) -> None:
    one = add_remove(np.array([noise]), np.array([rate]), np.array([order]))
    both = replace_one(np.array([noise]), np.array([rate]), np.array([order]))
    assert both[0, 0] >= one[0, 0] * (1 - 1e-8)


@EXAMPLES
@given(noises, rates, st.floats(1.01, 100.0))
def test_the_curve_grows_with_the_order_and_its_log_moment_is_convex(noise: float, rate: float, order: float) -> None:
    orders = order + np.array([0.0, 0.5, 1.0])
    for function in (add_remove, replace_one):
        cost = function(np.array([noise]), np.array([rate]), orders)[0]
        moment = (orders - 1) * cost
        assert cost[0] <= cost[1] * (1 + 1e-8) <= cost[2] * (1 + 3e-8)
        assert moment[1] <= (moment[0] + moment[2]) / 2 * (1 + 1e-8)


def test_huge_orders_at_small_noise_fall_back_to_the_release_without_sampling() -> None:
    cost = rdp(dp.PoissonGaussian(0.3, 0.01, REPLACE), [5000.0])[0]
    assert cost == 2 * 5000.0 / 0.3**2


def test_rate_zero_costs_nothing_and_rate_one_is_the_plain_gaussian() -> None:
    orders = [1.5, 2.0, 30.0]
    assert not rdp(dp.PoissonGaussian(1.0, 0.0), orders).any()
    assert not rdp(dp.PoissonGaussian(1.0, 0.0, REPLACE), orders).any()
    assert not rdp(dp.SubsetGaussian(1.0, 10, 0), orders).any()
    np.testing.assert_allclose(rdp(dp.PoissonGaussian(3.0, 1.0), orders), rdp(dp.Gaussian(3.0), orders))
    for event in (dp.PoissonGaussian(3.0, 1.0, REPLACE), dp.SubsetGaussian(3.0, 10, 10)):
        np.testing.assert_allclose(rdp(event, orders), rdp(dp.Gaussian(3.0, REPLACE), orders))


def test_moments_without_cancellation_equal_the_alternating_sums_in_high_precision() -> None:
    found = log_even_moments(np.array([1.0, 4.0, 40.0]), 32)
    with mp.workdps(120):
        for row, noise in enumerate((1, 4, 40)):
            for power in (2, 8, 32):
                exact = mp.log(
                    mp.fsum(
                        (-1) ** k * mp.binomial(power, k) * mp.exp(mp.mpf(k * (k - 1)) / (2 * noise**2))
                        for k in range(power + 1)
                    )
                )
                assert found[row, power // 2] == pytest.approx(float(exact), abs=1e-9)


def test_a_subset_costs_less_when_it_is_smaller_or_noisier_and_never_more_than_all_rows() -> None:
    orders = np.array([1.5, 2.0, 3.0, 16.0, 17.5, 100.0])
    rates = np.geomspace(1e-6, 1, 25)
    cost = replace_one_subset(np.full(25, 2.0), rates, orders)
    assert np.all(np.diff(cost, axis=0) >= 0)
    noise = np.geomspace(0.1, 1000, 25)
    cost = replace_one_subset(noise, np.full(25, 0.01), orders)
    assert np.all(np.diff(cost, axis=0) <= 0)
    assert np.all(cost <= orders / (2 * noise[:, None] ** 2))


def test_one_sided_values_halve_the_reach_of_a_subset() -> None:
    orders = [2.0, 8.0, 20.0]
    np.testing.assert_array_equal(
        rdp(dp.SubsetGaussian(3.0, 1000, 10, one_sided=True), orders), rdp(dp.SubsetGaussian(6.0, 1000, 10), orders)
    )


def test_laplace_equals_its_integral() -> None:
    for scale, order in [(1.0, 2.0), (0.5, 7.5), (10.0, 1.2), (100.0, 30.0)]:
        b = mp.mpf(scale)
        moment = mp.quad(
            lambda x, b=b, order=order: mp.exp(-order * abs(x) / b - (1 - order) * abs(x - 1) / b) / (2 * b),
            [-60 * b, 0, 1, 60 * b],
        )
        assert rdp(dp.Laplace(scale), [order])[0] == pytest.approx(float(mp.log(moment) / (order - 1)), rel=1e-9)
    np.testing.assert_allclose(rdp(dp.Laplace(2.0, REPLACE), [4.0]), rdp(dp.Laplace(1.0), [4.0]))


def test_noisy_max_is_the_worst_mechanism_of_its_bounded_range() -> None:
    for noise, order in [(1.0, 2.0), (0.2, 5.0), (4.0, 1.5), (50.0, 64.0)]:
        eta = dp.NoisyMax(noise).range
        t = np.linspace(1e-9, eta - 1e-9, 200_001)
        weight = -np.expm1(t - eta) / (np.exp(t) - np.exp(t - eta))
        moments = weight * np.exp(order * t) + (1 - weight) * np.exp(order * (t - eta))
        found = rdp(dp.NoisyMax(noise), [order])[0]
        assert found == pytest.approx(math.log(moments.max()) / (order - 1), rel=1e-6)
        assert found <= min(order * eta**2 / 8, eta)
    assert rdp(dp.NoisyMax(1e6), [2.0])[0] == pytest.approx(2 * (2e-6) ** 2 / 8)


def test_a_tree_costs_one_gaussian_per_level() -> None:
    np.testing.assert_allclose(rdp(dp.Tree(2.0, 8), [3.0]), 4 * rdp(dp.Gaussian(2.0), [3.0]))


def test_a_mixture_lies_between_nothing_and_its_event_and_keeps_tiny_costs() -> None:
    orders = np.array([1.5, 2.0, 40.0])
    full = rdp(dp.Gaussian(2.0), orders)
    for share in (0.0, 1e-9, 0.3, 1.0):
        mixed = rdp(dp.Mixture(share, dp.Gaussian(2.0)), orders)
        np.testing.assert_allclose(mixed, np.log1p(share * np.expm1((orders - 1) * full)) / (orders - 1), rtol=1e-12)
    assert rdp(dp.Mixture(1e-6, dp.Gaussian(1000.0)), [2.0])[0] == pytest.approx(1e-12, rel=1e-5)
    assert rdp(dp.Mixture(0.5, dp.Gaussian(1e-3)), [3.0])[0] == pytest.approx(1.5e6 - math.log(2) / 2)


def test_selection_by_a_random_number_of_runs_costs_more_than_one_run() -> None:
    run = (dp.Repeated(dp.PoissonGaussian(2.0, 0.01), 1000),)
    one = Rdp().epsilon(run, 1e-6)
    for selection in (
        dp.Selection(run, 1.0, gamma=0.1),
        dp.Selection(run, 0.0, gamma=0.1),
        dp.Selection(run, -0.5, gamma=0.1),
    ):
        assert one < Rdp().epsilon([selection], 1e-6) < 3 * one
    assert one < Rdp().epsilon([dp.Selection(run, math.inf, mean=10.0)], 1e-6) < 2.5 * one
    assert Rdp().epsilon([dp.Selection(run, math.inf, mean=1e-9)], 1e-6) < one


def test_the_mean_number_of_runs_equals_its_series() -> None:
    for shape, gamma in [(1.0, 0.3), (2.5, 0.4), (-0.5, 0.2), (1e-9, 0.3)]:
        k = np.arange(1, 400)
        log_weight = np.cumsum(np.log((k[1:] - 1 + shape) / k[1:]))
        weight = np.concatenate([[1.0], np.exp(log_weight)]) * (1 - gamma) ** k
        assert negative_binomial_mean(shape, gamma) == pytest.approx(float((weight * k).sum() / weight.sum()))
    k = np.arange(1, 2000)
    weight = 0.7**k / k
    assert negative_binomial_mean(0.0, 0.3) == pytest.approx(float((weight * k).sum() / weight.sum()))


@pytest.mark.parametrize("pure", [0.1, 0.5, 2.0])
def test_selection_is_sound_for_the_best_of_many_randomised_responses(pure: float) -> None:
    # one run says 1 with probability p or 1 − p and "best" prefers 1, so every probability is explicit
    p, orders = 1 / (1 + math.exp(-pure)), np.geomspace(1.05, 40, 200)
    run = np.log(p**orders * (1 - p) ** (1 - orders) + (1 - p) ** orders * p ** (1 - orders)) / (orders - 1)

    def divergence(worlds: list[list[float]], order: float) -> float:
        x, y = np.log(worlds)
        both = [np.logaddexp.reduce(order * a + (1 - order) * b) for a, b in ((x, y), (y, x))]
        return float(max(both)) / (order - 1)

    for mean in (0.3, 1.0, 6.0):
        none = math.exp(-mean)
        worlds = [[none, math.exp(-mean * q) - none, 1 - math.exp(-mean * q)] for q in (p, 1 - p)]
        bound = selection_poisson(mean, run, orders)
        assert all(divergence(worlds, a) <= c + 1e-12 for a, c in zip(orders, bound, strict=True))
    for gamma in (0.05, 0.5):
        # geometric number of runs: none of them says 1 with probability γ(1−q)/(1 − (1−γ)(1−q))
        silent = [gamma * (1 - q) / (1 - (1 - gamma) * (1 - q)) for q in (p, 1 - p)]
        worlds = [[value, 1 - value] for value in silent]
        bound = selection_negative_binomial(1.0, gamma, run, orders)
        assert all(divergence(worlds, a) <= c + 1e-12 for a, c in zip(orders, bound, strict=True))


def test_composition_does_not_depend_on_order_or_grouping() -> None:
    a, b, c = dp.PoissonGaussian(1.0, 0.01), dp.Gaussian(20.0), dp.Laplace(30.0)
    together = Rdp().epsilon([dp.Repeated(a, 100), b, b, c], 1e-6)
    assert Rdp().epsilon([c, b, dp.Repeated(a, 60), b, dp.Repeated(a, 40)], 1e-6) == pytest.approx(together, rel=1e-3)
    np.testing.assert_allclose(Rdp().curve([dp.Repeated(a, 3), c]), Rdp().curve([c, a, a, a]), rtol=1e-12)
    np.testing.assert_allclose(Rdp().curve([a, c]), rdp(a, DEFAULT_ORDERS) + rdp(c, DEFAULT_ORDERS), rtol=1e-12)


def test_epsilon_falls_with_delta_and_noise_and_grows_with_rate_and_steps() -> None:
    for relation in dp.Relation:

        def epsilon(noise: float = 1.1, rate: float = 0.01, steps: int = 500, delta: float = 1e-6) -> float:
            return Rdp().epsilon([dp.Repeated(dp.PoissonGaussian(noise, rate, relation), steps)], delta)  # noqa: B023

        falling = [[epsilon(noise=x) for x in (0.3, 0.6, 1.0, 3.0, 30.0, 1000.0)]]
        falling.append([epsilon(delta=x) for x in (1e-300, 1e-12, 1e-5, 0.1)])
        falling.append([epsilon(rate=x) for x in (1.0, 0.5, 0.1, 1e-3, 1e-7)])
        falling.append([epsilon(steps=x) for x in (1_000_000, 1000, 10, 1)])
        for values in falling:
            assert all(left > right for left, right in pairwise(values)), values


@pytest.mark.parametrize("steps", [1, 1_000_000])
@pytest.mark.parametrize("noise", [0.3, 1000.0])
@pytest.mark.parametrize("rate", [1e-7, 1.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-3])
def test_extreme_settings_give_a_finite_epsilon_that_is_not_negative(
    steps: int, noise: float, rate: float, delta: float
) -> None:
    for relation in dp.Relation:
        epsilon = Rdp().epsilon([dp.Repeated(dp.PoissonGaussian(noise, rate, relation), steps)], delta)
        assert 0 <= epsilon < math.inf


@EXAMPLES
@given(st.floats(-1.0, 3.0).map(math.exp), rates, st.integers(1, 100_000), st.floats(-27.0, -5.0).map(math.exp))
def test_no_fine_grid_of_orders_beats_the_search_by_more_than_a_fraction_of_a_percent(
    noise: float, rate: float, steps: int, delta: float
) -> None:
    events = [dp.Repeated(dp.PoissonGaussian(noise, rate), steps)]
    best = Rdp().best(events, delta)
    near = 1 + (best.order - 1) * np.geomspace(0.8, 1.25, 60)
    grid = np.concatenate([near, 1 + np.geomspace(0.01, 200, 60)])
    rival = float(epsilon_at_order(Rdp(grid.tolist()).curve(events), grid, delta).min())
    assert best.value <= rival * 1.002 + 1e-12
    assert Rdp([best.order]).epsilon(events, delta) == pytest.approx(best.value, rel=1e-9)


@pytest.mark.parametrize("noise", [0.5, 3.0, 50.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.2])
def test_gaussians_are_never_reported_below_their_exact_curve(noise: float, delta: float) -> None:
    for times in (1, 30):
        truth = gaussian_epsilon(math.sqrt(times) / noise, delta)
        found = Rdp().epsilon([dp.Repeated(dp.Gaussian(noise), times)], delta)
        assert truth <= found
        assert truth == 0 or Rdp().delta([dp.Repeated(dp.Gaussian(noise), times)], truth) >= delta


def test_one_replaced_row_is_never_reported_below_the_exact_profile_of_the_dominating_pair() -> None:
    z = np.linspace(-60, 60, 600_001)
    for noise, rate in [(1.0, 0.1), (0.6, 0.01), (3.0, 0.5)]:
        x = z * noise
        base, up, down = (np.exp(-((x - shift) ** 2) / (2 * noise**2)) for shift in (0.0, 1.0, -1.0))
        p, q = (1 - rate) * base + rate * up, (1 - rate) * base + rate * down
        event = dp.PoissonGaussian(noise, rate, REPLACE)
        for epsilon in (0.0, 0.1, 0.5, 1.0):
            exact = np.trapezoid(np.maximum(p - math.exp(epsilon) * q, 0), z) / math.sqrt(2 * math.pi)
            assert Rdp().delta([event], epsilon) >= exact


def test_epsilon_and_delta_answer_each_other() -> None:
    events = [dp.Repeated(dp.PoissonGaussian(1.0, 0.01), 1000)]
    epsilon = Rdp().epsilon(events, 1e-6)
    assert Rdp().delta(events, epsilon) == pytest.approx(1e-6, rel=0.02)


def test_no_event_costs_nothing() -> None:
    assert Rdp().epsilon([], 1e-5) == 0.0
    assert Rdp().delta([], 0.0) == 0.0
    assert Rdp().epsilon([dp.Repeated(dp.Gaussian(1.0), 0)], 1e-5) == 0.0
    assert not Rdp().curve([]).any()


def test_relations_do_not_mix_and_strangers_are_named() -> None:
    with pytest.raises(dp.AccountingError, match="cannot be composed"):
        Rdp().epsilon([dp.Gaussian(1.0), dp.Gaussian(1.0, REPLACE)], 1e-5)
    stranger: dp.Event = "a rumour"  # type: ignore[assignment]
    assert not Rdp().supports(stranger)
    with pytest.raises(dp.AccountingError, match="a rumour"):
        Rdp().epsilon([stranger], 1e-5)


def test_wrong_questions_are_refused() -> None:
    with pytest.raises(dp.AccountingError, match="delta is 0"):
        Rdp().epsilon([dp.Gaussian(1.0)], 0.0)
    with pytest.raises(dp.AccountingError, match="epsilon is -1"):
        Rdp().delta([dp.Gaussian(1.0)], -1.0)
    with pytest.raises(dp.AccountingError, match="above 1"):
        Rdp([1.0, 2.0])
    with pytest.raises(dp.AccountingError, match="above 1"):
        rdp(dp.Gaussian(1.0), [])


def test_the_accountant_follows_the_protocol_and_is_a_proof() -> None:
    accountant: Accountant = Rdp()
    assert (accountant.name, accountant.approximate) == ("rdp", False)
    assert all(
        accountant.supports(event)
        for event in (
            dp.Gaussian(1.0),
            dp.PoissonGaussian(1.0, 0.1),
            dp.SubsetGaussian(1.0, 2, 1),
            dp.Laplace(1.0),
            dp.NoisyMax(1.0),
            dp.Tree(1.0, 2),
            dp.Mixture(0.5, dp.Gaussian(1.0)),
            dp.Selection((dp.Repeated(dp.Gaussian(1.0)),), 1.0, gamma=0.5),
        )
    )


@pytest.mark.parametrize("steps", [1, 30, 1000])
@pytest.mark.parametrize(
    "events",
    [
        [dp.PoissonGaussian(1.0, 0.01), dp.PoissonGaussian(1.4, 0.02), dp.Gaussian(40.0)],
        [dp.SubsetGaussian(4.0, 1000, 10), dp.SubsetGaussian(9.0, 1000, 40), dp.Gaussian(60.0, REPLACE)],
    ],
)
def test_a_quick_reading_is_never_below_the_best_and_not_far_above(events: list[dp.Event], steps: int) -> None:
    spent = [dp.Repeated(event, steps) for event in events]
    best, quick = Rdp().epsilon(spent, 1e-5), quick_epsilon(spent, 1e-5)
    assert best * (1 - 1e-9) <= quick <= 1.3 * best + 0.05
    assert quick_epsilon([], 1e-5) == 0.0
