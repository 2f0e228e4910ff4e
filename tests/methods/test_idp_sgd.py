"""IDP-SGD's planner: the batch asked for, one accountant, every budget used, no owner forgotten."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from veil.accounting import Pld, PoissonGaussian, Rdp, Relation, Repeated
from veil.methods.idp_sgd import drawing, owner_shares
from veil.plans import Settings
from veil.problem import Cell, PublicFacts


def facts_of(sizes: tuple[int, ...], budgets: tuple[float, ...]) -> PublicFacts:
    names, cells = (
        tuple(f"owner {i}" for i in range(len(sizes))),
        tuple(Cell(0, i, rows) for i, rows in enumerate(sizes)),
    )
    return PublicFacts(("all",), names, cells, (2,), classes=("0", "1"), budgets=budgets)


@pytest.mark.parametrize("variant", ["sample", "scale", "both"])
@pytest.mark.parametrize("relation", list(Relation))
def test_the_batch_that_was_asked_for_is_drawn(variant: str, relation: Relation) -> None:
    facts = facts_of((30_000, 30_000), (0.1, 1.0))
    asked = Settings.checked(delta=1e-5, steps=60, batch_size=256)
    shares = owner_shares(variant, 1.0, facts, asked, relation)
    assert shares.draw(facts).expected_batch(facts) == pytest.approx(256, rel=1e-9)


@pytest.mark.parametrize("variant", ["sample", "scale", "both"])
def test_forty_budgets_are_used_to_one_percent_and_never_overrun(variant: str) -> None:
    budgets = tuple(np.geomspace(1.0, 8.0, 40).tolist())
    facts = facts_of((50,) * 40, budgets)
    shares = owner_shares(variant, 1.0, facts, Settings.checked(delta=1e-5, steps=50, batch_size=100, accountant="rdp"))
    assert shares.draw(facts).expected_batch(facts) == pytest.approx(100, rel=1e-9)
    for budget, rate, clip in list(zip(budgets, shares.rates, shares.clips, strict=True))[::6]:
        event = PoissonGaussian(shares.sigma / clip, rate, Relation.ADD_REMOVE)
        assert 0.99 * budget <= Rdp().epsilon([Repeated(event, 50)], 1e-5) <= budget


def test_all_rows_in_every_batch_need_no_more_noise_than_the_smallest_budget_asks_for() -> None:
    facts = facts_of((100, 100), (1.0, 2.0))
    shares = owner_shares("sample", 1.0, facts, Settings.checked(delta=1e-5, steps=20, batch_size=200))
    assert shares.rates == (1.0, 1.0)
    spent = Pld().epsilon([Repeated(PoissonGaussian(shares.sigma, 1.0, Relation.ADD_REMOVE), 20)], 1e-5)
    assert 0.999 <= spent <= 1.0


def test_an_owner_who_is_hardly_ever_drawn_is_named() -> None:
    facts = facts_of((30_000, 30_000), (0.1, 1.0))
    with pytest.warns(
        UserWarning, match=r'Owner "owner 0" with ε = 0.1 is drawn 0\.0\d+ times per step.*accountant pld'
    ):
        owner_shares("sample", 1.0, facts, Settings.checked(delta=1e-5, steps=60, batch_size=256, accountant="rdp"))


def test_owners_with_an_ordinary_share_are_not_warned_about() -> None:
    facts = facts_of((30_000, 30_000), (0.1, 1.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        owner_shares("sample", 1.0, facts, Settings.checked(delta=1e-5, steps=60, batch_size=256))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.floats(1e-6, 1.0), st.integers(1, 1000)), min_size=1, max_size=8), st.floats(0.01, 1.0))
def test_rates_in_proportion_draw_the_batch_and_stay_probabilities(
    owners: list[tuple[float, int]], share: float
) -> None:
    rates, sizes = zip(*owners, strict=True)
    batch = share * sum(sizes)
    found = drawing(rates, sizes, batch)
    assert all(0 < rate <= 1 for rate in found)
    assert math.fsum(rate * rows for rate, rows in zip(found, sizes, strict=True)) == pytest.approx(batch)
