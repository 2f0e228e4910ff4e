"""Gradient variance per group, from exact gradients of private rows: a diagnostic that no certificate covers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from veil.foundation.randomness import Seed
from veil.gradients import GradientEngine
from veil.plans import LossFunction
from veil.problem import Problem
from veil.training.callbacks import Callback, StepReport


@dataclass(frozen=True, slots=True)
class GroupGradients:
    """Mean loss, mean gradient norm and gradient variance of each group, in the order of the groups. Not private."""

    losses: tuple[float, ...]
    norms: tuple[float, ...]
    variances: tuple[float, ...]

    def as_json(self) -> dict[str, list[float]]:
        """Plain JSON values."""
        return {"losses": list(self.losses), "norms": list(self.norms), "variances": list(self.variances)}


def group_gradients(model: nn.Module, loss: LossFunction, problem: Problem, rows: int = 256) -> GroupGradients:
    """Var_k = mean over rows of group k of ‖gᵢ − ḡ‖², ḡ the mean gradient of all rows (each group by its size).

    At most `rows` rows of each group are looked at, the same at every call. A group without rows has NaN.
    """
    engine = GradientEngine(model, loss)
    sizes = np.bincount(problem.group_of[problem.present], minlength=len(problem.public.groups))
    flat, losses = [], []
    for group in range(len(sizes)):
        chosen = _some_rows(problem, group, rows)
        batch = problem.batch(chosen)
        per_row = engine.gradients(batch)
        flat.append(torch.cat([value.reshape(len(chosen), -1) for value in per_row.values()], dim=1).double())
        with torch.no_grad():
            losses.append(loss(model, batch).double())
    shares = torch.from_numpy(sizes / max(sizes.sum(), 1))
    means = torch.stack([value.sum(dim=0) / max(len(value), 1) for value in flat])
    overall = (shares[:, None] * means).sum(dim=0)
    return GroupGradients(
        tuple(float(value.mean()) for value in losses),
        tuple(float(value.norm(dim=1).mean()) for value in flat),
        tuple(float(((value - overall) ** 2).sum(dim=1).mean()) for value in flat),
    )


def _some_rows(problem: Problem, group: int, rows: int) -> NDArray[np.int64]:
    members = np.flatnonzero((problem.group_of == group) & problem.present)
    order = Seed.from_int(0).generator("gradient variance", 0, group).permutation(len(members))
    return np.sort(members[order[:rows]])


@dataclass
class GradientVariance(Callback):
    """Records `group_gradients` every so many steps. It looks at private rows: the run is marked as not covered."""

    problem: Problem
    loss: LossFunction
    every: int
    rows: int = 256
    private: bool = True
    _found: list[tuple[int, GroupGradients]] = field(default_factory=list)

    def on_step(self, report: StepReport) -> None:
        """Look at the model that the step left behind."""
        if (report.step + 1) % self.every == 0:
            self._found.append((report.step, group_gradients(report.model, self.loss, self.problem, self.rows)))

    def findings(self) -> Mapping[str, Any]:
        """One record per look, marked."""
        return {
            "private": True,
            "groups": list(self.problem.public.groups),
            "looks": [{"step": step, **look.as_json()} for step, look in self._found],
        }
