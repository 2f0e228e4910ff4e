"""Real architectures: a private step against a plain one and against every mode of opacus, interleaved.

Random weights, every weight trained (adapters: what the adapter trains), rows as long as `benchmarks/_zoo.py` says. A
step is forward, backward, bounding, noise and `optimizer.step()`, as in `python -m benchmarks gradients`. The last line
is the geometric mean.
"""

from __future__ import annotations

import statistics
import sys
import warnings
from functools import partial
from typing import Any

import torch

from benchmarks._zoo import ARCHITECTURES, MEASURED, TINY, build, rows
from benchmarks.gradients import Workload, medians, steps_of

ROWS = {"images": 32}
# What a step of full fine-tuning may cost at most; all others count in the mean alone.
TARGETS = {"GPT-2": 1.8, "GPT-2, language model": 1.8}
MEAN = "geometric mean"


def workloads(quick: bool = False) -> list[Workload]:
    """Each architecture with its rows."""
    size = TINY if quick else MEASURED
    found = []
    for name, (_, kind) in ARCHITECTURES.items():
        count = 4 if quick else ROWS.get(kind, 16)
        found.append(Workload(name, partial(build, name, size), partial(rows, name, size, count), TARGETS.get(name)))
    return found


def measured(workload: Workload, repeats: int, seconds: float) -> dict[str, Any]:
    """One row of the table."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        times = medians(steps_of(workload), repeats, seconds)
    peers = {name: value for name, value in times.items() if name.startswith("opacus")}
    best = min(peers, key=lambda name: peers[name]) if peers else None
    return {
        "architecture": workload.name,
        "ratio_to_sgd": round(times["veil"] / times["sgd"], 3),
        "best_opacus": best,
        "best_opacus_ratio_to_sgd": round(peers[best] / times["sgd"], 3) if best else None,
        "ratio_to_best_opacus": round(times["veil"] / peers[best], 3) if best else None,
        "target": workload.target,
        "sgd_ms": round(1e3 * times["sgd"], 2),
    }


def run(repeats: int = 9, quick: bool = False) -> list[dict[str, Any]]:
    """Measure every architecture on one thread; `quick` takes tiny ones and few turns."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    found = []
    try:
        for workload in workloads(quick):
            found.append(measured(workload, 1 if quick else repeats, 0.0 if quick else 0.05))
            print(f"{workload.name}: {found[-1]['ratio_to_sgd']} of a plain step", file=sys.stderr, flush=True)
    finally:
        torch.set_num_threads(before)
    mean = {
        key: round(statistics.geometric_mean(row[key] for row in found if row[key] is not None), 3)
        for key in ("ratio_to_sgd", "best_opacus_ratio_to_sgd", "ratio_to_best_opacus")
    }
    return [*found, {"architecture": MEAN, **mean, "target": 1.5}]
