"""Small problems and plans for the convex solvers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from veil import methods
from veil.methods.convex.losses import Logistic, Loss
from veil.methods.convex.rows import LinearRows, into_ball
from veil.methods.convex.saddle import SaddleProblem
from veil.plans import Plan, Settings
from veil.problem import Problem

NAMES = ("phased-erm", "noisy-sgd-mgr", "noisy-sgd-ags", "dp-oco")
CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in NAMES),
    ("phased-erm", {"neighbours": "add-remove", "phases": 2}),
    ("phased-erm", {"phases": 7}),
    ("phased-erm", {"schedule": "paper"}),
    ("phased-erm", {"loss": "hinge"}),
    ("noisy-sgd-mgr", {"neighbours": "add-remove"}),
    ("noisy-sgd-mgr", {"release": "laplace", "sizes": "n-min"}),
    ("noisy-sgd-mgr", {"batch": 20, "loss": "smoothed-hinge"}),
    ("noisy-sgd-mgr", {"share": 0.5}),
    ("noisy-sgd-mgr", {"gradient": "one-group"}),
    ("noisy-sgd-mgr", {"gradient": "one-group", "batch": 20}),
    ("noisy-sgd-ags", {"neighbours": "add-remove", "sizes": "n-min"}),
    ("noisy-sgd-ags", {"release": "laplace", "batch": 20, "loss": "squared"}),
    ("dp-oco", {"rows_per_round": 3, "trees": 2, "go_on": True, "loss": "hinge"}),
]


def made_problem(rows: int = 240, classes: int = 2, owners: bool = True) -> Problem:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(rows, 4, generator=generator) * 3
    y = (x[:, 0] + torch.randn(rows, generator=generator) > 0).long() if classes == 2 else torch.arange(rows) % classes
    groups = ["minority" if i % 4 == 0 else "majority" for i in range(rows)]
    given = ["careful" if i % 3 == 0 else "open" for i in range(rows)] if owners else None
    budgets = {"careful": 0.5, "open": 2.0} if owners else None
    return Problem.from_arrays(x, y, groups, owners=given, budgets=budgets, classes=list(range(classes)))


def plan_of(name: str, options: Mapping[str, Any], problem: Problem, **settings: Any) -> Plan:
    chosen: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-4, "seed": 5}
    if name.startswith("noisy"):
        chosen["steps"] = 12
    return methods.create(name, options).plan(problem.public, Settings.checked(**(chosen | settings)))


def linear(features: int = 4, outputs: int = 2) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(features, outputs))


def saddle_problem(
    seed: int,
    loss: Loss | None = None,
    radius: float = 2.0,
    mu_w: float = 0.05,
    mu_lambda: float = 0.05,
    rows: int = 80,
) -> SaddleProblem:
    generator = np.random.default_rng(seed)
    features = into_ball(generator.standard_normal((rows, 3)) * 2, 1.0)
    targets = np.where(features[:, 0] + 0.3 * generator.standard_normal(rows) > 0, 1.0, -1.0)
    groups = np.arange(rows) % 4
    chosen = loss or Logistic()
    return SaddleProblem(
        LinearRows(features, targets, groups),
        np.full(4, rows / 4),
        chosen,
        chosen.constants(1.0, radius),
        generator.standard_normal((3, 1)) * 0.1,
        mu_w,
        mu_lambda,
        radius,
    )
