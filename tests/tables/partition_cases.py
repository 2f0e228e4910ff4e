"""A table in several Parquet files, with a schema that says what everybody knows about it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from veil.request import Request

SCHEMA = """
[columns.a]
kind = "numeric"
low = -3.0
high = 3.0
[columns.b]
kind = "numeric"
low = -3.0
high = 3.0
[columns.colour]
kind = "category"
values = ["red", "green", "blue"]
[columns.sex]
kind = "group"
values = ["f", "m"]
[columns.y]
kind = "target"
values = ["no", "yes"]
"""
CUTS = (0, 1000, 1100, 2600, 4000)


def table(rows: int = CUTS[-1]) -> pd.DataFrame:
    generator = np.random.default_rng(0)
    a, b, off = generator.standard_normal((3, rows))
    colours = np.array(["red", "green", "blue"])[generator.integers(0, 3, rows)]
    sex = np.where(b > 0.5, "m", "f")
    y = np.where(a + 0.4 * off + (colours == "red") > 0.3, "yes", "no")
    return pd.DataFrame({"a": a, "b": b, "colour": colours, "sex": sex, "y": y})


def folder_at(place: Path) -> Path:
    """The table cut into files of different length, one of them empty; and a public table beside it."""
    folder = place / "big"
    folder.mkdir(parents=True)
    whole = table()
    for index, (first, last) in enumerate(pairwise(CUTS)):
        whole.iloc[first:last].to_parquet(folder / f"part-{index}.parquet", index=False)
    whole.iloc[:0].to_parquet(folder / "part-9.parquet", index=False)
    table(500).iloc[::-1].to_csv(place / "test.csv", index=False)
    (place / "schema.toml").write_text(SCHEMA, encoding="utf-8")
    return folder


def declare_sizes(folder: Path) -> None:
    """State the sizes of the groups in the schema."""
    stated = "[group_sizes]\nf = 2700\nm = 1300\n"
    (folder.parent / "schema.toml").write_text(SCHEMA + stated, encoding="utf-8")


def request_for(folder: Path, **more: Any) -> Request:
    place = folder.parent
    given: dict[str, Any] = {"data": folder, "test": place / "test.csv", "schema": place / "schema.toml"}
    settings = {"epsilon": 3.0, "seed": 5, "steps": 12} | more.pop("settings", {})
    return Request.checked(**given | {"settings": settings} | more)
