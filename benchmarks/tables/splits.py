"""Splits: which rows train and which are measured, fixed in `splits.json` and checked whenever a table is loaded.

Test rows are a quarter of a table, the same for every seed. Validation rows are a quarter of the *training* rows,
others for every seed: settings are chosen on them, so that test rows are seen once, at the end.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from veil.datasets.split import set_apart
from veil.errors import InputError, require

Rows = Literal["test", "validation"]
FILE = Path(__file__).with_name("splits.json")
SHARE = 0.25
TEST_SEED = 0
VALIDATION_SEEDS = range(101, 111)


def split(table: str, rows: int, which: Rows, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions of the rows that train and of those that are measured. `seed` chooses validation rows only."""
    train, test = set_apart(rows, SHARE, TEST_SEED, f"tables/{table}")
    if which == "test":
        return train, test
    require(
        seed in VALIDATION_SEEDS,
        f"validation rows of seed {seed} are not fixed: use seeds {VALIDATION_SEEDS[0]} to {VALIDATION_SEEDS[-1]}",
    )
    inner, measured = set_apart(len(train), SHARE, seed, f"tables/{table}/validation")
    return train[inner], train[measured]


def fixed(table: str, labels: Sequence[str]) -> dict[str, Any]:
    """What `splits.json` says of one table: its rows, its labels in their order, and every split of it."""
    rows = len(labels)
    train, test = split(table, rows, "test", TEST_SEED)
    return {
        "rows": rows,
        "labels": hashlib.sha256("\n".join(labels).encode()).hexdigest(),
        "test": {"seed": TEST_SEED, "train": len(train), "test": len(test), "sha256": _digest(train, test)},
        "validation": {str(seed): _digest(*split(table, rows, "validation", seed)) for seed in VALIDATION_SEEDS},
    }


def delta_for(rows: int) -> float:
    """1/(10 · training rows) with one digit.

    >>> delta_for(36_632)
    3e-06
    """
    return float(f"{1 / (10 * rows):.0e}")


def fixed_sizes(table: str) -> dict[str, Any]:
    """Training and test rows of a table and its δ, from the file alone."""
    known = json.loads(FILE.read_text(encoding="utf-8"))[table]["test"]
    return {"train": known["train"], "test": known["test"], "delta": delta_for(known["train"])}


def check(table: str, labels: Sequence[str]) -> None:
    """Rows and splits are those of the file: figures of two machines are then about the same rows."""
    known = json.loads(FILE.read_text(encoding="utf-8")).get(table)
    if known is None:
        raise InputError(f'splits.json has no table "{table}": run `python -m benchmarks.tables.data` to add it')
    found = fixed(table, labels)
    wrong = [key for key in known if known[key] != found[key]]
    require(
        not wrong,
        f'table "{table}" does not match splits.json ({", ".join(wrong)} differ): restore the raw file, or the code '
        "that reads and splits it",
    )


def write(found: dict[str, dict[str, Any]]) -> None:
    """Add tables to the file, or change them: figures of other splits are then no longer comparable."""
    known = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    FILE.write_text(json.dumps({**known, **found}, indent=1) + "\n", encoding="utf-8")


def _digest(*parts: NDArray[np.int64]) -> str:
    """One digest of several lists of positions, the same on every machine."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part.astype("<i8").tobytes())
    return digest.hexdigest()
