"""Applying a model to many rows: in pieces that stay in the processor's cache, without gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import ceil, prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from veil.models.calling import call, device_of, scores
from veil.problem import Problem

# Measured on the networks for digits: a pass over 4,096 images is five times slower than 16 passes over 256.
_VALUES_AT_ONCE = 200_000
_FEWEST, _MOST = 128, 8192


def rows_at_once(shape: Sequence[int]) -> int:
    """How many rows of this shape one forward pass should take.

    >>> rows_at_once((102,)), rows_at_once((1, 28, 28)), rows_at_once((3, 32, 32))
    (1960, 255, 128)
    """
    return min(_MOST, max(_FEWEST, _VALUES_AT_ONCE // max(1, prod(shape))))


def apply(model: nn.Module, rows: Tensor) -> Tensor:
    """The model's outputs in evaluation mode, for any number of rows.

    >>> apply(nn.Linear(3, 2), torch.zeros(5000, 3)).shape
    torch.Size([5000, 2])
    """
    with evaluating(model):
        # Copies: a model whose first layer works in place would write into the rows themselves.
        return torch.cat([scores(model(piece.clone())) for piece in torch.split(rows, rows_at_once(rows.shape[1:]))])


def scored(model: nn.Module, problem: Problem) -> Tensor:
    """The model's scores of all rows of a problem, on the CPU."""
    if problem.source is None and device_of(model).type == "cpu":
        return apply(model, problem.inputs)
    return torch.cat([found for found, _ in scored_pieces(model, problem)])


def scored_pieces(model: nn.Module, problem: Problem) -> Iterator[tuple[Tensor, Tensor]]:
    """Scores and targets of all rows, piece by piece."""
    problem = problem.on(device_of(model))
    with evaluating(model):
        for inputs, targets in batches(problem, np.arange(len(problem.cell_of))):
            yield scores(call(model, inputs)).cpu(), targets.cpu()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; every module gets its own mode back, so what was frozen stays frozen.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2).eval())
    >>> with evaluating(model):
    ...     model.training
    False
    >>> model.training, model[1].training
    (True, False)
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training


def batches(problem: Problem, rows: NDArray[np.int64]) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and targets of these rows, piece by piece; one empty piece if there is no row."""
    pieces = ceil(len(rows) / rows_at_once((problem.values_per_row,)))
    return (problem.batch(piece) for piece in np.array_split(rows, max(1, pieces)))
