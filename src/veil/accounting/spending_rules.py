"""Spending rules, fixed in the plan, that refuse a release before it would overrun a budget.

A *guarantee* comes from the rule alone: whatever the run chose under the rule, it holds. What has been spent so far is
an *odometer reading*: useful to look at, but no guarantee when the choice to stop looked at released values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from veil.accounting.accountant import Accountant
from veil.accounting.conversion import epsilon_at_order, log_delta_at_order
from veil.accounting.events import AccountingError, Envelope, Event, Repeated, repeated, repeated_from_json, to_json
from veil.accounting.rdp import cost_at


class SpendingRule(Protocol):
    """A rule for one cell: which further releases it admits and what it guarantees at the end."""

    def refusal(self, spent: Mapping[Event, int], asked: Repeated) -> str | None:
        """Why `asked` may not happen after `spent`, or None if it may. Depends on public facts only.

        Args:
            spent: What was charged so far: each event with how often.
            asked: The release that is asked for, with how often.

        Returns:
            The reason for a refusal as a sentence, or None if the release is allowed.
        """

    def guarantee(self, delta: float, accountant: Accountant) -> float:
        """The ε that holds whatever happened under this rule.

        Args:
            delta: δ of the statement, strictly between 0 and 1.
            accountant: Computes ε from events.

        Returns:
            ε of everything that the rule can allow.
        """

    def total_variation(self, accountant: Accountant) -> float:
        """The total variation distance between neighbours, whatever happened under this rule; at most 1.

        Args:
            accountant: Computes δ from events.

        Returns:
            A number between 0 and 1.
        """

    def reading(self, spent: Iterable[Repeated], delta: float, accountant: Accountant) -> float:
        """The ε of what has been spent so far; not a guarantee.

        Args:
            spent: What was charged so far.
            delta: δ of the statement, strictly between 0 and 1.
            accountant: Computes ε from events.

        Returns:
            ε of what was charged so far.
        """

    def as_json(self) -> dict[str, Any]:
        """The rule as plain JSON values.

        Returns:
            What a ledger stores of the rule; `rule` has its kind.
        """


@dataclass(frozen=True, slots=True)
class TokenBucket:
    """The plan commits how often each event may happen; the run chooses only their order.

    Because the multiset of events is fixed beforehand, any accountant that composes them is sound, PLD included. A
    schedule that never looks at a released value is the special case with one possible order. A token may be an
    `Envelope`: it pays for any one of its events, whichever the run chooses.

    Args:
        tokens: Events with how often each may happen.

    >>> from veil.accounting import Gaussian
    >>> bucket = TokenBucket((Repeated(Gaussian(1.0), 2),))
    >>> bucket.refusal({Gaussian(1.0): 2}, Repeated(Gaussian(1.0)))
    'the plan allows this release 2 times and 2 are spent'
    """

    tokens: tuple[Repeated, ...]

    def refusal(self, spent: Mapping[Event, int], asked: Repeated) -> str | None:
        """Reject what the plan has no token left for.

        Args:
            spent: What was charged so far: each event with how often.
            asked: The release that is asked for, with how often.

        Returns:
            The reason for a refusal as a sentence, or None if the release is allowed.
        """
        token = next((token for token in self.tokens if _pays_for(token.event, asked.event)), None)
        allowed = token.times if token else 0
        used = sum(times for event, times in spent.items() if token and _pays_for(token.event, event))
        if used + asked.times <= allowed:
            return None
        return f"the plan allows this release {allowed} times and {used} are spent"

    def guarantee(self, delta: float, accountant: Accountant) -> float:
        """ε of all tokens together.

        Args:
            delta: δ of the statement, strictly between 0 and 1.
            accountant: Computes ε from events.

        Returns:
            ε of everything that the rule can allow.
        """
        return accountant.epsilon(self.tokens, delta)

    def total_variation(self, accountant: Accountant) -> float:
        """δ of all tokens together at ε = 0.

        Args:
            accountant: Computes δ from events.

        Returns:
            A number between 0 and 1.
        """
        return min(1.0, accountant.delta(self.tokens, 0.0))

    def reading(self, spent: Iterable[Repeated], delta: float, accountant: Accountant) -> float:
        """ε of the tokens used so far.

        Args:
            spent: What was charged so far.
            delta: δ of the statement, strictly between 0 and 1.
            accountant: Computes ε from events.

        Returns:
            ε of what was charged so far.
        """
        return accountant.epsilon(tuple(spent), delta)

    def as_json(self) -> dict[str, Any]:
        """The rule as plain JSON values.

        Returns:
            What a ledger stores of the rule; `rule` has its kind.
        """
        tokens = [{"event": to_json(token.event), "times": token.times} for token in self.tokens]
        return {"rule": "token-bucket", "tokens": tokens}


@dataclass(frozen=True, slots=True)
class RenyiFilter:
    """Releases may be chosen adaptively as long as their Rényi costs at one fixed order stay within `rho`.

    Feldman and Zrnic (2021), Lécuyer (2021): the sum of adaptively chosen RDP costs at a fixed order, stopped before
    it exceeds ρ, is ρ-RDP at that order. The conversion to (ε, δ) happens at that order only.

    Args:
        order: The Rényi order, above 1.
        rho: The largest sum of costs at this order.

    >>> from veil.accounting import Gaussian, Repeated
    >>> rule = RenyiFilter(order=8.0, rho=0.5)
    >>> rule.refusal({}, Repeated(Gaussian(4.0))) is None
    True
    >>> rule.refusal({Gaussian(4.0): 1}, Repeated(Gaussian(2.0))) is None  # chosen later, and too much
    False
    """

    order: float
    rho: float

    def refusal(self, spent: Mapping[Event, int], asked: Repeated) -> str | None:
        """Reject what would bring the sum of costs above ρ.

        Args:
            spent: What was charged so far: each event with how often.
            asked: The release that is asked for, with how often.

        Returns:
            The reason for a refusal as a sentence, or None if the release is allowed.
        """
        used = self._cost(Repeated(event, times) for event, times in spent.items())
        cost = self._cost([asked])
        if used + cost <= self.rho * (1 + 1e-12):
            return None
        left = max(self.rho - used, 0.0)
        return f"it costs {cost:.4g} at order {self.order:g} and {left:.4g} of {self.rho:.4g} are left"

    def guarantee(self, delta: float, accountant: Accountant) -> float:
        """ρ converted at the fixed order (`accountant` plays no part).

        Args:
            delta: δ of the statement, strictly between 0 and 1.
            accountant: Computes ε from events.

        Returns:
            ε of everything that the rule can allow.
        """
        return float(epsilon_at_order(self.rho, self.order, delta))

    def total_variation(self, accountant: Accountant) -> float:
        """What ρ proves at ε = 0 (`accountant` plays no part).

        Args:
            accountant: Computes δ from events.

        Returns:
            A number between 0 and 1.
        """
        return float(np.exp(log_delta_at_order(self.rho, self.order, 0.0)))

    def reading(self, spent: Iterable[Repeated], delta: float, accountant: Accountant) -> float:
        """The costs so far converted at the fixed order.

        Args:
            spent: What was charged so far.
            delta: δ of the statement, strictly between 0 and 1.
            accountant: Computes ε from events.

        Returns:
            ε of what was charged so far.
        """
        cost = self._cost(spent)
        return float(epsilon_at_order(cost, self.order, delta)) if cost > 0 else 0.0

    def _cost(self, events: Iterable[Repeated]) -> float:
        return sum(item.times * cost_at(item.event, self.order) for item in events)

    def as_json(self) -> dict[str, Any]:
        """The rule as plain JSON values.

        Returns:
            What a ledger stores of the rule; `rule` has its kind.
        """
        return {"rule": "renyi-filter", "order": self.order, "rho": self.rho}


@lru_cache(maxsize=4096)
def _members(token: Envelope) -> frozenset[Event]:
    return frozenset(token.events)


def _pays_for(token: Event, event: Event) -> bool:
    return token == event or (isinstance(token, Envelope) and event in _members(token))


def rule_from_json(record: Any) -> SpendingRule:
    """Read back what `as_json` wrote; anything else raises `AccountingError`."""
    try:
        if record["rule"] == "token-bucket":
            return TokenBucket(repeated(repeated_from_json(token) for token in record["tokens"]))
        if record["rule"] == "renyi-filter":
            order, rho = float(record["order"]), float(record["rho"])
            if not (1 < order < math.inf and 0 <= rho < math.inf):
                raise AccountingError("a Rényi filter needs a finite order above 1 and a finite cost")
            return RenyiFilter(order, rho)
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise AccountingError(f"not a valid spending rule: {str(error)[:200]}") from error
    raise AccountingError(f"unknown spending rule: {str(record['rule'])[:80]!r}")
