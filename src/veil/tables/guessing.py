"""Guessing: the kind, bounds and values of each column, taken from the rows. This is not private.

Still, no category or word of few rows is kept, however small the table is: their rows count as one, all zeros. Bounds
are rounded outwards; those of small whole numbers stay what they are: such a bound may be the value of a single row.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Literal

import numpy as np
import pandas as pd

from veil.errors import require
from veil.tables.encoding import (
    PLAIN,
    Category,
    Codes,
    Column,
    Date,
    Encoding,
    Missing,
    Numeric,
    Text,
    day_comes_first,
    days,
    numbers,
    words,
)
from veil.tables.identifiers import why_identifier
from veil.tables.number_forms import Form, are_numbers, number_form

Kind = Literal["numeric", "category", "date", "text", "ignore"]
MAX_CATEGORIES = 64
# A name, a diagnosis or a town that fewer rows have is nearly one person's own: it is never written to disk.
RARE = 10
DIFFERENT = "different in almost every row"
CONSTANT = "the same in every row"
_NUMBERS_SHARE = 0.9
NESTED = "holds lists or records"
_ABSENT_WORDS = ("?", "-", "--", "n/a", "na", "none", "null", "nan", "unknown", ".", "missing")


def guess_kind(column: pd.Series) -> Kind:
    """The kind that a column looks like. What is different in almost every row and short is an identifier: ignored.

    The name of the column helps to tell identifiers that are numbers, or that repeat.

    >>> guess_kind(pd.Series(["2020-01-31", "2021-12-01"])), guess_kind(pd.Series([1.5, 2.0]))
    ('date', 'numeric')
    """
    present = column.dropna()
    if pd.api.types.is_bool_dtype(column) or isinstance(column.dtype, pd.CategoricalDtype):
        return "category"
    if pd.api.types.is_datetime64_any_dtype(column):
        return "date"
    if pd.api.types.is_numeric_dtype(column):
        return "ignore" if why_identifier(present, str(column.name)) else "numeric"
    if len(present) == 0 or is_nested(present) or why_identifier(present, str(column.name)):
        return "ignore"
    listed = present.astype("string").str.strip()
    if _share(are_numbers(listed, form_of(listed)), ~listed.str.lower().isin(_ABSENT_WORDS)):
        return "numeric"
    if _looks_like_dates(listed):
        return "date"
    distinct = listed.nunique()
    if distinct <= MAX_CATEGORIES or distinct < 0.5 * len(listed):
        long = listed.str.len().mean() > 40
        return "text" if long and distinct > MAX_CATEGORIES else "category"
    return "text" if (listed.str.count(" ").mean() >= 1.5) else "ignore"


def is_nested(present: pd.Series) -> bool:
    """Whether values are lists, records or other things with parts, as Parquet and JSON have them."""
    return len(present) > 0 and not pd.api.types.is_scalar(present.iloc[0])


def form_of(listed: pd.Series) -> Form:
    """How the numbers among texts are written; words for "missing" do not count."""
    return number_form(listed[~listed.str.lower().isin(("", *_ABSENT_WORDS))]) or PLAIN


def why_not_learned(column: pd.Series) -> str:
    """In a few words, why a column is not a feature although nobody ignored it."""
    present = column.dropna()
    if len(present) == 0:
        return "empty"
    if is_nested(present):
        return NESTED
    if column.nunique(dropna=False) == 1:
        return CONSTANT
    if reason := why_identifier(present, str(column.name)):
        return reason
    return DIFFERENT if guess_kind(column) == "ignore" else "no value stands out"


def fit_column(column: pd.Series, name: str, kind: Kind, rare: int = RARE) -> Column | None:
    """Read the bounds or values of one column off its rows; None where it is ignored.

    A category or a word for "missing" that fewer than `rare` rows have is not kept.
    """
    if kind == "ignore":
        return None
    if kind == "text":
        return Text(name)
    if kind == "category":
        counts = pd.Series([word for word in words(column) if word], dtype=object).value_counts()
        kept = counts[counts >= rare]
        return Category(name, tuple(sorted(str(value) for value in kept.index[:MAX_CATEGORIES])))
    if kind == "date":
        order = day_comes_first(column)
        values = days(column, name, lenient=True, day_first=order)
        return Date(name, *_bounds(values), _gaps(values, rare), day_first=order)
    form = PLAIN if pd.api.types.is_numeric_dtype(column) else form_of(column.dropna().astype("string").str.strip())
    absent, complete = _absent_words(column, rare, form)
    values = numbers(column, name, absent, not complete, form)
    return Numeric(name, *_bounds(values), _gaps(values, rare), absent, not complete, *form)


def fit_encoding(
    table: pd.DataFrame,
    leave_out: set[str],
    sequence: bool = False,
    *,
    rare: int = RARE,
    categories: Collection[str] = (),
) -> Encoding:
    """Read kinds, bounds and categories off the rows. This is not private: the certificate says so.

    With `sequence` the text column becomes a row of codes, and all else is left out. A smaller `rare` keeps categories
    of fewer rows: for rows that are public. `categories` are columns to learn as categories, whatever they look like. A
    column that is the same in every row is left out, if others are not.

    Args:
        table: The rows.
        leave_out: Columns that are no features.
        sequence: Encode the text column alone, as codes.
        rare: Categories of fewer rows count as unknown.
        categories: Columns to learn as categories.

    Returns:
        The encoding, marked as read off the rows.

    Raises:
        InputError: No column is left to learn from.

    >>> fit_encoding(pd.DataFrame({"age": [20, 40] * 10, "town": ["A", "B"] * 9 + ["A", "C"]}), set()).columns[1].values
    ('A',)
    """
    kept = [str(name) for name in table.columns if name not in leave_out]
    kinds: dict[str, Kind] = {name: "category" if name in categories else guess_kind(table[name]) for name in kept}
    if sequence:
        return Encoding((Codes(_text_column(table, kinds)),), from_rows=True)
    varied = {name: kind for name, kind in kinds.items() if kind != "ignore" and not _is_constant(table[name])}
    fitted = [fit_column(table[name], name, kind, rare) for name, kind in (varied or kinds).items()]
    columns = tuple(column for column in fitted if column is not None and column.width() > 0)
    require(
        len(columns) > 0,
        "no feature columns: the table has only target, group, ignored and identifier columns",
    )
    return Encoding(columns, from_rows=True)


def _is_constant(column: pd.Series) -> bool:
    """Whether all rows say the same; a first value that comes again decides in most columns."""
    first = column.iloc[0] if len(column) else None
    if not pd.api.types.is_scalar(first) or (pd.notna(first) and bool((column.head(100) != first).fillna(True).any())):
        return False
    return column.nunique(dropna=False) <= 1


def _text_column(table: pd.DataFrame, kinds: dict[str, Kind]) -> str:
    """The one column that is a text; where none looks like one, the one column of words."""
    texts = [name for name, kind in kinds.items() if kind == "text"]
    word_columns = [
        name
        for name, kind in kinds.items()
        if kind in ("category", "ignore") and pd.api.types.is_string_dtype(table[name].dropna())
    ]
    found = texts or word_columns
    require(len(found) > 0, "a sequence model needs a text column, and there is none")
    require(
        len(found) == 1,
        f"a sequence model takes one text column, but {', '.join(found)} are text: ignore all but one",
    )
    return found[0]


def _share(numbers_found: pd.Series, not_absent: pd.Series) -> bool:
    """Whether nearly all that is not a word for "missing" is a number."""
    total = int(not_absent.sum())
    return total > 0 and bool((numbers_found & not_absent).sum() >= _NUMBERS_SHARE * total)


def _looks_like_dates(listed: pd.Series) -> bool:
    head = listed.iloc[:200]
    if not head.str.contains(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}", regex=True).mean() > _NUMBERS_SHARE:
        return False
    found = days(head, "", lenient=True, day_first=day_comes_first(listed))
    return bool(np.isfinite(found).mean() > _NUMBERS_SHARE)


def _absent_words(column: pd.Series, rare: int, form: Form) -> tuple[tuple[str, ...], bool]:
    """The values of a numeric column that are not numbers, taken as words for "missing"; and whether these are all."""
    if pd.api.types.is_numeric_dtype(column):
        return (), True
    listed = column.dropna().astype("string").str.strip()
    wrong = listed[~are_numbers(listed, form) & (listed != "")].value_counts()
    kept = [str(word) for word, rows in wrong.items() if rows >= rare or str(word).lower() in _ABSENT_WORDS]
    return tuple(sorted(kept)), len(kept) == len(wrong)


def _gaps(values: np.ndarray[tuple[int], np.dtype[np.float64]], rare: int) -> Missing:
    """A gap has a flag where enough rows have one: else nothing is learned of the flag, and a gap is the middle."""
    return "flag" if int(np.isnan(values).sum()) >= rare else "middle"


def _bounds(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[float, float]:
    finite = values[np.isfinite(values)]
    return rounded_outwards(float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)


def rounded_outwards(low: float, high: float) -> tuple[float, float]:
    """Bounds around both, at two digits of the distance between them.

    >>> rounded_outwards(17.0, 90.0), rounded_outwards(21.5, 987654.25)
    ((17.0, 90.0), (0.0, 990000.0))
    """
    size = (high - low) or abs(high) or 1.0
    unit = 10.0 ** (math.floor(math.log10(size)) - 1)
    return math.floor(low / unit) * unit, math.ceil(high / unit) * unit
