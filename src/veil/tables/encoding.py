"""Encoding: columns of a table into rows of numbers.

A number is shifted and scaled into [−1, 1] by its bounds and clamped to them; a category becomes one column per known
value, and a value that was not known becomes all zeros; a date becomes a number of days; a text becomes a bag of
hashed tokens, or a row of codes for models that read sequences. No row's numbers depend on another row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from veil.errors import InputError, quoted, require
from veil.tables.text import (
    CENTURY_FROM,
    DAY_AND_MONTH,
    DecimalSign,
    TextForm,
    bag_of_tokens,
    plain_number,
    text_codes,
    word_as_read,
    word_hash,
    word_of,
)
from veil.tables.tokenizing import tokenizer_codes

Missing = Literal["flag", "middle", "refuse"]
MISSING_RULES = ("flag", "middle", "refuse")
Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Numeric:
    """A number between two bounds. `missing_words` are texts that mean "no value".

    A missing value becomes the middle and, with the rule `flag`, sets a column of its own; `refuse` makes it an error.
    With `lenient`, values that are not numbers count as missing. `decimal` and `unit` say how texts are read as
    numbers, each by itself.
    """

    name: str
    low: float
    high: float
    missing: Missing = "flag"
    missing_words: tuple[str, ...] = ()
    lenient: bool = False
    decimal: DecimalSign = ""
    unit: str = ""

    def width(self) -> int:
        """The value, and whether it is missing."""
        return 2 if self.missing == "flag" else 1

    def encode(self, column: pd.Series) -> Array:
        """[−1, 1] and a mark where the value is missing."""
        return _scaled(self.read(column), column, self.name, self.low, self.high, self.missing)

    @property
    def written(self) -> tuple[DecimalSign, str]:
        """The sign of fractions and the unit of texts."""
        return self.decimal, self.unit

    def read(self, column: pd.Series) -> NDArray[np.float64]:
        """The numbers themselves, NaN where a value is missing."""
        return numbers(column, self.name, self.missing_words, self.lenient, self.written)


@dataclass(frozen=True, slots=True)
class Date:
    """A date between two bounds, in days since 1970-01-01.

    `day_first` says how 3/4/2020 is read, for all rows alike; None goes by the sign: 3.4.2020 is in April, 3/4/2020 and
    3-4-2020 are in March.
    """

    name: str
    low: float
    high: float
    missing: Missing = "flag"
    lenient: bool = False
    day_first: bool | None = None

    def width(self) -> int:
        """The value, and whether it is missing."""
        return 2 if self.missing == "flag" else 1

    def encode(self, column: pd.Series) -> Array:
        """[−1, 1] and a mark where the value is missing."""
        values = days(column, self.name, self.lenient, self.day_first)
        return _scaled(values, column, self.name, self.low, self.high, self.missing)


@dataclass(frozen=True, slots=True)
class Category:
    """One of a list of values."""

    name: str
    values: tuple[str, ...]

    def width(self) -> int:
        """One column per known value."""
        return len(self.values)

    def encode(self, column: pd.Series) -> Array:
        """One-hot; missing and unknown values are all zeros."""
        return _one_hot(pd.Index(self.values).get_indexer(pd.Index(words(column))), len(self.values))


@dataclass(frozen=True, slots=True)
class HashedCategory:
    """A category whose values are known by a public hash alone: one of the `kept` of `buckets` hash values.

    All others are pooled: each falls into one of so many `pools`, by its hash value.
    """

    name: str
    buckets: int
    kept: tuple[int, ...]
    pools: int = 0

    def width(self) -> int:
        """One column per kept hash value, and one per pool."""
        return len(self.kept) + self.pools

    def encode(self, column: pd.Series) -> Array:
        """One-hot; missing values, and hash values that are neither kept nor pooled, are all zeros."""
        hashes = hashed_words(column, self.name, self.buckets)
        places = pd.Index(self.kept).get_indexer(pd.Index(hashes))
        if self.pools:
            places = np.where((places < 0) & (hashes >= 0), len(self.kept) + hashes % self.pools, places)
        return _one_hot(places, self.width())


@dataclass(frozen=True, slots=True)
class Text:
    """A text as a bag of hashed tokens (words, or three characters each), scaled to length 1."""

    name: str
    form: TextForm = "tokens"
    buckets: int = 256

    def width(self) -> int:
        """One column per bucket."""
        return self.buckets

    def encode(self, column: pd.Series) -> Array:
        """Counts per bucket over the text's own length."""
        require(self.buckets > 0, f"buckets is {self.buckets}: it must be above 0")
        return bag_of_tokens(words(column), self.form, self.buckets)


@dataclass(frozen=True, slots=True)
class Codes:
    """A text as a row of character or token codes, for models that read sequences.

    `tokenizer` is the folder of a tokenizer on disk; empty for the public rules of Veil.
    """

    name: str
    form: TextForm = "characters"
    length: int = 32
    buckets: int = 4096
    tokenizer: str = ""

    def width(self) -> int:
        """How many codes."""
        return self.length

    def encode(self, column: pd.Series) -> Array:
        """Whole numbers; what fills up stands on the left, or where the tokenizer puts it."""
        if self.tokenizer:
            return tokenizer_codes(words(column), self.tokenizer, self.length)
        return text_codes(words(column), self.form, self.length, self.buckets)


Column = Numeric | Date | Category | HashedCategory | Text | Codes


@dataclass(frozen=True, slots=True)
class Encoding:
    """How each column becomes numbers; `from_rows` says whether it was taken from the rows themselves.

    Args:
        columns: One for each column that the model sees.
        from_rows: Whether bounds or values were taken from private rows.

    >>> Encoding((Numeric("age", 20, 80, "middle"),), from_rows=False).columns[0].name
    'age'
    """

    columns: tuple[Column, ...]
    from_rows: bool

    def __post_init__(self) -> None:
        sequences = [column for column in self.columns if isinstance(column, Codes)]
        require(
            not sequences or len(self.columns) == 1,
            "a sequence model takes exactly one text column: set the other columns to ignore",
        )

    def encode(self, table: pd.DataFrame) -> Array:
        """All columns side by side.

        Args:
            table: Rows that have all encoded columns; others are ignored.

        Returns:
            One line of numbers for each row.

        Raises:
            InputError: A column is missing, or a value cannot be read.
        """
        missing = [column.name for column in self.columns if column.name not in table.columns]
        require(not missing, f"{quoted(missing)} {'is' if len(missing) == 1 else 'are'} missing from the table")
        if len(self.columns) == 1:
            return self.columns[0].encode(table[self.columns[0].name])
        rows = np.empty((len(table), self.width()), dtype=np.float32)
        start = 0
        for column in self.columns:
            rows[:, start : start + column.width()] = column.encode(table[column.name])
            start += column.width()
        return rows

    def width(self) -> int:
        """How many numbers a row becomes.

        Returns:
            The length of an encoded row.
        """
        return sum(column.width() for column in self.columns)

    def widths(self) -> tuple[int, ...]:
        """How many numbers each column becomes.

        Returns:
            One number for each column, in their order.
        """
        return tuple(column.width() for column in self.columns)

    def numbers(self) -> list[int]:
        """The places of numbers and dates, which lie in [−1, 1], in an encoded row.

        Returns:
            Positions, counted from 0.
        """
        starts = np.cumsum([0, *self.widths()])
        return [
            int(start)
            for start, column in zip(starts, self.columns, strict=False)
            if isinstance(column, Numeric | Date)
        ]


def words(column: pd.Series) -> list[str]:
    """Each value as text; missing values are empty. Whole numbers look the same whatever their type."""
    if pd.api.types.is_object_dtype(column):  # where 1, 1.0 and True are equal, and three words
        return ["" if missing else word_of(value) for value, missing in zip(column, column.isna(), strict=True)]
    codes, values = pd.factorize(column)
    known = [*("" if missing else word_of(value) for value, missing in zip(values, pd.isna(values), strict=True)), ""]
    return [known[code] for code in codes.tolist()]


def as_read(column: pd.Series, known: Sequence[str] | None) -> pd.Series:
    """Words of a column that was read as texts, as if pandas had seen what they are: 5.0 is 5, true is True.

    A word that is `known` stays as it is.

    >>> as_read(pd.Series(["05", "7.0", "true", "x", None]), ["05", "True"]).tolist()
    ['05', '7', 'True', 'x', None]
    """
    stay = None if known is None else frozenset(known)
    codes, values = pd.factorize(column)
    read = (word_as_read(value, stay) if isinstance(value, str) else value for value in values)
    found = np.array([*read, None], dtype=object)
    return pd.Series(found[codes], index=column.index, dtype=object)


def hashed_words(column: pd.Series, name: str, buckets: int) -> NDArray[np.int64]:
    """The public hash of each value; −1 where it is missing."""
    listed = words(column)
    known = {word: word_hash(name, word, buckets) for word in set(listed)}
    return np.array([known[word] for word in listed], dtype=np.int64)


PLAIN: tuple[DecimalSign, str] = ("", "")


def numbers(
    column: pd.Series,
    name: str,
    missing_words: tuple[str, ...] = (),
    lenient: bool = False,
    written: tuple[DecimalSign, str] = PLAIN,
) -> NDArray[np.float64]:
    """A column as numbers, NaN where a value is missing; a value that is not a number is an error that names the row.

    With `lenient` such values count as missing instead, so that not even an error tells about a row. `written` are the
    sign of fractions and the unit of texts.
    """
    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_complex_dtype(column):
        values = column.to_numpy(dtype=np.float64, na_value=np.nan)
    else:
        stripped = column.astype("string").str.strip()
        absent = stripped.isna() | stripped.isin(["", *missing_words])
        read = pd.to_numeric(_plain_numbers(stripped.mask(absent), written), errors="coerce")
        values = read.to_numpy(dtype=np.float64, na_value=np.nan)
        _refuse(np.isnan(values) & ~absent.to_numpy(dtype=bool) & (not lenient), column, name, "is not a number")
    infinite = np.isinf(values)
    _refuse(infinite & (not lenient), column, name, "is not finite")
    return np.where(infinite, np.nan, values) if lenient else values


def _plain_numbers(texts: pd.Series, written: tuple[DecimalSign, str]) -> pd.Series:
    """Texts as Python writes numbers; most columns are plain, and then truth values alone are looked for."""
    if written == PLAIN and not texts.str.match("[tTfF]").any():
        return texts
    return texts.map(lambda text: plain_number(text, *written), na_action="ignore")


def days(column: pd.Series, name: str, lenient: bool = False, day_first: bool | None = None) -> NDArray[np.float64]:
    """A column of dates as days since 1970, NaN where a value is missing; `day_first` is that of `Date`.

    >>> (days(pd.Series(["3.4.2020", "3/4/2020"]), "") - days(pd.Series(["2020-04-03", "2020-03-04"]), "")).tolist()
    [0.0, 0.0]
    """
    if pd.api.types.is_datetime64_any_dtype(column):
        stamps = pd.to_datetime(column, utc=True)
    else:
        stamps = pd.to_datetime(_year_first(column, day_first), errors="coerce", format="mixed", utc=True)
        _refuse((stamps.isna() & column.notna()).to_numpy() & (not lenient), column, name, "is not a date")
    # In the column's own unit: in nanoseconds only the years from 1678 to 2262 exist.
    seconds = (stamps - pd.Timestamp(0, tz="UTC").as_unit(stamps.dt.unit)) / pd.Timedelta(days=1)
    return np.asarray(seconds.to_numpy(dtype=np.float64, na_value=np.nan), dtype=np.float64)


def day_comes_first(column: pd.Series) -> bool | None:
    """Whether dates have the day before the month, from unambiguous values; None where all are ambiguous.

    >>> day_comes_first(pd.Series(["3/4/2020", "31/4/2020"])), day_comes_first(pd.Series(["3/4/2020"]))
    (True, None)
    """
    if pd.api.types.is_datetime64_any_dtype(column):
        return None
    parts = column.astype("string").str.extract(DAY_AND_MONTH)
    first, second = (int((pd.to_numeric(parts[place]) > 12).sum()) for place in (0, 2))
    return None if first == second else first > second


def _year_first(column: pd.Series, day_first: bool | None) -> pd.Series:
    """Dates that begin with day and month in the order year, month, day: left to itself pandas reads row by row."""
    # 20200131 is a date whether or not a gap in the column made it 20200131.0.
    plain = pd.api.types.is_numeric_dtype(column)
    listed = (pd.Series(words(column), column.index, dtype=object) if plain else column).astype("string")
    parts = listed.str.extract(DAY_AND_MONTH)
    turn = (parts[1] == ".") if day_first is None else pd.Series(day_first, index=column.index)
    turn = turn.fillna(False).astype(bool)
    day, month = parts[0].where(turn, parts[2]), parts[2].where(turn, parts[0])
    short = parts[3].str.len() == 2
    century = (pd.to_numeric(parts[3]) < CENTURY_FROM).map({True: "20", False: "19"})
    year = parts[3].mask(short.fillna(False).astype(bool), century + parts[3])
    turned = year + "-" + month.str.zfill(2) + "-" + day.str.zfill(2) + parts[4]
    return listed.where(parts[0].isna(), turned)


def _scaled(
    values: NDArray[np.float64], column: pd.Series, name: str, low: float, high: float, missing: Missing
) -> Array:
    absent = np.isnan(values)
    if missing == "refuse":
        _refuse(absent, column, name, "is missing")
    scaled = np.where(absent, 0.0, np.clip(2 * (values - low) / ((high - low) or 1.0) - 1, -1.0, 1.0))
    parts = [scaled, absent] if missing == "flag" else [scaled]
    return np.column_stack(parts).astype(np.float32)


def _refuse(wrong: NDArray[np.bool_], column: pd.Series, name: str, what: str) -> None:
    """Name the first wrong row by its place in the file, which the index keeps when rows are set apart."""
    if wrong.any():
        row = column.index[int(wrong.argmax())]
        raise InputError(f'column "{name}" {what} in row {row}: correct the value or leave it empty')


def _one_hot(codes: NDArray[Any], width: int) -> Array:
    return np.asarray(codes[:, None] == np.arange(width)[None, :], dtype=np.float32)
