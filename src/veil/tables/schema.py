"""Schema: what is publicly known about the columns of a table, read from and written to TOML.

    [columns.age]
    kind = "numeric"          # numeric, date, category, text, target, group, owner, person or ignore
    low = 17
    high = 90
    missing = "flag"          # flag (a column of its own), middle, or refuse
    missing_words = ["?"]
    decimal = ","             # 170,5 and 1.234,5; "." reads 1,234.5; without it numbers are plain: 170.5
    unit = "kg"               # 75,3 kg

    [columns.sex]
    kind = "group"
    values = ["Female", "Male"]
    feature = true            # the model sees it too

With a schema nothing is taken from the rows, unless it is a draft (`veil data schema`) in which marks still say so. A
numeric or category column without bounds or values states its kind only: `--private-preprocessing` then finds the rest
privately.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import date, datetime
from pathlib import Path
from typing import Any, get_args

import pandas as pd

from veil.errors import InputError, require
from veil.foundation.toml import read_toml, to_toml
from veil.tables.encoding import MISSING_RULES, Category, Codes, Column, Date, Encoding, Missing, Numeric, Text
from veil.tables.guessing import fit_column, guess_kind
from veil.tables.text import DecimalSign, TextForm

KINDS = ("numeric", "date", "category", "text", "target", "group", "owner", "person", "ignore")
PRIVATE_NOTE = "READ FROM PRIVATE ROWS"
_EPOCH = pd.Timestamp(0).as_unit("s")
# More columns or codes than this would fill the memory before a model saw a row.
_MOST = 2**16


@dataclass(frozen=True, slots=True)
class SchemaColumn:
    """One column: its kind, and the bounds or values that everybody may know.

    Args:
        name: Name of the column.
        kind: "numeric", "category", "date", "text", "target", "group", "owner", "person" or "ignore".
        low: Lower bound, a number or a date.
        high: Upper bound.
        values: All values of a category.
        missing: For a missing number: "flag" adds an input that says so, "middle" takes the middle of the bounds,
            "refuse" is an error.
        missing_words: Words that mean a missing number.
        form: How a text is cut: "tokens" or "characters".
        buckets: Size of the table that words are hashed into.
        length: Number of places of a text, for sequence models.
        feature: Whether a group column is an input too.
        day_first: Whether dates have the day before the month; None lets the reader decide.
        decimal: Sign of fractions, "." or ","; empty for plain numbers.
        unit: What stands behind a number, such as "kg".

    >>> SchemaColumn("age", "numeric", low=0, high=120).missing
    'flag'
    """

    name: str
    kind: str
    low: float | str | None = None
    high: float | str | None = None
    values: tuple[str, ...] | None = None
    missing: Missing = "flag"
    missing_words: tuple[str, ...] = ()
    form: TextForm = "tokens"
    buckets: int = 256
    length: int = 32
    feature: bool = True
    day_first: bool | None = None
    decimal: DecimalSign = ""
    unit: str = ""

    def __post_init__(self) -> None:
        here = f'schema, column "{self.name}": '
        require(self.kind in KINDS, f'{here}kind is "{self.kind}": it must be one of {", ".join(KINDS)}')
        require(self.missing in MISSING_RULES, f'{here}missing is "{self.missing}": use {" or ".join(MISSING_RULES)}')
        require(self.form in get_args(TextForm), f'{here}form is "{self.form}": it must be characters or tokens')
        both = (self.low is None) == (self.high is None)
        require(both, f"{here}give both low and high, or neither")
        if self.low is not None and self.high is not None:
            low, high = self.bounds()
            require(low < high and math.isfinite(high - low), f"{here}low must be below high, and both finite")
        for size in (self.buckets, self.length):
            whole = isinstance(size, int) and not isinstance(size, bool)
            require(whole and 0 < size <= _MOST, f"{here}buckets and length must be whole numbers from 1 to {_MOST:,}")
        require(isinstance(self.feature, bool), f"{here}feature must be true or false")
        require(self.day_first is None or isinstance(self.day_first, bool), f"{here}day_first must be true or false")
        require(self.decimal in get_args(DecimalSign), f'{here}decimal must be "." or ","')
        require(isinstance(self.unit, str), f"{here}unit must be a text")
        require(self.values is None or len(set(self.values)) == len(self.values), f"{here}a value is listed twice")

    def bounds(self) -> tuple[float, float]:
        """Both bounds as numbers: days since 1970 for a date.

        Returns:
            The lower and the upper bound.

        Raises:
            InputError: A bound is not a number, or not a date.
        """
        found = []
        for side in (self.low, self.high):
            try:
                if self.kind == "date":
                    found.append((pd.Timestamp(str(side)) - _EPOCH) / pd.Timedelta(days=1))
                else:
                    found.append(float(side))  # type: ignore[arg-type]
            except (ValueError, TypeError, OverflowError) as error:
                what = "a date like 2020-01-31" if self.kind == "date" else "a number"
                raise InputError(f'schema, column "{self.name}": a bound is not {what}') from error
        return found[0], found[1]

    def column(self) -> Column | None:
        """How it becomes numbers; None where it does not, or where bounds or values are not stated.

        Returns:
            The encoding of the column, or None.

        Raises:
            InputError: A bound is not a number, or not a date.
        """
        if self.kind == "text":
            return Text(self.name, self.form, self.buckets)
        if self.kind == "category" or (self.kind == "group" and self.feature):
            return None if self.values is None else Category(self.name, self.values)
        if self.low is None or self.kind not in ("numeric", "date"):
            return None
        if self.kind == "date":
            return Date(self.name, *self.bounds(), missing=self.missing, day_first=self.day_first)
        return self.numeric(*self.bounds())

    @property
    def written(self) -> tuple[DecimalSign, str]:
        """The sign of fractions and the unit of its numbers."""
        return self.decimal, self.unit

    def numeric(self, low: float, high: float, lenient: bool = False) -> Numeric:
        """A number between bounds, read as the schema says.

        Args:
            low: Lower bound.
            high: Upper bound.
            lenient: Whether a value that is not a number counts as missing.

        Returns:
            The encoding of the column.
        """
        return Numeric(self.name, low, high, self.missing, self.missing_words, lenient, self.decimal, self.unit)

    @property
    def open(self) -> bool:
        """Whether it is a feature whose bounds or values are not stated."""
        known = self.column() is not None
        return not known and (self.kind in ("numeric", "date", "category") or (self.kind == "group" and self.feature))


@dataclass(frozen=True, slots=True)
class Schema:
    """All columns of a table, and declared group sizes where they are public.

    `from_rows` says that it is a draft with something in it that was taken from private rows.

    Args:
        columns: One for each column.
        group_sizes: Public number of rows of each group.
        from_rows: Whether something was taken from private rows.

    >>> age, bought = SchemaColumn("age", "numeric", low=0, high=120), SchemaColumn("bought", "target")
    >>> Schema((age, bought), group_sizes={"f": 900, "m": 1100}).group_sizes["f"]
    900
    """

    columns: tuple[SchemaColumn, ...]
    group_sizes: Mapping[str, int] | None = None
    from_rows: bool = False

    def __post_init__(self) -> None:
        require(len(self.names("target")) <= 1, "the schema names more than one target")
        require(len(self.names("owner")) <= 1, "the schema names more than one owner column")
        require(len(self.names("person")) <= 1, "the schema names more than one column of people")

    def names(self, kind: str) -> list[str]:
        """The columns of one kind, in their order.

        Args:
            kind: "numeric", "category", "date", "text", "target", "group", "owner", "person" or "ignore".

        Returns:
            Names of columns.
        """
        return [column.name for column in self.columns if column.kind == kind]

    def values_of(self, name: str) -> tuple[str, ...] | None:
        """The values that a column may have, where they are stated.

        Args:
            name: Name of a column.

        Returns:
            The values, or None.
        """
        return next((column.values for column in self.columns if column.name == name), None)

    def target_bounds(self) -> tuple[float, float] | None:
        """The smallest and the largest number that the target may be, where they are stated.

        Returns:
            The two bounds, or None.
        """
        stated = (column for column in self.columns if column.kind == "target" and column.low is not None)
        return next((column.bounds() for column in stated), None)

    def encoding(self, sequence: bool = False) -> Encoding:
        """How features become numbers, from what the schema says alone.

        Args:
            sequence: Whether the one text column becomes a sequence of codes, for sequence models.

        Returns:
            The encoding.

        Raises:
            InputError: A column states neither bounds nor values, there are no features, or a sequence model has not
                exactly one text column.
        """
        if sequence:
            texts = [c for c in self.columns if c.kind == "text"]
            require(len(texts) == 1, f"a sequence model needs one text column, the schema has {len(texts)}")
            return Encoding((Codes(texts[0].name, texts[0].form, texts[0].length),), self.from_rows)
        unstated = [column.name for column in self.columns if column.open]
        require(
            not unstated,
            f'schema, column "{unstated[0] if unstated else ""}": neither bounds nor values are stated: state them, or '
            "let --private-preprocessing find them",
        )
        found = tuple(column for facts in self.columns if (column := facts.column()) is not None)
        require(len(found) > 0, "the schema has no feature columns")
        return Encoding(found, self.from_rows)

    def with_roles(
        self, target: str | None, groups: list[str], owner: str | None, ignore: set[str], person: str | None = None
    ) -> Schema:
        """The schema in which columns named elsewhere (on the command line) have these roles.

        Args:
            target: The target column, or None to keep that of the schema.
            groups: The group columns.
            owner: The owner column, or None.
            ignore: Columns that are left out.
            person: The person column, or None.

        Returns:
            A new schema.
        """
        known = {column.name: column for column in self.columns}
        one_each = {"person": person, "owner": owner, "target": target}
        roles = dict.fromkeys(ignore, "ignore") | dict.fromkeys(groups, "group")
        roles |= {name: role for role, name in one_each.items() if name is not None}
        for name in roles.keys() - ignore:
            known.setdefault(name, SchemaColumn(name, "ignore"))
        changed = {name: _as_kind(column, roles.get(name, column.kind)) for name, column in known.items()}
        if target:
            changed = {
                n: _as_kind(c, "ignore") if c.kind == "target" and n != target else c for n, c in changed.items()
            }
        return Schema(tuple(changed.values()), self.group_sizes, self.from_rows)

    def to_toml(self, private_note: str | None = None) -> str:
        """As a file; a draft marks what was taken from private rows (`private_note` marks in any schema).

        Args:
            private_note: The comment behind each value that was read from private rows. By default, drafts alone have
                one.

        Returns:
            The text of a schema file; `read_schema` reads it.
        """
        note = private_note or (PRIVATE_NOTE if self.from_rows else None)
        defaults = {field.name: field.default for field in fields(SchemaColumn)}
        columns = {}
        for column in self.columns:
            record = {k: v for k, v in asdict(column).items() if k != "name" and v is not None and v != defaults[k]}
            columns[column.name] = {k: list(v) if isinstance(v, tuple) else v for k, v in record.items()}
        body = to_toml({"columns": columns, **({"group_sizes": dict(self.group_sizes)} if self.group_sizes else {})})
        if note is None:
            return body
        marks = ("low = ", "high = ", "values = ", "missing = ", "missing_words = ")
        lines = [f"{line}  # {note}" if line.startswith(marks) else line for line in body.splitlines()]
        return "\n".join(lines) + "\n"


def _as_kind(column: SchemaColumn, kind: str) -> SchemaColumn:
    if column.kind == "numeric" and kind == "target":
        return replace(column, kind=kind, missing="refuse")
    return column if column.kind == kind else SchemaColumn(column.name, kind, values=column.values)


def read_schema(path: Path) -> Schema:
    """Read a schema from a TOML file; an error names the column.

    Args:
        path: A TOML file; `veil data schema` drafts one.

    Returns:
        The schema, checked.

    Raises:
        InputError: A column is described wrongly; the message names it.
    """
    record = read_toml(path)
    columns = record.get("columns")
    require(isinstance(columns, dict) and bool(columns), f"{path} has no [columns.NAME] tables")
    sizes = record.get("group_sizes")
    found = tuple(_facts(name, entry, path) for name, entry in dict(columns or {}).items())
    for group, size in sizes.items() if isinstance(sizes, dict) else ():
        whole = isinstance(size, int) and not isinstance(size, bool) and 0 < size < 2**63
        require(whole, f'{path}: the size of group "{group}" is not a whole number above 0')
    # The heading of a draft names the mark too, in the middle of a line.
    marked = any(line.rstrip().endswith(PRIVATE_NOTE) for line in path.read_text(encoding="utf-8").splitlines())
    return Schema(found, dict(sizes) if isinstance(sizes, dict) else None, marked)


def _facts(name: str, entry: Any, path: Path) -> SchemaColumn:
    require(isinstance(entry, dict) and "kind" in entry, f'{path}, column "{name}": kind is missing')
    known = {field.name for field in fields(SchemaColumn)} - {"name"}
    unknown = [key for key in entry if key not in known]
    require(not unknown, f'{path}, column "{name}": "{unknown[0] if unknown else ""}" is not one of {sorted(known)}')
    values: dict[str, Any] = {}
    for key, value in entry.items():
        if key in ("values", "missing_words"):
            require(isinstance(value, list), f'{path}, column "{name}": {key} must be a list')
            values[key] = tuple(str(item) for item in value)
        else:
            values[key] = str(value) if isinstance(value, date | datetime) else value
    return SchemaColumn(name, **values)


def draft_schema(table: pd.DataFrame, target: str | None = None, groups: tuple[str, ...] = ()) -> Schema:
    """Draft a schema from the rows: everything in it must be replaced with public knowledge, or removed.

    Args:
        table: The rows.
        target: The column to predict.
        groups: The columns that make the groups.

    Returns:
        A schema marked as read off the rows: it is not public until it is edited.

    >>> found = draft_schema(pd.DataFrame({"age": [20, 40] * 10, "rich": ["no", "yes"] * 10}), "rich")
    >>> [(column.name, column.kind) for column in found.columns], found.from_rows
    ([('age', 'numeric'), ('rich', 'target')], True)
    """
    columns = []
    for name in map(str, table.columns):
        if name == target or name in groups:
            words = tuple(sorted({str(value) for value in table[name].dropna()}))
            columns.append(SchemaColumn(name, "target" if name == target else "group", values=words))
            continue
        columns.append(_drafted(name, fit_column(table[name], name, guess_kind(table[name]))))
    return Schema(tuple(columns), from_rows=True)


def _drafted(name: str, column: Column | None) -> SchemaColumn:
    if isinstance(column, Category):
        return SchemaColumn(name, "category", values=column.values)
    if isinstance(column, Text):
        return SchemaColumn(name, "text")
    if isinstance(column, Date):
        low, high = _day(column.low), _day(column.high + 1)
        return SchemaColumn(name, "date", low, high, missing=column.missing, day_first=column.day_first)
    if isinstance(column, Numeric):
        above = column.high if column.high > column.low else column.low + 1.0
        drafted = SchemaColumn(name, "numeric", column.low, above, decimal=column.decimal, unit=column.unit)
        return replace(drafted, missing=column.missing, missing_words=column.missing_words)
    return SchemaColumn(name, "ignore")


def _day(days: float) -> str:
    """A day in the calendar's own range, from days since 1970."""
    number = date(1970, 1, 1).toordinal() + math.floor(days)
    return date.fromordinal(min(max(number, date.min.toordinal()), date.max.toordinal())).isoformat()
