"""Noise, rates and clips for a budget: always on the private side, tight, and refused with a reason."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from veil.accounting.calibration import (
    SMALLEST_NOISE,
    best_order,
    clip_for,
    kappa,
    noise_for,
    noise_for_subset,
    noise_multiplier,
    noises_for,
    rate_for,
    rates_for,
)
from veil.accounting.conversion import analytic_gaussian_noise
from veil.accounting.events import AccountingError, Event, Gaussian, PoissonGaussian, Relation, Repeated, SubsetGaussian
from veil.accounting.gdp import Gdp
from veil.accounting.rdp import Rdp, rdp

ADD, REPLACE = Relation.ADD_REMOVE, Relation.REPLACE_ONE
EXAMPLES = settings(deadline=None, derandomize=True, max_examples=12)
TIGHT = 1.01e-4

epsilons = st.floats(-3.0, 4.0).map(math.exp)
deltas = st.floats(-27.0, -3.0).map(math.exp)
rates = st.floats(-10.0, 0.0).map(math.exp)


def spend(noise: float, rate: float, steps: int, relation: Relation, delta: float) -> float:
    return Rdp().epsilon([Repeated(PoissonGaussian(noise, rate, relation), steps)], delta)


@EXAMPLES
@given(epsilons, deltas, rates, st.integers(1, 100_000), st.sampled_from(list(Relation)))
def test_noise_satisfies_the_budget_and_a_little_less_does_not(
    epsilon: float, delta: float, rate: float, steps: int, relation: Relation
) -> None:
    noise = noise_for(epsilon, delta, rate, steps, relation)
    assert spend(noise, rate, steps, relation, delta) <= epsilon
    # ripples of the search for an order may let a noise pass that is smaller by more than the tolerance of 1e-4
    assert noise == SMALLEST_NOISE or spend(noise * (1 - 1e-3), rate, steps, relation, delta) > epsilon


@EXAMPLES
@given(epsilons, deltas, st.floats(-0.7, 3.0).map(math.exp), st.integers(1, 10_000), st.sampled_from(list(Relation)))
def test_a_rate_satisfies_the_budget_and_a_little_more_does_not(
    epsilon: float, delta: float, noise: float, steps: int, relation: Relation
) -> None:
    try:
        rate = rate_for(epsilon, delta, noise, steps, relation)
    except AccountingError as error:
        assert "no sampling rate reaches" in str(error)  # noqa: PT017
        assert spend(noise, 1e-12, steps, relation, delta) > epsilon
        return
    assert 0 < rate <= 1
    assert spend(noise, rate, steps, relation, delta) <= epsilon
    assert rate == 1 or spend(noise, min(1.0, rate * 1.002), steps, relation, delta) > epsilon


@EXAMPLES
@given(st.lists(epsilons, min_size=1, max_size=6), st.floats(-0.2, 3.0).map(math.exp), st.integers(1, 10_000))
def test_many_rates_at_once_satisfy_every_budget_and_a_little_more_does_not(
    targets: list[float], noise: float, steps: int
) -> None:
    try:
        found = rates_for(targets, 1e-5, noise, steps)
    except AccountingError as error:
        assert "no sampling rate reaches" in str(error)  # noqa: PT017
        return
    for epsilon, rate in zip(targets, found, strict=True):
        assert spend(noise, rate, steps, ADD, 1e-5) <= epsilon
        assert rate == 1 or spend(noise, min(1.0, rate * 1.002), steps, ADD, 1e-5) > epsilon


@EXAMPLES
@given(st.lists(epsilons, min_size=1, max_size=6), rates, st.integers(1, 100_000))
def test_many_noises_at_once_satisfy_every_budget_and_a_little_less_does_not(
    targets: list[float], rate: float, steps: int
) -> None:
    for epsilon, noise in zip(targets, noises_for(targets, 1e-5, rate, steps), strict=True):
        assert spend(noise, rate, steps, ADD, 1e-5) <= epsilon
        assert noise == SMALLEST_NOISE or spend(noise * (1 - 1e-3), rate, steps, ADD, 1e-5) > epsilon


def test_a_clip_is_sigma_over_the_noise_multiplier() -> None:
    for relation in Relation:
        clip = clip_for(1.0, 1e-5, 0.01, 4.0, 1000, relation)
        assert spend(4.0 / clip, 0.01, 1000, relation, 1e-5) <= 1.0
        assert 4.0 / clip == pytest.approx(noise_for(1.0, 1e-5, 0.01, 1000, relation), rel=1e-12)


def test_noise_of_a_subset_satisfies_the_budget_together_with_other_releases() -> None:
    extra = [Repeated(Gaussian(200.0, REPLACE), 60)]
    noise = noise_for_subset(1.0, 1e-5, 50_000, 256, 5000, extra)
    events = [Repeated(SubsetGaussian(noise, 50_000, 256), 5000), *extra]
    assert Rdp().epsilon(events, 1e-5) <= 1.0
    alone = noise_for_subset(1.0, 1e-5, 50_000, 256, 5000)
    assert alone < noise
    slightly_less = Repeated(SubsetGaussian(noise * (1 - 2 * TIGHT), 50_000, 256), 5000)
    assert Rdp().epsilon([slightly_less, *extra], 1e-5) > 1.0


def test_any_accountant_can_be_asked() -> None:
    def build(noise: float) -> list[Event]:
        return [Gaussian(noise)]

    found = noise_multiplier(build, 1.0, 1e-5, Gdp(), tolerance=1e-9)
    assert found == pytest.approx(analytic_gaussian_noise(1.0, 1e-5), rel=2e-9)
    assert Gdp().epsilon(build(found), 1e-5) <= 1.0
    assert noise_for(1.0, 1e-5, 1.0, 1, accountant=Gdp()) == pytest.approx(found, rel=TIGHT)


def test_even_the_largest_rate_is_given_when_it_is_private_enough() -> None:
    assert rate_for(10.0, 1e-5, 50.0, 10) == 1.0


def test_a_budget_that_costs_nothing_needs_the_least_noise() -> None:
    assert noise_for(1.0, 1e-5, 0.0, 100) == SMALLEST_NOISE
    assert noise_for(1.0, 1e-5, 0.5, 0) == SMALLEST_NOISE


def test_other_releases_that_use_up_the_budget_are_named_with_their_cost() -> None:
    extra = [Gaussian(2.0)]
    cost = Rdp().epsilon(extra, 1e-5)
    for ask in (
        lambda: noise_for(1.0, 1e-5, 0.01, 10, extra=extra),
        lambda: rate_for(1.0, 1e-5, 1.0, 10, extra=extra),
        lambda: clip_for(1.0, 1e-5, 0.01, 1.0, 10, extra=extra),
    ):
        with pytest.raises(AccountingError, match=f"alone cost epsilon {cost:.6g}"):
            ask()
    with pytest.raises(AccountingError, match="alone cost"):
        noise_for_subset(1.0, 1e-5, 100, 10, 10, extra=[Gaussian(2.0, REPLACE)])
    with pytest.raises(AccountingError, match="the events still cost"):
        noise_multiplier(lambda noise: [Gaussian(noise), Gaussian(2.0)], 1.0, 1e-5, Rdp())


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan])
def test_a_budget_must_be_above_zero(epsilon: float) -> None:
    with pytest.raises(AccountingError, match="target epsilon"):
        noise_for(epsilon, 1e-5, 0.1, 10)
    with pytest.raises(AccountingError, match="target epsilon"):
        rate_for(epsilon, 1e-5, 1.0, 10)


@pytest.mark.parametrize("delta", [0.0, 1.0, 2.0])
def test_a_delta_must_lie_between_zero_and_one(delta: float) -> None:
    with pytest.raises(AccountingError, match="delta is"):
        noise_for(1.0, delta, 0.1, 10)
    with pytest.raises(AccountingError, match="delta is"):
        clip_for(1.0, delta, 0.1, 1.0, 10)


def test_a_sigma_must_be_above_zero() -> None:
    with pytest.raises(AccountingError, match="sigma is 0"):
        clip_for(1.0, 1e-5, 0.1, 0.0, 10)


def test_mixed_relations_are_refused() -> None:
    with pytest.raises(AccountingError, match="cannot be composed"):
        noise_for(1.0, 1e-5, 0.1, 10, REPLACE, extra=[Gaussian(100.0)])


def event(sampling: str, relation: Relation, noise: float, rate: float) -> Event:
    if sampling == "wor":
        return SubsetGaussian(noise, 1_000_000, round(rate * 1_000_000))
    return PoissonGaussian(noise, rate, relation)


@pytest.mark.parametrize(("sampling", "relation"), [("poisson", ADD), ("poisson", REPLACE), ("wor", REPLACE)])
@pytest.mark.parametrize("order", [2.0, 7.5, 16.0, 64.0])
@pytest.mark.parametrize("rho", [1e-8, 1e-4, 1e-2, 10.0])
def test_every_rate_and_cost_has_a_noise_that_is_private_and_tight(
    sampling: str, relation: Relation, order: float, rho: float
) -> None:
    rates = np.array([1e-6, 1e-4, 0.003, 0.05, 0.5, 0.999999, 1.0])
    found = kappa(order, rates, rho, sampling, relation)  # type: ignore[arg-type]
    assert np.all(np.isfinite(found) & (found > 0))
    assert np.all(np.diff(found) >= -1e-5 * found[1:])
    for noise, rate in zip(found.tolist(), rates.tolist(), strict=True):
        assert rdp(event(sampling, relation, noise, rate), [order])[0] <= rho
        assert rdp(event(sampling, relation, noise * (1 - 1.1e-6), rate), [order])[0] > rho * (1 - 1e-9)


def test_the_full_batch_needs_the_noise_of_the_plain_gaussian() -> None:
    for sampling in ("poisson", "wor"):
        found = kappa(16.0, 1.0, 0.02, sampling)  # type: ignore[arg-type]
        assert found == pytest.approx(2 * math.sqrt(16 / (2 * 0.02)), rel=1e-9)
    assert kappa(16.0, 1.0, 0.02, "poisson", ADD) == pytest.approx(math.sqrt(16 / (2 * 0.02)), rel=1e-9)
    assert kappa(16.0, 1.0, 0.02, "wor", one_sided=True) == pytest.approx(math.sqrt(16 / (2 * 0.02)), rel=1e-9)


def test_one_sided_values_in_a_subset_need_half_the_noise() -> None:
    both, one = kappa(16.0, 0.01, 1e-3, "wor"), kappa(16.0, 0.01, 1e-3, "wor", one_sided=True)
    assert one == pytest.approx(both / 2, rel=1e-5)


def test_groups_are_answered_together_as_alone() -> None:
    rates, costs = [0.01, 0.2, 0.5], [1e-3, 1e-2, 1e-4]
    together = kappa(18.0, rates, costs, "wor")
    alone = [float(kappa(18.0, rate, cost, "wor")) for rate, cost in zip(rates, costs, strict=True)]
    np.testing.assert_allclose(together, alone, rtol=2e-6)
    assert kappa(18.0, np.full((2, 3), 0.1), 1e-3).shape == (2, 3)


def test_noise_at_an_order_refuses_what_has_no_meaning() -> None:
    with pytest.raises(AccountingError, match="rates are"):
        kappa(16.0, 0.0, 1e-3)
    with pytest.raises(AccountingError, match="costs per step"):
        kappa(16.0, 0.1, 0.0)
    with pytest.raises(AccountingError, match="above 1"):
        kappa(1.0, 0.1, 1e-3)
    with pytest.raises(AccountingError, match="replace-one only"):
        kappa(16.0, 0.1, 1e-3, "wor", ADD)
    with pytest.raises(AccountingError, match="'shuffle'"):
        kappa(16.0, 0.1, 1e-3, "shuffle")  # type: ignore[arg-type]


def test_the_best_order_proves_the_smallest_epsilon() -> None:
    events = [Repeated(SubsetGaussian(9.22, 49_208, 256), 11_580)]
    order = best_order(events, 1.02e-5)
    assert 16 <= order <= 20
    best = Rdp([order]).epsilon(events, 1.02e-5)
    assert all(Rdp([order * factor]).epsilon(events, 1.02e-5) >= best for factor in (0.5, 0.8, 1.25, 2.0))
