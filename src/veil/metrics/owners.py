"""Owner diagnostics: curves, the minority initial drop, the angle between owners' gradients, the Pareto front.

Whatever is computed here from rows is exact: use rows that were declared public, or treat the figures as private.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from veil.errors import require
from veil.gradients.records import LossFn
from veil.metrics.groups import GroupMetrics, measure
from veil.models.applying import scored
from veil.problem import Problem


def evaluate_owners(model: nn.Module, problem: Problem) -> GroupMetrics:
    """Accuracy of a model per owner, on rows that were declared public."""
    correct = (scored(model, problem).argmax(dim=-1) == problem.targets).numpy()
    owners = problem.public.owners
    return measure(correct, problem.owner_of[:, None] == np.arange(len(owners))[None, :], owners)


def owner_recalls(correct: ArrayLike, problem: Problem) -> dict[str, float]:
    """Recall of each owner: the mean, over the classes of its rows, of the share of the class's rows that were found.

    Where an owner has rows of one class it is the owner's accuracy. Elsewhere a frequent class that is learnt early can
    hide a rare one in the accuracy, and cannot here.

    Args:
        correct: For each row whether its class was found.
        problem: Rows with owners and classes that were declared public.

    Returns:
        By owner; NaN for an owner without rows.

    >>> rows = Problem.from_arrays([[0.0]] * 4, [0, 0, 0, 1], owners=["a"] * 4, budgets={"a": 1.0})
    >>> owner_recalls([True, True, True, False], rows)
    {'a': 0.5}
    """
    found, classes = np.asarray(correct, dtype=np.float64), problem.targets.numpy()
    recalls = {}
    for index, owner in enumerate(problem.public.owners):
        own = (problem.owner_of == index) & problem.present
        by_class = [found[own & (classes == label)].mean() for label in np.unique(classes[own])]
        recalls[owner] = float(np.mean(by_class)) if by_class else math.nan
    return recalls


@dataclass(frozen=True, slots=True)
class InitialDrop:
    """A fall below the early peak of a curve: from which step to which (None: not back yet), and how deep."""

    start: int | None
    depth: float
    end: int | None

    @property
    def happened(self) -> bool:
        """Whether there was one."""
        return self.start is not None

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"start": self.start, "depth": self.depth, "end": self.end}


def initial_drop(steps: Sequence[int], values: ArrayLike, tolerance: float = 0.0) -> InitialDrop:
    """The minority initial drop of a curve (of accuracy, say): when it starts, how deep it is, when it is over.

    Every value in the first quarter of the run is a level that the curve may fall from; the drop is the deepest fall
    before the curve is back at its level. So a curve that has recovered within that quarter still had its drop. The
    untrained model (step 0) does not count: where it happens to guess says nothing about the training. The drop starts
    at the first step whose value lies more than `tolerance` below the level, and ends at the first step after that
    which is back at it.

    >>> initial_drop([0, 1, 2, 10, 20, 30, 40], [0.1, 0.15, 0.2, 0.05, 0.0, 0.1, 0.6])
    InitialDrop(start=10, depth=0.2, end=40)
    >>> initial_drop([0, 10, 20], [0.2, 0.0, 0.3]).happened
    False
    >>> initial_drop([1, 10, 90, 400], [0.15, 0.0, 0.3, 0.6])
    InitialDrop(start=10, depth=0.15, end=90)
    """
    curve, at = np.asarray(values, dtype=np.float64), np.asarray(steps)
    require(len(curve) == len(at) and len(curve) > 0, "a curve must have at least one value, one for each step")
    trained = np.flatnonzero(at > 0)
    if not trained.size:
        return InitialDrop(None, 0.0, None)
    early = trained[(at[trained] <= at[-1] / 4) | (trained == trained[0])]
    drops = [_fall_from(int(level), steps, curve, tolerance) for level in early]
    return max(drops, key=lambda drop: drop.depth)


def _fall_from(peak: int, steps: Sequence[int], curve: NDArray[np.float64], tolerance: float) -> InitialDrop:
    """How far a curve falls below one of its values before it is back at it."""
    level = curve[peak]
    below = peak + np.flatnonzero(curve[peak:] < level - tolerance)
    if not below.size:
        return InitialDrop(None, 0.0, None)
    first = int(below[0])
    back = np.flatnonzero(curve[first:] >= level)
    last = first + int(back[0]) if back.size else len(curve)
    end = int(steps[last]) if back.size else None
    return InitialDrop(int(steps[first]), float(level - curve[first:last].min()), end)


def owner_cosines(model: nn.Module, problem: Problem, loss: LossFn) -> NDArray[np.float64]:
    """Cosines of the angles between the owners' mean gradients, one line and column per owner (NaN: no gradient)."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    gradients = []
    for owner in range(len(problem.public.owners)):
        rows = np.flatnonzero((problem.owner_of == owner) & problem.present)
        if not rows.size:
            gradients.append(np.zeros(sum(p.numel() for p in parameters)))
            continue
        mean = loss(model, problem.batch(rows)).mean()
        parts = torch.autograd.grad(mean, parameters, allow_unused=True, materialize_grads=True)
        gradients.append(torch.cat([part.flatten() for part in parts]).double().numpy())
    table = np.stack(gradients)
    lengths = np.linalg.norm(table, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        cosines = (table @ table.T) / np.outer(lengths, lengths)
    return np.clip(cosines, -1.0, 1.0)


@dataclass(frozen=True, slots=True)
class OwnerPull:
    """The influence of an owner: its rate q, its number of rows |D| and its threshold C."""

    rate: float
    rows: int
    clip: float

    @property
    def strength(self) -> float:
        """q·|D|·C."""
        return self.rate * self.rows * self.clip


def condition_two(cosine: float, private: OwnerPull, other: OwnerPull) -> float:
    """The left side of Cond. (2): 1 + cos ∠ · (q₂|D₂|C₂)/(q₁|D₁|C₁). At or below 0, the loss of owner 1 may rise.

    >>> condition_two(-0.5, OwnerPull(0.01, 1000, 1.0), OwnerPull(0.04, 1000, 1.0))
    -1.0
    """
    require(private.strength > 0, "the more private owner does not take part, so its condition is undefined")
    return 1.0 + cosine * other.strength / private.strength


@dataclass(frozen=True, slots=True)
class TradeOff:
    """One model: its overall utility (more is better) and the spread across owners (less is better)."""

    label: str
    utility: float
    spread: float


def trade_off(label: str, utility: float, by_owner: Sequence[float]) -> TradeOff:
    """A model as a point: the spread is the standard deviation of the owners' figures around their mean.

    >>> trade_off("a model", 0.8, [1.0, 0.5]).spread
    0.25
    """
    known = [value for value in by_owner if not math.isnan(value)]
    return TradeOff(label, utility, statistics.pstdev(known) if known else math.nan)


def pareto_front(points: Sequence[TradeOff]) -> list[TradeOff]:
    """The models that no other beats in both utility and spread, by rising spread.

    >>> [p.label for p in pareto_front([TradeOff("a", 0.9, 0.3), TradeOff("b", 0.8, 0.1), TradeOff("c", 0.7, 0.2)])]
    ['b', 'a']
    """

    def beaten(point: TradeOff) -> bool:
        return any(
            other.utility >= point.utility
            and other.spread <= point.spread
            and (other.utility > point.utility or other.spread < point.spread)
            for other in points
        )

    whole = [point for point in points if not (math.isnan(point.utility) or math.isnan(point.spread))]
    return sorted((point for point in whole if not beaten(point)), key=lambda point: (point.spread, -point.utility))
