"""A look at a table before anything is spent: what a careful colleague would point out, in one sentence each.

Names of columns are public; what is found in the values reads the rows without noise, and the certificate says so. No
sentence quotes a value or counts rows, except for groups, whose names and sizes are public where they are counted.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from veil.tables.encoding import PLAIN, Date, Encoding, Numeric, Text, day_comes_first
from veil.tables.guessing import MAX_CATEGORIES, is_nested, why_not_learned
from veil.tables.identifiers import COUNTS, IDENTIFIER, QUANTITIES, look_like_codes, may_be_identifier, whole_numbers
from veil.tables.leaking import columns_that_tell
from veil.tables.number_forms import unclear_numbers
from veil.tables.reading import RENAMED
from veil.tables.repeated_people import MOST_COLUMNS, name_tokens, word_set
from veil.tables.table import Columns

Kind = Literal[
    "duplicate heading",
    "name or address",
    "free text",
    "date",
    "codes",
    "identifier",
    "tells the target",
    "repeated rows",
    "mostly empty",
    "numeric target",
    "written numbers",
    "nested values",
    "tiny group",
    "only in test rows",
    "many columns",
    "merged groups",
    "several rows of a person",
]
LOOKED = (
    "A look at the table before training (columns that tell the target, identifiers, codes, repeated rows): it read "
    "the rows without noise, and its remarks appear on the report."
)
# Fewer rows than this are too few to learn from or to measure, whatever ε is.
TINY_GROUP = 50
MOST_ROWS = 20_000
MOST_NAMED = 5
_CODE_WORDS = word_set(
    "code codes zip zipcode postcode postal plz icd naics sic fips isco nuts region district county state country "
    "province canton birthplace occupation profession job industry sector race ethnicity nationality religion sex "
    "gender education marriage marital citizenship diagnosis branch department product category class type kind"
)
_QUANTITIES = QUANTITIES | {"number", "num"}
_WHO = word_set(
    "name firstname lastname surname forename fullname familyname maidenname email mail phone telephone mobile address "
    "street ssn passport iban nickname username"
)
_WHAT_ELSE = word_set("product brand company file school model item host column")


@dataclass(frozen=True)
class Remark:
    """One thing worth knowing about a table. `from_rows` says whether values were read to find it."""

    kind: Kind
    columns: tuple[str, ...]
    sentence: str
    from_rows: bool = True


def look_at_names(table: pd.DataFrame, columns: Columns, ignore: Collection[str]) -> list[Remark]:
    """What names of columns tell; no row is read."""
    found = []
    for new, old in (table.attrs.get(RENAMED) or {}).items():
        said = f'The table has several columns named "{old}": one of them is called "{new}" here.'
        found.append(Remark("duplicate heading", (new,), said, from_rows=False))
    known = columns.left_out() | set(columns.groups) | set(ignore)
    who = tuple(name for name in map(str, table.columns) if name not in known and _says_who(name))
    if who:
        said = f"{_named(who)} named like the name or address of a person. If so, leave it out: --ignore {_typed(who)}."
        found.append(Remark("name or address", who, said, from_rows=False))
    return found


def look_at_rows(
    table: pd.DataFrame, columns: Columns, encoding: Encoding, ignore: Collection[str] = ()
) -> list[Remark]:
    """What the values tell, from at most 20,000 rows, evenly spaced, and 2,000 columns; not of those to `ignore`."""
    rows, found = table.iloc[:: max(1, len(table) // MOST_ROWS)], list[Remark]()
    if len(rows.columns) > MOST_COLUMNS:
        roles = {columns.target, *columns.groups}
        kept = [name in roles or place < MOST_COLUMNS for place, name in enumerate(rows.columns)]
        said = f"Of {len(rows.columns):,} columns, the values of the first {MOST_COLUMNS:,} were looked at."
        rows, found = rows.loc[:, kept], [Remark("many columns", (), said, from_rows=False)]
    written = _written(rows, columns, encoding)
    features = [name for name in map(str, rows.columns) if name not in {*columns.left_out(), *columns.groups}]
    nested = [name for name in features if is_nested(rows[name].dropna())]
    if nested:
        said = f"{_named(tuple(nested))} left out: lists and records are not learned. Give each part its own column."
        written.append(Remark("nested values", tuple(nested), said))
    flat = rows.drop(columns=nested)
    return [
        *found,
        *_target(rows, columns),
        *_tells(flat, columns, encoding),
        *_identifiers(table, flat[[name for name in features if name not in {*ignore, *nested}]], encoding),
        *_kinds(flat, encoding),
        *written,
        *_repeated(flat),
    ]


def look_at_groups(sizes: Mapping[str, int], tested: Collection[str] | None = None) -> list[Remark]:
    """Groups that are tiny, and groups that only the test rows have. Sizes are those that are public anyway."""
    found = []
    tiny = {name: rows for name, rows in sizes.items() if 0 < rows < TINY_GROUP}
    if tiny and len(sizes) > 1:
        shown = [f'"{name}" ({rows})' for name, rows in sorted(tiny.items(), key=lambda one: one[1])]
        merge = f"Merge such groups: --merge-groups-below {TINY_GROUP}."
        if len(tiny) == len(sizes):
            merge = "All groups are so small: choose a group column with fewer values."
        found.append(Remark("tiny group", (), f"Too few rows to learn from or to measure: {_some(shown)}. {merge}"))
    unseen = sorted(set(tested or ()) - set(sizes))
    if unseen:
        shown = [f'"{name}"' for name in unseen]
        said = f"Only the test rows have the group {_some(shown)}: nothing is learned from it."
        found.append(Remark("only in test rows", (), said, from_rows=False))
    return found


def look_at_merging(names: Collection[str], kept: Collection[str]) -> list[Remark]:
    """Which groups count as one; their names are public."""
    merged = [f'"{name}"' for name in sorted(set(names) - set(kept))]
    said = f"Merged into one group, as asked for: {_some(merged)}."
    return [Remark("merged groups", (), said)] if merged else []


def _target(rows: pd.DataFrame, columns: Columns) -> Iterator[Remark]:
    name, number = columns.target, columns.number
    if number is not None:
        said = (
            f"Target {name} is learned as a number between {number.low:g} and {number.high:g}. If its numbers are "
            "codes of classes, add --task classification."
        )
        yield Remark("numeric target", (name,), said)
    elif pd.api.types.is_numeric_dtype(rows[name]) and not pd.api.types.is_bool_dtype(rows[name]):
        classes = rows[name].nunique()
        if classes > 2:
            said = (
                f"Target {name} has numbers, which are learned as {classes} classes. If they are quantities, add "
                "--task regression."
            )
            yield Remark("numeric target", (name,), said)


def _written(rows: pd.DataFrame, columns: Columns, encoding: Encoding) -> list[Remark]:
    """Numbers with a unit or a comma: how they are read, or that they are not."""
    learned = {column.name: column for column in encoding.columns}
    found, unclear = list[Remark](), list[str]()
    for name in map(str, rows.columns):
        column = learned.get(name)
        if isinstance(column, Numeric) and column.written != PLAIN:
            form = {",": "a comma before the fraction", ".": "thousands taken together", "": ""}[column.decimal]
            parts = " and ".join(part for part in (form, "the unit taken off" if column.unit else "") if part)
            found.append(Remark("written numbers", (name,), f'Column "{name}" is read as numbers, with {parts}.'))
        elif not isinstance(column, Numeric | Date) and name not in columns.left_out():
            present = rows[name].dropna()
            if pd.api.types.is_string_dtype(present) and unclear_numbers(present.astype("string").str.strip()):
                unclear.append(name)
    if unclear:
        said = (
            f"{_named(tuple(unclear))} not learned as a number, though it looks like one: units differ, or a comma may "
            "separate thousands or a fraction. Write plain numbers of one unit, or state decimal and unit in --schema."
        )
        found.append(Remark("written numbers", tuple(unclear), said))
    return found


def _tells(rows: pd.DataFrame, columns: Columns, encoding: Encoding) -> Iterator[Remark]:
    names = [column.name for column in encoding.columns if not isinstance(column, Text)]
    names = [name for name in names if name in rows.columns and name != columns.target]
    read = {c.name: c.read(rows[c.name]) for c in encoding.columns if isinstance(c, Numeric) and c.name in names}
    for name in columns_that_tell(rows.assign(**read), names, columns.target, columns.number):
        said = (
            f'Column "{name}" by itself tells the target of nearly every row. If it copies the target or is known only '
            f"after it, leave it out: --ignore {_typed((name,))}."
        )
        yield Remark("tells the target", (name,), said)


def _identifiers(table: pd.DataFrame, rows: pd.DataFrame, encoding: Encoding) -> Iterator[Remark]:
    """Numbers that name rows or people: left out, or learned where that is not sure. `rows` has some of the table."""
    learned, names = {column.name: column for column in encoding.columns}, [str(name) for name in rows.columns]
    sure = tuple(n for n in names if n not in learned and why_not_learned(table[n]) in (COUNTS, IDENTIFIER))
    if sure:
        said = f"{_named(sure)} left out as an identifier. To learn from it, state its kind in --schema."
        yield Remark("identifier", sure, said)
    numbers = (name for name in names if isinstance(learned.get(name), Numeric))
    unsure = tuple(name for name in numbers if may_be_identifier(rows[name].dropna(), name))
    if unsure:
        said = f"{_named(unsure)} learned as a quantity and may be an identifier. If so: --ignore {_typed(unsure)}."
        yield Remark("identifier", unsure, said)


def _kinds(rows: pd.DataFrame, encoding: Encoding) -> Iterator[Remark]:
    """Columns whose kind deserves a second look."""
    learned = {column.name: column for column in encoding.columns if column.name in rows.columns}
    codes = tuple(n for n, column in learned.items() if isinstance(column, Numeric) and _are_codes(rows[n], n))
    if codes:
        said = f"{_named(codes)} learned as a quantity and may be codes. If so: --category {_typed(codes)}."
        yield Remark("codes", codes, said)
    texts = tuple(name for name, column in learned.items() if isinstance(column, Text))
    if texts:
        said = f"{_named(texts)} free text, learned by hashed words. If it names people, add --ignore {_typed(texts)}."
        yield Remark("free text", texts, said)
    for name, column in learned.items():
        if isinstance(column, Date):
            yield Remark("date", (name,), _date_sentence(name, column, rows[name]))
    empty = tuple(name for name in learned if rows[name].isna().mean() > 0.5)
    if empty:
        yield Remark("mostly empty", empty, f"{_named(empty)} empty in more than half of the rows.")


def _date_sentence(name: str, column: Date, values: pd.Series) -> str:
    unclear = pd.api.types.is_string_dtype(values) and bool(values.dropna().str.contains("/").any())
    if unclear and column.day_first is None and day_comes_first(values) is None:
        return (
            f'Dates of "{name}" do not tell whether the day or the month comes first: the month is read first. State '
            "day_first in --schema."
        )
    order = {True: ", the day before the month", False: ", the month before the day", None: ""}[column.day_first]
    return f'Column "{name}" is learned as a date, in days{order}.'


def _repeated(rows: pd.DataFrame) -> Iterator[Remark]:
    """Rows that stand in the table several times, where chance does not make them equal."""
    if len(rows) < 100 or rows.shape[1] < 3:
        return
    try:
        copies = rows.duplicated()
    except TypeError:  # lists and other values that cannot be compared
        return
    varied = math.prod(float(min(max(rows[name].nunique(), 1), 1000)) for name in rows.columns)
    if copies.mean() > 0.005 and varied > 100.0 * len(rows):
        said = (
            "Some rows stand in the table more than once, word for word. Remove copies: a person whose row is there k "
            "times is protected up to k times less."
        )
        yield Remark("repeated rows", (), said)


def _are_codes(column: pd.Series, name: str) -> bool:
    """Whether numbers may be names of kinds: whole, not just two, and named like codes or as far apart as codes."""
    tokens = set(name_tokens(name))
    if tokens & _QUANTITIES:
        return False
    present = pd.to_numeric(column, errors="coerce").dropna()  # of a column with units, none: it holds quantities
    if not tokens & _CODE_WORDS:
        return look_like_codes(present, MAX_CATEGORIES)
    return whole_numbers(present) is not None and present.nunique() > 2


def _says_who(name: str) -> bool:
    tokens = name_tokens(name)
    joined = re.sub(r"[^a-z]", "", name.lower())
    return bool(_WHO & {*tokens, joined}) and not _WHAT_ELSE & set(tokens)


def _named(names: tuple[str, ...]) -> str:
    quoted = _some([f'"{name}"' for name in names])
    return f"Column {quoted} is" if len(names) == 1 else f"Columns {quoted} are each"


def _typed(names: tuple[str, ...]) -> str:
    """Names as a shell takes them."""
    return shlex.quote(",".join(names[:MOST_NAMED]))


def _some(shown: list[str]) -> str:
    more = f" and {len(shown) - MOST_NAMED} more" if len(shown) > MOST_NAMED else ""
    return ", ".join(shown[:MOST_NAMED]) + more
