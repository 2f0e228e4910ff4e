"""Reporting: after every step its record in the history and its report to the callbacks, with figures and odometer."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from torch import nn

from veil.accounting import Account, Accountant, Ledger, Repeated
from veil.accounting.events import PoissonGaussian
from veil.accounting.rdp import quick_epsilon
from veil.accounting.spending_rules import SpendingRule, TokenBucket
from veil.metrics import GroupMetrics, evaluate
from veil.plans import Plan
from veil.problem import Problem
from veil.training.callbacks import Callback, StepReport
from veil.training.optimizer import WeightAverage
from veil.training.reservations import Reservations
from veil.training.side_effects import SideEffects


@dataclass
class Reporter:
    """Passes a run's steps to history and callbacks. `read` counts the ledger's entries at the last reading."""

    model: nn.Module
    plan: Plan
    evaluation: Problem | None
    callbacks: Sequence[Callback]
    reservations: Reservations
    side_effects: SideEffects
    average: WeightAverage
    history: list[dict[str, Any]] = field(default_factory=list, init=False)
    read: int | None = field(default=None, init=False)
    _readings: dict[int, dict[str, float]] = field(default_factory=dict, init=False)
    _latest: dict[str, tuple[object, list[float]]] = field(default_factory=dict, init=False)

    @contextmanager
    def around(self) -> Iterator[None]:
        """Tell the callbacks before the first step and after the last one, also when a run is interrupted."""
        for callback in self.callbacks:
            callback.on_start(self.plan)
        try:
            yield
        finally:
            for callback in self.callbacks:
                callback.on_end()

    def report(self, step: int, state: Mapping[str, Any], statistics: Mapping[str, Any], view: Any) -> None:
        """One finished step. Only callbacks that are marked as private get the `view`."""
        metrics = self._evaluate(step)
        spent = self._spent(step)
        record: dict[str, Any] = {"step": step, "epsilon": max(spent.values(), default=None)}
        for name, values in state.items():
            record[name] = self._told(name, values)
        for name, values in statistics.items():
            record[name] = _numbers(values)
        if metrics is not None:
            record["worst_group_accuracy"] = metrics.worst_group_accuracy
            record["average_group_accuracy"] = metrics.average_group_accuracy
            record["accuracy"] = metrics.accuracy
            record["group_accuracy"] = [score.accuracy for score in metrics.by_group.values()]
        self.history.append(record)
        for callback in self.callbacks:
            seen = view if callback.private else None
            callback.on_step(StepReport(step, self.plan, self.model, state, statistics, metrics, spent, seen))

    def _told(self, name: str, values: Any) -> list[float]:
        """The numbers of a part of the state, most of which stay the same until something new is released."""
        found = np.asarray(values)
        if found.dtype.hasobject:  # their bytes are addresses
            return _numbers(found)
        mark = found.dtype, found.shape, found.tobytes()
        before = self._latest.get(name)
        if before is None or before[0] != mark:
            before = self._latest[name] = mark, _numbers(found)
        return copy.deepcopy(before[1]) if found.ndim > 1 else list(before[1])

    def hear_of(self, step: int, state: Mapping[str, Any]) -> None:
        """A step of a solver, which reserves by itself."""
        if self.reservations.ledger is not None:
            self.reservations.entries = len(self.reservations.ledger.entries)
        self.report(step, state, {}, None)

    def steering(self) -> list[Callback]:
        """The callbacks whose state a checkpoint keeps."""
        return [callback for callback in self.callbacks if callback.steers()]

    def _evaluate(self, step: int) -> GroupMetrics | None:
        every = self.plan.settings.evaluate_every or max(1, self.plan.steps // 20)
        if self.evaluation is None or ((step + 1) % every and step + 1 != self.plan.steps):
            return None
        with self.side_effects.undone(), self.average.installed():
            return evaluate(self.model, self.evaluation, self.plan.facts.groups)

    def _spent(self, step: int) -> dict[str, float]:
        """The odometer by group, read at the first step and twenty times a run: a reading can cost more than a step.

        Before the last step it may be an upper bound of what was spent.
        """
        ledger = self.reservations.ledger
        if ledger is None:
            return {}
        last = step + 1 == self.plan.steps
        if last or self.read is None or (step + 1) % max(1, self.plan.steps // 20) == 0:
            self.read = self.reservations.entries
        if last:
            self._readings = {}
        if self.read not in self._readings:
            # After a crash the ledger may be ahead of the run: the history shows what this step had cost.
            self._readings = {}
            self._readings[self.read] = spent_by_group(ledger.upto(self.read), self.plan, exact=last)
        return self._readings[self.read]


def _numbers(values: Any) -> list[float]:
    numbers: list[float] = np.atleast_1d(values).astype(float).tolist()
    return numbers


def spent_by_group(ledger: Ledger, plan: Plan, exact: bool = True) -> dict[str, float]:
    """ε of what has been reserved so far, by group: a reading, not a guarantee.

    With `exact` False, a cell with several kinds of events, which PLD composes one by one, is read by remembered Rényi
    costs: an upper bound. The guarantee of its rule is another, whatever part of its tokens was used.
    """
    accountant = plan.settings.accountant_for(plan.facts)
    quick = not exact and accountant.name == "pld" and plan.facts.rows_together == 1
    known: dict[Any, float] = {}
    largest: dict[str, float] = {}
    for cell in _costliest(ledger):
        account = ledger.terms.accounts[cell]
        key = (account.rule, frozenset(ledger.spent(cell)))
        if key not in known and quick and isinstance(account.rule, TokenBucket) and len(ledger.spent(cell)) > 1:
            known[key] = _at_most(account, ledger.spent(cell), ledger.terms.delta, accountant)
        elif key not in known:
            known[key] = account.rule.reading(ledger.spent(cell), ledger.terms.delta, accountant)
        largest[account.group] = max(largest.get(account.group, 0.0), known[key])
    return largest


def _at_most(account: Account, spent: Sequence[Repeated], delta: float, accountant: Accountant) -> float:
    """An upper bound of ε of a part of a rule's tokens."""
    found = quick_epsilon(spent, delta)
    if found <= account.budget:
        return found
    return min(found, _guarantee(account.rule, delta, accountant))  # type: ignore[arg-type]


@lru_cache(maxsize=1024)
def _guarantee(rule: SpendingRule, delta: float, accountant: Accountant) -> float:
    return rule.guarantee(delta, accountant)


def _costliest(ledger: Ledger) -> list[int]:
    """The cells that a group's largest ε can come from: of those that differ in their rate alone, the most drawn."""
    best: dict[Any, tuple[float, int]] = {}
    for cell, account in enumerate(ledger.terms.accounts):
        spent = ledger.spent(cell)
        event = spent[0].event if len(spent) == 1 else None
        if isinstance(account.rule, TokenBucket) and isinstance(event, PoissonGaussian):
            key = (account.group, event.noise_multiplier, event.relation, spent[0].times)
            best[key] = max(best.get(key, (0.0, cell)), (event.rate, cell))
        else:
            best[cell] = (0.0, cell)
    return sorted(cell for _, cell in best.values())
