"""Carrying over: splits a plan's releases into those of its own steps and all others.

A run that continues or shortens another must pay for everything that its weights depend on. Which releases belong to
the steps of a plan is known, if every step makes the same ones; whatever else its rules pay for (preprocessing, earlier
runs) is carried over whole. What cannot be taken apart in this way is rejected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from veil.accounting import AccountingError, Event, Rdp, RenyiFilter, Repeated, TokenBucket
from veil.accounting.accountant import Accountant
from veil.accounting.conversion import rho_for_budget
from veil.accounting.events import repeated
from veil.accounting.spending_rules import SpendingRule
from veil.errors import InputError, require
from veil.plans import Earlier, Plan
from veil.plans.controllers import Constant, first_release, gate
from veil.plans.controllers.following_tail import FollowingTail
from veil.problem import PublicFacts
from veil.releases import GradientRelease
from veil.sampling.draws import Poisson

GRADIENT = "gradient"
_BEFORE = "earlier "


def continues(plan: Plan) -> bool:
    """Whether a plan pays for the steps of a run that it continues."""
    return any(part.purpose.startswith(_BEFORE) for part in plan.earlier)


@dataclass(frozen=True)
class StepReleases:
    """What every step of a plan releases, by purpose and cell."""

    plan: Plan
    gradient: GradientRelease
    events: Mapping[str, Mapping[int, Event]]
    rules: tuple[SpendingRule, ...]

    @classmethod
    def of(cls, plan: Plan) -> StepReleases:
        """The releases of a plan whose steps all cost the same, in one release each; any other is rejected."""
        if plan.rules is None:
            raise InputError(f"{plan.method} is not private: it has no budgets to change")
        # A controller that is more than constant may make releases of its own.
        if plan.solver is not None or type(plan.controller) not in (Constant, FollowingTail):
            raise InputError(f"the steps of this {plan.method} plan differ: progression needs identical steps")
        release = first_release(plan.controller)
        require(isinstance(release.draw, Poisson), "progression needs Poisson sampling, with a rate for each owner")
        events: dict[str, Mapping[int, Event]] = {GRADIENT: release.events(plan.facts)}
        if plan.gate is not None:
            events[gate.PURPOSE] = plan.gate.events(plan.facts)
        return cls(plan, release, events, plan.rules)

    def own(self, cell: int, steps: int) -> tuple[Repeated, ...]:
        """What so many steps release of a cell."""
        return tuple(Repeated(events[cell], steps) for events in self.events.values() if cell in events)

    def others(self, cell: int) -> tuple[Repeated, ...]:
        """Everything that the plan pays for besides its own steps.

        Tokens are what was promised: a run that stopped early has still promised all of them. A Rényi filter
        promises a sum; what is known of it are the releases that were made before the first step.
        """
        rule = self.rules[cell]
        if isinstance(rule, RenyiFilter):
            parts = self.plan.earlier
            return repeated(Repeated(part.events[cell], part.count) for part in parts if cell in part.events)
        if not isinstance(rule, TokenBucket):
            raise InputError(f"{self.plan.method} uses a {type(rule).__name__}, which progression does not support")
        left = {token.event: token.times for token in repeated(rule.tokens)}
        for item in self.own(cell, self.plan.steps):
            left[item.event] = left.get(item.event, 0) - item.times
        require(
            all(times >= 0 for times in left.values()),
            f"the rules of this {self.plan.method} plan do not cover all of its steps: it cannot be continued",
        )
        return repeated(Repeated(event, times) for event, times in left.items())

    def promised(self, cell: int) -> tuple[Repeated, ...]:
        """Everything that the plan pays for."""
        return repeated([*self.others(cell), *self.own(cell, self.plan.steps)])

    def accountant(self, cell: int) -> Accountant:
        """The one that a cell's rule counts by: a Rényi filter at its own order only."""
        rule = self.rules[cell]
        return (
            Rdp([rule.order]) if isinstance(rule, RenyiFilter) else self.plan.settings.accountant_for(self.plan.facts)
        )

    def hold(self, facts: PublicFacts, steps: int) -> bool:
        """Whether all budgets of `facts` held after so many steps."""
        known: dict[Any, float] = {}
        for cell, rule in enumerate(self.rules):
            parts = repeated([*self.others(cell), *self.own(cell, steps)])
            order = rule.order if isinstance(rule, RenyiFilter) else None
            if (order, parts) not in known:
                known[order, parts] = self.accountant(cell).epsilon(parts, self.plan.delta)
            if known[order, parts] > facts.budget_of(cell, self.plan.settings.epsilon):
                return False
        return True

    def rule(self, cell: int, facts: PublicFacts, tokens: Sequence[Repeated]) -> SpendingRule:
        """The cell's rule under the budgets of `facts`: these tokens, or a Rényi filter at the same order.

        A Rényi filter stays one: what it admits follows from released values, so no tokens were fixed beforehand.
        """
        old, plan = self.rules[cell], self.plan
        if not isinstance(old, RenyiFilter):
            return TokenBucket(repeated(tokens))
        budget = facts.budget_of(cell, plan.settings.epsilon)
        if budget == plan.facts.budget_of(cell, plan.settings.epsilon):
            return old
        try:
            return RenyiFilter(old.order, rho_for_budget(budget, plan.delta, old.order))
        except AccountingError as error:
            raise InputError(f"ε = {budget:g} cannot be kept by the Rényi filter of this run: {error}") from error

    def as_earlier(self) -> tuple[Earlier, ...]:
        """All that the plan released, as a run that continues it records it."""
        earlier, first = self.plan.earlier, self.steps_before
        own = (Earlier(_BEFORE + name, first, self.plan.steps, events) for name, events in self.events.items())
        return (*earlier, *own)

    @property
    def steps_before(self) -> int:
        """How many steps the runs had that this one continues."""
        parts = (part for part in self.plan.earlier if part.purpose.startswith(_BEFORE))
        return max((part.first + part.count for part in parts), default=0)
