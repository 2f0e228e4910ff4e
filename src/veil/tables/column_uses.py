"""What became of every column: its role, how the model learns it, or why it does not. It stands on the certificate."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from veil.tables.encoding import Category, Codes, Column, Date, Encoding, HashedCategory, Numeric
from veil.tables.guessing import guess_kind, why_not_learned
from veil.tables.table import Columns

Role = Literal["target", "group", "owner", "person", "feature", "left out"]
IGNORED, BY_SCHEMA = "ignored", "by the schema"
BY_KIND, HIDDEN = "empty, or different in almost every row", "nothing stands out of the noise"
_SOURCES = {"rows": "taken from the rows", "noise": "released with noise", "schema": "stated as public knowledge"}


@dataclass(frozen=True)
class ColumnUse:
    """One column of a table: its role, and how it is learned or why it is not."""

    column: str
    role: Role
    how: str


def column_uses(
    table: pd.DataFrame, columns: Columns, encoding: Encoding, ignore: Collection[str], released: bool = False
) -> tuple[ColumnUse, ...]:
    """Every column of the table, in its order; `released` says that bounds and categories were released with noise."""
    learned = {column.name: column for column in encoding.columns}
    source = _SOURCES["rows" if encoding.from_rows else "noise" if released else "schema"]
    found = []
    for name in map(str, table.columns):
        if name.startswith("\0"):  # not a column of the file
            continue
        role = _role(name, columns)
        how = _how(learned[name], source) if name in learned else None
        if role is None:
            role = "feature" if how is not None else "left out"
        if role == "left out":
            how = (
                IGNORED if name in ignore else _hidden(table, name, columns) if released else _why(table, name, columns)
            )
        elif role == "target":
            how = "a number within its bounds" if columns.number is not None else "a class"
        elif how is None:
            how = "not a feature"
        found.append(ColumnUse(name, role, how))
    return tuple(found)


def left_out(uses: Collection[ColumnUse]) -> dict[str, str]:
    """The columns that the model does not use, and why."""
    return {use.column: use.how for use in uses if use.role == "left out"}


def _role(name: str, columns: Columns) -> Role | None:
    if name == columns.target:
        return "target"
    if name in columns.groups:
        return "group"
    return {columns.owner: "owner", columns.person: "person"}.get(name)  # type: ignore[return-value]


def _why(table: pd.DataFrame, name: str, columns: Columns) -> str:
    return BY_SCHEMA if columns.schema else why_not_learned(table[name])


def _hidden(table: pd.DataFrame, name: str, columns: Columns) -> str:
    """Why a column is not learned where bounds are released: by its kind, which is public, and by what noise hides."""
    if columns.schema is None:
        return BY_KIND if guess_kind(table[name]) == "ignore" else HIDDEN
    stated = {facts.name for facts in columns.schema.columns if facts.kind != "ignore"}
    return HIDDEN if name in stated else BY_SCHEMA


def _how(column: Column, source: str) -> str:
    """How a column becomes numbers, without any of its values."""
    if isinstance(column, Numeric):
        return f"a number; bounds {source}"
    if isinstance(column, Date):
        return f"a date, in days; bounds {source}"
    if isinstance(column, Category):
        return f"a category of {len(column.values)} values, {source}"
    if isinstance(column, HashedCategory):
        return f"a category, {column.width()} hash values, {source}"
    return "a text, by codes" if isinstance(column, Codes) else "a text, by hashed words"
