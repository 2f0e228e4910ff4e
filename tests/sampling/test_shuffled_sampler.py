"""Shuffled epochs: every row once per epoch, a new order each time, and never called private."""

import numpy as np
import pytest

from veil.foundation.randomness import Seed
from veil.problem import Strata
from veil.sampling import ShuffledSampler

SEED = Seed.from_int(2)


@pytest.mark.parametrize(("rows", "batch"), [(12, 4), (13, 4), (3, 10), (1, 1)])
def test_an_epoch_holds_every_row_exactly_once(rows, batch):
    sampler = ShuffledSampler(Strata.from_labels(np.arange(rows) % 3), batch)
    for epoch in range(3):
        steps = range(epoch * sampler.steps_per_epoch, (epoch + 1) * sampler.steps_per_epoch)
        drawn = [sampler.draw(SEED, step) for step in steps]
        assert sorted(np.concatenate(drawn).tolist()) == list(range(rows))
        assert all(len(rows_) == batch for rows_ in drawn[:-1])
        assert all(np.all(np.diff(rows_) > 0) for rows_ in drawn)
    assert sampler.expected_batch() * sampler.steps_per_epoch == rows


def test_epochs_have_different_orders_and_steps_can_be_asked_in_any_order():
    sampler = ShuffledSampler(Strata.of_size(100), 10)
    assert sampler.draw(SEED, 0).tolist() != sampler.draw(SEED, 10).tolist()
    late = sampler.draw(SEED, 35).tolist()
    sampler.draw(SEED, 3)
    assert sampler.draw(SEED, 35).tolist() == late
    assert sampler.draw(Seed.from_int(3), 35).tolist() != late


def test_it_says_that_it_is_not_private():
    assert not ShuffledSampler(Strata.of_size(4), 2).private


def test_taking_one_row_away_leaves_all_others_as_they_were():
    strata = Strata.from_labels(np.arange(30) % 2)
    for step in range(12):
        rows = ShuffledSampler(strata, 7).draw(SEED, step).tolist()
        kept = ShuffledSampler(strata.without_row(5), 7).draw(SEED, step).tolist()
        assert kept == [row for row in rows if row != 5]


def test_nothing_to_shuffle_is_refused():
    with pytest.raises(ValueError, match="batch size"):
        ShuffledSampler(Strata.of_size(4), 0)
    with pytest.raises(ValueError, match="at least one row"):
        ShuffledSampler(Strata.of_size(0), 1)
