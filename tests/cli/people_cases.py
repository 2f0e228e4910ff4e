"""A small table of people, and the words that train on it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

TRAIN = ("--target", "rich", "--group", "sex", "--epochs", "2", "--batch-size", "40", "--seed", "1")

# Of a schema: who is whose group, and what is predicted.
ROLES = """[columns.sex]
kind = "group"
values = ["f", "m"]
[columns.rich]
kind = "target"
values = ["no", "yes"]
"""


def write_people(folder: Path) -> Path:
    """Write the table, and beside it the same rows as public ones."""
    generator = np.random.default_rng(0)
    rows = 400
    sex = np.where(generator.random(rows) < 0.3, "f", "m")
    age = generator.integers(18, 90, rows)
    town = generator.choice(["A", "B", "C"], rows)
    rich = np.where(age + 10 * generator.standard_normal(rows) > 50, "yes", "no")
    table = pd.DataFrame({"age": age, "town": town, "sex": sex, "rich": rich})
    for name in ("people", "public"):
        table.to_csv(folder / f"{name}.csv", index=False)
    return folder / "people.csv"


def judged(people: Path) -> tuple[str, str, str]:
    """The table and public rows to judge by, as words."""
    return str(people), "--test", str(people.with_name("public.csv"))
