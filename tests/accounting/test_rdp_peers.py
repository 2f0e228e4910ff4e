"""The Rényi accountant beside dp-accounting and opacus at the same orders, and the traps between them."""

from __future__ import annotations

import math
import warnings

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld
from dp_accounting import rdp as peer

from veil.accounting.events import Gaussian, Laplace, PoissonGaussian, Relation, Repeated, Selection, SubsetGaussian
from veil.accounting.rdp import Rdp, rdp
from veil.accounting.rdp.closed import negative_binomial_mean, selection_negative_binomial

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from opacus.accountants.analysis.rdp import compute_rdp

ONE = dp_accounting.NeighboringRelation.REPLACE_ONE
ORDERS = [1.5, 2.0, 2.7, 4.0, 6.3, 8.0, 16.0, 20.5, 32.0, 64.0]
WHOLE = np.array([order == round(order) for order in ORDERS])
# the peers take log of a sum near 1, and so lose what lies below rounding
ROUNDING = 2e-12


def settings(count: int, seed: int) -> list[tuple[float, float]]:
    rng = np.random.default_rng(seed)
    noise = np.exp(rng.uniform(math.log(0.5), math.log(20), count))
    rate = np.exp(rng.uniform(math.log(1e-5), math.log(0.9), count))
    return list(zip(noise.tolist(), rate.tolist(), strict=True))


def peer_curve(event: dp_accounting.DpEvent, relation: dp_accounting.NeighboringRelation | None = None) -> np.ndarray:
    accountant = peer.RdpAccountant(ORDERS) if relation is None else peer.RdpAccountant(ORDERS, relation)
    accountant.compose(event)
    return np.asarray(accountant._rdp)


@pytest.mark.parametrize("part", range(4))
def test_poisson_sampling_agrees_with_dp_accounting(part: int) -> None:
    for noise, rate in settings(50, seed=part):
        theirs = peer_curve(dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise)))
        ours = rdp(PoissonGaussian(noise, rate), ORDERS)
        np.testing.assert_allclose(ours[WHOLE], theirs[WHOLE], rtol=1e-6, atol=ROUNDING)
        # between whole orders the peer adds the absolute values of an alternating series: an upper bound
        assert np.all(ours[~WHOLE] <= theirs[~WHOLE] * (1 + 1e-9) + ROUNDING)


def test_poisson_sampling_agrees_with_opacus() -> None:
    for noise, rate in settings(200, seed=9):
        theirs = np.asarray(compute_rdp(q=rate, noise_multiplier=noise, steps=10, orders=ORDERS))
        ours = Rdp(ORDERS).curve([Repeated(PoissonGaussian(noise, rate), 10)])
        known = np.isfinite(theirs)
        np.testing.assert_allclose(ours[known], theirs[known], rtol=1e-6, atol=10 * ROUNDING)


@pytest.mark.parametrize("part", range(4))
def test_subsets_agree_with_dp_accounting_when_its_noise_is_read_relative_to_two_bounds(part: int) -> None:
    rng = np.random.default_rng(part)
    for _ in range(50):
        size = int(rng.integers(100, 100_000))
        batch = int(rng.integers(1, size // 4))
        noise = float(np.exp(rng.uniform(math.log(0.8), math.log(12))))
        event = dp_accounting.SampledWithoutReplacementDpEvent(size, batch, dp_accounting.GaussianDpEvent(noise / 2))
        ours = rdp(SubsetGaussian(noise, size, batch), ORDERS)
        # the peer does not take the minimum with the release on all rows
        theirs = np.minimum(peer_curve(event, ONE), 2 * np.array(ORDERS) / noise**2)
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-11)


def test_reading_the_peers_noise_relative_to_one_bound_would_under_report() -> None:
    wrong = dp_accounting.SampledWithoutReplacementDpEvent(1000, 10, dp_accounting.GaussianDpEvent(4.0))
    ours = rdp(SubsetGaussian(4.0, 1000, 10), ORDERS)
    assert np.all(ours > 2 * peer_curve(wrong, ONE))


def test_epsilon_agrees_with_dp_accounting_at_the_same_orders() -> None:
    whole = [order for order in ORDERS if order == round(order)]
    for noise, rate in settings(55, seed=3):
        for steps, delta in ((1, 1e-3), (5000, 1e-6)):
            accountant = peer.RdpAccountant(whole)
            accountant.compose(
                dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise)), count=steps
            )
            theirs = accountant.get_epsilon(delta)
            ours = Rdp(whole).epsilon([Repeated(PoissonGaussian(noise, rate), steps)], delta)
            # at ε = 0 the peer knows Bretagnolle–Huber only, not Pinsker
            assert ours == pytest.approx(theirs, rel=1e-6, abs=1e-11 * steps) or (ours == 0 and theirs < 0.2)
            assert Rdp().epsilon([Repeated(PoissonGaussian(noise, rate), steps)], delta) <= ours * (1 + 1e-9)


def test_laplace_and_plain_gaussians_agree_with_dp_accounting() -> None:
    for noise in (0.3, 1.0, 7.0, 300.0):
        np.testing.assert_allclose(
            rdp(Laplace(noise), ORDERS), peer_curve(dp_accounting.LaplaceDpEvent(noise)), rtol=1e-9
        )
        np.testing.assert_allclose(
            rdp(Gaussian(noise), ORDERS), peer_curve(dp_accounting.GaussianDpEvent(noise)), rtol=1e-12
        )
        np.testing.assert_allclose(
            rdp(Gaussian(noise, Relation.REPLACE_ONE), ORDERS),
            peer_curve(dp_accounting.GaussianDpEvent(noise / 2), ONE),
            rtol=1e-12,
        )


@pytest.mark.parametrize("shape", [0.0, 0.5, 1.0, 3.0])
def test_selection_agrees_with_dp_accounting_on_its_own_grid(shape: float) -> None:
    gamma = 0.05
    cost = np.array([0.01 * order for order in ORDERS])
    theirs = peer.rdp_privacy_accountant._compute_rdp_repeat_and_select(
        ORDERS, cost, negative_binomial_mean(shape, gamma), shape
    )
    np.testing.assert_allclose(selection_negative_binomial(shape, gamma, cost, np.array(ORDERS)), theirs, rtol=1e-6)


def test_poisson_selection_is_close_to_what_dp_accounting_says() -> None:
    # not equal: "no run" is charged here, and δ near ε = 0 is tighter (Pinsker)
    event = Selection((Repeated(Gaussian(10.0)),), math.inf, mean=8.0)
    orders = Rdp().orders
    theirs = peer.rdp_privacy_accountant._compute_rdp_repeat_and_select(orders, orders / 200, 8.0, math.inf)
    theirs = np.minimum.accumulate(np.asarray(theirs)[::-1])[::-1]  # a divergence grows with its order
    np.testing.assert_allclose(Rdp().curve([event]), theirs, rtol=0.06)


@pytest.mark.parametrize("relation", list(Relation))
def test_the_tight_privacy_loss_never_exceeds_the_renyi_bound(relation: Relation) -> None:
    # under replace-one the peer's privacy loss reads noise relative to one bound, unlike its Rényi accountant
    peers = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE if relation is Relation.ADD_REMOVE else ONE
    for noise, rate, steps in [(1.0, 0.01, 500), (3.0, 0.1, 50)]:
        accountant = pld.PLDAccountant(peers, value_discretization_interval=1e-3)
        accountant.compose(dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise)), steps)
        bound = Rdp().epsilon([Repeated(PoissonGaussian(noise, rate, relation), steps)], 1e-6)
        assert 0.7 * bound < accountant.get_epsilon(1e-6) <= bound
