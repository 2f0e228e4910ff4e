"""`python -m benchmarks growth`: whether `auto` gets better with more rows and with a larger ε.

Rows: random parts of the training rows of two tables, others for every seed, measured on the same test rows. Budgets:
what `tables.json` has of `auto`. The page is a function of `growth.json` and `tables.json`.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.tables.arms import ARMS, version_of
from benchmarks.tables.command import RESULTS
from benchmarks.tables.data import Grouping, Task, load
from benchmarks.tables.page import Figures, table_lines
from benchmarks.tables.scoring import score
from veil.foundation.files import FOR_ALL, write_whole

TABLES: Mapping[str, Grouping] = {"adult": "label", "generated_curves": "protected"}
SIZES = (1_000, 3_000, 10_000, 30_000)
SEEDS = (1, 2, 3)
SHOWN = {"worst_group_accuracy": "worst group", "auc": "AUC"}
# A mean that is lower by more than so many standard errors of the difference is no longer noise.
NOISE = 2.0


def main(words: Sequence[str]) -> None:
    """Measure, then write the page beside its JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks growth", description=__doc__)
    parser.add_argument("--page-only", action="store_true", help="measure nothing: write the page")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of growth.json and tables.json")
    parser.add_argument("--json", action="store_true", help="also print what was stored as one JSON object")
    given = parser.parse_args(words)
    path = given.results / "growth.json"
    if not given.page_only:
        found = {"version": version_of(ARMS["auto"]), "rows": [row for name in TABLES for row in measured(name)]}
        write_whole(path, (json.dumps(found, indent=1) + "\n").encode(), FOR_ALL)
    stored = json.loads(path.read_text(encoding="utf-8"))
    text = page_of(stored, Figures.read(given.results / "tables.json"))
    (given.results / "growth.md").write_text(text, encoding="utf-8")
    if given.json:
        print(json.dumps(stored))


def measured(table: str) -> list[dict[str, float | str]]:
    """One record per number of rows and seed, at ε = 1."""
    whole, fit, found = load(table).task(TABLES[table]), ARMS["auto"].fit, []
    assert fit is not None
    for size in SIZES:
        for seed in SEEDS:
            task = part_of(whole, size, seed)
            chances = fit(task, 1.0, seed)
            scores = score(chances, task.classes, task.test[task.target].to_numpy(str), task.groups_of(task.test))
            figures = {metric: round(float(getattr(scores, metric)), 5) for metric in SHOWN}
            found.append({"table": table, "size": size, "seed": seed, **figures})
            print(found[-1], file=sys.stderr, flush=True)
    return found


def part_of(task: Task, size: int, seed: int) -> Task:
    """The same task with so many of its training rows; a larger part of the same seed holds the smaller one."""
    chosen = np.random.default_rng(seed).permutation(len(task.train))[:size]
    return replace(task, train=task.train.iloc[np.sort(chosen)].reset_index(drop=True))


def page_of(record: Mapping[str, object], figures: Figures) -> str:
    """The whole page as Markdown."""
    rows = record["rows"]
    assert isinstance(rows, list)
    lines = ["# Better with more rows and a larger ε", ""]
    lines += [
        "`auto` on test rows, in percent: mean ± standard deviation over seeds. A step is named below a table where "
        f"the mean is lower than the one before by more than {NOISE:g} standard errors.",
        "",
        "## Rows, ε = 1",
        "",
    ]
    by_size: dict[str, dict[str, list[list[float]]]] = {}
    for metric, heading in SHOWN.items():
        by_size[heading] = {
            f"{table}, {groups}": [
                [row[metric] for row in rows if (row["table"], row["size"]) == (table, size)] for size in SIZES
            ]
            for table, groups in TABLES.items()
        }
    lines += _tables(by_size, [f"{size:,} rows" for size in SIZES])
    epsilons, by_epsilon = figures.epsilons(), {}
    for metric, heading in SHOWN.items():
        cells = {
            f"{table}, {groups}": [
                [row[metric] for row in figures.cells.get((table, groups, "auto", epsilon), ())] for epsilon in epsilons
            ]
            for table in figures.tables()
            for groups in figures.about["groupings"]
        }
        by_epsilon[heading] = {task: parts for task, parts in cells.items() if all(parts)}
    lines += ["## Budgets, all training rows", ""]
    lines += _tables(by_epsilon, [f"ε = {epsilon:g}" for epsilon in epsilons])
    before = "; ".join(figures.versions["auto"])
    made = f"Rows: {record['version']}, {len(SEEDS)} seeds. Budgets: the figures of [tables](tables.md), {before}."
    return "\n".join([*lines, "## How it was measured", "", "    python -m benchmarks growth", "", made, ""])


def _tables(found: Mapping[str, Mapping[str, Sequence[Sequence[float]]]], steps: Sequence[str]) -> list[str]:
    lines: list[str] = []
    for heading, tasks in found.items():
        rows = [[task, *map(_shown, parts)] for task, parts in tasks.items()]
        lines += [*table_lines([heading, *steps], rows)]
        lower = [
            f"{task} from {steps[at]} to {steps[at + 1]} by {100 * (_mean(parts[at]) - _mean(parts[at + 1])):.1f}"
            for task, parts in tasks.items()
            for at in range(len(parts) - 1)
            if falls(parts[at], parts[at + 1])
        ]
        count = sum(len(parts) - 1 for parts in tasks.values())
        said = f"Lower than noise explains: {'; '.join(lower)}." if lower else "No step is lower than noise explains."
        lines += [f"{said} ({len(lower)} of {count} steps)", ""]
    return lines


def falls(before: Sequence[float], after: Sequence[float]) -> bool:
    """Whether the second mean is lower by more than noise.

    >>> falls([0.80, 0.81], [0.70, 0.71]), falls([0.80, 0.70], [0.74, 0.75])
    (True, False)
    """
    spread = math.sqrt(sum(statistics.variance(values) / len(values) for values in (before, after)))
    return _mean(before) - _mean(after) > NOISE * spread


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values)


def _shown(values: Sequence[float]) -> str:
    return f"{100 * _mean(values):.1f} ± {100 * statistics.stdev(values):.1f}"
