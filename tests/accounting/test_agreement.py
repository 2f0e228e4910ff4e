"""The accountants agree: a rigorous lower bound ≤ PLD ≤ RDP, for every kind of event and both relations."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from veil import accounting as dp
from veil.accounting.events import from_json, to_json

relations = st.sampled_from(list(dp.Relation))
noises = st.floats(0.6, 30.0)
rates = st.floats(1e-3, 0.9)
gaussians = st.builds(dp.Gaussian, noises, relations, st.booleans())
poissons = st.builds(dp.PoissonGaussian, noises, rates, relations)
subsets = st.builds(lambda k, n, q: dp.SubsetGaussian(k, n, max(1, int(q * n))), noises, st.integers(10, 5000), rates)
mixtures = st.builds(dp.Mixture, st.floats(0.05, 1.0), st.one_of(gaussians, poissons, subsets))
others = st.one_of(
    st.builds(dp.Laplace, st.floats(1.0, 30.0), relations),
    st.builds(dp.NoisyMax, st.floats(1.0, 30.0), relations, st.booleans()),
    st.builds(dp.Tree, noises, st.integers(1, 1000), relations),
)
events = st.one_of(gaussians, poissons, subsets, mixtures, others)


@settings(deadline=None, derandomize=True, max_examples=80)
@given(event=events, times=st.integers(1, 400), exponent=st.integers(3, 9))
def test_lower_bound_pld_and_rdp_stand_in_this_order(event: dp.Event, times: int, exponent: int) -> None:
    delta, items = 10.0**-exponent, [dp.Repeated(event, times)]
    lower, pld, rdp = (
        dp.Pld().lower_epsilon(items, delta),
        dp.Pld().epsilon(items, delta),
        dp.Rdp().epsilon(items, delta),
    )
    assert 0 <= lower <= pld * (1 + 1e-9) + 1e-12
    assert pld <= rdp * (1 + 2e-3) + 1e-6


@settings(deadline=None, derandomize=True, max_examples=40)
@given(
    pairs=st.lists(st.tuples(noises, rates), min_size=1, max_size=5),
    relation=relations,
    times=st.integers(1, 300),
)
def test_an_envelope_costs_at_least_what_any_mix_of_its_events_costs(
    pairs: list[tuple[float, float]], relation: dp.Relation, times: int
) -> None:
    members = tuple(dp.PoissonGaussian(noise, rate, relation) for noise, rate in pairs)
    envelope = [dp.Repeated(dp.Envelope(members), times * len(members))]
    mixed = [dp.Repeated(member, times) for member in members]
    for accountant in (dp.Pld(), dp.Rdp()):
        assert accountant.epsilon(envelope, 1e-5) >= accountant.epsilon(mixed, 1e-5) * (1 - 2e-3)


def test_an_envelope_of_one_costs_what_its_event_costs() -> None:
    event = dp.PoissonGaussian(1.1, 0.01)
    for accountant in (dp.Pld(), dp.Rdp()):
        alone = accountant.epsilon([dp.Repeated(event, 500)], 1e-5)
        assert accountant.epsilon([dp.Repeated(dp.Envelope((event,)), 500)], 1e-5) == pytest.approx(alone, rel=1e-4)


def test_one_token_of_an_envelope_pays_for_any_of_its_events_but_only_once() -> None:
    first, second, foreign = dp.PoissonGaussian(1.0, 0.1), dp.PoissonGaussian(2.0, 0.3), dp.PoissonGaussian(1.0, 0.3)
    bucket = dp.TokenBucket((dp.Repeated(dp.Envelope((first, second)), 3),))
    assert bucket.refusal({first: 1, second: 1}, dp.Repeated(first)) is None
    assert bucket.refusal({first: 2, second: 1}, dp.Repeated(first)) is not None
    assert bucket.refusal({}, dp.Repeated(foreign)) is not None


@settings(deadline=None, derandomize=True, max_examples=100)
@given(event=st.one_of(events, st.builds(lambda one: dp.Envelope((one,)), poissons)))
def test_events_survive_the_way_to_json_and_back(event: dp.Event) -> None:
    assert from_json(to_json(event)) == event
