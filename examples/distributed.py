"""One model on several processes, or several runs on Ray.

torchrun --nproc-per-node 2 examples/distributed.py
python examples/distributed.py --ray          # needs veil-dp[ray]
"""

from __future__ import annotations

import argparse
import os
import tempfile

import torch.distributed as dist
from torch import nn

import veil
from veil.datasets import GroupSpec, generate


def build(problem: veil.Problem, seed: object) -> nn.Module:
    """A fresh model for each run. It starts at zero, hence alike in all processes."""
    model = nn.Linear(10, 2)
    for weight in model.parameters():
        nn.init.zeros_(weight)
    return model


def one_model(rows: int) -> veil.Run:
    """Every process calls the same `veil.fit`; the noise is added once."""
    problem = generate([GroupSpec("large", rows), GroupSpec("small", rows // 10)])
    run = veil.fit(build(problem, None), problem, method="asc", epsilon=1.0, epochs=2, batch_size=256, seed=1)
    if not dist.is_initialized() or dist.get_rank() == 0:
        print("ε by group:", {group: round(cost, 3) for group, cost in run.certificate.by_group.items()})
    return run


def several_runs(rows: int, backend: str) -> dict[str, float]:
    """Methods × seeds at the same time; `backend` is loky (this machine), ray or dask."""
    problem = generate([GroupSpec("large", rows), GroupSpec("small", rows // 10)])
    public = generate([GroupSpec("large", 1000), GroupSpec("small", 1000)])
    with tempfile.TemporaryDirectory() as folder:
        found = veil.compare(
            problem,
            public,
            methods=["dp-sgd", "asc"],
            model=build,
            out=folder,
            seeds=2,
            workers=veil.Workers(2, backend),
            epochs=2,
            batch_size=256,
        )
    worst = {row["method"]: row["worst_group_accuracy"]["mean"] for row in found.summary()}
    print("worst group, mean of two seeds:", {name: round(value, 3) for name, value in worst.items()})
    return worst


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=8000)
    parser.add_argument("--ray", action="store_true", help="several runs on Ray instead of one model on processes")
    asked = parser.parse_args()
    if asked.ray:
        several_runs(asked.rows, "ray")
    elif "RANK" in os.environ:
        dist.init_process_group("gloo")
        one_model(asked.rows)
        dist.destroy_process_group()
    else:
        one_model(asked.rows)
