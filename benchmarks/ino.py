"""Overhead of INO-SGD over IDP-SGD: processor time of whole steps of both in turn, and of the bounds alone.

Then the same step and its plan with more and more owners, each with a rate of its own.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from torch import nn

from veil import methods
from veil.foundation.randomness import Seed
from veil.gradients import GradientEngine
from veil.noise import GaussianNoise
from veil.plans import Plan, Settings
from veil.problem import Problem
from veil.training.fitting import row_losses

BOUNDS_AT_ONCE = 20
CHOICES: dict[str, tuple[str, dict[str, Any]]] = {
    "idp-sgd": ("idp-sgd", {}),
    "ino-sgd": ("ino-sgd", {}),
    "ino-sgd, beta(2, 5)": ("ino-sgd", {"alpha": 2.0, "beta": 5.0}),
    "ino-sgd, steps": ("ino-sgd", {"importance": "steps"}),
    "ino-sgd, tail auto": ("ino-sgd", {"tail": "auto"}),
}


def _problem(shape: tuple[int, ...], rows: int) -> Problem:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(rows, *shape, generator=generator), torch.randint(0, 10, (rows,), generator=generator)
    owners = ["careful" if label < 5 else "open" for label in y.tolist()]
    return Problem.from_arrays(x, y, owners=owners, budgets={"careful": 1.0, "open": 3.0}, classes=list(range(10)))


def _models() -> dict[str, tuple[tuple[int, ...], nn.Module]]:
    table = nn.Sequential(nn.Linear(100, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 10))
    images = nn.Sequential(
        *(nn.Conv2d(1, 16, 8, stride=2, padding=3), nn.Tanh(), nn.MaxPool2d(2, 1)),
        *(nn.Conv2d(16, 32, 4, stride=2), nn.Tanh(), nn.MaxPool2d(2, 1)),
        *(nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10)),
    )
    return {"mlp, 100 features": ((100,), table), "cnn, 28 × 28": ((1, 28, 28), images)}


class _Step:
    """One step as the loop makes it: draw, gradients, bound, noise, update."""

    def __init__(self, plan: Plan, problem: Problem, model: nn.Module) -> None:
        self.release = plan.controller.release(plan.controller.start(), 0)
        self.problem, self.model = problem, model
        self.engine = GradientEngine(model, row_losses)
        self.sampler = self.release.draw.sampler(problem.strata())
        self.noise = GaussianNoise(Seed.from_int(0))
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

    def seconds(self, step: int) -> tuple[float, float]:
        """Processor time of the whole step, and of its bound alone (which is computed once more on the same rows)."""
        start = time.process_time()
        made = self.release.make(self.engine, self.problem, self.sampler, Seed.from_int(0), step, self.noise)
        for name, parameter in self.model.named_parameters():
            parameter.grad = made.gradient[name]
        self.optimizer.step()
        whole = time.process_time() - start
        start = time.process_time()
        for _ in range(BOUNDS_AT_ONCE):
            self.release.bound.weights(made.view.per_row, made.view.cells)
        return whole, (time.process_time() - start) / BOUNDS_AT_ONCE


def _measure(title: str, problem: Problem, model: nn.Module, batch: int, repeats: int) -> list[dict[str, Any]]:
    steps = {}
    for choice, (name, options) in CHOICES.items():
        settings = Settings.checked(delta=1e-5, steps=1000, batch_size=batch, accountant="rdp")
        steps[choice] = _Step(methods.create(name, options).plan(problem.public, settings), problem, model)
    times: dict[str, list[tuple[float, float]]] = {choice: [] for choice in CHOICES}
    for step in range(-3, repeats):
        for choice, one in steps.items():
            # The same step number draws the same rows: both methods do the same work up to the bound.
            took = one.seconds(max(step, 0))
            if step >= 0:
                times[choice].append(took)
    whole = {choice: statistics.median(t for t, _ in found) for choice, found in times.items()}
    bound = {choice: statistics.median(t for _, t in found) for choice, found in times.items()}
    base = times["idp-sgd"]
    return [
        {
            "name": f"{title}, batch {batch}: {choice}",
            "model": title,
            "method": choice,
            "seconds": whole[choice],
            "bound_seconds": bound[choice],
            "overhead_percent": 100 * (bound[choice] - bound["idp-sgd"]) / whole["idp-sgd"],
            # Pairs of neighbouring steps; noisier than the line above, and it includes everything.
            "step_overhead_percent": 100
            * statistics.median(t / b - 1 for (t, _), (b, _) in zip(times[choice], base, strict=True)),
        }
        for choice in CHOICES
    ]


def _with_owners(rows: int, batch: int, repeats: int, counts: tuple[int, ...]) -> list[dict[str, Any]]:
    """Plan and step of INO-SGD with so many owners, ε between 0.5 and 5: as many rates, of the same expected batch."""
    (shape, model), generator = _models()["mlp, 100 features"], torch.Generator().manual_seed(0)
    x, y = torch.randn(rows, *shape, generator=generator), torch.randint(0, 10, (rows,), generator=generator)
    steps, planned = dict[int, _Step](), dict[int, float]()
    for count in counts:
        budgets = {f"{owner}": 0.5 * 10 ** ((owner + 0.5) / count) for owner in range(count)}
        owners = [f"{row % count}" for row in range(rows)]
        problem = Problem.from_arrays(x, y, owners=owners, budgets=budgets, classes=list(range(10)))
        start = time.process_time()
        plan = methods.create("ino-sgd", {}).plan(
            problem.public, Settings.checked(delta=1e-5, steps=1000, batch_size=batch)
        )
        planned[count] = time.process_time() - start
        steps[count] = _Step(plan, problem, model)
    times: dict[int, list[float]] = {count: [] for count in counts}
    for step in range(-3, repeats):
        for count, one in steps.items():
            took, _ = one.seconds(max(step, 0))
            if step >= 0:
                times[count].append(took)
    first = times[counts[0]]
    return [
        {
            "name": f"ino-sgd, owners with rates of their own: {count}",
            "model": "mlp, 100 features",
            "method": "ino-sgd",
            "owners": count,
            "seconds": statistics.median(times[count]),
            "times_one_owner": statistics.median(t / b for t, b in zip(times[count], first, strict=True)),
            "plan_seconds": planned[count],
        }
        for count in counts
    ]


def run(repeats: int, quick: bool) -> list[dict[str, Any]]:
    """One record per model and method; `quick` measures fewer rows."""
    rows, batch = (4_000, 256) if quick else (20_000, 512)
    results = []
    for title, (shape, model) in _models().items():
        results += _measure(title, _problem(shape, rows), model, batch, max(repeats, 5))
    return results + _with_owners(rows, batch, max(repeats, 5), (1, 8, 64) if quick else (1, 8, 256, 2048))
