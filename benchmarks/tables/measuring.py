"""Measuring: which cells are missing, which fits answer them, and what is stored as soon as a fit is done.

A fit that does not depend on the definition of groups is made once and scored under all of them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.tables.arms import Arm, version_of
from benchmarks.tables.data import Grouping, Table, Task, load
from benchmarks.tables.exchange import Fit, ask_peers
from benchmarks.tables.number_scoring import NumberScores, score_numbers
from benchmarks.tables.scoring import Scores, score
from benchmarks.tables.splits import Rows
from benchmarks.tables.store import Cell, Outcome, keep, stored
from veil.accounting.events import AccountingError
from veil.errors import InputError


@dataclass(frozen=True)
class Asked:
    """What is to be measured, and where it is stored."""

    tables: tuple[str, ...]
    groups: tuple[Grouping, ...]
    epsilons: tuple[float, ...]
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    rows: Rows
    folder: Path
    any_version: bool = False
    read: Callable[[str], Table] | None = None


@dataclass(frozen=True)
class Fitting:
    """One fit and the cells that it answers: one per definition of groups, or just one."""

    arm: Arm
    epsilon: float | None
    seed: int
    groups: tuple[Grouping, ...]


def measure(asked: Asked, name: str) -> None:
    """Measure what is missing of one table; a missing raw file is one sentence, and the others go on."""
    try:
        table = (asked.read or load)(name)
    except InputError as error:
        _say(f"{name} is left out: {error}")
        return
    # Test rows are the same for every seed; validation rows are not.
    for seeds in [asked.seeds] if asked.rows == "test" else [(seed,) for seed in asked.seeds]:
        fittings = list(_missing(asked, name, seeds))
        peers = [fitting for fitting in fittings if fitting.arm.fit is None]
        for fitting in fittings:
            if fitting.arm.fit is not None:
                _fit_here(asked, table, fitting)
        if peers:
            _fit_by_peers(asked, table, peers)


def _missing(asked: Asked, table: str, seeds: Sequence[int]) -> Iterator[Fitting]:
    for arm in asked.arms:
        # Without randomness all seeds give the same figures on the same rows.
        for seed in seeds if arm.random or asked.rows == "validation" else (1,):
            for epsilon in asked.epsilons if arm.private else (None,):
                cells = [Cell(asked.rows, table, groups, arm.name, epsilon, seed) for groups in asked.groups]
                groups = tuple(cell.groups for cell in cells if not _done(asked, arm, cell))
                for part in [(name,) for name in groups] if arm.by_group else [groups] if groups else []:
                    yield Fitting(arm, epsilon, seed, part)


def _done(asked: Asked, arm: Arm, cell: Cell) -> bool:
    """Whether a cell is stored; figures of Veil count for the code that they were made with."""
    record = stored(cell, asked.folder)
    if record is None:
        return False
    return asked.any_version or arm.family != "veil" or record["version"] == version_of(arm)


def _fit_here(asked: Asked, table: Table, fitting: Fitting) -> None:
    task = table.task(fitting.groups[0], asked.rows, fitting.seed)
    assert fitting.arm.fit is not None
    start = time.perf_counter()
    version = version_of(fitting.arm)
    try:
        found = fitting.arm.fit(task, fitting.epsilon or 0.0, fitting.seed)
    except Exception as error:  # a refusal or a crash of Veil is a result: it is stored and shown
        if fitting.arm.family != "veil":
            raise
        said = str(error) if isinstance(error, InputError | AccountingError) else f"{type(error).__name__}: {error}"
        _keep(asked, table, fitting, Outcome(version, task.delta, failed=said))
        return
    outcome = Outcome(version, task.delta, time.perf_counter() - start)
    _keep(asked, table, fitting, outcome, found)


def _fit_by_peers(asked: Asked, table: Table, fittings: Sequence[Fitting]) -> None:
    """All fits on the same rows in one process of the peers' environment."""
    fits = {_fit(table, fitting): fitting for fitting in fittings}
    task = table.task(fittings[0].groups[0], asked.rows, fittings[0].seed)
    for fit, answer in ask_peers(task, list(fits)):
        outcome = Outcome(answer.version, task.delta, answer.seconds, failed=answer.failed)
        _keep(asked, table, fits[fit], outcome, answer.probabilities)


def _fit(table: Table, fitting: Fitting) -> Fit:
    columns = table.spec.groups[fitting.groups[0]] if fitting.arm.by_group else ()
    return Fit(fitting.arm.name, fitting.epsilon, fitting.seed, columns)


def _keep(
    asked: Asked, table: Table, fitting: Fitting, outcome: Outcome, found: NDArray[np.float64] | None = None
) -> None:
    """Score under every definition of groups that was asked, store, and say so in one line."""
    shown = outcome.failed or ""
    for groups in fitting.groups:
        cell = Cell(asked.rows, table.name, groups, fitting.arm.name, fitting.epsilon, fitting.seed)
        scored = outcome
        if found is not None:
            scores = _scores(table.task(groups, asked.rows, fitting.seed), found)
            scored = Outcome(outcome.version, outcome.delta, outcome.seconds, scores)
            shown = scores.said()
        keep(cell, scored, asked.folder)
        budget = "" if fitting.epsilon is None else f", ε = {fitting.epsilon:g}"
        _say(f"{table.name}, {groups}: {fitting.arm.name}{budget}, seed {fitting.seed}: {shown}")


def _scores(task: Task, found: NDArray[np.float64]) -> Scores | NumberScores:
    if task.target_bounds is not None:
        numbers = task.test[task.target].to_numpy(dtype=np.float64)
        return score_numbers(found, numbers, task.groups_of(task.test), task.target_bounds)
    return score(found, task.classes, task.test[task.target].to_numpy(dtype=str), task.groups_of(task.test))


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
