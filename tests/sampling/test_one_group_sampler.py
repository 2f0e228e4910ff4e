"""One group at a time: the lottery is fair, public, and only the chosen group's rows are drawn."""

import numpy as np
import pytest
from scipy import stats

from veil.foundation.randomness import Seed
from veil.problem import Strata
from veil.sampling import OneGroupSampler, PoissonSampler, SubsetSampler

SEED = Seed.from_int(11)
STRATA = Strata.from_labels(np.arange(600) % 3)
REFUSE = 1e-6  # each statistical test raises a false alarm with at most this probability over seeds


@pytest.mark.statistical
def test_groups_are_chosen_with_their_probabilities():
    chances = (0.5, 0.1, 0.4)
    sampler = OneGroupSampler(PoissonSampler.uniform(STRATA, 0.1), chances)
    chosen = [sampler.chosen(SEED, step) for step in range(10_000)]
    assert stats.chisquare(np.bincount(chosen, minlength=3), np.array(chances) * 10_000).pvalue > REFUSE


@pytest.mark.parametrize("within", [PoissonSampler.uniform(STRATA, 0.3), SubsetSampler(STRATA, (20, 30, 40))])
def test_only_rows_of_the_chosen_group_are_drawn_and_as_the_inner_sampler_would(within):
    sampler = OneGroupSampler(within, (0.2, 0.3, 0.5))
    seen = set()
    for step in range(60):
        group = sampler.chosen(SEED, step)
        rows = sampler.draw(SEED, step)
        everything = within.draw(SEED, step)
        assert rows.tolist() == everything[everything % 3 == group].tolist()
        seen.add(group)
    assert seen == {0, 1, 2}


def test_a_group_without_probability_is_never_chosen():
    sampler = OneGroupSampler(SubsetSampler(STRATA, (1, 1, 1)), (0.0, 1.0, 0.0))
    assert {sampler.chosen(SEED, step) for step in range(500)} == {1}


@pytest.mark.parametrize(("ticket", "group"), [(0.0, 1), (1.0, 1)])
def test_the_ends_of_the_lottery_still_choose_a_possible_group(monkeypatch, ticket, group):
    class Fixed:
        def random(self):
            return ticket

    monkeypatch.setattr(Seed, "generator", lambda *_: Fixed())
    assert OneGroupSampler(SubsetSampler(STRATA, (1, 1, 1)), (0.0, 1.0, 0.0)).chosen(SEED, 0) == group


def test_a_group_may_be_several_strata():
    sampler = OneGroupSampler(SubsetSampler(STRATA, (20, 30, 40)), (0.5, 0.5), groups=(0, 1, 0))
    batches = {sampler.chosen(SEED, step): sampler.draw(SEED, step) for step in range(40)}
    assert np.bincount(batches[0] % 3, minlength=3).tolist() == [20, 0, 40]
    assert np.bincount(batches[1] % 3, minlength=3).tolist() == [0, 30, 0]
    assert (sampler.expected_of(0), sampler.expected_of(1), sampler.expected_batch()) == (60.0, 30.0, 45.0)
    assert sampler.rate_of(2) == 0.2


def test_the_choice_does_not_depend_on_rates_and_differs_by_purpose():
    one = OneGroupSampler(PoissonSampler.uniform(STRATA, 0.1), (0.2, 0.3, 0.5))
    other = OneGroupSampler(PoissonSampler.uniform(STRATA, 0.9), (0.2, 0.3, 0.5))
    third = OneGroupSampler(PoissonSampler.uniform(STRATA, 0.9, purpose="losses"), (0.2, 0.3, 0.5))
    choices = [[sampler.chosen(SEED, step) for step in range(100)] for sampler in (one, other, third)]
    assert choices[0] == choices[1] != choices[2]


@pytest.mark.parametrize("within", [PoissonSampler.uniform(STRATA, 0.3), SubsetSampler(STRATA, (20, 30, 40))])
def test_taking_one_row_away_leaves_all_others_as_they_were(within):
    row, sampler = 8, OneGroupSampler(within, (0.1, 0.1, 0.8))
    neighbour_within = (
        PoissonSampler(STRATA.without_row(row), within.rates)
        if isinstance(within, PoissonSampler)
        else SubsetSampler(STRATA.without_row(row), within.counts)
    )
    neighbour, removed = OneGroupSampler(neighbour_within, sampler.probabilities), 0
    for step in range(60):
        rows = sampler.draw(SEED, step).tolist()
        assert neighbour.draw(SEED, step).tolist() == [kept for kept in rows if kept != row]
        removed += row in rows
    assert removed > 0


@pytest.mark.parametrize(
    ("probabilities", "groups"),
    [((0.5, 0.5), ()), ((0.5, 0.2, 0.2), ()), ((1.5, -0.5, 0.0), ()), ((0.5, 0.5), (0, 1)), ((0.5, 0.5), (0, 0, 2))],
)
def test_a_lottery_that_does_not_fit_is_refused(probabilities, groups):
    with pytest.raises(ValueError, match=r"probabilities|group numbers"):
        OneGroupSampler(SubsetSampler(STRATA, (1, 1, 1)), probabilities, groups)


def test_a_sure_group_gives_its_whole_count():
    sampler = OneGroupSampler(SubsetSampler(STRATA, (1, 2, 3)), (0.0, 0.0, 1.0))
    assert len(sampler.draw(SEED, 0)) == 3
    assert sampler.private
