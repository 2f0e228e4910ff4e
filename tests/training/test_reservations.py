"""What a release costs is reserved anew whenever it may cost something else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from veil.accounting import Account, Event, Gaussian, Ledger, Relation, Repeated, Terms, TokenBucket
from veil.plans import Plan
from veil.problem import PublicFacts
from veil.training.reservations import Reservations

PLAN = cast(Plan, SimpleNamespace(facts=None, settings=SimpleNamespace(public_steps=False), steps=100))


@dataclass
class Loosening:
    """A bound of the user's that changes while the run goes on."""

    limits: tuple[float, ...] = (1.0,)


@dataclass(frozen=True)
class Release:
    bound: Any = field(default_factory=Loosening)

    def events(self, facts: PublicFacts) -> Mapping[int, Event]:
        return {0: Gaussian(2.0 / self.bound.limits[0])}


def test_a_bound_that_grows_is_charged_for_from_then_on() -> None:
    rule = TokenBucket((Repeated(Gaussian(2.0), 100), Repeated(Gaussian(0.2), 100)))
    account = Account("a", "all", 1e9, rule)
    ledger = Ledger(Terms(Relation.ADD_REMOVE, 1e-5, "pld", (account,), {"method": "x", "steps": 100}))
    reservations, release = Reservations(PLAN, ledger), Release()
    reservations.reserve("gradient", release, 100, 0)
    reservations.reserve("gradient", release, 100, 1)
    assert len(ledger.entries) == 1
    release.bound.limits = (10.0,)
    reservations.reserve("gradient", release, 100, 2)
    assert len(ledger.entries) == 2
    assert Gaussian(0.2) in {token.event for token in ledger.spent(0)}
