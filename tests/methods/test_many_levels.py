"""Many budget levels: rates off a curve are within every budget, by two accountants, and the batch is the one asked."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from veil.accounting import Ledger, Pld, Rdp, Repeated
from veil.accounting.certificate import certify
from veil.accounting.events import PoissonGaussian
from veil.methods import create
from veil.plans import Settings
from veil.plans.controllers import first_release
from veil.problem import Problem, quantise
from veil.training.reporting import spent_by_group


def many(levels: int) -> Problem:
    budgets = np.exp(np.random.default_rng(0).normal(0.7, 0.3, 4000))
    rows = torch.zeros(4000, 1)
    groups = ["a", "b"] * 2000
    return Problem.from_arrays(rows, [0, 1] * 2000, groups, budgets=quantise(budgets, levels))


@pytest.fixture(scope="module")
def planned():  # type: ignore[no-untyped-def]
    settings = Settings.checked(steps=60, batch_size=100, delta=1e-5, seed=1, accountant="rdp")
    problem = many(60)
    return problem, create("idp-sgd", {}).plan(problem.public, settings)


def test_the_batch_is_the_one_that_was_asked_for(planned) -> None:  # type: ignore[no-untyped-def]
    _, plan = planned
    assert plan.details["batch"] == pytest.approx(100, rel=1e-9)


def test_every_level_uses_its_budget_and_none_exceeds_it(planned) -> None:  # type: ignore[no-untyped-def]
    """Planned by RDP; the second accountant, which is tighter, must not find more."""
    problem, plan = planned
    events = first_release(plan.controller).events(plan.facts)
    budgets = problem.public.budgets or ()
    for cell, event in list(events.items())[::3]:
        budget = budgets[plan.facts.cells[cell].owner]
        spent = Rdp().epsilon([Repeated(event, plan.steps)], plan.delta)
        assert 0.985 * budget < spent <= budget
    for cell, event in list(events.items())[:: len(events) // 4]:
        budget = budgets[plan.facts.cells[cell].owner]
        assert Pld().epsilon([Repeated(event, plan.steps)], plan.delta) <= budget


def test_a_larger_budget_never_has_a_smaller_rate(planned) -> None:  # type: ignore[no-untyped-def]
    problem, plan = planned
    by_budget = sorted(zip(problem.public.budgets or (), plan.details["owner_rates"].values(), strict=True))
    rates = [rate for _, rate in by_budget]
    assert rates == sorted(rates)
    assert len(set(rates)) > 50


def test_the_odometer_of_a_group_is_that_of_its_most_drawn_level(planned) -> None:  # type: ignore[no-untyped-def]
    """It looks at one level of each group only: reading all of them gives the same."""
    _, plan = planned
    ledger = Ledger(plan.terms())
    ledger.reserve("gradient", 0, 10, first_release(plan.controller).events(plan.facts))
    found = spent_by_group(ledger, plan)
    for group, name in enumerate(plan.facts.groups):
        every = [
            Rdp().epsilon(ledger.spent(cell), plan.delta)
            for cell, own in enumerate(plan.facts.cells)
            if own.group == group
        ]
        assert found[name] == pytest.approx(max(every), rel=1e-9)


def test_a_certificate_reads_what_was_spent_of_a_run_that_stopped_early(planned) -> None:  # type: ignore[no-untyped-def]
    """A full bucket is read off its guarantee, any other by the accountant."""
    _, plan = planned
    events = first_release(plan.controller).events(plan.facts)
    for steps in (10, plan.steps):
        ledger = Ledger(plan.terms())
        ledger.reserve("gradient", 0, steps, events)
        certificate = certify(ledger, Rdp())
        most = max((event for event in events.values() if isinstance(event, PoissonGaussian)), key=lambda e: e.rate)
        wanted = Rdp().epsilon([Repeated(most, steps)], plan.delta)
        assert max(certificate.spent_by_group.values()) == pytest.approx(wanted, rel=1e-9)
        assert (max(certificate.by_group.values()) == pytest.approx(wanted, rel=1e-9)) is (steps == plan.steps)
