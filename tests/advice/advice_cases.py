"""Small tables to plan on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from veil.request import Request

ROWS = 600


def people(seed: int = 0, rows: int = ROWS) -> pd.DataFrame:
    """Two groups of fixed sizes, numbers within fixed bounds, and a target that follows one of them."""
    draw = np.random.default_rng(seed)
    age = np.r_[0.0, 1.0, draw.random(rows - 2)].round(3)
    table = pd.DataFrame({"age": age, "job": np.resize(["a", "b", "c"], rows)})
    table["sex"] = np.where(np.arange(rows) < rows // 4, "f", "m")
    table["y"] = np.where(age + draw.normal(0, 0.3, rows) > 0.5, "yes", "no")
    return table


def asked(path: Path, table: pd.DataFrame, **more: Any) -> Request:
    """A request to plan on a table, with all rows to train on."""
    table.to_csv(path, index=False)
    given = {"data": path, "target": "y", "group": ("sex",), "holdout": 0.0} | more
    return Request.checked(**given)
