"""Every private method on one small problem with two groups and two owners."""

from __future__ import annotations

import torch
from torch import Tensor

from veil import methods
from veil.gradients import GradientEngine
from veil.plans import Plan, Settings
from veil.problem import Problem
from veil.training.fitting import row_losses

PRIVATE = [row["name"] for row in methods.table() if row["private"]]
VARIANTS = [
    ("dp-sgd", {"sampling": "wor"}),
    ("dp-sgd", {"neighbours": "replace-one"}),
    ("auto-s", {"sampling": "wor"}),
    ("adaptive-clip", {"sampling": "wor"}),
    ("asc", {"sampling": "wor"}),
    ("asc", {"neighbours": "replace-one"}),
    ("azb", {"sampling": "wor"}),
    ("azb", {"charge": "lottery"}),
    ("asc", {"power": 0.7}),
    ("fdpg", {"cap": 2.0}),
    ("dp-is-sgd", {"bounding": "normalise"}),
    ("asc", {"loss_rate": 0.2}),
    ("asc", {"loss_rate": 0.2, "sampling": "wor", "paper_losses": True}),
    ("idp-sgd", {"variant": "scale"}),
    ("idp-sgd", {"variant": "both"}),
    ("idp-sgd", {"neighbours": "replace-one"}),
    ("idp-sgd", {"variant": "scale", "neighbours": "replace-one"}),
    ("auto-s", {"neighbours": "replace-one"}),
    ("adaptive-clip", {"neighbours": "replace-one"}),
    ("dp-is-sgd", {"neighbours": "replace-one"}),
    ("azb", {"neighbours": "replace-one"}),
]
NEEDED = {"azb-weak": {"allow_weaker_minority_privacy": True}}
# Convex solvers train a linear model as a whole and have no batches of gradients: tests/methods/convex replays them.
SOLVED = [row["name"] for row in methods.table() if row["family"] == "convex, with proofs"] + ["group-gd", "auto"]
CASES = [(name, NEEDED.get(name, {})) for name in PRIVATE if name not in SOLVED] + VARIANTS


def small_problem(features: int = 4, rows: int = 240, spread: float = 5.0) -> Problem:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(rows, features, generator=generator) * spread
    y = (x[:, 0] + torch.randn(rows, generator=generator) > 0).long()
    groups = ["minority" if i % 6 == 0 else "majority" for i in range(rows)]
    owners = ["careful" if i % 3 == 0 else "open" for i in range(rows)]
    return Problem.from_arrays(x, y, groups, owners=owners, budgets={"careful": 0.5, "open": 2.0}, classes=[0, 1])


def plan_for(name: str, options: dict[str, object], problem: Problem, **settings: object) -> Plan:
    chosen: dict[str, object] = {"epsilon": 1.0, "delta": 1e-4, "steps": 20, "batch_size": 24, "seed": 5}
    return methods.create(name, options).plan(problem.public, Settings.checked(**(chosen | settings)))


def small_engine(features: int = 4) -> GradientEngine:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(features, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
    return GradientEngine(model, row_losses)


class NoNoise:
    """Stands in for the noise: a release made with it shows the exact bounded sum."""

    def add(self, step: int, values: dict[str, Tensor], std: float, purpose: str = "gradient") -> dict[str, Tensor]:
        return dict(values)
