"""Charging: a run on a table is charged to its data set's budget (`veil.budget_store`)."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from veil.accounting import Relation
from veil.errors import InputError, require
from veil.plans import Plan
from veil.tables.table import Columns
from veil.training import Callback

if TYPE_CHECKING:  # a store is loaded where a run is charged, and few are
    from veil.budget_store import BudgetedRun, RunReservation


def budgeted_run(store: str, dataset: str, columns: Columns | None, folder: Path, name: str) -> BudgetedRun:
    """The run in this folder, charged to this data set's budget; without columns it is one on images.

    What follows `name` makes it one that no other run has. When it began stays out: beside its end that tells how long
    a search took.
    """
    from veil.budget_store import BudgetedRun

    own = f"{name}, {secrets.token_hex(4)}"
    if columns is None:
        return BudgetedRun(store, dataset, own, ("class",), folder=folder)
    return BudgetedRun(store, dataset, own, columns.groups, columns.owner, columns.person, folder)


class Charge(Callback):
    """Reserves what the plan may spend as soon as there is a plan; from the first step on it stays charged.

    `reads_more` names what the run reads from the rows without noise: no ε covers it, and the store records it.
    """

    def __init__(self, run: BudgetedRun, *, resumed: bool, held_out: bool, reads_more: Sequence[str] = ()) -> None:
        self._run, self._resumed, self._held_out, self._reads_more = run, resumed, held_out, tuple(reads_more)
        self._reservation: RunReservation | None = None
        self._begun = False

    def reserve_whole(self, epsilon: float, delta: float, relation: Relation, method: str) -> None:
        """For a run that reads rows before it has a plan (private preprocessing): all that it may ever spend."""
        from veil.budget_store import reserve_amount

        self._take(reserve_amount(self._run, epsilon=epsilon, delta=delta, relation=relation, method=method))
        self.on_start()

    def reserve(self, plan: Plan) -> None:
        """What a plan may spend, unless everything was reserved before."""
        from veil.budget_store import reserve_for

        require(plan.private, f"{plan.method} is not private: its privacy loss is unlimited, so no budget allows it")
        if self._reservation is None:
            self._take(reserve_for(plan, self._run, held_out=self._held_out))

    def _take(self, found: RunReservation) -> None:
        """A run that is resumed repeats its releases; any other makes new ones, which an old charge does not pay."""
        from veil.budget_store.runs import SNAPSHOT

        require(
            self._resumed or found.state == "reserved",
            f"{SNAPSHOT} in {found.folder} belongs to another run that has read rows. Use a new --out.",
        )
        self._reservation = found

    def on_start(self, plan: Plan | None = None) -> None:
        """Rows are read from now on."""
        if self._reservation is not None and not self._begun:
            if self._reads_more:
                from veil.budget_store import NOT_CHARGED

                note = NOT_CHARGED + ", ".join(self._reads_more)
                self._reservation.store.remark(self._run.dataset, self._reservation.claim, note)
            if self._reservation.state != "finished":  # a run that was cut short after its very last step
                self._reservation.begin()
            self._begun = True

    def finish(self) -> None:
        """The run is done."""
        if self._reservation is not None:
            self._reservation.finish()

    def give_back(self) -> None:
        """The run ended: what it reserved is given back only if it read no row."""
        if self._reservation is not None and not self._begun:
            with suppress(InputError):  # a run that an earlier process began stays charged, and its error is to be seen
                self._reservation.cancel()
