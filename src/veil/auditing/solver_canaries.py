"""Canaries for methods that are solved as a whole: one row alone among holes, in and out of many solutions.

Without the canary every sum over rows is 0, so that a release is noise alone; with it, a release is the canary's own
part plus noise. The solver runs with the canary in both stories, and in the one without it the noise forgets to add
what it was given. So an attacker who sees every release and knows the canary's part at each of them has the exact
log-likelihood ratio of the two stories, the most powerful score there is.

That rows are read by such releases alone is not tested here; solving neighbouring tables with the same noise does that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from veil.accounting import Ledger, Relation
from veil.auditing.canaries import Canaries, Scores, of_unit
from veil.errors import InputError, require
from veil.foundation.randomness import Seed
from veil.models import build_model
from veil.noise import GaussianNoise
from veil.plans import Plan
from veil.plans.controllers.solver import Report
from veil.problem import Problem, PublicFacts
from veil.request import SUITED

# Solutions per group: each takes some ten milliseconds.
MOST_SOLUTIONS = 500
# How far out the canary may lie, and how many solutions are made to find out where it is seen best.
SIZES, PILOTS = (1.0, 0.3, 0.1, 0.03, 0.01), 6


@runtime_checkable
class FullBatch(Protocol):
    """A solver that takes all rows in every release: nothing is drawn that would hide a row."""

    def solve_with(
        self, noise: GaussianNoise, model: nn.Module, problem: Problem, ledger: Ledger, report: Report
    ) -> None:
        """Train the model as a whole, by this noise."""
        ...


@dataclass(frozen=True)
class ForgetfulNoise(GaussianNoise):
    """Noise that notes the log-likelihood ratio of what it is given; where `there` is False, it leaves that out."""

    there: bool = True
    ratios: list[float] = field(default_factory=list, compare=False)
    shifts: list[float] = field(default_factory=list, compare=False)

    def add(self, step: int, values: Mapping[str, Tensor], std: float, purpose: str = "gradient") -> dict[str, Tensor]:
        """What is released, with or without the canary."""
        given = values if self.there else {name: torch.zeros_like(value) for name, value in values.items()}
        released = super().add(step, given, std, purpose)
        for name, value in values.items():
            own = value.double()
            self.ratios.append(float((released[name].double() * own).sum() - (own**2).sum() / 2) / std**2)
            self.shifts.append(float((own**2).sum()) / std**2)
        return released


def play_solver(plan: Plan, solutions: int, seed: Seed, model: nn.Module | None = None) -> Scores:
    """Solve the plan `solutions` times per group, with the canary or without it by a fair coin, and score each time."""
    solver: object = plan.solver
    if not isinstance(solver, FullBatch) or plan.relation is not Relation.ADD_REMOVE:
        raise InputError(f"{plan.method} is not audited by canaries: take another attack, as lira")
    require(solutions >= 2, f"{solutions} canaries per group: an audit needs at least 2")
    facts, trained = plan.facts, _model(plan) if model is None else model
    of_group = {cell.group: index for index, cell in reversed(list(enumerate(facts.cells)))}
    cells = np.repeat(list(of_group.values()), min(solutions, MOST_SOLUTIONS)).astype(np.int64)
    coins = seed.generator("canary coins", 0).random(len(cells)) < 0.5
    ledgers: list[Ledger] = []

    def solved(purpose: str, index: int, cell: int, there: bool, size: float) -> ForgetfulNoise:
        noise = ForgetfulNoise(Seed(seed.key(purpose, index)), plan.settings.secure_noise, there=there)
        ledgers[:] = [Ledger(plan.terms())]
        solver.solve_with(noise, trained, _alone(facts, cell, index, size), ledgers[0], lambda *_: None)
        return noise

    def seen(size: float) -> float:
        pilots = (solved("pilot", index, int(cells[0]), index % 2 == 0, size) for index in range(PILOTS))
        return float(np.mean([math.sqrt(sum(noise.shifts)) for noise in pilots]))

    # Chosen by solutions of their own: the noise of those that are scored has no part in it.
    size = max(SIZES, key=seen)
    games = enumerate(zip(cells.tolist(), coins.tolist(), strict=True))
    values = np.array([sum(solved("solution", i, cell, there, size).ratios) for i, (cell, there) in games])
    charged = tuple(ledgers[0].spent(cell) for cell in range(len(facts.cells)))
    canaries = Canaries(cells, coins, _alone(facts, 0, 0, size), facts.rows_together)
    return Scores(canaries, values, charged)


def _model(plan: Plan) -> nn.Module:
    """A model that the method takes, at the width of the plan's rows."""
    facts, name = plan.facts, SUITED[plan.method]
    options = {"blocks": [1] * facts.input_shape[0], "numbers": []} if name == "additive" else {}
    return build_model(name, facts, Seed.from_int(0), **options)


def _alone(facts: PublicFacts, cell: int, index: int, size: float) -> Problem:
    """One row on the way to a corner of its range; classes take turns. A person has it several times."""
    signs = torch.where(torch.arange(math.prod(facts.input_shape)) % 2 == 0, size, -size)
    inputs = signs.reshape(1, *facts.input_shape)
    target = torch.tensor([index % len(facts.classes)]) if facts.classes else torch.tensor([1.0])
    rows = facts.rows_together
    cells, there = np.full(rows, cell), np.ones(rows, dtype=bool)
    return of_unit(Problem(inputs.expand(rows, *facts.input_shape), target.expand(rows), cells, facts, there))
