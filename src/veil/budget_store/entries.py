"""Entries: reservations and runs in the store, and its database tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from sqlalchemy import Column, Double, ForeignKey, Integer, MetaData, String, Table, Text

from veil.budget_store.balance import Cell
from veil.budget_store.costs import Cost, checked_name

FORMAT = 2
# How the note of a run begins that reads something off the rows which no ε covers.
NOT_CHARGED = "Not charged: "
State = Literal["reserved", "running", "finished", "cancelled"]


@dataclass(frozen=True, slots=True)
class Spending:
    """What a run may spend: the largest cost to any row and, where its groups are the budget's, that of each cell.

    Args:
        run: Name of the run.
        most: The largest cost to any row.
        cells: Cost by group and owner.
        method: Name of the method.
        note: Free text.

    >>> from veil.budget_store import Cost
    >>> Spending("survey of May", Cost(0.2, 0.0)).most.epsilon
    0.2
    """

    run: str
    most: Cost
    cells: Mapping[Cell, Cost] = field(default_factory=dict)
    method: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        checked_name(self.run, "the name of a run")
        for group, owner in self.cells:
            checked_name(group, "the name of a group")
            checked_name(owner, "the name of an owner")
        for text, what in ((self.method, "the name of a method"), (self.note, "a note")):
            checked_name(text or "-", what)


@dataclass(frozen=True, slots=True)
class Entry:
    """One run as the store keeps it. What is not cancelled is charged, whatever became of the run.

    Args:
        dataset: Name of the data set.
        run: Name of the run.
        claim: The run's own mark.
        state: "reserved", "running", "finished" or "cancelled".
        most: The largest cost to any row.
        method: Name of the method.
        note: Free text.
        reserved: When it was reserved, as ISO time.
        begun: When it read its first row, or None.
        ended: When it finished or was cancelled, or None.
    """

    dataset: str
    run: str
    claim: str
    state: State
    most: Cost
    method: str
    note: str
    reserved: str
    begun: str | None
    ended: str | None

    @property
    def charged(self) -> bool:
        """Whether it counts against the budget."""
        return self.state != "cancelled"

    @property
    def reads_more(self) -> bool:
        """Whether its note says that it reads something from the rows that no ε covers."""
        return self.charged and self.note.startswith(NOT_CHARGED)

    def as_json(self) -> dict[str, Any]:
        """Plain values.

        Returns:
            One run as `veil budget history --json` lists it.
        """
        return {
            "dataset": self.dataset,
            "run": self.run,
            "state": self.state,
            "charged": self.charged,
            **asdict(self.most),
            "method": self.method,
            "note": self.note,
            "reserved": self.reserved,
            "begun": self.begun,
            "ended": self.ended,
        }


metadata = MetaData()

formats = Table("veil_budget_format", metadata, Column("version", Integer, primary_key=True))

datasets = Table(
    "veil_budget_datasets",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", String(500), nullable=False, unique=True),
    Column("relation", String(20), nullable=False),
    Column("groups", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("person", Text, nullable=False, server_default=""),
    Column("composition", String(20), nullable=False),
    Column("rdp_order", Double),
    # Raised by every change: raising it is what makes two changes wait for each other.
    Column("turn", Integer, nullable=False),
    Column("made", String(40), nullable=False),
)

limits = Table(
    "veil_budget_limits",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("dataset", ForeignKey("veil_budget_datasets.id"), nullable=False, index=True),
    Column("group_name", Text),
    Column("owner_name", Text),
    Column("epsilon", Double, nullable=False),
    Column("delta", Double, nullable=False),
)

runs = Table(
    "veil_budget_runs",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("dataset", ForeignKey("veil_budget_datasets.id"), nullable=False, index=True),
    Column("name", String(500), nullable=False),
    Column("claim", String(64), nullable=False, unique=True),
    Column("state", String(20), nullable=False),
    Column("epsilon", Double, nullable=False),
    Column("delta", Double, nullable=False),
    Column("rho", Double),
    Column("method", Text, nullable=False),
    Column("note", Text, nullable=False),
    Column("reserved", String(40), nullable=False),
    Column("begun", String(40)),
    Column("ended", String(40)),
)

cells = Table(
    "veil_budget_cells",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("run", ForeignKey("veil_budget_runs.id"), nullable=False, index=True),
    Column("group_name", Text, nullable=False),
    Column("owner_name", Text, nullable=False),
    Column("epsilon", Double, nullable=False),
    Column("delta", Double, nullable=False),
    Column("rho", Double),
)
