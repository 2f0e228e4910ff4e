"""Start: processor time of commands from start to end, as multiples of `python -c "import torch"` beside it.

`veil train` on a larger table may take three times what `python -c "import torch, pandas"` takes, plus 3 s.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

_VEIL = [sys.executable, "-m", "veil.cli"]
_STEPS = ["--noise-multiplier", "1", "--rate", "0.01", "--steps", "1000", "--delta", "1e-5"]
WANTED = {
    "veil --help": 0.25,
    "a wrong option": 0.4,
    "veil methods": 0.4,
    "veil account epsilon": 0.6,
    "veil train": 2.5,
}
IMPORTS, LARGER = "import torch, pandas", "veil train, 30,000 rows × 25 columns"
TIMES_IMPORTS, PLUS_SECONDS = 3.0, 3.0


def run(repeats: int, quick: bool) -> list[dict[str, Any]]:
    """Medians over interleaved rounds."""
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "table.csv"
        generated(5_000).to_csv(table, index=False)
        larger = Path(folder) / "larger.csv"
        generated(30_000, numbers=22).to_csv(larger, index=False)
        roles = ["--target", "bought", "--group", "sex", "--quiet", "--out"]
        commands = {
            "import torch": [sys.executable, "-c", "import torch"],
            IMPORTS: [sys.executable, "-c", "import torch, pandas"],
            "veil --help": [*_VEIL, "--help"],
            "a wrong option": [*_VEIL, "train", str(table), "--wrong"],
            "veil methods": [*_VEIL, "methods"],
            "veil account epsilon": [*_VEIL, "account", "epsilon", *_STEPS],
            "veil train": [*_VEIL, "train", str(table), *roles],
            LARGER: [*_VEIL, "train", str(larger), *roles],
        }
        found: dict[str, list[float]] = {name: [] for name in commands}
        for round_ in range(3 if quick else repeats):
            for name, words in commands.items():
                trains = words[-1] == "--out"
                more = [str(Path(folder) / f"run {round_} {name}")] if trains else []
                found[name].append(_seconds([*words, *more], succeeds=trains))
    medians = {name: statistics.median(times) for name, times in found.items()}
    unit = medians["import torch"]
    wanted = {**WANTED, LARGER: (TIMES_IMPORTS * medians[IMPORTS] + PLUS_SECONDS) / unit}
    return [
        {"command": name, "seconds": time, "ratio": time / unit, "wanted": wanted.get(name)}
        for name, time in medians.items()
    ]


def _seconds(words: list[str], succeeds: bool = False) -> float:
    """Processor time of a command and all it starts."""
    before = os.times()
    subprocess.run(words, capture_output=True, check=succeeds)
    after = os.times()
    return after.children_user - before.children_user + after.children_system - before.children_system


def generated(rows: int, numbers: int = 8) -> pd.DataFrame:
    """A table of numbers and two columns of words, with two classes."""
    generator = np.random.default_rng(0)
    table = pd.DataFrame(generator.normal(size=(rows, numbers)).round(3), columns=[f"x{i}" for i in range(numbers)])
    table["sex"], table["town"] = generator.choice(["f", "m"], rows), generator.choice(list("abcdefgh"), rows)
    table["bought"] = np.where(table["x0"] + generator.normal(size=rows) > 0, "yes", "no")
    return table
