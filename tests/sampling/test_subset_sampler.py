"""Sampling without replacement: exact counts, every subset alike, neighbours coupled."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from veil.foundation.randomness import Seed
from veil.problem import Strata
from veil.sampling import SubsetSampler
from veil.sampling.subset import subset_slots

SEED = Seed.from_int(5)
REFUSE = 1e-6  # each statistical test raises a false alarm with at most this probability over seeds


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=4),
    shares=st.lists(st.floats(0, 1), min_size=4, max_size=4),
    step=st.integers(0, 100),
)
def test_every_stratum_gives_exactly_its_count(sizes, shares, step):
    ends = np.cumsum([0, *sizes])
    strata = Strata(tuple(np.arange(low, high) for low, high in pairwise(ends)))
    counts = [int(size * share) for size, share in zip(sizes, shares, strict=False)]
    sampler = SubsetSampler(strata, counts)
    rows = sampler.draw(SEED, step)
    assert np.all(np.diff(rows) > 0)
    for low, high, count in zip(ends[:-1], ends[1:], counts, strict=True):
        assert np.sum((rows >= low) & (rows < high)) == count
    assert len(rows) == sampler.expected_batch()


@pytest.mark.statistical
@pytest.mark.parametrize(("slots", "count"), [(6, 3), (7, 2), (5, 4)])
def test_every_subset_is_equally_likely(slots, count):
    generator = SEED.generator("test", slots)
    numbers = {subset: index for index, subset in enumerate(combinations(range(slots), count))}
    draws = [numbers[tuple(subset_slots(generator, slots, count).tolist())] for _ in range(10_000)]
    assert stats.chisquare(np.bincount(draws, minlength=len(numbers))).pvalue > REFUSE


@pytest.mark.statistical
@pytest.mark.parametrize(("slots", "count"), [(20_000, 100), (20_000, 5000), (400, 200)])
def test_every_row_is_drawn_equally_often_whatever_the_share(slots, count):
    sampler = SubsetSampler(Strata.of_size(slots), (count,))
    rows = np.concatenate([sampler.draw(SEED, step) for step in range(100)])
    observed = np.bincount(rows * 50 // slots, minlength=50)
    # Without replacement the counts vary less than multinomial ones, by the factor 1 − count/slots.
    statistic = np.sum((observed - 2 * count) ** 2) / (2 * count) / (1 - count / slots)
    assert stats.chi2.sf(statistic, 49) > REFUSE
    assert stats.chi2.cdf(statistic, 49) > REFUSE


@pytest.mark.statistical
def test_strata_are_independent_of_each_other():
    sampler = SubsetSampler(Strata.from_labels(np.arange(200) % 2), (10, 10))
    shared = []
    for step in range(400):
        rows = sampler.draw(SEED, step)
        shared.append(len(np.intersect1d(rows[rows % 2 == 0] // 2, rows[rows % 2 == 1] // 2)))
    law = stats.hypergeom(100, 10, 10)
    # The mean of 400 draws, within 5 standard errors: a false alarm of 6e-7.
    assert abs(np.mean(shared) - law.mean()) < 5 * law.std() / 20


def test_a_few_rows_of_a_huge_stratum_need_no_list_of_all():
    slots = subset_slots(SEED.generator("test", 0), 10**13, 5)
    assert len(set(slots.tolist())) == 5


@settings(derandomize=True, deadline=None, max_examples=40)
@given(size=st.integers(2, 40), share=st.floats(0, 1), place=st.integers(0, 10**6), step=st.integers(0, 50))
def test_taking_one_row_away_leaves_all_others_as_they_were(size, share, place, step):
    sampler = SubsetSampler(Strata.of_size(size), (int(size * share),))
    row = place % size
    neighbour = SubsetSampler(sampler.strata.without_row(row), sampler.counts)
    expected = [kept for kept in sampler.draw(SEED, step).tolist() if kept != row]
    assert neighbour.draw(SEED, step).tolist() == expected


def test_batches_are_a_pure_function_of_seed_step_and_purpose():
    sampler = SubsetSampler(Strata.of_size(1000), (30,))
    first = sampler.draw(SEED, 3).tolist()
    assert first == sampler.draw(SEED, 3).tolist()
    assert first != sampler.draw(SEED, 4).tolist()
    assert first != SubsetSampler(Strata.of_size(1000), (30,), purpose="losses").draw(SEED, 3).tolist()


def test_public_facts_are_those_of_the_plan():
    sampler = SubsetSampler(Strata.from_labels(list("aaab")), (3, 0))
    assert sampler.private
    assert sampler.counts == (3, 0)
    assert (sampler.rate_of(0), sampler.rate_of(1)) == (1.0, 0.0)
    assert sampler.expected_batch() == sampler.expected_of(0) == 3.0


@pytest.mark.parametrize("counts", [(1,), (4, 0), (-1, 0), (1.5, 0)])
def test_counts_that_cannot_be_drawn_are_refused(counts):
    with pytest.raises(ValueError, match=r"cannot draw|counts were given"):
        SubsetSampler(Strata.from_labels(list("aaab")), counts)
