"""Generalisation gaps: how much better a model looks on its training rows than on new ones, beside the bound.

A private model cannot behave very differently on rows it saw ("what you see is what you get", Kulynych et al. 2022):
the mean of any property with values in [0, 1] differs by at most the total variation of its releases. Figures on
training rows are exact and not covered by a certificate: they are for research and are marked so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from veil.accounting.generalisation import property_gap as property_bound
from veil.errors import require
from veil.metrics.groups import evaluate
from veil.models.applying import batches
from veil.problem import Problem

Property = Callable[[nn.Module, tuple[Tensor, Tensor]], Tensor]


@dataclass(frozen=True, slots=True)
class Gap:
    """A figure on training rows and on new rows. `bound` is the most that privacy allows on average, if it says."""

    name: str
    train: float
    test: float
    bound: float | None = None

    @property
    def gap(self) -> float:
        """Training minus test."""
        return self.train - self.test


def correct(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The property "is classified correctly"."""
    with torch.no_grad():
        outputs: Tensor = model(batch[0])
    return (outputs.argmax(dim=-1) == batch[1]).to(torch.float32)


def property_gap(name: str, model: nn.Module, train: Problem, test: Problem, of: Property, tv: float | None) -> Gap:
    """The gap of the mean of any property of a row with values in [0, 1]."""
    bound = None if tv is None else property_bound(tv)
    return Gap(name, _mean(of, model, train), _mean(of, model, test), bound)


def robust_property(attack: Callable[[nn.Module, tuple[Tensor, Tensor]], Tensor]) -> Property:
    """The property "is classified correctly at the attacked input"; `attack` moves the inputs."""

    def robust(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return correct(model, (attack(model, batch), batch[1]))

    return robust


def worst_group_gap(model: nn.Module, train: Problem, test: Problem) -> Gap:
    """The gap of the worst group's accuracy: the papers' proxy for distributional generalisation. It has no bound here:
    the worst group is chosen after seeing the results."""
    names = train.public.groups
    seen, new = evaluate(model, train, names), evaluate(model, test, names)
    return Gap("worst-group accuracy", seen.worst_group_accuracy, new.worst_group_accuracy)


def calibration_gap(model: nn.Module, train: Problem, test: Problem, bins: int = 15) -> Gap:
    """The gap of the expected calibration error of the predicted class. It has no bound: that of `veil.accounting` is
    on the error whose expectation runs over training too, and this is the error of one model."""
    return Gap("calibration error", calibration_error(model, train, bins), calibration_error(model, test, bins))


def calibration_error(model: nn.Module, problem: Problem, bins: int = 15) -> float:
    """Σ over bins of |share right − mean confidence| × share of rows (expected calibration error)."""
    require(bins >= 1, f"bins is {bins}: there must be at least one")
    confidences, hits = [], []
    for batch in _batches(problem):
        with torch.no_grad():
            chances = model(batch[0]).softmax(dim=-1)
        best, predicted = chances.max(dim=-1)
        confidences.append(best)
        hits.append(predicted == batch[1])
    confidence = torch.cat(confidences).double().numpy()
    right = torch.cat(hits).double().numpy()
    index = np.minimum((confidence * bins).astype(int), bins - 1)
    misses = np.bincount(index, weights=right - confidence, minlength=bins)
    return float(np.abs(misses).sum() / len(right))


def gaps(
    model: nn.Module,
    train: Problem,
    test: Problem,
    *,
    tv: float | None = None,
    attack: Callable[[nn.Module, tuple[Tensor, Tensor]], Tensor] | None = None,
) -> list[Gap]:
    """How far figures on training rows are from those on new rows: accuracy, worst-group accuracy, calibration.

    With an attack also robust accuracy. The figures are exact and no ε covers them.

    Args:
        model: A trained model for classes.
        train: The rows that it was trained on.
        test: Rows that it has not seen.
        tv: The total variation that the certificate allows: each gap is then given with its bound.
        attack: Makes the worst input near each row of a batch, from the model and the batch.

    Returns:
        One gap for each figure.

    >>> import torch
    >>> from veil.datasets import GroupSpec, generate
    >>> rows = generate([GroupSpec("a", 40), GroupSpec("b", 40)])
    >>> [gap.train == gap.test for gap in gaps(torch.nn.Linear(10, 2), rows, rows)]
    [True, True, True]
    """
    found: list[Gap] = [
        property_gap("accuracy", model, train, test, correct, tv),
        worst_group_gap(model, train, test),
        calibration_gap(model, train, test),
    ]
    if attack is not None:
        found.append(property_gap("robust accuracy", model, train, test, robust_property(attack), tv))
    return found


def _batches(problem: Problem) -> Iterator[tuple[Tensor, Tensor]]:
    return batches(problem, np.flatnonzero(problem.present))


def _mean(of: Property, model: nn.Module, problem: Problem) -> float:
    values = torch.cat([of(model, batch) for batch in _batches(problem)]).double()
    require(bool(((values >= 0) & (values <= 1)).all()), "a property of a row must be between 0 and 1")
    return float(values.mean())
