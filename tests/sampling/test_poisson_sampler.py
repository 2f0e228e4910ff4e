"""Poisson sampling: rates exact, slots independent, sizes binomial, neighbours coupled."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from veil.foundation.randomness import Seed
from veil.problem import Strata
from veil.sampling import PoissonSampler
from veil.sampling.poisson import poisson_slots

SEED = Seed.from_int(77)
REFUSE = 1e-6  # each statistical test raises a false alarm with at most this probability over seeds


def inclusion_table(slots, rate, draws, step=0):
    """draws × slots of 0/1: which slots took part in each of many draws."""
    generator = SEED.generator("test", step)
    table = np.zeros((draws, slots))
    for line in table:
        line[poisson_slots(generator, slots, rate)] = 1.0
    return table


def two_sided(statistic, freedom):
    return 2 * min(stats.chi2.cdf(statistic, freedom), stats.chi2.sf(statistic, freedom))


@pytest.mark.statistical
@pytest.mark.parametrize("rate", [0.004, 0.05, 0.2, 0.2000001, 0.6, 0.97])
def test_every_slot_has_its_rate(rate):
    draws, slots = 10_000, 40
    hits = inclusion_table(slots, rate, draws).sum(axis=0)
    statistic = np.sum((hits - draws * rate) ** 2) / (draws * rate * (1 - rate))
    assert two_sided(statistic, slots) > REFUSE
    assert stats.binomtest(int(hits.sum()), draws * slots, rate).pvalue > REFUSE


@pytest.mark.statistical
@pytest.mark.parametrize("rate", [0.1, 0.19, 0.5])
def test_slots_are_pairwise_independent(rate):
    draws, slots = 20_000, 24
    table = (inclusion_table(slots, rate, draws) - rate) / np.sqrt(rate * (1 - rate))
    products = (table.T @ table / np.sqrt(draws))[np.triu_indices(slots, 1)]
    # 276 products, each nearly N(0, 1): beyond 6 with probability 276 × 2e-9; their squares sum to nearly χ².
    assert np.abs(products).max() < 6
    assert two_sided(np.sum(products**2), len(products)) > REFUSE


@pytest.mark.statistical
@pytest.mark.parametrize(("slots", "rate"), [(60, 0.05), (500, 0.1), (30, 0.7), (4000, 0.01)])
def test_the_batch_size_is_binomial(slots, rate):
    generator = SEED.generator("test sizes", slots)
    sizes = np.array([len(poisson_slots(generator, slots, rate)) for _ in range(10_000)])
    low, high = stats.binom.ppf([0.005, 0.995], slots, rate).astype(int)
    observed = np.bincount(np.clip(sizes, low, high) - low, minlength=high - low + 1)
    chances = stats.binom.pmf(np.arange(low, high + 1), slots, rate)
    chances[0], chances[-1] = stats.binom.cdf(low, slots, rate), stats.binom.sf(high - 1, slots, rate)
    assert stats.chisquare(observed, chances * len(sizes)).pvalue > REFUSE


@pytest.mark.statistical
@pytest.mark.parametrize(("slots", "rate"), [(10**9, 1e-7), (10**12, 1e-10), (10**7, 1e-5), (3, 1e-3)])
def test_tiny_rates_are_exact_and_cost_nothing_per_slot(slots, rate):
    generator, draws = SEED.generator("test tiny", 0), 3000
    batches = [poisson_slots(generator, slots, rate) for _ in range(draws)]
    total = sum(len(batch) for batch in batches)
    assert stats.poisson.cdf(total, draws * slots * rate) > REFUSE
    assert stats.poisson.sf(total - 1, draws * slots * rate) > REFUSE
    if total > 100:
        assert stats.kstest(np.concatenate(batches) / slots, "uniform").pvalue > REFUSE


def test_rate_zero_draws_nothing_and_rate_one_everything():
    sampler = PoissonSampler(Strata.from_labels(list("aabb")), rates=(0.0, 1.0))
    for step in range(50):
        assert sampler.draw(SEED, step).tolist() == [2, 3]


def test_slots_come_ascending_and_once():
    generator = SEED.generator("test", 1)
    for rate in (0.01, 0.15, 0.2, 0.4, 1.0):
        slots = poisson_slots(generator, 3000, rate)
        assert np.all(np.diff(slots) > 0)
        assert 0 <= slots[0] <= slots[-1] < 3000


@pytest.mark.statistical
def test_each_stratum_is_drawn_at_its_own_rate():
    strata = Strata.from_labels(np.arange(4000) % 4)
    rates, steps = (0.01, 0.1, 0.3, 0.9), 400
    sampler = PoissonSampler(strata, rates)
    drawn = np.concatenate([sampler.draw(SEED, step) for step in range(steps)])
    for label, rate in enumerate(rates):
        hits = int(np.sum(drawn % 4 == label))
        assert stats.binomtest(hits, 1000 * steps, rate).pvalue > REFUSE


@pytest.mark.statistical
@pytest.mark.parametrize("rate", [0.1, 0.4])
def test_strata_are_independent_of_each_other(rate):
    sampler = PoissonSampler.uniform(Strata.from_labels(np.arange(400) % 2), rate)
    both = 0
    for step in range(300):
        rows = sampler.draw(SEED, step)
        both += len(np.intersect1d(rows[rows % 2 == 0] // 2, rows[rows % 2 == 1] // 2))
    assert stats.binomtest(both, 300 * 200, rate**2).pvalue > REFUSE


@pytest.mark.statistical
def test_steps_are_independent_of_each_other():
    sampler = PoissonSampler.uniform(Strata.of_size(20_000), 0.1)
    batches = [set(sampler.draw(SEED, step).tolist()) for step in range(20)]
    shared = [len(one & other) for one, other in itertools.pairwise(batches)]
    # 19 pairs share Binomial(20000, .01) rows each, nearly independently.
    assert stats.binomtest(sum(shared), 19 * 20_000, 0.01).pvalue > REFUSE


def test_batches_are_a_pure_function_of_seed_step_and_purpose():
    sampler = PoissonSampler.uniform(Strata.of_size(1000), 0.1)
    backwards = [sampler.draw(SEED, step).tolist() for step in (2, 1, 0)][::-1]
    assert backwards == [sampler.draw(SEED, step).tolist() for step in range(3)]
    assert backwards[0] != backwards[1]
    assert backwards[0] != sampler.draw(Seed.from_int(78), 0).tolist()
    other = PoissonSampler.uniform(Strata.of_size(1000), 0.1, purpose="losses")
    assert backwards[0] != other.draw(SEED, 0).tolist()


def test_the_rate_and_place_of_one_stratum_do_not_change_the_draw_of_another():
    strata = Strata.from_labels(list("ab" * 200))
    before = PoissonSampler(strata, (0.1, 0.1)).draw(SEED, 5)
    after = PoissonSampler(strata, (0.7, 0.1)).draw(SEED, 5)
    assert before[before % 2 == 1].tolist() == after[after % 2 == 1].tolist()
    turned = Strata(strata.members[::-1], strata.names[::-1])
    assert PoissonSampler(turned, (0.1, 0.1)).draw(SEED, 5).tolist() == before.tolist()


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    labels=st.lists(st.integers(0, 2), min_size=1, max_size=60),
    rates=st.lists(st.sampled_from([0.0, 0.05, 0.2, 0.5, 1.0]), min_size=3, max_size=3),
    place=st.integers(0, 10**6),
    step=st.integers(0, 1000),
)
def test_taking_one_row_away_leaves_all_others_as_they_were(labels, rates, place, step):
    strata = Strata.from_labels(labels)
    sampler = PoissonSampler(strata, rates[: len(strata.members)])
    row = place % len(labels)
    neighbour = PoissonSampler(strata.without_row(row), sampler.rates)
    expected = [kept for kept in sampler.draw(SEED, step).tolist() if kept != row]
    assert neighbour.draw(SEED, step).tolist() == expected
    assert neighbour.expected_batch() == sampler.expected_batch()


def test_public_facts_are_those_of_the_plan():
    sampler = PoissonSampler(Strata.from_labels(list("aaab")), rates=(0.5, 0.25))
    assert sampler.private
    assert (sampler.rate_of(0), sampler.rate_of(1)) == (0.5, 0.25)
    assert sampler.expected_of(0) == 1.5
    assert sampler.expected_batch() == 1.75


@pytest.mark.parametrize("rates", [(0.5,), (0.5, 1.5), (0.5, -0.1), (0.5, float("nan"))])
def test_rates_that_are_no_probabilities_are_refused(rates):
    with pytest.raises(ValueError, match="rate"):
        PoissonSampler(Strata.from_labels(list("ab")), rates)


def test_an_empty_stratum_is_a_normal_stratum():
    sampler = PoissonSampler(Strata((np.array([], dtype=np.int64), np.array([4]))), (0.1, 1.0))
    assert sampler.draw(SEED, 0).tolist() == [4]


def many_strata(rows=4000, count=100):
    """Row r is of stratum r % count; rates from 1e-3 to 1, some dense and one 0."""
    rates = np.geomspace(1e-3, 1.0, count)
    rates[7] = 0.0
    return Strata.from_labels(np.array([f"{row % count:03d}" for row in range(rows)])), rates


@pytest.mark.statistical
def test_each_of_many_strata_is_drawn_at_its_own_rate():
    strata, rates = many_strata()
    sampler, steps = PoissonSampler(strata, rates), 2000
    table = np.zeros((steps, 4000), dtype=bool)
    for step in range(steps):
        rows = sampler.draw(SEED, step)
        assert np.all(np.diff(rows) > 0)
        table[step, rows] = True
    # 100 strata and 4,000 rows are tested at once: each alarm is shared among them.
    for label, rate in enumerate(rates):
        hits = table[:, label::100]
        assert stats.binomtest(int(hits.sum()), hits.size, rate).pvalue > REFUSE / 100
        per_row = hits.sum(axis=0)
        if 0 < rate < 1:
            chances = 2 * np.minimum(stats.binom.cdf(per_row, steps, rate), stats.binom.sf(per_row - 1, steps, rate))
            assert chances.min() > REFUSE / 4000


@pytest.mark.statistical
def test_rows_of_many_strata_are_independent_of_each_other():
    strata = Strata.from_labels(np.arange(400) // 10)
    rates = np.where(np.arange(40) % 2 == 0, 0.1, 0.4)
    table = np.zeros((20_000, 400))
    sampler = PoissonSampler(strata, rates)
    for step, line in enumerate(table):
        line[sampler.draw(SEED, step)] = 1.0
    own = np.repeat(rates, 10)
    table = (table - own) / np.sqrt(own * (1 - own))
    products = (table.T @ table / np.sqrt(len(table)))[np.triu_indices(400, 1)]
    # 79,800 products, each nearly N(0, 1): beyond 7 with probability 2e-7.
    assert np.abs(products).max() < 7
    assert abs(np.mean(products**2) - 1) < 6 * np.sqrt(2 / len(products))


@settings(derandomize=True, deadline=None, max_examples=30)
@given(place=st.integers(0, 999), step=st.integers(0, 1000))
def test_taking_one_row_of_many_strata_away_leaves_all_others_as_they_were(place, step):
    strata, rates = many_strata(rows=1000)
    sampler, neighbour = PoissonSampler(strata, rates), PoissonSampler(strata.without_row(place), rates)
    expected = [kept for kept in sampler.draw(SEED, step).tolist() if kept != place]
    assert neighbour.draw(SEED, step).tolist() == expected
