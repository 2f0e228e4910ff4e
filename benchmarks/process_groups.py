"""Process groups: one process against two on the same rows and batch (each with one thread), steps per second.

Beside it stand what a second core gives at best, in the same run: two threads of a matrix product against one, and two
processes with half of the batch each that never speak. What the group loses against the latter is exchange and waiting;
what those lose against the former is memory that two cores share.
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
    rounds = [(_seconds(1, steps), _seconds(2, steps), _apart(steps), 1 / _threads()) for _ in range(1 if quick else 3)]
    alone, two, apart, threads = (min(values) for values in zip(*rounds, strict=True))
    efficiency, best = alone / (2 * two), 1 / threads
    return [
        {
            "workload": f"MLP 60-256-256-2, batch {BATCH}",
            "ms_alone": 1e3 * alone,
            "ms_two": 1e3 * two,
            "ms_two_apart": 1e3 * apart,
            "efficiency": efficiency,
            "efficiency_apart": alone / (2 * apart),
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


def _started(steps: int, batch: int, processes: int) -> subprocess.Popen[str]:
    """A run of its own: one process, or a group of several."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    own = ["-m", "benchmarks.process_groups", str(steps), str(batch)]
    return subprocess.Popen(
        [sys.executable, *(launcher if processes > 1 else []), *own],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )


def _said(process: subprocess.Popen[str]) -> float:
    printed, _ = process.communicate()
    assert process.returncode == 0
    return float(json.loads(printed.splitlines()[-1]))


def _seconds(processes: int, steps: int) -> float:
    return _said(_started(steps, BATCH, processes))


def _apart(steps: int) -> float:
    """Seconds per step of the slower of two processes with half of the batch each: they run at the same time."""
    both = [_started(steps, BATCH // 2, 1) for _ in range(2)]
    return max([_said(process) for process in both])


class Ticks(Callback):
    """When each step ended. The median time of a step leaves out the few at which ε is read for the history."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def on_step(self, report: StepReport) -> None:
        """Note the time."""
        self.at.append(time.perf_counter())


def _measure(steps: int, batch: int) -> None:
    """What each process runs: only the first one speaks."""
    torch.set_num_threads(1)
    processes = ProcessGroup.joined()
    problem = generate([GroupSpec(f"group {i}", 10_000, angle=0.5 * i) for i in range(4)], features=60)
    model = nn.Sequential(nn.Linear(60, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2))
    told = Ticks()
    fit(model, problem, method="dp-sgd", epsilon=1.0, steps=steps, batch_size=batch, seed=1, callbacks=[told])
    if processes.leads:
        print(json.dumps(statistics.median(after - before for before, after in pairwise(told.at))))


if __name__ == "__main__":
    _measure(int(sys.argv[1]), int(sys.argv[2]))
