"""BudgetStore: data sets, limits and runs, changed one at a time per data set.

Every change of a data set first raises its `turn`. The database lets one transaction do that at a time, so a second one
reads only what the first has committed: two reservations can never both spend the same remainder.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, CursorResult, Engine, Row, func, insert, inspect, select, text, update
from sqlalchemy.exc import DBAPIError

from veil.accounting.events import Relation
from veil.accounting.ledger import BudgetExceeded
from veil.budget_store.balance import Balance, Charge, Limit, balance, check_limit, overrun
from veil.budget_store.connecting import (
    PATIENCE,
    engine_for,
    in_words,
    new_file,
    patiently,
    read_only,
    reading,
    shown,
    store_url,
)
from veil.budget_store.costs import Cost, DataSet, checked_name, order_for
from veil.budget_store.entries import (
    FORMAT,
    Entry,
    Spending,
    State,
    cells,
    datasets,
    formats,
    limits,
    metadata,
    runs,
)
from veil.errors import InputError, require

T = TypeVar("T")


class BudgetStore:
    """An open budget store; safe to use from many processes and machines at once.

    Args:
        url: Address of the database. `BudgetStore.open` and `create` take a file or a URL instead.
        engine: The connection.
        patience: How many seconds a broken connection is retried.

    >>> import tempfile
    >>> from veil.budget_store import BudgetStore, Cost, DataSet, Spending
    >>> place = tempfile.TemporaryDirectory()
    >>> store = BudgetStore.create(place.name + "/budget.sqlite")
    >>> _ = store.add_dataset(DataSet("people"), epsilon=3.0, delta=1e-5)
    >>> store.reserve("people", Spending("survey of May", Cost(1.0, 0.0))).state
    'reserved'
    >>> [balance.left_epsilon for balance in store.balances("people")]
    [2.0]
    >>> place.cleanup()
    """

    def __init__(self, url: URL, engine: Engine, patience: float) -> None:
        self._url, self._engine, self._patience = url, engine, patience

    @classmethod
    def open(cls, place: str | Path, *, patience: float = PATIENCE, writable: bool = True) -> BudgetStore:
        """Open an existing store.

        Args:
            place: An SQLite file or a PostgreSQL URL.
            patience: How many seconds a broken connection is retried.
            writable: Without it nothing can be changed, and a store of an earlier format is not brought up to this one.

        Returns:
            The store.

        Raises:
            InputError: There is no store, or it cannot be read.
        """
        url = store_url(place)
        missing = f"there is no budget store at {shown(url)}: create one with veil budget create"
        require(url.get_backend_name() != "sqlite" or Path(str(url.database)).exists(), missing)
        engine = engine_for(url, patience) if writable else read_only(url, patience)
        with in_words(url), reading(engine).connect() as connection:
            require(inspect(connection).has_table(formats.name), missing)
            version = connection.execute(select(formats.c.version)).scalar()
        require(writable or version != 1, f"{shown(url)} has format 1: `veil budget show` brings it up to date")
        if version == 1:
            version = _brought_up(engine)
        require(version == FORMAT, f"{shown(url)} has format {version}, this version of Veil reads {FORMAT}")
        return cls(url, engine, patience)

    @classmethod
    def create(cls, place: str | Path, *, patience: float = PATIENCE) -> BudgetStore:
        """Open an existing store, or create one without data sets.

        Args:
            place: An SQLite file or a PostgreSQL URL.
            patience: How many seconds a broken connection is retried.

        Returns:
            The store.

        Raises:
            InputError: The place cannot be reached, or holds something else.
        """
        url = store_url(place)
        if url.get_backend_name() == "sqlite":
            new_file(url)
        engine = engine_for(url, patience)
        with in_words(url):
            try:
                _make_tables(engine)
            except DBAPIError:
                _make_tables(engine)  # somebody else made them at the same moment
        return cls.open(place, patience=patience)

    @property
    def place(self) -> str:
        """Where the store is, without its password."""
        return shown(self._url)

    def add_dataset(self, dataset: DataSet, *, epsilon: float, delta: float) -> None:
        """Add a data set with a limit of (ε, δ) per row for all runs together.

        Args:
            dataset: Its name, neighbouring relation, group columns and way of composition.
            epsilon: The limit of ε, above 0.
            delta: The limit of δ.

        Raises:
            InputError: The data set has a budget already, or a limit is out of range.
            AccountingError: The composition cannot enforce the limit, such as Rényi composition with δ = 0.
        """
        if dataset.composition == "renyi" and dataset.order is None:
            dataset = replace(dataset, order=order_for(epsilon, delta))
        total = Limit(epsilon, delta)
        check_limit(total, dataset)

        def act(connection: Connection) -> None:
            found = connection.execute(select(datasets.c.id).where(datasets.c.name == dataset.name)).scalar()
            require(found is None, f'data set "{dataset.name}" already has a budget: see veil budget show')
            made = connection.execute(
                insert(datasets).values(
                    name=dataset.name,
                    relation=dataset.relation.value,
                    groups=json.dumps(dataset.groups),
                    owner=dataset.owner,
                    person=dataset.person,
                    composition=dataset.composition,
                    rdp_order=dataset.order,
                    turn=0,
                    made=_now(),
                )
            )
            _add_limit(connection, _number(made), total)

        self._do(act)

    def add_limit(self, dataset: str, limit: Limit) -> None:
        """Add a limit for a group or an owner, or lower it. A limit cannot be raised.

        Args:
            dataset: Name of the data set.
            limit: The limit with its group, its owner, or both.

        Raises:
            InputError: There is no such data set, or the limit is above the present one.
        """
        checked_name(limit.group or "-", "the name of a group")
        checked_name(limit.owner or "-", "the name of an owner")

        def act(connection: Connection) -> None:
            row = _take_turn(connection, dataset)
            check_limit(limit, _dataset(row))
            for number, known in _limits(connection, row.id):
                if (known.group, known.owner) == (limit.group, limit.owner):
                    require(
                        limit.epsilon <= known.epsilon and limit.delta <= known.delta,
                        f"the limit for {limit.name()} is ε = {known.epsilon:g}, δ = {known.delta:g}: a limit can be "
                        "lowered but not raised",
                    )
                    lower = update(limits).where(limits.c.id == number)
                    connection.execute(lower.values(epsilon=limit.epsilon, delta=limit.delta))
                    return
            _add_limit(connection, row.id, limit)

        self._do(act)

    def dataset(self, name: str) -> DataSet:
        """What was fixed when the budget was made.

        Args:
            name: Name of the data set.

        Returns:
            Its relation, group columns and way of composition.

        Raises:
            InputError: There is no such data set.
        """
        return self._look(lambda connection: _dataset(_found(connection, name)))

    def names(self) -> list[str]:
        """All data sets that have a budget.

        Returns:
            The names in alphabetical order.
        """
        found = self._look(lambda c: list(c.execute(select(datasets.c.name).order_by(datasets.c.name)).scalars()))
        return [str(name) for name in found]

    def reserve(self, dataset: str, spending: Spending, claim: str | None = None) -> Entry:
        """Charge a run; on disk when this returns. Rejected with `BudgetExceeded` if any limit would be overrun.

        `claim` is the run's own mark. Repeating the call with the same mark (a resumed run, a broken connection) costs
        nothing more; another run of the same name is rejected.

        Args:
            dataset: Name of the data set.
            spending: The run and what it costs each cell.
            claim: The run's own mark; None makes a new one.

        Returns:
            The run as it stands in the store.

        Raises:
            BudgetExceeded: A limit would be exceeded. Nothing was charged.
            InputError: There is no such data set, or another run has this name.
        """
        mark = claim or new_claim()

        def act(connection: Connection) -> Entry:
            row = _take_turn(connection, dataset)
            earlier = connection.execute(select(runs).where(runs.c.claim == mark)).one_or_none()
            if earlier is not None:
                _require_same(connection, earlier, row, spending)
                return _entry(earlier, row.name)
            same_name = (runs.c.dataset == row.id) & (runs.c.name == spending.run) & (runs.c.state != "cancelled")
            taken = select(func.count()).where(same_name)
            require(
                connection.execute(taken).scalar() == 0,
                f'a run "{spending.run}" has already reserved from "{dataset}": use another name',
            )
            known, asked = _charges(connection, row.id), Charge(spending.most, spending.cells)
            for _, limit in _limits(connection, row.id):
                reason = overrun(limit, known, asked, _dataset(row))
                if reason is not None:
                    raise BudgetExceeded(reason)
            _write(connection, row.id, mark, spending)
            return _entry(connection.execute(select(runs).where(runs.c.claim == mark)).one(), row.name)

        return self._do(act)

    def begin(self, dataset: str, claim: str) -> None:
        """Record that rows are read from now on: the reservation can no longer be cancelled.

        Args:
            dataset: Name of the data set.
            claim: The run's own mark.

        Raises:
            InputError: There is no such data set or run, or the run is in another state.
        """
        self._move(dataset, runs.c.claim == claim, ("reserved", "running"), "running")

    def finish(self, dataset: str, claim: str) -> None:
        """Record that the run is done. Its reservation stays charged.

        Args:
            dataset: Name of the data set.
            claim: The run's own mark.

        Raises:
            InputError: There is no such data set or run, or the run is in another state.
        """
        self._move(dataset, runs.c.claim == claim, ("running", "finished"), "finished")

    def cancel(self, dataset: str, run: str) -> None:
        """Cancel a reservation; rejected once the run has begun to read rows.

        Args:
            dataset: Name of the data set.
            run: Name of the run.

        Raises:
            InputError: There is no such data set or run, or the run has begun.
        """
        self._move(dataset, runs.c.name == run, ("reserved", "cancelled"), "cancelled")

    def balances(self, dataset: str) -> list[Balance]:
        """Every limit of a data set and what is charged against it.

        Args:
            dataset: Name of the data set.

        Returns:
            One balance for each limit.

        Raises:
            InputError: There is no such data set.
        """

        def act(connection: Connection) -> list[Balance]:
            row = _found(connection, dataset)
            charges = _charges(connection, row.id)
            return [balance(limit, charges, _dataset(row)) for _, limit in _limits(connection, row.id)]

        return self._look(act)

    def history(self, dataset: str) -> list[Entry]:
        """All runs in the order of their reservations.

        Args:
            dataset: Name of the data set.

        Returns:
            One entry for each run, cancelled ones included.

        Raises:
            InputError: There is no such data set.
        """

        def act(connection: Connection) -> list[Entry]:
            row = _found(connection, dataset)
            listed = connection.execute(select(runs).where(runs.c.dataset == row.id).order_by(runs.c.id))
            return [_entry(run, row.name) for run in listed]

        return self._look(act)

    def remark(self, dataset: str, claim: str, note: str) -> None:
        """Add a note to a run, such as what it reads from the rows at no charge.

        Args:
            dataset: Name of the data set.
            claim: The run's own mark.
            note: One line of text.

        Raises:
            InputError: There is no such data set, or the note is too long or has unprintable characters.
        """
        checked_name(note, "a note")

        def act(connection: Connection) -> None:
            row = _take_turn(connection, dataset)
            connection.execute(update(runs).where(runs.c.dataset == row.id, runs.c.claim == claim).values(note=note))

        self._do(act)

    def _move(self, dataset: str, which: Any, allowed: tuple[State, State], to: State) -> None:
        def act(connection: Connection) -> None:
            row = _take_turn(connection, dataset)
            found = select(runs).where(runs.c.dataset == row.id, which).order_by(runs.c.id.desc()).limit(1)
            run = connection.execute(found).one_or_none()
            if run is None:
                raise InputError(f'there is no such run in the budget of "{dataset}": see veil budget history')
            require(run.state in allowed, _refusal(run, to))
            if run.state != to:
                stamp = {"running": "begun"}.get(to, "ended")
                connection.execute(update(runs).where(runs.c.id == run.id).values({"state": to, stamp: _now()}))

        self._do(act)

    def _do(self, action: Callable[[Connection], T]) -> T:
        return patiently(self._engine, action, self._patience)

    def _look(self, action: Callable[[Connection], T]) -> T:
        return patiently(reading(self._engine), action, self._patience)


def new_claim() -> str:
    """A mark that no other run has."""
    return uuid.uuid4().hex


def _refusal(run: Row[Any], to: State) -> str:
    if to == "cancelled":
        return f'run "{run.name}" is {run.state}: rows may have been read, so it stays charged'
    if run.state == "cancelled":
        return f'the reservation of run "{run.name}" was cancelled: make a new reservation under another name'
    return f'run "{run.name}" is {run.state} and cannot become {to}'


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _make_tables(engine: Engine) -> None:
    with engine.begin() as connection:
        metadata.create_all(connection)
        if connection.execute(select(formats.c.version)).scalar() is None:
            connection.execute(insert(formats).values(version=FORMAT))


def _brought_up(engine: Engine) -> int | None:
    """Bring a store of the first format up to this one: it had budgets of rows alone. Its format now."""
    try:
        with engine.begin() as connection:
            # A process that was killed in between may have left the column without the format.
            if "person" not in [column["name"] for column in inspect(connection).get_columns(datasets.name)]:
                connection.execute(text(f"ALTER TABLE {datasets.name} ADD COLUMN person TEXT NOT NULL DEFAULT ''"))
            connection.execute(update(formats).values(version=FORMAT))
    except DBAPIError:  # somebody else did it at the same moment
        pass
    with reading(engine).connect() as connection:
        return connection.execute(select(formats.c.version)).scalar()


def _number(made: CursorResult[Any]) -> int:
    """The number that the database gave a new row."""
    key = made.inserted_primary_key
    require(key is not None, "the budget store returned no id for a new row")
    return int(key[0]) if key is not None else 0


def _found(connection: Connection, name: str) -> Row[Any]:
    row = connection.execute(select(datasets).where(datasets.c.name == name)).one_or_none()
    if row is None:
        raise InputError(f'data set "{name}" has no budget here: create one with veil budget create')
    return row


def _take_turn(connection: Connection, name: str) -> Row[Any]:
    """Wait until nobody else changes this data set, then look at it."""
    connection.execute(update(datasets).where(datasets.c.name == name).values(turn=datasets.c.turn + 1))
    return _found(connection, name)


def _dataset(row: Row[Any]) -> DataSet:
    groups = tuple(json.loads(row.groups))
    return DataSet(row.name, Relation(row.relation), groups, row.owner, row.composition, row.rdp_order, row.person)


def _add_limit(connection: Connection, dataset: int, limit: Limit) -> None:
    connection.execute(
        insert(limits).values(
            dataset=dataset,
            group_name=limit.group,
            owner_name=limit.owner,
            epsilon=limit.epsilon,
            delta=limit.delta,
        )
    )


def _limits(connection: Connection, dataset: int) -> list[tuple[int, Limit]]:
    rows = connection.execute(select(limits).where(limits.c.dataset == dataset).order_by(limits.c.id))
    return [(row.id, Limit(row.epsilon, row.delta, row.group_name, row.owner_name)) for row in rows]


def _charges(connection: Connection, dataset: int) -> list[Charge]:
    counted = (runs.c.dataset == dataset) & (runs.c.state != "cancelled")
    by_run: dict[int, dict[tuple[str, str], Cost]] = {}
    for cell in connection.execute(select(cells).join(runs, cells.c.run == runs.c.id).where(counted)):
        by_run.setdefault(cell.run, {})[cell.group_name, cell.owner_name] = Cost(cell.epsilon, cell.delta, cell.rho)
    listed: Sequence[Row[Any]] = connection.execute(select(runs).where(counted).order_by(runs.c.id)).all()
    return [Charge(Cost(run.epsilon, run.delta, run.rho), by_run.get(run.id, {})) for run in listed]


def _write(connection: Connection, dataset: int, claim: str, spending: Spending) -> None:
    made = connection.execute(
        insert(runs).values(
            dataset=dataset,
            name=spending.run,
            claim=claim,
            state="reserved",
            **asdict(spending.most),
            method=spending.method,
            note=spending.note,
            reserved=_now(),
        )
    )
    number = _number(made)
    rows = [
        {"run": number, "group_name": group, "owner_name": owner, **asdict(cost)}
        for (group, owner), cost in spending.cells.items()
    ]
    if rows:
        connection.execute(insert(cells), rows)


def _require_same(connection: Connection, earlier: Row[Any], dataset: Row[Any], spending: Spending) -> None:
    """Check that a resumed run requests the same cost as before."""
    rows = connection.execute(select(cells).where(cells.c.run == earlier.id))
    known = {(row.group_name, row.owner_name): Cost(row.epsilon, row.delta, row.rho) for row in rows}
    same = earlier.dataset == dataset.id and earlier.name == spending.run and known == dict(spending.cells)
    require(
        same and Cost(earlier.epsilon, earlier.delta, earlier.rho) == spending.most,
        f'run "{earlier.name}" has already reserved a different amount: resume the original plan, or start a new run',
    )
    require(earlier.state != "cancelled", _refusal(earlier, "running"))


def _entry(run: Row[Any], dataset: str) -> Entry:
    return Entry(
        dataset=dataset,
        run=run.name,
        claim=run.claim,
        state=run.state,
        most=Cost(run.epsilon, run.delta, run.rho),
        method=run.method,
        note=run.note,
        reserved=run.reserved,
        begun=run.begun,
        ended=run.ended,
    )
