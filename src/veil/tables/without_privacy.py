"""Without privacy: what a plain linear model reaches on rows that need no protection, to judge a private one by.

Rows are those that were declared public, or the training rows if exact figures were requested. Each half of them is
predicted by a logistic model that was trained on the other half, with all groups weighted alike. Nothing of these
models is kept but their accuracy. They often saw fewer rows than the private one: training without privacy on all rows
would do a little better.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from veil.metrics.definitions import LEAST_ROWS
from veil.plans import Plan
from veil.problem import Problem
from veil.report.usefulness import FINDING
from veil.tables.measuring import SHOWN
from veil.training.fitting import Measured

FEWEST, MOST = 200, 20_000
_RIDGE, _ITERATIONS = 1e-3, 40


@dataclass(frozen=True)
class WithoutPrivacy:
    """The accuracy that a linear model reaches without privacy on these rows; `public` if they were declared so."""

    rows: Problem
    public: bool = True

    def __call__(self, model: nn.Module, plan: Plan) -> Measured:
        """Measure; the private model has no part in it."""
        found = self.found(len(plan.facts.classes)) if plan.private else None
        if found is None:
            return Measured()
        return Measured(findings={FINDING: found}, not_covered=() if self.public else (SHOWN,))

    def found(self, classes: int) -> dict[str, Any] | None:
        """The figures; None where there are too few rows, or they are no table with classes."""
        rows = self.rows
        table = rows.is_one_tensor and isinstance(rows.inputs, Tensor) and rows.inputs.ndim == 2
        if not table or rows.targets.is_floating_point() or len(rows.targets) < FEWEST:
            return None
        assert isinstance(rows.inputs, Tensor)
        groups = np.array([rows.public.groups[cell.group] for cell in rows.public.cells])[rows.cell_of]
        used = np.flatnonzero(rows.present)[:MOST]
        right = right_answers(rows.inputs[used], rows.targets[used], groups[used], classes)
        shares = {str(name): right[groups[used] == name] for name in np.unique(groups[used])}
        by_group = {name: float(own.mean()) for name, own in shares.items() if len(own) >= LEAST_ROWS}
        return {
            **({} if self.public else {"private": True}),
            "model": "logistic",
            "rows": len(used),
            "worst_group_accuracy": min(by_group.values(), default=None),
            "accuracy": float(right.mean()),
        }


@dataclass(frozen=True)
class KnownWithoutPrivacy:
    """The same figures for all runs of a comparison on public rows, worked out once."""

    found: Mapping[str, Any]

    def __call__(self, model: nn.Module, plan: Plan) -> Measured:
        """What was found; a run without privacy needs nothing beside it."""
        return Measured(findings={FINDING: dict(self.found)}) if plan.private else Measured()


def right_answers(inputs: Tensor, targets: Tensor, groups: np.ndarray, classes: int) -> np.ndarray:
    """Which rows are predicted right by a logistic model that was trained on the other half of them."""
    places = torch.arange(len(targets))
    answers = torch.zeros(len(targets), dtype=torch.bool)
    _, group, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    weights = torch.from_numpy(1.0 / sizes[group])
    for half in (0, 1):
        train, test = places % 2 != half, places % 2 == half
        slopes, offsets = _trained(inputs[train].double(), targets[train], weights[train], classes)
        answers[test] = (inputs[test].double() @ slopes + offsets).argmax(dim=1) == targets[test]
    return answers.numpy()


def _trained(inputs: Tensor, targets: Tensor, weights: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Weights and offsets of a logistic model with a small ridge, by L-BFGS."""
    slopes = torch.zeros(inputs.shape[1], classes, dtype=torch.float64, requires_grad=True)
    offsets = torch.zeros(classes, dtype=torch.float64, requires_grad=True)
    share = weights / weights.sum()
    optimizer = torch.optim.LBFGS([slopes, offsets], max_iter=_ITERATIONS, line_search_fn="strong_wolfe")

    def loss() -> float:
        optimizer.zero_grad()
        errors = nn.functional.cross_entropy(inputs @ slopes + offsets, targets, reduction="none")
        found = (share * errors).sum() + _RIDGE * slopes.square().sum() / 2
        found.backward()  # type: ignore[no-untyped-call]
        return float(found.detach())

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    return slopes.detach(), offsets.detach()
