"""Runs: the list of what a folder of runs holds, one summary each, from the two small files of a run."""

from __future__ import annotations

import hashlib
import math
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from veil.report import read_audits
from veil.report.usefulness import USEFUL, usefulness
from veil.ui.folders import MEGABYTE, Unreadable, check_files, read_json, read_toml, run_folders

FINISHED, UNFINISHED, DAMAGED = "finished", "not finished", "damaged"
STATES = (FINISHED, UNFINISHED, DAMAGED)
# Verdicts, from the best.
FOR_ALL, UNSURE, NOT_FOR_ALL, NOT_MEASURED = "useful", "too few rows", "not useful", "not measured"
VERDICTS = (FOR_ALL, UNSURE, NOT_FOR_ALL, NOT_MEASURED)
SMALL, LARGE, WEIGHTS = 4 * MEGABYTE, 32 * MEGABYTE, 4096 * MEGABYTE
# What changes when a run moves on.
WATCHED = ("metrics.json", "config.toml", "seed.key", "run.json")


@dataclass(frozen=True)
class RunSummary:
    """One line of the list. `id` is how a page asks for the run; no page ever names a path."""

    id: str
    name: str
    folder: Path
    state: str
    when: float
    problem: str = ""
    method: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    epsilon: float | None = None
    delta: float | None = None
    worst: float | None = None
    worst_group: str = ""
    overall: float | None = None
    numbers: bool = False
    verdict: str = NOT_MEASURED
    sentence: str = ""

    @property
    def data(self) -> str:
        """The data set or file that it was trained on."""
        return str(self.config.get("data") or "")

    @property
    def private(self) -> bool:
        """Whether the run promises an ε."""
        return self.epsilon is not None


class Shelf:
    """The runs of a folder. What was read once is read again when one of its files has changed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._known: dict[Path, tuple[Any, RunSummary]] = {}
        self._lock = threading.Lock()
        self.whole = True

    def runs(self) -> list[RunSummary]:
        """Every run, the newest first."""
        with self._lock:
            known, self._known = self._known, {}
            folders, self.whole = run_folders(self.root)
            for folder, names in folders.items():
                marks = tuple(_stamp(folder / name) if name in names else None for name in WATCHED)
                before = known.get(folder)
                found = before if before is not None and before[0] == marks else (marks, self._summary(folder, names))
                self._known[folder] = found
            return sorted((found for _, found in self._known.values()), key=lambda run: (-run.when, run.name))

    def run(self, wanted: str) -> RunSummary | None:
        """The run with this id."""
        return next((run for run in self.runs() if run.id == wanted), None)

    def _summary(self, folder: Path, names: frozenset[str]) -> RunSummary:
        place = os.fsencode(folder.relative_to(self.root))
        name = folder.name if folder == self.root else place.decode("utf-8", "replace")
        blank = RunSummary(hashlib.sha256(place).hexdigest()[:16], name, folder, DAMAGED, _changed(folder, names))
        try:
            config = read_toml(folder, "config.toml", SMALL) if "config.toml" in names else {}
            blank = replace(blank, config=config, method=str(config.get("method") or ""))
            if "seed.key" in names:
                return replace(blank, state=UNFINISHED, problem="It is running, or was interrupted.")
            return _finished(blank, read_json(folder, "metrics.json", SMALL))
        except Unreadable as error:
            return replace(blank, problem=f"{error}.")
        except Exception as error:  # a folder may hold anything; it must not take the list of the others away
            return replace(blank, problem=f"Its files cannot be read ({type(error).__name__}).")


def _finished(blank: RunSummary, record: Mapping[str, Any]) -> RunSummary:
    """A summary from what `veil train --json` printed."""
    metrics, privacy = record.get("metrics") or {}, record.get("privacy") or {}
    try:
        found = usefulness(metrics)
        numbers = "root_mean_squared_error" in metrics
        return replace(
            blank,
            state=FINISHED,
            method=str(record.get("method") or blank.method),
            epsilon=_number(privacy.get("epsilon")),
            delta=_number(privacy.get("delta")),
            worst=_number(metrics.get("worst_group_error" if numbers else "worst_group_accuracy")),
            worst_group=str(metrics.get("worst_group") or ""),
            overall=_number(metrics.get("root_mean_squared_error" if numbers else "accuracy")),
            numbers=numbers,
            verdict=_verdict(found),
            sentence="" if found is None else str(found["sentence"]),
        )
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise Unreadable("metrics.json does not hold the figures of a run") from error


def _verdict(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return NOT_MEASURED
    return FOR_ALL if found[USEFUL] else NOT_FOR_ALL if found["no_better"] else UNSURE


def record_of(run: RunSummary) -> dict[str, Any]:
    """Everything that a report shows of a run.

    Raises:
        Unreadable: The run is not finished, or its record is not one.
    """
    if run.state != FINISHED:
        raise Unreadable(f"the run is {run.state}. {run.problem}".strip())
    return read_json(run.folder, "run.json", LARGE)


def audits_of(runs: list[RunSummary]) -> list[dict[str, Any]]:
    """The audits in the folders of some runs."""
    for run in runs:
        check_files(run.folder, LARGE)
    return read_audits([run.folder for run in runs])


def _number(value: Any) -> float | None:
    """A finite number, or none."""
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if known and math.isfinite(value) else None


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _changed(folder: Path, names: frozenset[str]) -> float:
    """When a run's newest file was written."""
    stamps = [_stamp(folder / name) for name in WATCHED if name in names]
    return max((stamp[0] for stamp in stamps if stamp is not None), default=0) / 1e9
