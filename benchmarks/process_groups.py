"""Process groups: one process against two on the same rows and batch (each with one thread), steps per second.

Beside it stands what a second core gives at best: two threads of a matrix product against one, in the same run.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

from veil.datasets import GroupSpec, generate
from veil.training import Callback, StepReport, fit
from veil.training.process_group import ProcessGroup

BATCH = 4000


def run(repeats: int, quick: bool) -> list[dict[str, Any]]:
    """Seconds per step of dp-sgd on an MLP, by number of processes, and the efficiency of the second one."""
    steps = 20 if quick else 80
    rounds = [(_seconds(1, steps), _seconds(2, steps), _threads()) for _ in range(1 if quick else 3)]
    alone, two, threads = (min(values) for values in zip(*[(a, b, 1 / c) for a, b, c in rounds], strict=True))
    efficiency, best = alone / (2 * two), 1 / threads
    return [
        {
            "workload": f"MLP 60-256-256-2, batch {BATCH}",
            "ms_alone": 1e3 * alone,
            "ms_two": 1e3 * two,
            "efficiency": efficiency,
            "two_threads": best,
            "of_two_threads": efficiency / best,
        },
        *(communication(name, parameters, rows) for name, parameters, rows in LARGER),
    ]


LARGER = (
    ("MLP 60-256-256-2", 81_922, 1_000),
    ("CNN of the ASC paper", 8_954, 256),
    ("100 million parameters", 100_000_000, 4_096),
)


def communication(name: str, parameters: int, rows: int, machines: int = 64) -> dict[str, Any]:
    """What a step costs each of many machines by ring all-reduce: computed, at 10 Gbit/s and 50 µs per message.

    Sums, and loss, norm, finiteness and weight of each row, go in one piece.
    """
    sent = 2 * (machines - 1) / machines * 4 * (parameters + 4 * rows)
    return {
        "workload": f"{name}, {rows:,} rows, {machines} machines (computed)",
        "megabytes": sent / 1e6,
        "ms_bandwidth": 1e3 * 8 * sent / 1e10,
        "ms_latency": 1e3 * 2 * (machines - 1) * 50e-6,
    }


def _threads(size: int = 1500) -> float:
    """How well two threads share a matrix product: 1 is twice as fast as one thread."""
    matrix, before = torch.randn(size, size), torch.get_num_threads()
    found = {}
    for count in (1, 2):
        torch.set_num_threads(count)
        matrix @ matrix
        times = []
        for _ in range(5):
            start = time.perf_counter()
            matrix @ matrix
            times.append(time.perf_counter() - start)
        found[count] = min(times)
    torch.set_num_threads(before)
    return found[1] / (2 * found[2])


def _seconds(processes: int, steps: int) -> float:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    found = subprocess.run(
        [sys.executable, *(launcher if processes > 1 else []), "-m", "benchmarks.process_groups", str(steps)],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(json.loads(found.stdout.splitlines()[-1]))


class Ticks(Callback):
    """When each step ended. The median time of a step leaves out the few at which ε is read for the history."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def on_step(self, report: StepReport) -> None:
        """Note the time."""
        self.at.append(time.perf_counter())


def _measure(steps: int) -> None:
    """What each process runs: only the first one speaks."""
    torch.set_num_threads(1)
    processes = ProcessGroup.joined()
    problem = generate([GroupSpec(f"group {i}", 10_000, angle=0.5 * i) for i in range(4)], features=60)
    model = nn.Sequential(nn.Linear(60, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2))
    told = Ticks()
    fit(model, problem, method="dp-sgd", epsilon=1.0, steps=steps, batch_size=BATCH, seed=1, callbacks=[told])
    if processes.leads:
        print(json.dumps(statistics.median(after - before for before, after in pairwise(told.at))))


if __name__ == "__main__":
    _measure(int(sys.argv[1]))
