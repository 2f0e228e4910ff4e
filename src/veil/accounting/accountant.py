"""The protocol that every accountant follows: events in, (ε, δ) out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from veil.accounting.events import Event, Repeated


class Accountant(Protocol):
    """Turns events into the (ε, δ) they cost together, under adaptive composition of a schedule fixed in the plan.

    No event at all costs ε = 0 and δ = 0. An event that the accountant cannot charge, or events of two
    neighbouring relations, raise `AccountingError`.
    """

    @property
    def name(self) -> str:
        """The word on the command line and the certificate: "rdp", "pld" or "gdp"."""
        ...

    @property
    def approximate(self) -> bool:
        """True when the numbers may underestimate the cost: such an accountant is never used for a certificate."""
        ...

    def supports(self, event: Event) -> bool:
        """Whether this accountant has a proved cost for the event.

        Args:
            event: One release.

        Returns:
            True if `epsilon` and `delta` accept it.
        """
        ...

    def epsilon(self, events: Iterable[Event | Repeated], delta: float) -> float:
        """The smallest ε ≥ 0 it can prove at this δ; `math.inf` when it can prove none.

        Args:
            events: What was released, all under one neighbouring relation.
            delta: δ of the statement, strictly between 0 and 1.

        Returns:
            ε ≥ 0, an upper bound on the true one; 0 for no events.

        Raises:
            AccountingError: δ is out of range, or the events have different relations.
        """
        ...

    def delta(self, events: Iterable[Event | Repeated], epsilon: float) -> float:
        """The smallest δ in [0, 1] it can prove at this ε.

        Args:
            events: What was released, all under one neighbouring relation.
            epsilon: ε of the statement, at least 0.

        Returns:
            δ between 0 and 1, an upper bound on the true one.

        Raises:
            AccountingError: ε is negative, or the events have different relations.
        """
        ...
