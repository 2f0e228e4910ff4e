"""Training time of the disparate-impact family beside DP-SGD's: processor time of whole runs, taken in turn."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from torch import nn

from veil import methods
from veil.accounting import Ledger
from veil.datasets import GroupSpec, generate
from veil.foundation.randomness import Seed
from veil.plans import Settings
from veil.problem import Problem
from veil.training.fitting import row_losses
from veil.training.loop import Loop

NAMES = ("dp-sgd", "fdpg", "dpsgd-f", "global-adapt", "disk", "dpsur")


def _model(features: int, width: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))


def _seconds(name: str, problem: Problem, steps: int, width: int) -> float:
    """Processor time of the loop with its ledger in memory; planning is not counted, it happens once."""
    settings = Settings.checked(epsilon=2.3, delta=1e-6, steps=steps, batch_size=256, momentum=0.0, seed=1)
    plan = methods.create(name).plan(problem.public, settings)
    model = _model(problem.inputs.shape[1], width)
    loop = Loop(model, problem, plan, row_losses, Seed.from_int(1), Ledger(plan.terms()))
    start = time.process_time()
    loop.run()
    return time.process_time() - start


def run(repeats: int, quick: bool) -> list[dict[str, Any]]:
    """One record per method: seconds per step, and how many times DP-SGD's; the median over repeats."""
    torch.set_num_threads(1)
    problem = generate([GroupSpec("large", 18_000), GroupSpec("small", 6_000, angle=1.0)], features=74)
    steps, width = (95, 64) if quick else (475, 256)
    taken: dict[str, list[float]] = {name: [] for name in NAMES}
    for _ in range(repeats):
        for name in NAMES:
            taken[name].append(_seconds(name, problem, steps, width))
    plain = taken["dp-sgd"]
    return [
        {
            "name": f"{name}, two hidden layers of {width}, batch 256",
            "seconds_per_step": statistics.median(times) / steps,
            "times_dp_sgd": statistics.median(own / base for own, base in zip(times, plain, strict=True)),
        }
        for name, times in taken.items()
    ]
