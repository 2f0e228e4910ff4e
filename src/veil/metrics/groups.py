"""Group metrics: accuracy of every group, the worst of them, their mean; counts stand beside every figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from veil.problem import Problem


@dataclass(frozen=True, slots=True)
class GroupScore:
    """One group: how many rows, and the share (or mean) that the score is. NaN where there are no rows."""

    n: int
    accuracy: float

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values; NaN is null."""
        return {"n": self.n, "accuracy": _number(self.accuracy)}


@dataclass(frozen=True, slots=True)
class GroupMetrics:
    """The figures that people decide by. Empty groups have NaN, and take no part in worst and average."""

    by_group: dict[str, GroupScore]
    accuracy: float

    @property
    def worst_group(self) -> str | None:
        """The name of the group with the lowest accuracy."""
        scored = {name: score.accuracy for name, score in self.by_group.items() if not math.isnan(score.accuracy)}
        return min(scored, key=lambda name: scored[name]) if scored else None

    @property
    def worst_group_accuracy(self) -> float:
        """The lowest accuracy of any group."""
        worst = self.worst_group
        return math.nan if worst is None else self.by_group[worst].accuracy

    @property
    def average_group_accuracy(self) -> float:
        """The mean over groups, each counting the same."""
        values = [s.accuracy for s in self.by_group.values() if not math.isnan(s.accuracy)]
        return float(np.mean(values)) if values else math.nan

    @property
    def disparity(self) -> float:
        """The best group's accuracy minus the worst group's."""
        values = [s.accuracy for s in self.by_group.values() if not math.isnan(s.accuracy)]
        return max(values) - min(values) if values else math.nan

    def as_json(self) -> dict[str, Any]:
        """The keys that other programs rely on."""
        return {
            "worst_group_accuracy": _number(self.worst_group_accuracy),
            "average_group_accuracy": _number(self.average_group_accuracy),
            "accuracy": _number(self.accuracy),
            "disparity": _number(self.disparity),
            "worst_group": self.worst_group,
            "by_group": {name: score.as_json() for name, score in self.by_group.items()},
        }


def measure(correct: NDArray[np.bool_], memberships: NDArray[np.bool_], names: Sequence[str]) -> GroupMetrics:
    """Accuracy per group from one truth value per row; a row counts towards every group it is in.

    >>> measure(np.array([True, False]), np.array([[True, False], [True, True]]), ["all", "some"]).worst_group
    'some'
    """
    scores = {}
    for column, name in enumerate(names):
        hits = correct[memberships[:, column]]
        scores[name] = GroupScore(len(hits), float(hits.mean()) if len(hits) else math.nan)
    return GroupMetrics(scores, float(correct.mean()) if len(correct) else math.nan)


def evaluate(model: nn.Module, problem: Problem, groups: Sequence[str] = (), rows_at_once: int = 8192) -> GroupMetrics:
    """Accuracy of a model per group on rows that were declared public; `groups` are listed even if they have no row."""
    training = model.training
    model.eval()
    with torch.no_grad():
        parts = [model(chunk).argmax(dim=-1) for chunk in torch.split(problem.inputs, rows_at_once)]
    model.train(training)
    correct = (torch.cat(parts) == problem.targets).numpy()
    names = [*groups, *(name for name in group_columns(problem)[0] if name not in groups)]
    return measure(correct, membership_table(problem, names), names)


def group_columns(problem: Problem) -> tuple[tuple[str, ...], NDArray[np.bool_]]:
    """The groups that rows can count towards, and a column of truth values for each."""
    if problem.memberships is not None:
        return problem.memberships.names, problem.memberships.table
    groups = problem.public.groups
    return groups, problem.group_of[:, None] == np.arange(len(groups))[None, :]


def membership_table(problem: Problem, names: Sequence[str]) -> NDArray[np.bool_]:
    """Which of the named groups each row counts towards."""
    known, own = group_columns(problem)
    nobody = np.zeros(len(own), dtype=bool)
    position = {name: index for index, name in enumerate(known)}
    return np.column_stack([own[:, position[name]] if name in position else nobody for name in names])


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
