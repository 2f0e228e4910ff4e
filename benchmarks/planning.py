"""Planning and accounting: processor time of plans whose rates move, of one exact reading, and their share of a run.

The share is that of plan, ε on the way and certificate in the processor time of `veil train` from start to saved
report, imports included: a process of its own for each method, so that nothing is remembered from before.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._timing import interleaved
from benchmarks.startup import generated
from veil import methods
from veil.accounting import Ledger, Repeated
from veil.accounting.rdp import quick_epsilon
from veil.accounting.spending_rules import TokenBucket
from veil.plans import Settings
from veil.problem import Cell, PublicFacts

GROUPS = (12, 30, 100)
OWNERS = 10_000
# The most that one reading may take, in milliseconds, and accounting of a whole run's processor time.
READING_MS = 2.0
SHARE = 0.05
METHODS = ("auto", "asc")


def run(repeats: int, quick: bool) -> list[dict[str, Any]]:
    """One plan each: a second one would find much of its accounting remembered. `repeats` changes nothing."""
    rows = [_row(f"{count} groups", _groups(count)) for count in (GROUPS[:1] if quick else GROUPS)]
    if not quick:
        rows.append(_row(f"{OWNERS:,} owners in 4 groups", _owners(OWNERS)))
    for row in rows:
        row["times_12_groups"] = row["seconds"] / rows[0]["seconds"]
    return [*rows, *_readings(repeats), *(_share(method) for method in METHODS)]


def _row(workload: str, facts: PublicFacts) -> dict[str, Any]:
    settings = Settings.checked(epsilon=1.0, steps=500, batch_size=512, seed=1)
    start = time.process_time()
    methods.create("asc", {}).plan(facts, settings)
    return {"workload": workload, "cells": len(facts.cells), "seconds": time.process_time() - start}


def _groups(count: int) -> PublicFacts:
    sizes = np.random.default_rng(0).integers(200, 3000, count).tolist()
    return _facts([(group, 0, size) for group, size in enumerate(sizes)])


def _owners(count: int) -> PublicFacts:
    generator, rows = np.random.default_rng(0), 4 * count
    groups, owners = generator.choice(4, rows, p=[0.5, 0.3, 0.15, 0.05]), generator.integers(0, count, rows)
    pairs, sizes = np.unique(groups * count + owners, return_counts=True)
    return _facts([(int(p) // count, int(p) % count, int(s)) for p, s in zip(pairs, sizes, strict=True)])


def _facts(cells: list[tuple[int, int, int]]) -> PublicFacts:
    groups, owners = (tuple(map(str, range(1 + max(cell[place] for cell in cells)))) for place in (0, 1))
    return PublicFacts(groups, owners, tuple(Cell(*cell) for cell in cells), (3,), classes=("0", "1"))


def _readings(repeats: int) -> list[dict[str, Any]]:
    """ε in the middle of a run of asc, where every rung of a cell's ladder was used some times.

    What the progress line shows is a proved upper bound; the last reading of a run is exact, by PLD.
    """
    facts, settings = _groups(GROUPS[0]), Settings.checked(epsilon=1.0, steps=500, batch_size=512, seed=1)
    plan = methods.create("asc", {}).plan(facts, settings)
    terms, accountant = plan.terms(), settings.accountant_for(facts)
    rules = [account.rule for account in terms.accounts if isinstance(account.rule, TokenBucket)]
    ladder = max(rules, key=lambda rule: max(len(_rungs(token)) for token in rule.tokens))
    spent = [
        Repeated(event, 1 + token.times // (2 * len(_rungs(token))))
        for token in ladder.tokens
        for event in _rungs(token)
    ]
    moments = iter(range(10**6))

    def moment() -> tuple[Repeated, ...]:
        # Another part of the ladder every time: the same one would be remembered.
        first, *others = spent
        return (Repeated(first.event, first.times + next(moments)), *others)

    candidates = {
        f"ε on the way of {len(spent)} events, an upper bound": lambda: quick_epsilon(moment(), terms.delta),
        f"one exact PLD reading of {len(spent)} events": lambda: accountant.epsilon(moment(), terms.delta),
    }
    exact = accountant.epsilon(spent, terms.delta)
    above = {name: read() / exact for name, read in candidates.items()}
    seconds = interleaved(candidates, max(repeats, 9), clock=time.process_time)
    return [
        {
            "workload": name,
            "times_exact": above[name],
            "milliseconds": 1e3 * each,
            "target": READING_MS,
            "met": 1e3 * each <= READING_MS,
        }
        for name, each in seconds.items()
    ]


def _rungs(token: Repeated) -> tuple[Any, ...]:
    return tuple(getattr(token.event, "events", (token.event,)))


def _share(method: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "table.csv"
        generated(5_000).to_csv(table, index=False)
        words = [sys.executable, "-m", "benchmarks.planning", method, str(table), str(Path(folder) / "run")]
        told = subprocess.run(words, capture_output=True, check=True, text=True)
    found = json.loads(told.stdout.splitlines()[-1])
    share = found["accounting"] / found["whole"]
    return {
        "workload": f"accounting of veil train, 5,000 rows, {method}",
        "seconds": found["accounting"],
        "share": share,
        "target": SHARE,
        "met": share <= SHARE,
    }


class _Clock:
    """Processor time within some functions; what they call of each other counts once."""

    def __init__(self) -> None:
        self.seconds, self._within = 0.0, False

    def around(self, holder: Any, name: str) -> None:
        """Time every call of one of a module's functions, or of a class's methods."""
        function: Callable[..., Any] = getattr(holder, name)

        @wraps(function)
        def timed(*args: Any, **options: Any) -> Any:
            if self._within:
                return function(*args, **options)
            self._within, start = True, time.process_time()
            try:
                return function(*args, **options)
            finally:
                self._within, self.seconds = False, self.seconds + time.process_time() - start

        setattr(holder, name, timed)


def main(method: str, table: str, out: str) -> None:
    """Train as the command line does, and print the seconds of accounting and of the whole process."""
    from veil.cli.app import main as command
    from veil.tables import opening, table_run
    from veil.training import fitting, reporting

    clock = _Clock()
    for module in (opening, table_run, fitting):
        for name in ("planned", "plan", "certify", "check_budgets"):
            if callable(getattr(module, name, None)):
                clock.around(module, name)
    clock.around(reporting, "spent_by_group")
    clock.around(Ledger, "reserve")
    roles = ["--target", "bought", "--group", "sex"]
    sys.argv = ["veil", "train", table, *roles, "--method", method, "--quiet", "--out", out]
    try:
        command()
    except SystemExit as end:
        if end.code:
            raise
    print(json.dumps({"accounting": clock.seconds, "whole": time.process_time()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
