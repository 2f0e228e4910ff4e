"""Stored figures: one JSON per measured cell, so that a run resumes, and one compact file of all cells on test rows."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.tables.data import Grouping
from benchmarks.tables.number_scoring import NumberScores
from benchmarks.tables.scoring import METRICS, Scores
from benchmarks.tables.splits import Rows
from veil.foundation.files import FOR_ALL, write_whole


def columns_of(metrics: Sequence[str]) -> tuple[str, ...]:
    """What the collected file has of a cell."""
    return "table", "groups", "epsilon", "arm", "seed", *metrics, "worst_group", "groups_scored", "seconds", "delta"


COLUMNS = columns_of(METRICS)
DIGITS = 5


@dataclass(frozen=True, order=True)
class Cell:
    """What is measured once. ε is None where there is no privacy."""

    rows: Rows
    table: str
    groups: Grouping
    arm: str
    epsilon: float | None
    seed: int

    def path(self, folder: Path) -> Path:
        """Where it is stored."""
        budget = "none" if self.epsilon is None else f"{self.epsilon:g}"
        return folder / self.rows / self.table / self.groups / f"{self.arm}-epsilon-{budget}-seed-{self.seed}.json"


@dataclass(frozen=True)
class Outcome:
    """Scores and seconds, or the sentence of a failure; `version` is that of the code that was measured."""

    version: str
    delta: float
    seconds: float | None = None
    scores: Scores | NumberScores | None = None
    failed: str | None = None


def stored(cell: Cell, folder: Path) -> dict[str, Any] | None:
    """What is stored of a cell; None where nothing is."""
    path = cell.path(folder)
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def keep(cell: Cell, outcome: Outcome, folder: Path) -> None:
    """Write one cell, whole or not at all."""
    record = {**asdict(cell), "version": outcome.version, "delta": outcome.delta}
    if outcome.scores is None:
        record["failed"] = outcome.failed
    else:
        record |= {"seconds": _short(outcome.seconds)} | {
            name: _short(value) for name, value in asdict(outcome.scores).items() if name != "by_group"
        }
        groups = outcome.scores.by_group.items()
        record["by_group"] = {name: [count, _short(accuracy)] for name, (count, accuracy) in groups}
    path = cell.path(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, (json.dumps(record, ensure_ascii=False, indent=1) + "\n").encode(), FOR_ALL)


def all_stored(folder: Path, rows: Rows) -> Iterator[dict[str, Any]]:
    """Every stored cell on test or on validation rows, in a fixed order."""
    for path in sorted((folder / rows).glob("*/*/*.json")):
        yield json.loads(path.read_text(encoding="utf-8"))


def published(path: Path) -> Iterator[dict[str, Any]]:
    """Every cell of the collected file; `version` lists all versions of the cell's arm, as the file does."""
    if not path.exists():
        return
    known = json.loads(path.read_text(encoding="utf-8"))
    for row in known["rows"]:
        record = dict(zip(known["columns"], row, strict=True))
        yield {**record, "version": known["versions"][record["arm"]]}
    for failure in known["failures"]:
        for task in failure["tasks"]:
            table, groups = task.split(", ")
            where = {"table": table, "groups": groups, "arm": failure["arm"], "epsilon": None, "seed": 0}
            yield {**where, "failed": failure["said"], "version": known["versions"][failure["arm"]]}


def with_published(records: Iterable[Mapping[str, Any]], path: Path) -> list[Mapping[str, Any]]:
    """Stored cells, and those of the collected file that are not stored here: a new machine loses no figure."""
    found = list(records)
    cells = {_order(record) for record in found}
    tasks = {(record["table"], record["groups"], record["arm"]) for record in found}
    for record in published(path):
        seen = (record["table"], record["groups"], record["arm"]) in tasks if "failed" in record else False
        if not seen and _order(record) not in cells:
            found.append(record)
    return found


def collect(
    records: Iterable[Mapping[str, Any]], about: Mapping[str, Any], target: Path, columns: Sequence[str] = COLUMNS
) -> None:
    """One file of all cells: a heading of columns, then one line per cell; failures and versions are listed once."""
    found = sorted(records, key=_order)
    measured = [record for record in found if "failed" not in record]
    failures: dict[tuple[str, str], dict[str, None]] = {}
    versions: dict[str, dict[str, None]] = {}
    for record in found:
        made = record["version"]
        versions.setdefault(record["arm"], {}).update(dict.fromkeys([made] if isinstance(made, str) else made))
        if "failed" in record:
            where = failures.setdefault((record["arm"], record["failed"]), {})
            where[f"{record['table']}, {record['groups']}"] = None
    lines = ",\n".join(
        "  " + json.dumps([record[column] for column in columns], ensure_ascii=False) for record in measured
    )
    rest = {
        "about": about,
        "versions": {arm: list(listed) for arm, listed in versions.items()},
        "failures": [{"arm": arm, "said": said, "tasks": list(where)} for (arm, said), where in failures.items()],
        "columns": columns,
    }
    heading = ",\n".join(f" {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in rest.items())
    text = "{\n" + heading + ',\n "rows": [\n' + lines + "\n ]\n}\n"
    target.parent.mkdir(parents=True, exist_ok=True)
    write_whole(target, text.encode(), FOR_ALL)


def _order(record: Mapping[str, Any]) -> tuple[Any, ...]:
    return record["table"], record["groups"], record["arm"], record["epsilon"] or 0.0, record["seed"]


def _short(value: Any) -> Any:
    """Numbers with few digits; None where there is no number, which JSON cannot say otherwise."""
    if isinstance(value, float):
        return round(value, DIGITS) if math.isfinite(value) else None
    return value
