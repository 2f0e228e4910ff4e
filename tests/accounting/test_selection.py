"""Private selection: the profile bound against enumeration of tiny mechanisms, a second derivation, and RDP."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from veil import accounting as dp
from veil.accounting.events import from_json, to_json
from veil.accounting.ledger import Account, Terms
from veil.accounting.pld.selection import mean_runs, selection_shift
from veil.accounting.rdp.closed import negative_binomial_mean
from veil.accounting.verify import _of_selection

PLD, RDP = dp.Pld(), dp.Rdp()
SHAPES = (-0.5, 0.0, 1.0, 3.0)


def chances(shape: float, gamma: float) -> np.ndarray:
    """P[K = k] for k = 1, 2, … until nothing is left, from the definition."""
    k = np.arange(1, int(50 / gamma))
    steps = np.log(1 - gamma) + np.log((k + shape) / (k + 1))
    weight = np.exp(np.concatenate([[0.0], np.cumsum(steps)]))
    return weight / weight.sum()


def best_of(run: np.ndarray, number: np.ndarray) -> np.ndarray:
    """The distribution of the best outcome (the last is preferred), summed over every number of runs."""
    below = np.concatenate([[0.0], np.cumsum(run)])
    powers = below[None, :] ** np.arange(1, len(number) + 1)[:, None]
    return number @ np.diff(powers, axis=1)


def hockey_stick(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    return float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum())


def worst_profile(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    return max(hockey_stick(p, q, epsilon), hockey_stick(q, p, epsilon))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("gamma", [0.05, 0.3, 0.8])
def test_no_ranking_of_a_tiny_mechanism_exceeds_the_bound(shape: float, gamma: float) -> None:
    rng = np.random.default_rng(1)
    number = chances(shape, gamma)
    event = dp.Selection((dp.Repeated(dp.Gaussian(1.0)),), shape, gamma=gamma)  # the number of runs alone is used
    for _ in range(2):
        p, q = rng.dirichlet(np.ones(4), 2)
        q = 0.7 * p + 0.3 * q
        shift = selection_shift(event, lambda e, p=p, q=q: np.array([worst_profile(p, q, float(x)) for x in e]))
        for order in itertools.permutations(range(4)):
            one, other = best_of(p[list(order)], number), best_of(q[list(order)], number)
            for epsilon in (shift, shift + 0.05, shift + 0.2):
                bound = mean_runs(event) * worst_profile(p, q, epsilon - shift)
                assert worst_profile(one, other, epsilon) <= bound + 1e-12


@pytest.mark.parametrize("shape", SHAPES)
def test_a_smaller_shift_would_be_false(shape: float) -> None:
    # A preferred outcome has chance b or b'; next comes a rare one whose loss is log(2) by itself: all is attained.
    gamma, number, rare = 0.2, chances(shape, 0.2), 1e-9
    event = dp.Selection((dp.Repeated(dp.Gaussian(1.0)),), shape, gamma=gamma)

    def outcomes(b: float, weight: float) -> np.ndarray:
        return np.array([1 - b - weight, weight, b])  # from the worst to the best

    p, q = outcomes(0.25, 2 * rare), outcomes(0.35, rare)
    shift = selection_shift(event, lambda e: np.array([worst_profile(p, q, float(x)) for x in e]))
    one, other = best_of(p, number), best_of(q, number)
    assert math.log(one[1] / other[1]) - math.log(2.0) == pytest.approx(shift, rel=0.02)


def test_gaussian_runs_cost_less_by_profiles_than_by_renyi_costs_and_more_than_one_run() -> None:
    for shape, trials in itertools.product(SHAPES, (2.0, 5.0)):
        gamma = next(g for g in np.geomspace(0.9, 1e-6, 4000) if negative_binomial_mean(shape, g) >= trials)
        for run in ((dp.Repeated(dp.Gaussian(4.0)),), (dp.Repeated(dp.PoissonGaussian(1.2, 0.02), 300),)):
            event = dp.Selection(run, shape, gamma=float(gamma))
            one, profile, renyi = PLD.epsilon(run, 1e-5), PLD.epsilon([event], 1e-5), RDP.epsilon([event], 1e-5)
            assert one < profile < renyi


@pytest.mark.parametrize("shape", [-0.5, 0.0, 2.0])
def test_the_best_of_gaussian_scores_stays_below_its_certificate(shape: float) -> None:
    # The outcome is the released value itself and larger is better: everything is known in closed form.
    from scipy.stats import norm

    gamma, kappa, delta = 0.15, 3.0, 1e-5
    event = dp.Selection((dp.Repeated(dp.Gaussian(kappa)),), shape, gamma=gamma)
    epsilon = PLD.epsilon([event], delta)
    y = np.linspace(-10, 10, 400_001)
    densities = []
    for centre in (0.0, 1 / kappa):
        slope = (gamma / (gamma + (1 - gamma) * norm.sf(y - centre))) ** (1 + shape)
        densities.append(negative_binomial_mean(shape, gamma) * slope * norm.pdf(y - centre) * (y[1] - y[0]))
    assert densities[0].sum() == pytest.approx(1.0, abs=1e-6)
    found = max(hockey_stick(a, b, epsilon) for a, b in (densities, densities[::-1]))
    assert found <= delta
    forgotten = PLD.epsilon([dp.Gaussian(kappa)], delta)
    assert max(hockey_stick(a, b, forgotten) for a, b in (densities, densities[::-1])) > delta


def test_poisson_runs_cost_no_less_than_enumeration_says() -> None:
    mean = 3.0
    number = np.array([math.exp(-mean + k * math.log(mean) - math.lgamma(k + 1)) for k in range(1, 60)])
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.35, 0.35, 0.3])
    event = dp.Selection((dp.Repeated(dp.Gaussian(1.0)),), math.inf, mean=mean)
    shift = selection_shift(event, lambda e: np.array([worst_profile(p, q, float(x)) for x in e]))
    for order in itertools.permutations(range(3)):
        one, other = best_of(p[list(order)], number), best_of(q[list(order)], number)
        for epsilon in (shift, shift + 0.1):
            assert worst_profile(one, other, epsilon) <= mean * worst_profile(p, q, epsilon - shift) + 1e-12


def test_a_choice_costs_its_dearest_run_in_selection_and_in_composition() -> None:
    dear, cheap = (dp.Repeated(dp.Gaussian(3.0), 2),), (dp.Repeated(dp.Gaussian(9.0), 3),)
    choice = dp.Choice((cheap, dear))
    assert PLD.epsilon([dp.Repeated(choice, 4)], 1e-5) == pytest.approx(PLD.epsilon(dear * 4, 1e-5), rel=1e-9)
    assert RDP.epsilon([dp.Repeated(choice, 4)], 1e-5) == pytest.approx(RDP.epsilon(dear * 4, 1e-5), rel=1e-3)
    both = dp.Selection((dp.Repeated(choice),), 0.0, gamma=0.2)
    alone = dp.Selection(dear, 0.0, gamma=0.2)
    assert PLD.epsilon([both], 1e-5) == pytest.approx(PLD.epsilon([alone], 1e-5), rel=1e-9)
    assert RDP.epsilon([both], 1e-5) == pytest.approx(RDP.epsilon([alone], 1e-5), rel=1e-9)
    mixed = dp.Choice((cheap, (dp.Repeated(dp.PoissonGaussian(1.0, 0.1), 5),)))
    assert not PLD.supports(mixed)
    assert PLD.supports(dp.Selection((dp.Repeated(mixed),), 0.0, gamma=0.2))
    assert from_json(to_json(dp.Selection((dp.Repeated(mixed),), 0.0, gamma=0.2))).events[0].event == mixed


def test_a_selection_composed_with_anything_else_is_left_to_renyi_costs() -> None:
    event = dp.Selection((dp.Repeated(dp.Gaussian(9.0)),), 0.0, gamma=0.2)
    for events in ([event, dp.Gaussian(5.0)], [dp.Repeated(event, 2)]):
        with pytest.raises(dp.AccountingError, match="use rdp"):
            PLD.epsilon(events, 1e-5)
        assert RDP.epsilon(events, 1e-5) > 0


@pytest.mark.parametrize("run", [dp.Repeated(dp.Gaussian(4.0)), dp.Repeated(dp.PoissonGaussian(1.5, 0.05), 100)])
def test_a_second_derivation_over_dp_accounting_finds_the_same(run: dp.Repeated) -> None:
    for shape, gamma in ((0.0, 0.15), (-0.5, 0.04), (1.0, 0.5)):
        event = dp.Selection((dp.Repeated(dp.Choice(((run,), (dp.Repeated(dp.Gaussian(50.0)),)))),), shape, gamma=gamma)
        account = Account("all", "all", 9.0, dp.TokenBucket((dp.Repeated(event),)))
        terms = Terms(dp.Relation.ADD_REMOVE, 1e-5, "pld", (account,))
        assert _of_selection((dp.Repeated(event),), terms)[0] == pytest.approx(PLD.epsilon([event], 1e-5), rel=3e-3)


def test_delta_and_epsilon_of_a_selection_agree() -> None:
    event = dp.Selection((dp.Repeated(dp.Gaussian(4.0)),), 0.0, gamma=0.15)
    epsilon = PLD.epsilon([event], 1e-5)
    assert PLD.delta([event], epsilon) == pytest.approx(1e-5, rel=1e-3)
    assert PLD.delta([event], 0.0) == 1.0
    assert PLD.lower_epsilon([event], 1e-5) <= epsilon
    assert dp.Pld(rows=2).epsilon([event], 1e-5) > 2 * epsilon
