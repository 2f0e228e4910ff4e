"""Process groups: one process against two on the same rows and batch (each with one thread), steps per second."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from veil.datasets import GroupSpec, generate
from veil.training import fit
from veil.training.process_group import ProcessGroup

BATCH = 4000


def run(repeats: int, quick: bool) -> list[dict[str, Any]]:
    """Seconds per step of dp-sgd on an MLP, by number of processes, and the efficiency of the second one."""
    steps = 20 if quick else 80
    seconds = {count: min(_seconds(count, steps) for _ in range(1 if quick else 3)) for count in (1, 2)}
    return [
        {
            "workload": f"MLP 60-256-256-2, batch {BATCH}",
            "ms_alone": 1e3 * seconds[1],
            "ms_two": 1e3 * seconds[2],
            "efficiency": seconds[1] / (2 * seconds[2]),
        },
        *(communication(name, parameters, rows) for name, parameters, rows in LARGER),
    ]


LARGER = (
    ("MLP 60-256-256-2", 81_922, 1_000),
    ("CNN of the ASC paper", 8_954, 256),
    ("100 million parameters", 100_000_000, 4_096),
)


def communication(name: str, parameters: int, rows: int, machines: int = 64) -> dict[str, Any]:
    """What a step costs each of many machines by ring all-reduce: computed, at 10 Gbit/s and 50 µs per message."""
    sent = 2 * (machines - 1) / machines * (4 * parameters + 3 * 8 * rows)
    return {
        "workload": f"{name}, {rows:,} rows, {machines} machines (computed)",
        "megabytes": sent / 1e6,
        "ms_bandwidth": 1e3 * 8 * sent / 1e10,
        "ms_latency": 1e3 * 2 * 2 * (machines - 1) * 50e-6,
    }


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


def _measure(steps: int) -> None:
    """What each process runs: only the first one speaks."""
    torch.set_num_threads(1)
    processes = ProcessGroup.joined()
    problem = generate([GroupSpec(f"group {i}", 10_000, angle=0.5 * i) for i in range(4)], features=60)
    model = nn.Sequential(nn.Linear(60, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2))
    run = fit(model, problem, method="dp-sgd", epsilon=1.0, steps=steps, batch_size=BATCH, seed=1)
    if processes is None or processes.leads:
        print(json.dumps(run.seconds / steps))


if __name__ == "__main__":
    _measure(int(sys.argv[1]))
