"""Planning: processor time of a plan whose rates move, for groups of different sizes and for many owners."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from veil import methods
from veil.plans import Settings
from veil.problem import Cell, PublicFacts

GROUPS = (12, 30, 100)
OWNERS = 10_000


def run(repeats: int, quick: bool) -> list[dict[str, Any]]:
    """One plan each: a second one would find much of its accounting remembered. `repeats` changes nothing."""
    rows = [_row(f"{count} groups", _groups(count)) for count in (GROUPS[:1] if quick else GROUPS)]
    if not quick:
        rows.append(_row(f"{OWNERS:,} owners in 4 groups", _owners(OWNERS)))
    for row in rows:
        row["times_12_groups"] = row["seconds"] / rows[0]["seconds"]
    return rows


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
