"""Overhead of INO-SGD over IDP-SGD: processor time of whole steps of both in turn, and of the bounds alone.

By default the tail follows a count in every tenth step or fewer: steps with and without one are measured apart, and
weighed as often as they happen. Then the same step and its plan with more and more owners, each with a rate of its own.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from torch import nn

from veil import methods
from veil.accounting import Ledger
from veil.foundation.randomness import Seed
from veil.gradients import GradientEngine
from veil.noise import GaussianNoise
from veil.plans import Plan, Settings
from veil.problem import Problem
from veil.training.fitting import row_losses
from veil.training.reservations import Reservations

BOUNDS_AT_ONCE = 20
CHOICES: dict[str, tuple[str, dict[str, Any]]] = {
    "idp-sgd": ("idp-sgd", {}),
    "ino-sgd": ("ino-sgd", {}),
    "ino-sgd, beta(2, 5)": ("ino-sgd", {"alpha": 2.0, "beta": 5.0}),
    "ino-sgd, steps": ("ino-sgd", {"importance": "steps"}),
    "ino-sgd, tail 60 %": ("ino-sgd", {"tail": 60.0}),
}
STEPS = 500  # of the plan: a count in every tenth
COUNTED = 10


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
    """One step as the loop makes it: reserve, draw, gradients, bound, noise, update, controller."""

    def __init__(self, plan: Plan, problem: Problem, model: nn.Module) -> None:
        self.controller, self.state = plan.controller, plan.controller.start()
        self.reservations = Reservations(plan, Ledger(plan.terms()))
        self.problem, self.model = problem, model
        self.engine = GradientEngine(model, row_losses)
        self.sampler = self.controller.release(self.state, 0).draw.sampler(problem.strata())
        self.noise = GaussianNoise(Seed.from_int(0))
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

    def seconds(self, step: int) -> tuple[float, float]:
        """Processor time of the whole step, and of its bound and count alone (computed once more on the same rows)."""
        start = time.process_time()
        release = self.controller.release(self.state, step)
        self.reservations.reserve("gradient", release, self.controller.steady(self.state, step), step)
        made = release.make(self.engine, self.problem, self.sampler, Seed.from_int(0), step, self.noise)
        for name, parameter in self.model.named_parameters():
            parameter.grad = made.gradient[name]
        self.optimizer.step()
        self.state = self.controller.observe(self.state, step, made.statistics)
        whole = time.process_time() - start
        per_row, cells = made.view.per_row, made.view.cells
        start = time.process_time()
        for _ in range(BOUNDS_AT_ONCE):
            release.bound.weights(per_row, cells)
            for one in (one for one in release.statistics if one.due):
                self.noise.add(step, {one.name: one.measure(per_row, cells).sum(dim=0)}, one.sigma, "statistic")
        return whole, (time.process_time() - start) / BOUNDS_AT_ONCE


def _usual(values: list[float]) -> float:
    """The median of steps with a count and that of the others, weighed as often as they happen in a run."""
    with_count, without = values[::COUNTED], [v for step, v in enumerate(values) if step % COUNTED]
    return statistics.median(with_count) / COUNTED + statistics.median(without) * (1 - 1 / COUNTED)


def _measure(title: str, problem: Problem, model: nn.Module, batch: int, repeats: int) -> list[dict[str, Any]]:
    steps = {}
    for choice, (name, options) in CHOICES.items():
        settings = Settings.checked(delta=1e-5, steps=STEPS, batch_size=batch, accountant="rdp")
        steps[choice] = _Step(methods.create(name, options).plan(problem.public, settings), problem, model)
    times: dict[str, list[tuple[float, float]]] = {choice: [] for choice in CHOICES}
    for step in range(-3, repeats):
        for choice, one in steps.items():
            # The same step number draws the same rows: both methods do the same work up to the bound.
            took = one.seconds(max(step, 0))
            if step >= 0:
                times[choice].append(took)
    whole = {choice: _usual([t for t, _ in found]) for choice, found in times.items()}
    bound = {choice: _usual([t for _, t in found]) for choice, found in times.items()}
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
            * _usual([t / b - 1 for (t, _), (b, _) in zip(times[choice], base, strict=True)]),
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
            problem.public, Settings.checked(delta=1e-5, steps=STEPS, batch_size=batch)
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
            "seconds": _usual(times[count]),
            "times_one_owner": _usual([t / b for t, b in zip(times[count], first, strict=True)]),
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
