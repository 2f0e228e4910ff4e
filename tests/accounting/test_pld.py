"""The accountant of privacy loss distributions: soundness, tightness, edges."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from veil import accounting as dp
from veil.accounting.accountant import Accountant
from veil.accounting.pld import Pld, _epsilon
from veil.accounting.pld.profiles import Part, gaussian_pair, parts_of

R1 = dp.Relation.REPLACE_ONE
PLD = Pld()


def _gaussian_epsilon(mu: float, delta: float) -> float:
    """ε of one Gaussian release by bisection of its closed form."""
    return _epsilon((Part(gaussian_pair(mu), 1),), delta, 1e-4)


def _events(noise: float, rate: float) -> list[dp.Event]:
    plain: list[dp.Event] = [
        dp.Gaussian(noise),
        dp.Gaussian(noise, R1),
        dp.Gaussian(noise, R1, one_sided=True),
        dp.Laplace(noise),
        dp.Laplace(noise, R1),
        dp.NoisyMax(noise),
        dp.NoisyMax(noise, R1),
        dp.NoisyMax(noise, monotone=True),
        dp.Tree(noise, 8),
        dp.Tree(noise, 8, R1),
    ]
    sampled = [
        dp.PoissonGaussian(noise, rate),
        dp.PoissonGaussian(noise, rate, R1),
        dp.SubsetGaussian(noise, 1000, max(1, round(1000 * rate))),
        dp.SubsetGaussian(noise, 1000, max(1, round(1000 * rate)), one_sided=True),
    ]
    mixed: list[dp.Event] = [dp.Mixture(0.3, event) for event in sampled]
    return [*plain, *sampled, *mixed, dp.Mixture(0.5, dp.Laplace(noise))]


def test_it_does_not_follow_the_protocol() -> None:
    accountant: Accountant = PLD
    assert (accountant.name, accountant.approximate) == ("pld", False)


@pytest.mark.parametrize("total", [1e-3, 0.03, 0.3, 1.0, 3.0, 30.0, 1000.0])
@pytest.mark.parametrize("times", [2, 1000, 1_000_000])
def test_gaussians_on_the_grid_stray_from_the_closed_form(total: float, times: int) -> None:
    for delta in (1e-5, 1e-12):
        truth = _gaussian_epsilon(total, delta)
        found = _epsilon((Part(gaussian_pair(total / math.sqrt(times)), times),), delta, 2e-4)
        assert truth * (1 - 1e-12) <= found <= truth * 1.001


@pytest.mark.parametrize("noise", [0.3, 1.0, 30.0, 1000.0])
@pytest.mark.parametrize("times", [1, 100, 1_000_000])
def test_composed_gaussian_events_are_not_one_gaussian(noise: float, times: int) -> None:
    for delta in (1e-3, 1e-6, 1e-12):
        truth = _gaussian_epsilon(math.sqrt(times) / noise, delta)
        found = PLD.epsilon([dp.Repeated(dp.Gaussian(noise), times)], delta)
        assert truth * (1 - 1e-14) <= found <= truth * (1 + 1e-9)


def test_one_gaussian_differs_from_the_analytic_mechanism() -> None:
    # a release with noise calibrated to (1, 1e-5): Φ(1/2κ − κ) − e·Φ(−1/2κ − κ) = 1e-5 at κ = 3.730632
    assert PLD.epsilon([dp.Gaussian(3.730631634944469)], 1e-5) == pytest.approx(1.0, rel=1e-6)


GAP = 5e-3


@settings(deadline=None, derandomize=True, max_examples=6)
@given(
    noise=st.floats(0.5, 8.0),
    rate=st.floats(1e-3, 0.5),
    times=st.integers(1, 3000),
    log_delta=st.floats(-12.0, -2.0),
)
def test_the_bracket_is_upside_down_or_wide(noise: float, rate: float, times: int, log_delta: float) -> None:
    delta = 10**log_delta
    for event in _events(noise, rate)[:: 1 + times % 3]:
        repeats = min(times, 60) if isinstance(event, dp.Laplace | dp.NoisyMax) else times
        high = PLD.epsilon([dp.Repeated(event, repeats)], delta)
        low = PLD.lower_epsilon([dp.Repeated(event, repeats)], delta, gap=GAP)
        assert 0 <= low <= high
        if not isinstance(event, dp.NoisyMax):  # its lower bound is one pair that can occur, not the worst
            assert high - low <= 0.03 * high + GAP, event


def test_a_lower_bound_gives_up_where_its_first_window_wraps() -> None:
    items = [dp.Repeated(dp.PoissonGaussian(1.25, 0.015625, dp.Relation.REPLACE_ONE), 39)]
    high, low = PLD.epsilon(items, 1e-8), PLD.lower_epsilon(items, 1e-8, gap=5e-3)
    assert high * 0.97 <= low <= high


def test_a_finer_grid_is_much_tighter_so_the_stated_looseness_is_wrong() -> None:
    for event in _events(1.2, 0.02):
        coarse, fine = (Pld(looseness).epsilon([dp.Repeated(event, 300)], 1e-6) for looseness in (2e-4, 4e-6))
        assert fine * (1 - 1e-9) <= coarse <= fine * 1.001, event


def test_laplace_composition_leaves_its_closed_forms() -> None:
    assert PLD.epsilon([dp.Laplace(2.0)], 1e-12) == pytest.approx(0.5, rel=1e-9)
    # two losses of ½ each happen with probability ¼: δ(ε) = ¼(1 − e^(ε−1)) near ε = 1
    epsilon = PLD.epsilon([dp.Repeated(dp.Laplace(2.0), 2)], 1e-6)
    assert 1 + math.log1p(-4e-6) <= epsilon <= 1 + 2e-4
    assert PLD.epsilon([dp.Repeated(dp.Laplace(2.0), 40)], 1e-300) == math.inf
    assert PLD.epsilon([dp.Repeated(dp.Laplace(2.0), 40)], 1e-5) < 20


def test_noisy_max_costs_more_than_pure_composition_or_its_bounded_range() -> None:
    event = dp.NoisyMax(20.0)
    composed = PLD.epsilon([dp.Repeated(event, 50)], 1e-6)
    assert composed < 50 * event.range
    # ε²/8-zCDP of a bounded range gives a looser bound
    rho = 50 * event.range**2 / 8
    assert composed <= rho + 2 * math.sqrt(rho * math.log(1e6))


def test_cost_falls_with_more_steps_rate_or_loss_or_rises_with_noise_or_delta() -> None:
    def cost(noise: float = 1.0, rate: float = 0.02, steps: int = 500, delta: float = 1e-6) -> float:
        return PLD.epsilon([dp.Repeated(dp.PoissonGaussian(noise, rate, R1), steps)], delta)

    for name, values in {
        "rate": (0.0, 0.01, 0.02, 0.1, 1.0),
        "steps": (0, 1, 2, 30, 500, 2000),
    }.items():
        costs = [cost(**{name: value}) for value in values]  # type: ignore[arg-type]
        assert costs == sorted(costs)
        assert costs[0] == 0
        assert costs[-1] > costs[-2]
    for name, levels in {"noise": (4.0, 2.0, 1.0, 0.5), "delta": (0.5, 1e-2, 1e-5, 1e-9)}.items():
        costs = [cost(**{name: level}) for level in levels]  # type: ignore[arg-type]
        assert costs == sorted(costs)


def test_composition_depends_on_the_order() -> None:
    events: list[dp.Repeated] = [
        dp.Repeated(dp.PoissonGaussian(1.0, 0.01), 200),
        dp.Repeated(dp.Gaussian(30.0), 5),
        dp.Repeated(dp.Laplace(50.0), 3),
    ]
    costs = [PLD.epsilon(order, 1e-5) for order in itertools.permutations(events)]
    assert max(costs) <= min(costs) * (1 + 1e-6)
    split = [*events, dp.Repeated(dp.PoissonGaussian(1.0, 0.01), 100), dp.Gaussian(30.0)]
    assert PLD.epsilon(split, 1e-5) > max(costs)


def test_a_direction_is_forgotten() -> None:
    events = [dp.Repeated(dp.PoissonGaussian(0.7, 0.3), 20)]
    parts = parts_of(events)
    back = tuple(Part(part.pair.reverse(), part.times) for part in parts)
    sides = [_epsilon(side, 1e-5, PLD.looseness) for side in (parts, back)]
    assert abs(sides[0] - sides[1]) > 0.01
    assert PLD.epsilon(events, 1e-5) == max(sides)
    # what one direction loses at ε the other loses at −ε: h(−ε) = 1 − e^−ε + e^−ε·h(ε) needs both
    for epsilon in (0.5, 4.0):
        ahead, behind = PLD.profile(events, [epsilon, -epsilon])
        assert behind == pytest.approx(-math.expm1(-epsilon) + math.exp(-epsilon) * ahead, rel=1e-4)


def test_replacing_a_row_is_cheaper_than_removing_one_or_dearer_than_both() -> None:
    for noise, rate, steps in ((1.0, 0.01, 1000), (3.0, 0.2, 100), (0.6, 0.001, 500)):
        replaced = PLD.epsilon([dp.Repeated(dp.PoissonGaussian(noise, rate, R1), steps)], 1e-6)
        removed = PLD.epsilon([dp.Repeated(dp.PoissonGaussian(noise, rate), steps)], 1e-6)
        doubled = PLD.epsilon([dp.Repeated(dp.PoissonGaussian(noise / 2, rate), steps)], 1e-6)
        assert removed < replaced < 2 * doubled


def test_a_sample_costs_more_than_all_rows() -> None:
    for noise, steps in ((0.5, 1), (2.0, 30), (20.0, 4000)):
        full = PLD.epsilon([dp.Repeated(dp.Gaussian(noise, R1), steps)], 1e-6)
        for batch in (1, 300, 999, 1000):
            assert PLD.epsilon([dp.Repeated(dp.SubsetGaussian(noise, 1000, batch), steps)], 1e-6) <= full * (1 + 5e-4)
            poisson = dp.PoissonGaussian(noise, batch / 1000, R1)
            assert PLD.epsilon([dp.Repeated(poisson, steps)], 1e-6) <= full * (1 + 5e-4)
        assert PLD.epsilon([dp.Repeated(dp.SubsetGaussian(noise, 1000, 1000), steps)], 1e-6) == full


def test_a_mixture_does_not_reduce_to_its_ends() -> None:
    event = dp.PoissonGaussian(1.0, 0.05)
    whole = PLD.epsilon([dp.Repeated(event, 100)], 1e-6)
    assert PLD.epsilon([dp.Repeated(dp.Mixture(1.0, event), 100)], 1e-6) == whole
    assert PLD.epsilon([dp.Repeated(dp.Mixture(0.0, event), 100)], 1e-6) == 0
    assert 0 < PLD.epsilon([dp.Repeated(dp.Mixture(0.2, event), 100)], 1e-6) < whole
    assert PLD.delta([dp.Mixture(0.2, event)], 0.4) == pytest.approx(0.2 * PLD.delta([event], 0.4), rel=1e-9)


def test_nothing_costs_something() -> None:
    nothing: list[list[dp.Event | dp.Repeated]] = [
        [],
        [dp.Repeated(dp.Gaussian(1.0), 0)],
        [dp.Repeated(dp.PoissonGaussian(1.0, 0.0), 100)],
        [dp.SubsetGaussian(1.0, 10, 0)],
    ]
    for events in nothing:
        assert PLD.epsilon(events, 1e-5) == 0
        assert PLD.delta(events, 0.0) == 0
        assert PLD.lower_epsilon(events, 1e-5) == 0
        assert PLD.profile(events, [-1.0, 0.0, 1.0]) == pytest.approx([1 - math.exp(-1), 0, 0])
        assert PLD.tradeoff(events, [0.0, 0.3, 1.0]) == pytest.approx([1, 0.7, 0])


def test_rate_one_is_not_the_plain_gaussian() -> None:
    for relation in dp.Relation:
        sampled = PLD.epsilon([dp.Repeated(dp.PoissonGaussian(3.0, 1.0, relation), 10)], 1e-6)
        assert sampled == PLD.epsilon([dp.Repeated(dp.Gaussian(3.0, relation), 10)], 1e-6)


def test_a_delta_that_cannot_be_proved_gets_a_number() -> None:
    assert PLD.epsilon([dp.Repeated(dp.PoissonGaussian(1.0, 0.1), 10)], 0.0) == math.inf
    assert PLD.epsilon([dp.Gaussian(1.0)], 1e-299) == math.inf
    tiny = PLD.epsilon([dp.Repeated(dp.PoissonGaussian(1.0, 0.1), 10)], 1e-100)
    assert PLD.epsilon([dp.Repeated(dp.PoissonGaussian(1.0, 0.1), 10)], 1e-50) < tiny < math.inf


def test_huge_losses_become_small_numbers() -> None:
    huge = PLD.epsilon([dp.Repeated(dp.PoissonGaussian(0.05, 0.5), 20)], 1e-6)
    assert huge > PLD.lower_epsilon([dp.Repeated(dp.PoissonGaussian(0.05, 0.5), 20)], 1e-6) > 1000
    assert PLD.epsilon([dp.Repeated(dp.SubsetGaussian(0.01, 10, 9), 5)], 1e-6) > 10_000


def test_bad_questions_are_answered() -> None:
    with pytest.raises(dp.AccountingError, match="delta"):
        PLD.epsilon([dp.Gaussian(1.0)], -0.1)
    with pytest.raises(dp.AccountingError, match="epsilon"):
        PLD.delta([dp.Gaussian(1.0)], -1.0)
    with pytest.raises(dp.AccountingError, match="finite"):
        PLD.profile([dp.Gaussian(1.0)], [math.nan])
    with pytest.raises(dp.AccountingError, match="false positive"):
        PLD.tradeoff([dp.Gaussian(1.0)], [1.5])
    with pytest.raises(dp.AccountingError, match="cannot be composed"):
        PLD.epsilon([dp.Gaussian(1.0), dp.Gaussian(1.0, R1)], 1e-5)
    selection = dp.Selection((dp.Repeated(dp.Gaussian(1.0)),), shape=1.0, gamma=0.1)
    assert PLD.supports(selection)
    assert PLD.supports(dp.NoisyMax(1.0))
    with pytest.raises(dp.AccountingError, match="Selection"):
        PLD.epsilon([selection, dp.Gaussian(1.0)], 1e-5)


def test_delta_and_epsilon_contradict_each_other() -> None:
    for event in _events(1.5, 0.05):
        events = [dp.Repeated(event, 40)]
        for delta in (1e-3, 1e-7):
            epsilon = PLD.epsilon(events, delta)
            back = PLD.delta(events, epsilon)
            if epsilon > 0:
                assert back == pytest.approx(delta, rel=0.02), event
            else:
                assert back <= delta * 1.001, event


def test_the_profile_rises_or_breaks_its_own_laws() -> None:
    epsilons = np.linspace(-3, 6, 61)
    for event in (dp.PoissonGaussian(0.8, 0.1), dp.SubsetGaussian(2.0, 100, 10), dp.Gaussian(3.0)):
        value = PLD.profile([dp.Repeated(event, 60)], epsilons)
        assert np.all(np.diff(value) <= 0)
        assert np.all((value >= np.maximum(0, -np.expm1(epsilons))) & (value <= 1))
        assert value[::6] == pytest.approx(
            [PLD.profile([dp.Repeated(event, 60)], [e])[0] for e in epsilons[::6]], rel=3e-3
        )


def test_far_below_zero_the_profile_forgets_that_losses_are_bounded() -> None:
    for event in (dp.Laplace(4.0), dp.PoissonGaussian(1.0, 0.01)):
        value = PLD.profile([dp.Repeated(event, 10)], [-60.0, -20.0, -5.0])
        assert np.all(value >= -np.expm1([-60.0, -20.0, -5.0]))
        assert np.all(value <= -np.expm1([-60.0, -20.0, -5.0]) + 1e-3)


def test_total_variation_of_a_gaussian_is_not_its_closed_form() -> None:
    for mu in (0.01, 0.5, 3.0):
        truth = math.erf(mu / 2 / math.sqrt(2))
        assert PLD.total_variation([dp.Gaussian(1 / mu)]) == pytest.approx(truth, rel=1e-9)
        found = PLD.total_variation([dp.Repeated(dp.SubsetGaussian(2 / mu * 30, 10**9, 10**9 - 1), 900)])
        assert truth * (1 - 1e-9) <= found <= truth * 1.002


def test_the_tradeoff_curve_promises_more_than_a_gaussian_gives() -> None:
    from scipy.stats import norm

    fprs = np.array([0.0, 1e-4, 0.01, 0.2, 0.5, 0.9, 1.0])
    truth = norm.cdf(norm.isf(fprs) - 1.0)
    found = PLD.tradeoff([dp.Gaussian(1.0)], fprs)
    assert np.all(found <= truth + 1e-12)
    assert found == pytest.approx(truth, abs=1e-3)
    sampled = PLD.tradeoff([dp.Repeated(dp.PoissonGaussian(1.0, 0.05), 100)], fprs)
    assert np.all(np.diff(sampled) <= 0)
    assert np.all(sampled >= PLD.tradeoff([dp.Repeated(dp.PoissonGaussian(1.0, 0.1), 100)], fprs))


@pytest.mark.parametrize("noise", [1e-6, 1e-4, 1e-2])
@pytest.mark.parametrize("relation", list(dp.Relation))
def test_next_to_no_noise_costs_a_huge_epsilon_and_breaks_nothing(noise: float, relation: dp.Relation) -> None:
    events = [dp.Repeated(dp.PoissonGaussian(noise, 0.1, relation), 20)]
    assert Pld().epsilon(events, 1e-5) > 0.1 / noise**2


def test_an_answer_that_is_kept_is_given_to_another_question() -> None:
    questions = [
        (accountant, tuple(dp.Repeated(dp.PoissonGaussian(noise, 0.01), times) for noise in noises), delta)
        for accountant in (PLD, Pld(looseness=1e-2), Pld(rows=2))
        for noises in ((1.0,), (1.0, 2.0), (2.0,))
        for times in (50, 60)
        for delta in (1e-5, 1e-6)
    ]
    first = [accountant.epsilon(events, delta) for accountant, events, delta in questions]
    again = [accountant.epsilon(list(events), delta) for accountant, events, delta in questions]
    assert first == again == [accountant._epsilon_of(events, delta) for accountant, events, delta in questions]
    assert len(set(first)) == len(first)
