"""Parity notions between groups, by fairlearn: demographic parity, equal opportunity, equalised odds."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from fairlearn.metrics import (
    demographic_parity_difference,
    equal_opportunity_difference,
    equalized_odds_difference,
)
from numpy.typing import NDArray
from torch import nn

from veil.errors import require
from veil.models.applying import scored
from veil.problem import Problem


@dataclass(frozen=True, slots=True)
class Parity:
    """The largest difference between any two groups, in each notion; 0 is parity."""

    demographic_parity: float
    equal_opportunity: float
    equalised_odds: float

    def as_json(self) -> dict[str, float]:
        """Plain JSON values."""
        return asdict(self)


def parity(predicted: NDArray[np.int64], targets: NDArray[np.int64], groups: NDArray[np.int64]) -> Parity:
    """From 0/1 predictions and targets; 1 is the positive class.

    >>> predicted, targets, groups = np.array([1, 0, 1, 1]), np.array([1, 0, 1, 0]), np.array([0, 0, 1, 1])
    >>> parity(predicted, targets, groups)
    Parity(demographic_parity=0.5, equal_opportunity=0.0, equalised_odds=1.0)
    """
    require(bool(np.isin(targets, (0, 1)).all()), "parity notions need two classes, written as 0 and 1")
    given = {"y_true": targets, "y_pred": predicted, "sensitive_features": groups}
    return Parity(
        float(demographic_parity_difference(**given)),
        float(equal_opportunity_difference(**given)),
        float(equalized_odds_difference(**given)),
    )


def evaluate_parity(model: nn.Module, problem: Problem) -> Parity:
    """Parity of a model on rows that were declared public; two classes, the second is the positive one."""
    predicted = scored(model, problem).argmax(dim=-1)
    return parity(predicted.numpy(), problem.targets.numpy(), problem.group_of)
