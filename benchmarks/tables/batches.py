"""`python -m benchmarks batches`: batch size, epochs and the bound of gradients, for methods that train a network.

On validation rows alone: what is chosen here is a default. Every run is `veil train` at ε in all with the learning rate
that the noise sets. Runs are kept in docs/results/batches.jsonl, one line each; those that are there are not made
again, and the table of docs/choosing-epsilon.md is written from them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tables.arms import ROOT, veil_train
from benchmarks.tables.data import load
from benchmarks.tables.scoring import score
from veil.foundation.files import FOR_ALL, write_whole

RESULTS, PAGE = ROOT / "docs" / "results" / "batches.jsonl", ROOT / "docs" / "choosing-epsilon.md"
BEGIN, END = "<!-- python -m benchmarks batches -->", "<!-- end of batches -->"
TABLES = ("adult", "dutch", "bank_marketing", "credit_default")
SEEDS = (108, 109)
# Batch and epochs: one factor at a time around the constants 512 and 20, then what a larger batch could pay for.
USUAL = ((512, 20.0), (2048, 20.0), (512, 5.0), (2048, 5.0), (2048, 60.0), (8192, 60.0))
# A rule from ε needs more than one ε.
OTHER_BUDGETS = ((512, 20.0), (512, 5.0), (2048, 20.0), (2048, 60.0))


@dataclass(frozen=True)
class Setting:
    """One cell of the study."""

    table: str
    method: str
    epsilon: float
    batch: int
    epochs: float
    seed: int


def settings(tables: tuple[str, ...]) -> Iterator[Setting]:
    """All cells, the most telling first."""
    for seed in SEEDS:
        for table in tables:
            for method in ("dp-sgd", "asc"):
                yield from (Setting(table, method, 1.0, batch, epochs, seed) for batch, epochs in USUAL)
            yield from (Setting(table, "auto-s", 1.0, batch, 20.0, seed) for batch in (512, 2048))
    for epsilon in (0.3, 3.0):
        for table in tables:
            for method in ("dp-sgd", "asc"):
                yield from (Setting(table, method, epsilon, batch, epochs, SEEDS[0]) for batch, epochs in OTHER_BUDGETS)
            yield Setting(table, "auto-s", epsilon, 512, 20.0, SEEDS[0])


def main(words: list[str]) -> None:
    """Measure what is missing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks batches", description=__doc__)
    parser.add_argument("--table", choices=TABLES, action="append")
    parser.add_argument("--out", type=Path, default=RESULTS, help="a file of JSON lines that is added to")
    parser.add_argument("--page-only", action="store_true", help="measure nothing, write the table")
    asked = parser.parse_args(words)
    known = {setting_of(record) for record in stored(asked.out)}
    for setting in [] if asked.page_only else settings(tuple(asked.table or TABLES)):
        if setting in known:
            continue
        line = json.dumps({**asdict(setting), **measured(setting)})
        print(line, flush=True)
        with asked.out.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
    if asked.out == RESULTS:
        write_table(stored(RESULTS))


def stored(path: Path = RESULTS) -> list[dict[str, Any]]:
    """The runs that a file has."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.strip()]


def setting_of(record: Mapping[str, Any]) -> Setting:
    """The cell of a run."""
    return Setting(**{name: record[name] for name in Setting.__dataclass_fields__})


def table_of(records: Sequence[Mapping[str, Any]]) -> str:
    """Worst group and AUC of every setting on every table, in percent, as means over the seeds that it has."""
    tables = [name for name in TABLES if any(record["table"] == name for record in records)]
    heading = " | ".join(f"{name}: worst group / AUC" for name in tables)
    lines = [f"| ε | method | batch | epochs | {heading} |", "|--:|---|--:|--:|" + "--:|" * len(tables)]
    rows = sorted({(r["epsilon"], _ORDER.index(r["method"]), r["batch"], r["epochs"]) for r in records})
    for epsilon, method, batch, epochs in rows:
        shown = []
        for table in tables:
            cell = (table, epsilon, _ORDER[method], batch, epochs)
            own = [r for r in records if (r["table"], r["epsilon"], r["method"], r["batch"], r["epochs"]) == cell]
            worst, auc = (
                100 * np.mean([r[name] for r in own]) if own else 0.0 for name in ("worst_group_accuracy", "auc")
            )
            shown.append(f"{worst:.1f} / {auc:.1f}" if own else "–")
        lines.append(f"| {epsilon:g} | `{_ORDER[method]}` | {batch:,} | {epochs:g} | {' | '.join(shown)} |")
    return "\n".join([*lines, "", _between_seeds(records)])


def _between_seeds(records: Sequence[Mapping[str, Any]]) -> str:
    """By how many points two seeds of a setting differ in the worst group, on average."""
    found = []
    for table, method in sorted({(r["table"], r["method"]) for r in records}):
        by_setting: dict[tuple[Any, ...], list[float]] = {}
        for r in records:
            if (r["table"], r["method"]) == (table, method):
                by_setting.setdefault((r["epsilon"], r["batch"], r["epochs"]), []).append(
                    100 * r["worst_group_accuracy"]
                )
        gaps = [max(values) - min(values) for values in by_setting.values() if len(values) > 1]
        found += [f"`{method}` on {table} {np.mean(gaps):.1f}"] if gaps else []
    return (
        f"Between two seeds of a setting the worst group differs by, in points on average: {', '.join(found) or '–'}."
    )


_ORDER = ("dp-sgd", "auto-s", "asc")


def write_table(records: Sequence[Mapping[str, Any]], page: Path = PAGE) -> None:
    """Put the table between its marks on the page."""
    before, rest = page.read_text(encoding="utf-8").split(BEGIN)
    text = f"{before}{BEGIN}\n{table_of(records)}\n{END}{rest.split(END)[1]}"
    write_whole(page, text.encode(), FOR_ALL)


def measured(setting: Setting) -> dict[str, Any]:
    """Train on all but the validation rows, and measure on these."""
    task = load(setting.table).task("label", "validation", setting.seed)
    options = ("--method", setting.method, "--batch-size", str(setting.batch), "--epochs", str(setting.epochs))
    start = time.perf_counter()
    found = veil_train(task, setting.epsilon, setting.seed, options=options)
    seconds = time.perf_counter() - start
    labels = task.test[task.target].to_numpy(dtype=str)
    scores = score(np.asarray(found), task.classes, labels, task.groups_of(task.test))
    names = ("worst_group_accuracy", "average_group_accuracy", "accuracy", "auc")
    return {"rows": len(task.train), **{n: round(getattr(scores, n), 5) for n in names}, "seconds": round(seconds, 1)}
