"""What a release costs is reserved anew whenever it may cost something else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

from veil.accounting import Account, Event, Gaussian, Ledger, Relation, Repeated, Terms, TokenBucket
from veil.bounding import Clip
from veil.plans import Plan
from veil.problem import Cell, PublicFacts
from veil.releases import GradientRelease, Statistic
from veil.sampling.draws import Poisson
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


def test_a_new_release_is_charged_by_all_that_it_does_even_where_it_looks_like_the_last_one() -> None:
    """Costs are taken from the last release only where rates, limits, noise and statistics are the same."""
    facts = PublicFacts(("a",), ("all",), (Cell(0, 0, 1000),), (1,))
    count = Statistic("count", lambda per_row, cells: per_row.norms[:, None], 0.5, 5.0)
    first = GradientRelease(Poisson((0.1,)), Clip((1.0,)), 2.0, 100.0, Relation.ADD_REMOVE, (count,))
    same = replace(first, bound=Clip((1.0,)), statistics=(replace(count, due=False),))
    dearer = [
        replace(first, draw=Poisson((0.2,))),
        replace(first, bound=Clip((1.1,))),
        replace(first, sigma=1.9),
        replace(first, statistics=(replace(count, sigma=2.5),)),
        replace(first, statistics=(replace(count, limit=0.9),)),
        replace(first, statistics=(count, count)),
    ]
    releases = [first, same, *dearer]
    events = [release.events(facts)[0] for release in releases]
    assert len(set(events)) == len(dearer) + 1
    rule = TokenBucket(tuple(Repeated(event, 200) for event in dict.fromkeys(events)))
    ledger = Ledger(
        Terms(Relation.ADD_REMOVE, 1e-5, "pld", (Account("a", "all", 1e9, rule),), {"method": "x", "steps": 100})
    )
    reservations = Reservations(plan_of(facts), ledger)
    for step, release in enumerate(releases):
        reservations.reserve("gradient", release, 1 if step else 100, step)
        charged = reservations.reserved["gradient"][1]
        assert charged[0] == events[step]
    assert len(ledger.entries) == len(dearer) + 1


def plan_of(facts: PublicFacts) -> Plan:
    return cast(Plan, SimpleNamespace(**{**vars(PLAN), "facts": facts}))
