"""Checking: what a run would make of a table, without a run. Nothing is trained and nothing is spent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from veil.foundation.randomness import Seed
from veil.methods import create
from veil.request import Request
from veil.tables.column_uses import ColumnUse
from veil.tables.looking import Remark
from veil.tables.opening import Opening, open_rows
from veil.tables.preparing import columns_of
from veil.tables.splitting import Holdout, Split


@dataclass(frozen=True)
class TableCheck:
    """Columns, groups and remarks of a table; `from_rows` says whether values were read without noise."""

    uses: tuple[ColumnUse, ...]
    groups: Mapping[str, int]
    task: str
    remarks: tuple[Remark, ...]
    from_rows: bool

    def as_json(self) -> dict[str, Any]:
        """What `veil data check --json` prints."""
        return {**asdict(self), "groups": dict(self.groups)}


def check_table(request: Request) -> TableCheck:
    """Open the rows of a request as training would, and look at them.

    Args:
        request: A table with its target and groups.

    Returns:
        The role of every column, the groups with their rows, and what is worth knowing.

    Raises:
        InputError: What training would reject, in the same sentence.
    """
    nobody, said = Seed.from_int(0), list[str]()
    by = Opening(
        create("auto"), request.settings, Split(nobody, Holdout(0.0, nobody), None), say=said.append, look=True
    )
    opened = open_rows(request, columns_of(request), by)
    facts = opened.problem.public
    from_rows = opened.encoding is not None and opened.encoding.from_rows
    people = [
        Remark("several rows of a person", (), sentence, from_rows) for sentence in said if "protects rows" in sentence
    ]
    what = f"{len(facts.classes)} classes" if facts.task == "classification" else "a number"
    return TableCheck(
        opened.uses,
        dict(zip(facts.groups, facts.group_sizes, strict=True)),
        f"Target {request.target}: {what}. Groups:",
        (*opened.remarks, *people),
        from_rows,
    )
