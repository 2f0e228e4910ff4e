"""A table that nobody prepared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from veil.foundation.randomness import Seed
from veil.tables.splitting import Holdout, holdout_key, row_identities


def messy(rows: int = 500) -> pd.DataFrame:
    """Missing values, mixed types, dates, an identifier, many categories, a 1 % minority."""
    generator = np.random.default_rng(4)
    age = generator.integers(18, 95, rows)
    table = pd.DataFrame(
        {
            "id": np.arange(rows) + 1000,
            "age": np.where(generator.random(rows) < 0.05, "?", age.astype(str)),
            "height (cm)": np.where(generator.random(rows) < 0.2, np.nan, generator.normal(170, 9, rows).round(1)),
            "joined": pd.to_datetime("2015-03-01") + pd.to_timedelta(generator.integers(0, 3000, rows), unit="D"),
            "postcode": [f"PC{code:04d}" for code in generator.integers(0, 200, rows)],
            "mixed": [str(value) if value % 3 else f"{value / 7:.3f} kg" for value in generator.integers(0, 30, rows)],
            "remark": generator.choice(["came late and left early", "no remark at all", "paid in cash"], rows),
            "member": generator.random(rows) < 0.5,
            "empty": np.nan,
            "region": np.where(np.arange(rows) % 100 == 0, "island", "mainland"),
        }
    )
    table["joined"] = table["joined"].dt.strftime("%Y-%m-%d").where(generator.random(rows) > 0.1)
    table["bought"] = np.where(age + 10 * generator.standard_normal(rows) > 55, "yes", "no")
    return table


def held_out_of(table: pd.DataFrame, group: str = "region", seed: int = 1) -> NDArray[np.bool_]:
    """Which rows a run with this seed holds out."""
    return Holdout(0.2, holdout_key(Seed.from_int(seed))).sparing(row_identities(table), table[group])


def with_value(table: pd.DataFrame, column: str, value: Any, held_out: bool = True) -> int:
    """Give one row another value, such that this row is held out (or trained on): the row's number."""
    old = table[column].copy()
    for row in reversed(range(len(table))):
        table.loc[row, column] = value
        if held_out_of(table)[row] == held_out:
            return row
        table[column] = old
    raise AssertionError("no such row")
