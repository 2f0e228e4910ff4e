"""Group metrics: accuracy of every group, their minimum and mean, with the number of rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from veil.metrics.definitions import ACROSS, LEAST_ROWS, across, or_none
from veil.metrics.outcomes import Outcomes
from veil.models.applying import scored, scored_pieces
from veil.problem import Problem
from veil.problem.rows import IGNORED


@dataclass(frozen=True, slots=True)
class GroupScore:
    """One group: how many rows, and the share (or mean) that the score is. NaN where there are no rows.

    Args:
        n: Number of rows.
        accuracy: Share that is right, between 0 and 1.

    >>> GroupScore(n=200, accuracy=0.9).as_json()
    {'n': 200, 'accuracy': 0.9}
    """

    n: int
    accuracy: float

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values; NaN is null.

        Returns:
            `n` and `accuracy`.
        """
        return {"n": self.n, "accuracy": or_none(self.accuracy)}


@dataclass(frozen=True)
class GroupMetrics:
    """Accuracy by group. Empty groups have NaN and are excluded from worst and average.

    `outcomes` are the model's predictions for each row, where known: all other figures of the table
    (`veil.metrics.definitions`) follow from it.

    Args:
        by_group: Score of each group.
        accuracy: Accuracy over all rows.
        outcomes: Predictions for each row, where known.
        heads: Of a model with several heads, the figures of each; all others are then those of the first.

    >>> found = GroupMetrics({"large": GroupScore(900, 0.9), "small": GroupScore(100, 0.7)}, accuracy=0.88)
    >>> found.worst_group, found.worst_group_accuracy, round(found.average_group_accuracy, 2)
    ('small', 0.7, 0.8)
    """

    by_group: dict[str, GroupScore]
    accuracy: float
    outcomes: Outcomes | None = field(default=None, repr=False, compare=False)
    heads: Mapping[str, GroupMetrics] = field(default_factory=dict, repr=False, compare=False)

    @property
    def worst_group(self) -> str | None:
        """The name of the group with the lowest accuracy."""
        scored = {name: score.accuracy for name, score in self.by_group.items() if not math.isnan(score.accuracy)}
        return min(scored, key=lambda name: scored[name]) if scored else None

    @property
    def worst_group_accuracy(self) -> float:
        """The lowest accuracy of any group."""
        return self._across("worst_group_accuracy")

    @property
    def average_group_accuracy(self) -> float:
        """The mean over groups, each counting the same."""
        return self._across("average_group_accuracy")

    @property
    def disparity(self) -> float:
        """The best group's accuracy minus the worst group's."""
        return self._across("disparity")

    @property
    def ratio(self) -> float:
        """The worst group's accuracy over the best group's."""
        return self._across("ratio")

    def _across(self, name: str) -> float:
        values = np.array([score.accuracy for score in self.by_group.values()])
        return float(across(name).over(values)) if len(values) else math.nan

    def as_json(self) -> dict[str, Any]:
        """The keys that other programs rely on, and every further figure that the outcomes allow.

        Returns:
            What `metrics.json` holds: figures over all groups, and `by_group` with those of each group.
        """
        found = {
            **{f.name: or_none(self._across(f.name)) for f in ACROSS if f.reads == ("accuracy",)},
            "accuracy": or_none(self.accuracy),
            "worst_group": self.worst_group,
            "by_group": {name: score.as_json() for name, score in self.by_group.items()},
        }
        if self.heads:
            found["heads"] = {name: own.as_json() for name, own in self.heads.items()}
        return found if self.outcomes is None else {**self.outcomes.figures, **found, **self._groups()}

    def _groups(self) -> dict[str, Any]:
        further = {} if self.outcomes is None else self.outcomes.figures["by_group"]
        return {"by_group": {n: {**further.get(n, {}), **score.as_json()} for n, score in self.by_group.items()}}


def measure(
    correct: NDArray[np.bool_], memberships: NDArray[np.bool_], names: Sequence[str], least: int = 1
) -> GroupMetrics:
    """Accuracy per group from one truth value per row; a row counts towards every group it is in.

    For a group with fewer than `least` rows only the number of rows is given.

    Args:
        correct: Whether each row was classified correctly.
        memberships: Rows × groups: which groups each row is in.
        names: One name per group.
        least: Smaller groups get no accuracy.

    Returns:
        Accuracy of each group with its rows, and over all rows.

    >>> measure(np.array([True, False]), np.array([[True, False], [True, True]]), ["all", "some"]).worst_group
    'some'
    """
    scores = {}
    for column, name in enumerate(names):
        hits = correct[memberships[:, column]]
        scores[name] = GroupScore(len(hits), float(hits.mean()) if len(hits) >= max(least, 1) else math.nan)
    return GroupMetrics(scores, float(correct.mean()) if len(correct) else math.nan)


def evaluate(
    model: nn.Module,
    problem: Problem,
    groups: Sequence[str] = (),
    least: int = LEAST_ROWS,
) -> GroupMetrics:
    """Figures of a model per group on rows that were declared public; `groups` are listed even if they have no row.

    For a group with fewer than `least` rows only the number of rows is given: its figures are NaN. Where targets are
    numbers, errors take the place of accuracies (`veil.metrics.errors`). Where a row has several targets (labels, or
    places with a class), each counts once. Where a model has several heads, the figures are those of the first, and
    `heads` has those of each.

    Args:
        model: The trained model.
        problem: Public rows.
        groups: Names that must appear.
        least: Fewest rows of a group that is measured.

    Returns:
        Figures of each group, and over groups: worst, average, disparity.

    >>> from veil.datasets import GroupSpec, generate
    >>> found = evaluate(nn.Linear(10, 2), generate([GroupSpec("large", 300), GroupSpec("small", 60)]))
    >>> {group: score.n for group, score in found.by_group.items()}
    {'large': 300, 'small': 60}
    """
    if problem.public.heads:
        from veil.metrics.heads import head_metrics

        return head_metrics(model, problem, groups, least)
    if problem.targets.is_floating_point() and problem.public.task != "multi-label":
        from veil.metrics.errors import error_metrics

        return error_metrics(model, problem, groups, least)
    names = (*groups, *(name for name in group_columns(problem)[0] if name not in groups))
    memberships = membership_table(problem, names)
    if problem.targets.ndim == 1:
        outputs, targets = scored(model, problem), problem.targets
    else:
        outputs, targets, row_of = _several_targets(model, problem)
        memberships = memberships[row_of]
    outcomes = outcomes_of(outputs, targets, memberships, names, least)
    found = measure(outcomes.predicted == outcomes.targets, memberships, names, least)
    return replace(found, outcomes=outcomes)


def _several_targets(model: nn.Module, problem: Problem) -> tuple[Tensor, Tensor, NDArray[np.int64]]:
    """Scores and class of each target of each row, and the row; a label is a target of two classes."""
    found, start = list[tuple[Tensor, Tensor, Tensor]](), 0
    for scores, targets in scored_pieces(model, problem):
        if problem.public.task == "multi-label":
            scores, targets = torch.stack([torch.zeros_like(scores), scores], dim=-1), targets.long()
        rows = torch.arange(start, start + len(targets)).view(-1, *[1] * (targets.ndim - 1)).expand(targets.shape)
        counts = targets != IGNORED
        found.append((scores[counts], targets[counts], rows[counts]))
        start += len(targets)
    outputs, classes, row_of = (torch.cat(part) for part in zip(*found, strict=True))
    return outputs, classes, row_of.numpy()


def outcomes_of(
    outputs: Tensor, targets: Tensor, memberships: NDArray[np.bool_], names: Sequence[str], least: int = LEAST_ROWS
) -> Outcomes:
    """Outcomes from scores (logits) of rows of known class."""
    logits = outputs.to(torch.float64)
    return Outcomes(
        targets.numpy(),
        torch.softmax(logits, dim=-1).numpy(),
        nn.functional.cross_entropy(logits, targets, reduction="none").numpy(),
        memberships,
        tuple(names),
        least,
    )


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
