"""Reading tables and turning them into problems."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from veil.errors import InputError, require
from veil.problem import Problem, PublicFacts
from veil.tabular.encoding import Encoding


def read_table(path: Path) -> pd.DataFrame:
    """A CSV or Parquet file as a table."""
    require(path.exists(), f"there is no file {path}")
    try:
        if path.suffix in {".parquet", ".pq"}:
            return pd.read_parquet(path)
        table = pd.read_csv(path, skipinitialspace=True)
    except (OSError, ValueError, UnicodeError) as error:
        first = str(error).splitlines()[0]
        raise InputError(f"{path} is not a table that can be read: {first}") from error
    require(len(table) > 0, f"{path} has no rows")
    return table


def _labels(column: pd.Series) -> NDArray[np.object_]:
    """A column as words; what is missing is None."""
    words = [None if missing else str(value) for value, missing in zip(column, column.isna(), strict=True)]
    return np.array(words, dtype=object)


def table_problem(
    table: pd.DataFrame, encoding: Encoding, target: str, groups: Sequence[str], like: PublicFacts | None = None
) -> Problem:
    """Rows of a table as a problem; `like` gives the classes and groups of an earlier one (for evaluation rows)."""
    for name in (target, *groups):
        if name not in table.columns:
            raise InputError(f'column "{name}" is missing: the table has {", ".join(map(str, table.columns))}')
    return Problem.from_arrays(
        encoding.encode(table),
        _labels(table[target]),
        {name: _labels(table[name]) for name in groups} or None,
        classes=like.classes if like else None,
    )
