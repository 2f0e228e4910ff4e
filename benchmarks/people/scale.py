"""A million people: time and memory, each run in a process of its own.

Rows of a table larger than memory, as rows and as those of people; and people who are their own owners, each with an ε
of their own in the file of budgets, beside the same people with one ε for all.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.data import large

EACH = 2


def run(quick: bool) -> list[dict[str, Any]]:
    """Both tables; with `quick`, a tenth of them."""
    people = 100_000 if quick else 1_000_000
    return [*large(2_000_000 if quick else 20_000_000), *own_owners(people)]


def own_owners(people: int) -> list[dict[str, Any]]:
    """A run of `idp-sgd` on people with budgets of their own, and of `dp-sgd` on the same people with one."""
    found = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        _generate(folder, people)
        for word, name in (("all", "one ε for all"), ("own", "each their own owner")):
            asked = [sys.executable, "-m", "benchmarks.people.scale", str(folder), word]
            answer = subprocess.run(asked, check=True, capture_output=True, text=True).stdout
            of = f"{people:,} people with {EACH * people:,} rows, {name}"
            found.append({"name": of, **json.loads(answer.splitlines()[-1])})
    return found


def _generate(folder: Path, people: int) -> None:
    rng = np.random.default_rng(0)
    person = np.repeat(np.arange(people), EACH)
    a, b = rng.standard_normal((2, len(person))).astype(np.float32)
    group = np.where(rng.random(people) < 0.1, "f", "m")[person]
    table = pd.DataFrame({"person": person, "group": group, "a": a, "b": b, "label": (a + b > 0).astype(int)})
    table.to_parquet(folder / "table.parquet", index=False)
    own = pd.DataFrame({"owner": np.arange(people), "epsilon": rng.uniform(0.5, 3.0, people).round(3)})
    own.to_csv(folder / "own.csv", index=False)
    (folder / "schema.toml").write_text(
        "\n".join(
            [
                *(f'[columns.{name}]\nkind = "numeric"\nlow = -4.0\nhigh = 4.0' for name in ("a", "b")),
                '[columns.label]\nkind = "target"\nvalues = ["0", "1"]',
                '[columns.group]\nkind = "group"\nvalues = ["f", "m"]',
                '[columns.person]\nkind = "person"',
            ]
        )
    )


def _train(folder: Path, own: bool) -> dict[str, Any]:
    """One epoch, from the files to a finished run; the plan is made once before, as a dry run does."""
    from veil.request import Request
    from veil.tables.table_run import plan_of, train_table

    of_owners = {"method": "idp-sgd", "owner": "person", "budgets": folder / "own.csv"} if own else {"method": "dp-sgd"}
    table = {"data": folder / "table.parquet", "target": "label", "group": ("group",), "person": "person"}
    settings = {"epsilon": 1.0, "epochs": 1.0, "batch_size": 4096, "seed": 1}
    request = Request.checked(**table, **of_owners, schema=folder / "schema.toml", model="logistic", settings=settings)
    start = time.perf_counter()
    plan = plan_of(request)
    planned = time.perf_counter() - start
    start = time.perf_counter()
    run = train_table(request, out=folder / f"run-{own}")
    seconds = time.perf_counter() - start
    assert run.folder is not None
    return {
        "plan_seconds": planned,
        "seconds": seconds,
        "processor_seconds": time.process_time(),
        "largest_memory_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
        "cells": len(plan.facts.cells),
        "certificate_kb": (run.folder / "certificate.json").stat().st_size / 1e3,
    }


if __name__ == "__main__":
    print(json.dumps(_train(Path(sys.argv[1]), sys.argv[2] == "own")))
