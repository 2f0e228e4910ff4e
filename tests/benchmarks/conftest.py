"""A table of a few hundred generated rows, which needs no file."""

from __future__ import annotations

import pytest

from benchmarks.tables import generated
from benchmarks.tables.data import Table, TableSpec


@pytest.fixture(scope="session")
def tiny_table() -> Table:
    """400 rows with a column that only makes groups."""
    frame = generated.curves(400, seed=1)
    frame["part"] = frame["age"].map(lambda age: "young" if age < 45 else "old").astype("str")
    spec = TableSpec(
        lambda: frame,
        "approved",
        {"protected": ("sex",), "crossed": ("sex", "part"), "label": ("sex", "approved")},
        generated.CURVES_BOUNDS,
        ("part",),
    )
    return Table("tiny", spec, frame)
