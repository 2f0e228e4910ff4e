"""Draws say in public constants what their samplers do, and only what has a theorem gets an event."""

from __future__ import annotations

import numpy as np
import pytest

from veil.accounting import AccountingError, Gaussian, Mixture, PoissonGaussian, Relation, SubsetGaussian
from veil.foundation.randomness import Seed
from veil.problem import Cell, PublicFacts, Strata
from veil.sampling.draws import OneGroup, Poisson, Shuffled, StratifiedSubset, UniformSubset

FACTS = PublicFacts(("a", "b"), ("everybody",), (Cell(0, 0, 30), Cell(1, 0, 10)), (1,), classes=("0", "1"))
STRATA = Strata((np.arange(30), np.arange(30, 40)))
ADD, ONE = Relation.ADD_REMOVE, Relation.REPLACE_ONE


def test_a_poisson_draw_is_charged_at_the_rate_it_draws_with() -> None:
    draw = Poisson((0.1, 1.0))
    assert draw.event(0, 2.0, ADD, FACTS) == PoissonGaussian(2.0, 0.1, ADD)
    assert draw.event(1, 2.0, ADD, FACTS) == Gaussian(2.0, ADD)
    assert Poisson((0.0, 1.0)).event(0, 2.0, ADD, FACTS) is None
    assert draw.expected_batch(FACTS) == pytest.approx(13.0)
    assert draw.sampler(STRATA).expected_batch() == pytest.approx(13.0)


def test_subsets_are_charged_by_the_rows_they_are_drawn_from() -> None:
    uniform, stratified = UniformSubset(8), StratifiedSubset((6, 10))
    assert uniform.event(1, 2.0, ONE, FACTS) == SubsetGaussian(2.0, 40, 8)
    assert stratified.event(0, 2.0, ONE, FACTS) == SubsetGaussian(2.0, 30, 6)
    assert stratified.event(1, 2.0, ONE, FACTS) == Gaussian(2.0, ONE)
    assert len(uniform.sampler(STRATA).draw(Seed.from_int(0), 0)) == 8
    assert len(stratified.sampler(STRATA).draw(Seed.from_int(0), 0)) == 16


@pytest.mark.parametrize("draw", [UniformSubset(8), StratifiedSubset((6, 5))])
def test_subsets_have_no_event_under_add_remove(draw: UniformSubset | StratifiedSubset) -> None:
    with pytest.raises(AccountingError, match="replace-one only"):
        draw.event(0, 2.0, ADD, FACTS)


def test_shuffled_batches_have_no_event_so_no_ledger_takes_them() -> None:
    with pytest.raises(AccountingError, match="no sampling guarantee"):
        Shuffled(8).event(0, 2.0, ADD, FACTS)


def test_a_lottery_is_charged_for_the_largest_chance_it_may_give() -> None:
    within = Poisson((0.1, 0.3))
    sure = OneGroup(within, (0.5, 0.5), (0, 1))
    assert sure.event(1, 2.0, ADD, FACTS) == PoissonGaussian(2.0, 0.3, ADD)
    capped = OneGroup(within, (0.5, 0.5), (0, 1), largest_chance=0.6)
    assert capped.event(1, 2.0, ADD, FACTS) == Mixture(0.6, PoissonGaussian(2.0, 0.3, ADD))
    with pytest.raises(AccountingError, match=r"above 0\.6"):
        OneGroup(within, (0.3, 0.7), (0, 1), largest_chance=0.6)
    assert sure.expected_batch(FACTS) == pytest.approx(3.0)
