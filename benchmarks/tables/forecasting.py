"""`python -m benchmarks plan`: how far the forecast of `veil plan` is from what `auto` was measured at.

Measured figures are those of `docs/results/tables.json`. Of a table the forecast knows group sizes and which columns
make groups. Its constants are fitted with every table left out in turn: no table helps to forecast itself.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from benchmarks.tables.arms import ROOT, schema_of
from benchmarks.tables.data import TABLES, Task, load
from veil.errors import InputError

RESULTS = ROOT / "docs" / "results"
CALIBRATION = ROOT / "src" / "veil" / "advice" / "calibration.json"
WITHIN = (0.1, 0.9)
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Point:
    """One cell: what the forecast knows, and the worst group that was measured (mean over seeds)."""

    table: str
    groups: str
    epsilon: float
    crossed: bool
    signal: float
    measured: float

    @property
    def features(self) -> list[float]:
        """What the constants are multiplied with."""
        return [1.0, float(self.crossed), float(np.log(self.signal))]


def main(words: Sequence[str]) -> None:
    """Count groups, fit, print the error on tables that were left out; or time the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks plan", description=__doc__)
    parser.add_argument("--time", action="store_true", help="only run veil plan on every table, and time it")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--measured", type=Path, default=RESULTS, help="folder of the tables.json to fit to")
    given = parser.parse_args(words)
    try:
        if given.time:
            found: dict[str, Any] = {"seconds": [timed(name) for name in TABLES]}
        else:
            found = report_of(refreshed(RESULTS / "plan.json", given.measured))
            CALIBRATION.write_text(json.dumps(found["calibration"]) + "\n", encoding="utf-8")
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    print(json.dumps(found) if given.json or given.time else table_of(found))


def timed(name: str) -> dict[str, Any]:
    """Seconds that `veil plan` takes on one table with its finest groups: of the clock and of the processor."""
    from veil.advice.planning import advise
    from veil.request import Request

    task = load(name).task("crossed")
    with tempfile.TemporaryDirectory() as place:
        task.train.to_parquet(Path(place) / "train.parquet", index=False)
        (Path(place) / "schema.toml").write_text(schema_of(task).to_toml(), encoding="utf-8")
        asked = Request.checked(
            data=Path(place) / "train.parquet",
            schema=Path(place) / "schema.toml",
            target=task.target,
            group=task.group_columns,
        )
        clock, processor = time.perf_counter(), time.process_time()
        advise(asked).page_tables()
        clock, processor = time.perf_counter() - clock, time.process_time() - processor
    return {"table": name, "clock": round(clock, 1), "processor": round(processor, 1)}


def stored_points(path: Path) -> list[Point]:
    """The cells that are stored."""
    record = json.loads(path.read_text(encoding="utf-8"))
    return [Point(**dict(zip(record["columns"], row, strict=True))) for row in record["rows"]]


def refreshed(path: Path, measured: Path) -> list[Point]:
    """All cells of the `tables.json` in a folder, counted anew and stored."""
    cells = measured_cells(measured / "tables.json")
    found = [p for (table, groups), own in cells.items() for p in points_of(load(table).task(groups), own)]
    points = sorted(found, key=lambda point: (point.table, point.groups, point.epsilon))
    _store(points, path)
    return stored_points(path)


def measured_cells(path: Path) -> dict[tuple[str, Any], dict[float, float]]:
    """The worst group of `auto` by table, groups and ε: means over seeds."""
    record = json.loads(path.read_text(encoding="utf-8"))
    found: dict[tuple[str, str], dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in record["rows"]:
        cell = dict(zip(record["columns"], row, strict=True))
        if cell["arm"] == "auto" and cell["worst_group_accuracy"] is not None:
            found[cell["table"], cell["groups"]][cell["epsilon"]].append(cell["worst_group_accuracy"])
    return {key: {e: float(np.mean(v)) for e, v in sorted(own.items())} for key, own in found.items()}


def points_of(task: Task, measured: dict[float, float]) -> list[Point]:
    """The cells of one table and definition of groups."""
    from veil.advice.forecast import smallest_signal
    from veil.methods.auto import noise_of_one
    from veil.plans import Settings
    from veil.problem import Cell, PublicFacts

    counts = sorted(Counter(task.groups_of(task.train).tolist()).items())
    cells = tuple(Cell(index, 0, rows) for index, (_, rows) in enumerate(counts))
    facts = PublicFacts(tuple(name for name, _ in counts), ("everybody",), cells, (1,), classes=task.classes)
    found = []
    for epsilon, accuracy in measured.items():
        kappa = noise_of_one(facts, Settings.checked(epsilon=epsilon, delta=task.delta))
        crossed = task.target in task.group_columns
        found.append(Point(task.table, task.grouping, epsilon, crossed, smallest_signal(facts, kappa), accuracy))
    return found


def least_absolute(rows: Floats, values: Floats) -> Floats:
    """The constants with the smallest sum of absolute errors."""
    count, width = rows.shape
    costs = np.r_[np.zeros(width), np.ones(2 * count)]
    equal = np.hstack([rows, np.eye(count), -np.eye(count)])
    bounds = [(None, None)] * width + [(0, None)] * (2 * count)
    return np.asarray(linprog(costs, A_eq=equal, b_eq=values, bounds=bounds, method="highs").x[:width])


def left_out_errors(points: Sequence[Point]) -> Floats:
    """Forecast less measurement of every cell, by constants that were fitted without its table."""
    rows, values = np.array([point.features for point in points]), np.array([point.measured for point in points])
    tables, errors = np.array([point.table for point in points]), np.zeros(len(points))
    for table in sorted(set(tables)):
        out = tables == table
        errors[out] = np.clip(rows[out] @ least_absolute(rows[~out], values[~out]), 0.0, 0.995) - values[out]
    return errors


def report_of(points: Sequence[Point]) -> dict[str, Any]:
    """The fitted constants, and the error on tables that were left out: overall, by table, by groups and by ε."""
    errors = left_out_errors(points)
    rows, values = np.array([point.features for point in points]), np.array([point.measured for point in points])
    low, high = np.quantile(-errors, WITHIN)
    calibration = {
        "weights": [round(float(weight), 4) for weight in least_absolute(rows, values)],
        "low": round(float(low), 4),
        "high": round(float(high), 4),
        "error": round(float(np.abs(errors).mean()), 4),
        "tables": len({point.table for point in points}),
        "cells": len(points),
    }
    by = {
        name: {
            str(key): round(100 * float(np.abs(errors[[getattr(p, name) == key for p in points]]).mean()), 1)
            for key in sorted({getattr(point, name) for point in points})
        }
        for name in ("table", "groups", "epsilon")
    }
    return {
        "mean_absolute_error": round(100 * float(np.abs(errors).mean()), 2),
        "median_absolute_error": round(100 * float(np.median(np.abs(errors))), 2),
        "calibration": calibration,
        "by": by,
        "rows": [{**asdict(p), "error": round(100 * float(e), 1)} for p, e in zip(points, errors, strict=True)],
    }


def table_of(found: dict[str, Any]) -> str:
    """The errors in words and columns."""
    lines = [
        f"Forecast of the worst group of auto, {found['calibration']['cells']} cells, every table left out in turn:",
        f"mean absolute error {found['mean_absolute_error']} points, median {found['median_absolute_error']}",
    ]
    for name, values in found["by"].items():
        lines += ["", f"by {name}", *(f"  {key:24}{value:6.1f}" for key, value in values.items())]
    return "\n".join(lines)


def _store(points: Sequence[Point], path: Path) -> None:
    columns = list(Point.__dataclass_fields__)
    rows = ",\n".join(
        "  " + json.dumps([round(v, 4) if isinstance(v, float) else v for v in asdict(point).values()])
        for point in points
    )
    path.write_text(f'{{\n "columns": {json.dumps(columns)},\n "rows": [\n{rows}\n ]\n}}\n', encoding="utf-8")
