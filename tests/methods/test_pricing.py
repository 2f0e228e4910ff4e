"""Ladders of many groups: few are calibrated from nothing, and all of them hold their budget."""

import numpy as np
import pytest

from veil.accounting import Pld
from veil.methods import pricing
from veil.methods.asc import Asc
from veil.plans import Settings
from veil.problem import Cell, PublicFacts


def facts_of(sizes, budgets=None):
    names = tuple(f"g{place}" for place in range(len(sizes)))
    cells = tuple(Cell(place, 0, int(size)) for place, size in enumerate(sizes))
    return PublicFacts(names, ("everybody",), cells, (3,), classes=("0", "1"), budgets=budgets)


@pytest.fixture
def sizes(monkeypatch):
    """More groups than `MANY`, which is lowered here."""
    monkeypatch.setattr(pricing, "MANY", 8)
    return np.random.default_rng(0).integers(200, 3000, 13)


@pytest.mark.parametrize("sampling", ["poisson", "wor"])
def test_no_group_of_many_exceeds_its_budget_and_none_has_much_more_noise_than_it_needs(sampling, sizes, monkeypatch):
    settings = Settings.checked(epsilon=1.0, steps=100, batch_size=256, seed=1)
    facts, method = facts_of(sizes), Asc(sampling=sampling)
    plan = method.plan(facts, settings)
    judge = Pld()
    for rule in plan.rules:
        assert rule.guarantee(settings.delta_for(facts), judge) <= 1.0 * (1 + 1e-9)
    monkeypatch.setattr(pricing, "MANY", 1000)
    exact = method.plan(facts, settings)
    assert plan.controller.sigma <= exact.controller.sigma * 1.02


def test_a_noise_between_others_is_tried_out(sizes, monkeypatch):
    """Where what lies between would exceed the budget, the group is calibrated by itself."""
    settings = Settings.checked(epsilon=1.0, steps=50, batch_size=256, seed=1)
    facts = facts_of(sizes)
    monkeypatch.setattr(pricing, "_between", lambda noises, key: 0.5 if noises else None)
    plan = Asc().plan(facts, settings)
    for rule in plan.rules[::4]:
        assert rule.guarantee(settings.delta_for(facts), Pld()) <= 1.0 * (1 + 1e-9)


def test_many_different_cells_begin_with_all_sizes():
    keys = [(size, size, 1.0) for size in range(100, 100 + 3 * pricing.MANY)]
    order = pricing._ends_first(keys)
    assert sorted(order) == keys
    assert order[0] == keys[0]
    assert keys[-1] in order[: pricing.MANY // 2]
