"""Input canaries: rows with a wrong target among the real ones, trained once on the real model.

They test the whole way from inputs to weights, the gradient engine on the user's own model included, and see the final
model only. That attacker is weaker than one who sees every gradient, so bounds are lower than those of `canaries`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from veil.accounting import Ledger
from veil.auditing.shadow_models import BuildModel, score_rows
from veil.errors import require
from veil.foundation.randomness import Seed
from veil.plans import LossFunction, Plan
from veil.problem import Problem
from veil.training.fitting import carry_out
from veil.training.loop import Loop
from veil.training.losses import row_losses

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class InputScores:
    """The canaries' cells and coins, and how much surer of its wrong target training made the model (median 0)."""

    cells: NDArray[np.int64]
    coins: NDArray[np.bool_]
    values: Floats


def put_among(problem: Problem, per_group: int, seed: Seed) -> tuple[Problem, NDArray[np.int64], NDArray[np.bool_]]:
    """A problem in which some rows of every group are canaries, each there or not by a fair coin.

    At most half of a group's rows are taken, so that the model still learns. A canary keeps the inputs of the row that
    it replaces and has another class; every public constant stays as it was.
    """
    classes = len(problem.public.classes)
    require(classes >= 2, "input canaries need classes: the task must be classification")
    generator, unit_of = seed.generator("input canaries", 0), problem.by_unit()
    chosen = []
    for group in range(len(problem.public.groups)):
        rows = np.flatnonzero((problem.group_of == group) & problem.present & (unit_of == np.arange(len(unit_of))))
        chosen.append(generator.permutation(rows)[: min(per_group, len(rows) // 2)])
    rows = np.sort(np.concatenate(chosen))
    require(len(rows) >= 2, "there are too few rows to add canaries")
    moved = torch.zeros(len(problem.targets), dtype=problem.targets.dtype)
    moved[torch.from_numpy(rows)] = torch.from_numpy(generator.integers(1, classes, len(rows))).to(moved.dtype)
    coins = generator.random(len(rows)) < 0.5
    out = np.zeros(len(unit_of), dtype=bool)
    out[rows] = ~coins
    # All rows of a canary, where it has several.
    targets = (problem.targets + moved[torch.from_numpy(unit_of)]) % classes
    present, several = problem.present & ~out[unit_of], problem.several
    if several is not None:
        several = replace(several, targets=(several.targets + moved[several.person_of]) % classes)
    return replace(problem, targets=targets, present=present, several=several), rows, coins


def play_inputs(
    plan: Plan,
    problem: Problem,
    model: BuildModel,
    *,
    per_group: int = 1_000,
    seed: Seed | None = None,
    loss: LossFunction = row_losses,
) -> InputScores:
    """Train once with canaries among the rows and score them by what training did to each."""
    source = seed or Seed.from_system()
    changed, rows, coins = put_among(problem, per_group, source)
    trained = model(changed, source)
    before = score_rows(trained, changed, loss)[0][rows]
    carry_out(Loop(trained, changed, plan, loss, source, Ledger(plan.terms())))
    gained = score_rows(trained, changed, loss)[0][rows] - before
    return InputScores(problem.cell_of[rows], coins, gained - np.median(gained))
