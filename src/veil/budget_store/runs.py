"""Runs: the cost of a plan, and a run's states from reservation to end, with a copy in its folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from veil.accounting.accountant import Accountant
from veil.accounting.calibration import noise_multiplier
from veil.accounting.events import Gaussian, Relation, Repeated, Selection
from veil.accounting.spending_rules import TokenBucket
from veil.budget_store.costs import NAME_LENGTH, Cost, DataSet, amount, cost_of, largest, require_same_unit, total
from veil.budget_store.entries import Spending, State
from veil.budget_store.store import BudgetStore, new_claim
from veil.errors import InputError, require
from veil.foundation.files import write_whole

if TYPE_CHECKING:
    from veil.plans import Plan

SNAPSHOT = "budget.json"


@dataclass(frozen=True)
class RunReservation:
    """A run's own reservation: `begin` before the first row is read, `finish` at the end, `cancel` if none was read.

    `state` is the state found at the start: an earlier attempt in the same folder may have begun already.

    Args:
        store: The budget store.
        dataset: Name of the data set.
        spending: What the run may cost.
        claim: The run's own mark.
        folder: Where the run is stored, or None.
        state: The state found at the start.
    """

    store: BudgetStore
    dataset: str
    spending: Spending
    claim: str
    folder: Path | None = None
    state: State = "reserved"

    def begin(self) -> None:
        """Rows are read from now on: what was reserved stays charged, whatever happens."""
        self.store.begin(self.dataset, self.claim)
        self.keep("running")

    def finish(self) -> None:
        """The run is done."""
        self.store.finish(self.dataset, self.claim)
        self.keep("finished")

    def cancel(self) -> None:
        """No row was read: give the reservation back."""
        self.store.cancel(self.dataset, self.spending.run)
        self.keep("cancelled")

    def snapshot(self, state: str) -> dict[str, Any]:
        """What a report shows: what this run took, and how the budget stands at this moment.

        Args:
            state: The state of the run: "reserved", "running", "finished" or "cancelled".

        Returns:
            The values that the report of the run shows.
        """
        most = self.spending.most
        return {
            "store": self.store.place,
            "dataset": self.dataset,
            "run": self.spending.run,
            "claim": self.claim,
            "state": state,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "charged": {"epsilon": most.epsilon, "delta": most.delta, "rho": most.rho},
            "charged_by_cell": [
                {"group": group, "owner": owner, "epsilon": cost.epsilon, "delta": cost.delta}
                for (group, owner), cost in self.spending.cells.items()
            ],
            "limits": [balance.as_json() for balance in self.store.balances(self.dataset)],
        }

    def keep(self, state: str) -> None:
        """Write the snapshot into the run's folder, where there is one.

        Args:
            state: The state of the run, as for `snapshot`.
        """
        if self.folder is not None:
            _write(self.folder / SNAPSHOT, self.snapshot(state))


@dataclass(frozen=True)
class BudgetedRun:
    """A run, and the data set whose budget it is charged to.

    Args:
        store: A budget store, or where it is: a file or a PostgreSQL URL.
        dataset: Name of the data set in the store.
        name: Names the run in the store; one name is charged once.
        groups: Columns that make the run's groups.
        owner: Column of the run's owners, if it has any.
        person: Column of the people whom the run protects, if it protects people.
        folder: Where the mark of the charge is kept, so that a resumed run is not charged again.

    >>> BudgetedRun("budget.sqlite", "people", "survey of May", groups=("sex",)).owner is None
    True
    """

    store: BudgetStore | str | Path
    dataset: str
    name: str
    groups: Sequence[str] = ()
    owner: str | None = None
    person: str | None = None
    folder: Path | None = None

    def opened(self) -> BudgetStore:
        """The store.

        Returns:
            The store that was given, or the one at the place that was given.
        """
        return self.store if isinstance(self.store, BudgetStore) else BudgetStore.open(self.store)

    def shares_cells(self, terms: DataSet) -> bool:
        """Whether the run's cells are the budget's, so that each is charged its own cost.

        Args:
            terms: The data set as the store knows it.

        Returns:
            True if groups and owners are the same columns and the unit is a row.
        """
        same = tuple(self.groups) == terms.groups and (self.owner or "") == terms.owner
        return same and bool(terms.groups or terms.owner) and self.person is None


def reserve_for(plan: Plan, run: BudgetedRun, *, held_out: bool = False) -> RunReservation:
    """Reserve what a plan may spend, before any row is read.

    If the run's groups and owners are the budget's, every cell is charged its own cost, else every row the largest.
    People are all charged the largest cost, as nothing says that they count in the same group in every run.

    Args:
        plan: What the run may spend.
        run: The run, and the budget that it is charged to.
        held_out: Whether rows that take no part in training are measured with noise at the run's own (ε, δ). A row is
            then charged the larger of the two.

    Returns:
        The reservation, to be begun, finished or given back.

    Raises:
        BudgetExceeded: A limit would be overrun; nothing is charged.

    >>> import tempfile, veil
    >>> from veil.budget_store import BudgetStore, DataSet
    >>> from veil.datasets import GroupSpec, generate
    >>> place = tempfile.TemporaryDirectory()
    >>> store = BudgetStore.create(place.name + "/budget.sqlite")
    >>> _ = store.add_dataset(DataSet("people"), epsilon=3.0, delta=1e-3)
    >>> plan = veil.plan(generate([GroupSpec("all", 500)]), "dp-sgd", epsilon=1.0, steps=5)
    >>> reservation = reserve_for(plan, BudgetedRun(store, "people", "run 1"))
    >>> reservation.cancel()  # no row was read
    >>> [balance.left_epsilon for balance in store.balances("people")]
    [3.0]
    >>> place.cleanup()
    """
    store, terms = _terms(run)
    costs = _costs(plan, terms, held_out)
    by_cell = costs if run.shares_cells(terms) else {}
    return _reserved(store, run, Spending(run.name, largest(costs.values()), by_cell, plan.method))


def reserve_together(plans: Sequence[Plan], run: BudgetedRun) -> RunReservation:
    """Reserve what several runs on the same rows may spend, as one charge; all of them measure rows that they hold out.

    Args:
        plans: What each run may spend.
        run: The runs as one, and the budget that they are charged to.

    Returns:
        The reservation, to be begun, finished or given back.

    Raises:
        BudgetExceeded: A limit would be overrun; nothing is charged.

    >>> import tempfile, veil
    >>> from veil.budget_store import DataSet
    >>> problem = veil.Problem.from_arrays([[0.0], [1.0]] * 50, [0, 1] * 50)
    >>> plan = veil.plan(problem, "dp-sgd", epsilon=0.5, steps=4, batch_size=10)
    >>> with tempfile.TemporaryDirectory() as place:
    ...     store = BudgetStore.create(place + "/budget.sqlite")
    ...     store.add_dataset(DataSet("visits"), epsilon=3.0, delta=0.1)
    ...     charge = reserve_together([plan, plan], BudgetedRun(store, "visits", "two runs"))
    ...     print(charge.state, round(store.balances("visits")[0].left_epsilon, 1))
    reserved 2.0
    """
    store, terms = _terms(run)
    costs = [_costs(plan, terms, True) for plan in plans]
    by_cell: dict[tuple[str, str], Cost] = {}
    if run.shares_cells(terms):
        cells = dict.fromkeys(cell for own in costs for cell in own)
        by_cell = {cell: total(own[cell] for own in costs if cell in own) for cell in cells}
    method = ", ".join(dict.fromkeys(plan.method for plan in plans))
    return _reserved(store, run, Spending(run.name, total(largest(own.values()) for own in costs), by_cell, method))


def reserve_amount(
    run: BudgetedRun, *, epsilon: float, delta: float, relation: Relation, method: str = ""
) -> RunReservation:
    """Reserve an (ε, δ) for every row or person: for a run whose plan is not known before it reads rows.

    Args:
        run: The run, and the budget that it is charged to.
        epsilon: What the run costs every row or person.
        delta: The δ of that cost.
        relation: The neighbouring relation of that cost.
        method: Shown in the list of runs.

    Returns:
        The reservation, to be begun, finished or given back.

    Raises:
        BudgetExceeded: A limit would be overrun; nothing is charged.
        InputError: Relation or unit are not those of the data set.

    >>> import tempfile
    >>> from veil.budget_store import BudgetStore, DataSet
    >>> place = tempfile.TemporaryDirectory()
    >>> store = BudgetStore.create(place.name + "/budget.sqlite")
    >>> _ = store.add_dataset(DataSet("people"), epsilon=3.0, delta=1e-5)
    >>> run = BudgetedRun(store, "people", "run 1")
    >>> reservation = reserve_amount(run, epsilon=1.0, delta=1e-6, relation=Relation.ADD_REMOVE)
    >>> reservation.begin()
    >>> reservation.finish()
    >>> [balance.left_epsilon for balance in store.balances("people")]
    [2.0]
    >>> place.cleanup()
    """
    store, terms = _terms(run)
    return _reserved(store, run, Spending(run.name, amount(epsilon, delta, terms, relation), method=method))


def _terms(run: BudgetedRun) -> tuple[BudgetStore, DataSet]:
    """The store and the data set as it knows it; the run must protect what the budget counts: rows or people."""
    store = run.opened()
    terms = store.dataset(run.dataset)
    require_same_unit(terms, run.person)
    return store, terms


def _costs(plan: Plan, terms: DataSet, held_out: bool) -> dict[tuple[str, str], Cost]:
    """The cost of each cell; equal rules are worked out once."""
    if plan.rules is None or plan.relation is None:
        raise InputError(f"{plan.method} is not private: its privacy loss is unlimited, so no budget allows it")
    accountant, facts = plan.settings.accountant_for(plan.facts), plan.facts
    require(
        facts.rows_together == 1 or terms.order is None,
        f'the budget of "{terms.name}" adds Rényi costs, which count one row of a person: use person_rows mean, or a '
        "budget with composition by sum",
    )
    searched = any(isinstance(token.event, Selection) for rule in plan.rules for token in getattr(rule, "tokens", ()))
    require(
        not searched or terms.order is None,
        f'the budget of "{terms.name}" adds Rényi costs, and those of the rows that a search chooses by are not known '
        "to it: use a budget with composition by sum",
    )
    besides = [_measurement(plan, terms, plan.settings.accountant_for())] if held_out else []
    known: dict[Any, Cost] = {}
    for rule in plan.rules:
        if rule not in known:
            own = cost_of(rule, rule.guarantee(plan.delta, accountant), plan.delta, terms, plan.relation)
            known[rule] = largest([own, *besides])
    return {
        (facts.groups[cell.group], facts.owners[cell.owner]): known[rule]
        for cell, rule in zip(facts.cells, plan.rules, strict=True)
    }


def _measurement(plan: Plan, terms: DataSet, accountant: Accountant) -> Cost:
    """The cost to a held-out row: one Gaussian release at the run's smallest ε (`veil.metrics.noisy_confusion`)."""
    relation = plan.relation or Relation.ADD_REMOVE
    budget = min((plan.settings.epsilon, *(plan.facts.budgets or ())))
    kappa = noise_multiplier(lambda k: [Gaussian(k, relation, one_sided=True)], budget, plan.delta, accountant)
    rule = TokenBucket((Repeated(Gaussian(kappa, relation, one_sided=True)),))
    return cost_of(rule, budget, plan.delta, terms, relation)


def _reserved(store: BudgetStore, run: BudgetedRun, spending: Spending) -> RunReservation:
    mark = new_claim()
    if run.folder is not None:
        mark, name = _mark(run.folder, spending.run)
        spending = replace(spending, run=name)
    state = store.reserve(run.dataset, spending, mark).state
    reservation = RunReservation(store, run.dataset, spending, mark, run.folder, state)
    reservation.keep(state)
    return reservation


def _mark(folder: Path, run: str) -> tuple[str, str]:
    """The run's mark and name: those of an earlier attempt, or new ones, on disk before anything is reserved."""
    path = folder / SNAPSHOT
    if path.exists():
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            claim, name, state = record["claim"], record["run"], record["state"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise InputError(f"{path} is damaged: what the run has reserved is unknown") from error
        text = all(isinstance(value, str) and 0 < len(value) <= NAME_LENGTH for value in (claim, name))
        require(text and len(claim) <= 64, f"{path} is damaged: it does not identify the run")
        if state != "cancelled":
            return str(claim), str(name)
    folder.mkdir(parents=True, exist_ok=True)
    claim = new_claim()
    _write(path, {"claim": claim, "run": run, "state": "asked"})
    return claim, run


def _write(path: Path, record: Mapping[str, Any]) -> None:
    """Whole or not at all, and on disk when this returns."""
    text = json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False)
    write_whole(path, f"{text}\n".encode(), mode=0o644)
