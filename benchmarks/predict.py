"""`python -m benchmarks predict [--rows N] [--json]`: `veil predict` on generated files, rows per second and memory.

A model is trained on 5,000 generated rows; then files of N/10 and of N rows, as CSV and as Parquet, are predicted by
the command, each in a process of its own. Memory that does not grow with the rows is bounded.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

AT_ONCE = 500_000


def table(rows: int, seed: int) -> pd.DataFrame:
    """People: five numbers, three categories, a class to predict."""
    draw = np.random.default_rng(seed)
    numbers = {f"measure_{place}": draw.normal(size=rows).round(4).astype(np.float32) for place in range(5)}
    words = {"region": ["north", "south", "east", "west"], "job": [f"job {place}" for place in range(20)]}
    found = pd.DataFrame(numbers)
    for name, values in words.items():
        found[name] = np.array(values)[draw.integers(0, len(values), rows)]
    found["sex"] = np.where(draw.random(rows) < 0.3, "f", "m")
    found["good"] = np.where(found["measure_0"] + draw.normal(size=rows) > 0, "yes", "no")
    return found


def write(path: Path, rows: int) -> None:
    """A file of so many rows, written piece by piece."""
    from veil.tables.predicting import CsvWriter, ParquetWriter

    with ExitStack() as stack:
        writer: CsvWriter | ParquetWriter
        if path.suffix == ".csv":
            writer = stack.enter_context(CsvWriter(stack.enter_context(path.open("w", encoding="utf-8"))))
        else:
            writer = stack.enter_context(ParquetWriter(path))
        for start in range(0, rows, AT_ONCE):
            writer.write(table(min(AT_ONCE, rows - start), start))


def predicted(run: Path, data: Path, rows: int) -> dict[str, Any]:
    """One run of the command: its seconds, start included, and its largest memory."""
    out = data.with_name(f"answers{data.suffix}")
    words = [sys.executable, "-m", "veil.cli", "predict", str(run), str(data), "-o", str(out), "--probabilities"]
    start = time.perf_counter()
    process = subprocess.Popen([*words, "--force"], stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"veil predict ended with {process.returncode}")
    out.unlink()
    return {
        "rows": rows,
        "file": data.suffix.removeprefix("."),
        "seconds": round(seconds, 1),
        "rows_per_second": round(rows / seconds),
        "largest_memory_gb": round(used.ru_maxrss * 1024 / 1e9, 3),
    }


def main(words: Sequence[str]) -> None:
    """Write, train, predict, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks predict", description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of the large file [default: 10 million]")
    parser.add_argument("--json", action="store_true", help="print one JSON list on standard output")
    asked = parser.parse_args(words)
    found = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        table(5000, 1).to_csv(folder / "train.csv", index=False)
        train = ["train", str(folder / "train.csv"), "--target", "good", "--group", "sex", "--seed", "1", "--quiet"]
        subprocess.run(
            [sys.executable, "-m", "veil.cli", *train, "--out", str(folder / "run")],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        for kind in ("parquet", "csv"):
            for rows in (asked.rows // 10, asked.rows):
                data = folder / f"new.{kind}"
                write(data, rows)
                found.append(predicted(folder / "run", data, rows))
                data.unlink()
    from benchmarks._printing import print_table

    if asked.json:
        print(json.dumps(found))
    else:
        print_table("predict", found)
