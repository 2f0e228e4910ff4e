"""Thresholds: what must not get slower. Suites are measured, kept in a history, and compared with `thresholds.toml`.

    python -m benchmarks thresholds [--history FILE] [--quick]

Exit code 1: a figure is above its threshold. The history is one JSON object per line: when, which version, each figure.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import veil

FILE = Path(__file__).with_name("thresholds.toml")
HISTORY = Path(".benchmarks") / "history.jsonl"
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Threshold:
    """A figure in one row of a suite, and the most it may be."""

    suite: str
    row: Mapping[str, Any]
    figure: str
    most: float

    @property
    def name(self) -> str:
        """As it stands in the history."""
        return f"{self.suite}: {', '.join(map(str, self.row.values()))}: {self.figure}"

    def read(self, rows: Rows) -> float:
        """The figure among the rows of the suite.

        Raises:
            LookupError: No row of the suite matches: the benchmark or the file is out of date.
        """
        for row in rows:
            if all(row.get(key) == value for key, value in self.row.items()) and self.figure in row:
                return float(row[self.figure])
        raise LookupError(f"{self.name}: the suite {self.suite} has no such row")


def read_thresholds(file: Path = FILE) -> list[Threshold]:
    """All thresholds of a file."""
    return [Threshold(**entry) for entry in tomllib.loads(file.read_text(encoding="utf-8"))["threshold"]]


def measure(thresholds: Sequence[Threshold], run: Callable[[str], Rows]) -> dict[str, float]:
    """Each threshold's figure by its name; every suite runs once."""
    suites = {name: run(name) for name in dict.fromkeys(threshold.suite for threshold in thresholds)}
    return {threshold.name: threshold.read(suites[threshold.suite]) for threshold in thresholds}


def passed(thresholds: Sequence[Threshold], figures: Mapping[str, float]) -> list[str]:
    """A sentence for each figure that is above its threshold."""
    return [
        f"{each.name} is {figures[each.name]:.3g}: it must be at most {each.most:.3g}"
        for each in thresholds
        if not figures[each.name] <= each.most
    ]


def main(words: list[str]) -> None:
    """Measure, append to the history, judge."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks thresholds", description=__doc__)
    parser.add_argument("--history", type=Path, default=HISTORY, help="file to append to")
    parser.add_argument("--repeats", type=int, default=5, help="interleaved rounds; medians are kept")
    parser.add_argument("--quick", action="store_true", help="smaller sizes")
    asked = parser.parse_args(words)
    thresholds = read_thresholds()
    suites = {each.suite: importlib.import_module(f"benchmarks.{each.suite}") for each in thresholds}
    figures = measure(thresholds, lambda name: suites[name].run(asked.repeats, asked.quick))
    when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    asked.history.parent.mkdir(parents=True, exist_ok=True)
    with asked.history.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"when": when, "version": veil.__version__, "figures": figures}) + "\n")
    for each in thresholds:
        print(f"{figures[each.name]:8.3f}  at most {each.most:6.3f}  {each.name}")
    above = passed(thresholds, figures)
    for sentence in above:
        print(sentence, file=sys.stderr)
    sys.exit(1 if above else 0)
