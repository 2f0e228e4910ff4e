"""Encoding: columns of a table into rows of numbers.

A number is shifted and scaled into [−1, 1] by its bounds and clamped to them; a category becomes one column per known
value, and a value that was not known becomes all zeros. A missing number becomes the middle and sets a column of its
own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from veil.errors import InputError, require

MAX_CATEGORIES = 64


@dataclass(frozen=True, slots=True)
class Numeric:
    """A number between two bounds."""

    name: str
    low: float
    high: float

    def width(self) -> int:
        """The value and whether it is missing."""
        return 2

    def encode(self, column: pd.Series) -> NDArray[np.float32]:
        """[−1, 1] and a mark where the value is missing."""
        values = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
        infinite = np.isinf(values)
        require(
            not infinite.any(),
            f'column "{self.name}" is not finite in row {int(infinite.argmax())}: mend the value or leave it empty',
        )
        missing = np.isnan(values)
        span = (self.high - self.low) or 1.0
        scaled = np.clip(2 * (values - self.low) / span - 1, -1.0, 1.0)
        return np.column_stack([np.where(missing, 0.0, scaled), missing]).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Category:
    """One of a list of values."""

    name: str
    values: tuple[str, ...]

    def width(self) -> int:
        """One column per known value."""
        return len(self.values)

    def encode(self, column: pd.Series) -> NDArray[np.float32]:
        """One-hot; missing and unknown values are all zeros."""
        codes = pd.Index(self.values).get_indexer(pd.Index(column.astype("string").fillna("").astype(str)))
        return np.asarray(codes[:, None] == np.arange(len(self.values))[None, :], dtype=np.float32)


@dataclass(frozen=True, slots=True)
class Encoding:
    """How each column becomes numbers; `from_rows` says whether it was read off the rows themselves."""

    columns: tuple[Numeric | Category, ...]
    from_rows: bool

    def encode(self, table: pd.DataFrame) -> NDArray[np.float32]:
        """All columns side by side."""
        missing = [column.name for column in self.columns if column.name not in table.columns]
        require(not missing, f'column "{missing[0] if missing else ""}" is missing from the table')
        parts = [column.encode(table[column.name]) for column in self.columns]
        return np.concatenate(parts, axis=1) if parts else np.zeros((len(table), 0), np.float32)

    def width(self) -> int:
        """How many numbers a row becomes."""
        return sum(column.width() for column in self.columns)


def fit_encoding(table: pd.DataFrame, leave_out: set[str]) -> Encoding:
    """Read bounds and categories off the rows. This is not private: the certificate says that it is not covered.

    >>> fit_encoding(pd.DataFrame({"age": [20, 40], "town": ["A", "B"]}), set()).width()
    4
    """
    columns: list[Numeric | Category] = []
    for name in table.columns:
        if name in leave_out:
            continue
        column = table[name]
        if pd.api.types.is_bool_dtype(column) or not pd.api.types.is_numeric_dtype(column):
            counts = column.astype("string").dropna().value_counts()
            values = tuple(sorted(str(value) for value in counts.index[:MAX_CATEGORIES]))
            columns.append(Category(str(name), values))
        else:
            finite = column.to_numpy(dtype=np.float64, na_value=np.nan)
            finite = finite[np.isfinite(finite)]
            low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
            columns.append(Numeric(str(name), low, high))
    if not columns:
        raise InputError("no column is left to learn from: the table has only target and group columns")
    return Encoding(tuple(columns), from_rows=True)
