"""Embedding: the features that a fixed public network gives of each row, computed once before training.

A frozen backbone gives the same features of a row in every step. Computed once they cost its pass a single time, and
no ε: features of a row are a function of that row alone, and what is released of them later is charged as of any rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from veil.errors import require
from veil.foundation.nested import Nested, mapped
from veil.gradients.batches import sliced
from veil.models.calling import call, device_of, scores
from veil.problem import Problem

# Features of a row beside other rows: the same but for rounding.
_ROUNDING = 1e-3
_MADE_UP = 4


def embed(network: nn.Module, problem: Problem, *, batch_size: int = 16) -> Problem:
    """The same problem with the features of each row as its inputs.

    Args:
        network: A public network that was not trained on these rows; it is called in evaluation mode without gradients.
        problem: Rows of any kind that the network takes.
        batch_size: Rows in a pass. The features do not depend on it.

    Returns:
        A problem whose inputs are one tensor in memory, shape (rows, features).

    Raises:
        InputError: If the network mixes rows, so that the features of one would depend on another.

    >>> problem = Problem.from_arrays(torch.randn(6, 3, 8, 8), [0, 1] * 3)
    >>> embed(nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten()), problem).public.input_shape
    (12,)
    """
    require(batch_size > 0, f"batch_size is {batch_size}: it must be above 0")
    require(problem.several is None, "people with several rows are not embedded: embed the rows before")
    placed = problem.on(device_of(network))
    with _in_evaluation(network), torch.inference_mode():
        _check_rows_apart(network, placed)
        parts = [_features(network, placed, piece) for piece in placed.in_order(batch_size)]
    features = torch.cat(parts)
    public = replace(problem.public, input_shape=tuple(features.shape[1:]))
    # Not the tensor of inference mode itself: autograd would refuse it later.
    return replace(problem, inputs=features.clone(), source=None, public=public)


def _features(network: nn.Module, problem: Problem, inputs: Nested) -> Tensor:
    device = problem.device
    moved = inputs if device is None else mapped(inputs, lambda part: part.to(device))
    return scores(call(network, moved)).flatten(1).float().cpu()


def _check_rows_apart(network: nn.Module, problem: Problem) -> None:
    """Reject a network that mixes rows: each of some synthetic rows must have the same features alone."""
    inputs, _ = problem.made_up(_MADE_UP)
    together = scores(call(network, inputs)).flatten(1)
    alone = [scores(call(network, sliced(inputs, row, row + 1))) for row in range(_MADE_UP)]
    require(
        _alike(torch.cat([found.flatten(1) for found in alone]), together),
        "the features of a row change with the other rows of its batch, so no row could be bounded: use a network that "
        "treats each row by itself, with BatchNorm in evaluation mode",
    )
    pair = problem.padded_twice()
    if pair is None:
        return
    short, long = (scores(call(network, inputs))[:1] for inputs, _ in pair)
    require(
        short.shape == long.shape and _alike(short.flatten(1), long.flatten(1)),
        "the features of a row change when its batch is padded further, so they depend on the other rows: use the mask "
        "in the network, or pad all batches to one length (Problem.from_dataset(…, pad=128))",
    )


def _alike(one: Tensor, other: Tensor) -> bool:
    """Whether features are the same but for rounding."""
    return one.shape == other.shape and float((one - other).abs().max()) <= _ROUNDING * float(other.abs().max())


@contextmanager
def _in_evaluation(network: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
