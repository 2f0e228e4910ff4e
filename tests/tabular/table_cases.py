"""A table that nobody prepared."""

from __future__ import annotations

import numpy as np
import pandas as pd


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
