"""Parity release: noisy counts of outcomes per group and class, and how far each group is ahead of the others."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veil.accounting.events import Relation
from veil.errors import require
from veil.problem import Problem, PublicFacts
from veil.releases import LossRelease

Notion = Literal["demographic-parity", "equal-opportunity", "equalised-odds"]


@dataclass(frozen=True)
class ParityRelease(LossRelease):
    """Counts of rows and of positive predictions per group and class; two classes, the second is the positive one.

    A row adds 1 to one count of rows and at most 1 to one count of predictions: √2 together, which is `ceiling`. The
    prediction is read off the row's cross-entropy: the given class is predicted where the loss is below ln 2.
    """

    summed: ClassVar[str] = "counts"

    notion: Notion = "demographic-parity"

    def __post_init__(self) -> None:
        # A replaced row may change its class and so move four counts: 2, not √2.
        require(self.relation is Relation.ADD_REMOVE, "parity counts are bounded for add-remove only")

    def sums(self, losses: Tensor, problem: Problem, rows: NDArray[np.int64]) -> Tensor:
        """Rows, and positive predictions, of each group and class: private until noise is added."""
        targets = problem.targets[torch.from_numpy(rows)]
        positive = ((losses < math.log(2.0)) == (targets == 1)).to(torch.float64)
        place = 2 * torch.from_numpy(problem.group_of[rows]) + (targets == 1).to(torch.int64)
        counts = torch.zeros(2, 2 * len(problem.public.groups), dtype=torch.float64)
        finite = torch.isfinite(losses).to(torch.float64)
        counts[0].index_add_(0, place, finite)
        counts[1].index_add_(0, place, finite * positive)
        return counts

    def said(self, noisy: NDArray[np.float64], facts: PublicFacts) -> NDArray[np.float64]:
        """How far each group is ahead of the last, in [0, 1]."""
        return lead(noisy.reshape(2, len(facts.groups), 2), self.notion, self.tau)


def lead(counts: NDArray[np.float64], notion: Notion, noise: float) -> NDArray[np.float64]:
    """How far each group is ahead of the last: counts[0] are rows, counts[1] positive predictions, by group and class.

    Demographic parity: its rate of positive predictions above the lowest; equal opportunity: the same among rows of the
    positive class; equalised odds: the larger of that and the same among rows of the other class. The group ahead is
    drawn more: to draw the group behind did worse on Adult. Neither direction is proved to close a gap.

    >>> counts = np.array([[[50.0, 50.0], [50.0, 50.0]], [[10.0, 40.0], [10.0, 30.0]]])
    >>> lead(counts, "equal-opportunity", 0.0).round(3)
    array([0.2, 0. ])
    """
    rows, positive = np.maximum(counts[0], max(1.0, noise)), np.maximum(counts[1], 0.0)
    if notion == "demographic-parity":
        rate = np.clip(positive.sum(axis=1) / rows.sum(axis=1), 0.0, 1.0)
        return np.asarray(rate - rate.min())
    rates = np.clip(positive / rows, 0.0, 1.0)
    ahead = rates - rates.min(axis=0)
    return np.asarray(ahead[:, 1] if notion == "equal-opportunity" else ahead.max(axis=1))
