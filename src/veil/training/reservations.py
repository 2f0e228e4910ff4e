"""Reservations: the cost of coming steps is in the ledger before any of their rows is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from veil.accounting import Event, Ledger
from veil.plans import Plan
from veil.problem import PublicFacts
from veil.releases import GradientRelease
from veil.sampling.draws import Poisson

RESERVED_AT_ONCE = 100


class Charged(Protocol):
    """What is charged for: it never changes, so that the same object costs the same."""

    def events(self, facts: PublicFacts) -> Mapping[int, Event]:
        """What each cell is charged."""
        ...


class Reservations:
    """Reserves in the run's ledger. There is none in a run that is not private, nor in a process that does not lead."""

    def __init__(self, plan: Plan, ledger: Ledger | None) -> None:
        self._plan, self.ledger = plan, ledger
        self.reserved: dict[str, tuple[int, Mapping[int, Event]]] = {}
        self._latest: dict[str, tuple[Charged, object, Mapping[int, Event]]] = {}
        self.entries = 0

    def reserve(self, purpose: str, charged: Charged, steady: int, step: int) -> None:
        """Put the cost of the coming steps on disk before any row is drawn: of `steady` steps that cost the same."""
        if self.ledger is None:
            return
        covered_until, covered = self.reserved.get(purpose, (0, {}))
        _, before, its_events = self._latest.get(purpose, (None, None, None))
        costs = _costs(charged)
        if step < covered_until and before == costs and its_events is covered:
            return
        events = charged.events(self._plan.facts)
        if step < covered_until and events == covered:
            self._latest[purpose] = charged, costs, covered
            return
        # Where a run is charged for the steps it made, none is reserved before its time.
        most = 1 if self._plan.settings.public_steps else RESERVED_AT_ONCE
        count = max(1, min(steady, most, self._plan.steps - step))
        self.charge(purpose, step, count, events)
        self.reserved[purpose] = (step + count, events)
        self._latest[purpose] = charged, costs, events

    def until(self, purpose: str, step: int) -> int:
        """The first step after this one whose cost is not reserved. Of a run that is not private, its end."""
        if self.ledger is None:
            return self._plan.steps
        return max(step + 1, self.reserved.get(purpose, (0, {}))[0])

    def charge(self, purpose: str, first: int, count: int, events: Mapping[int, Event]) -> None:
        """Reserve these events, whatever was reserved before."""
        if self.ledger is not None:
            self.entries = self.ledger.reserve(purpose, first, count, events)


def _costs(charged: Charged) -> object:
    """What events follow from: equal ones need not be computed again, which takes long where owners are many."""
    bound, draw = getattr(charged, "bound", None), getattr(charged, "draw", None)
    # A bound of the user's may change its limits, while all else of a release is fixed.
    limits = None if bound is None else tuple(bound.limits)
    if type(charged) is not GradientRelease or type(draw) is not Poisson:
        return id(charged), limits
    beside = tuple((one.limit, one.sigma) for one in charged.statistics)
    return tuple(draw.rates), limits, charged.sigma, charged.relation, beside
