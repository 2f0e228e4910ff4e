"""Records: what goes into the gradient engine and what comes out of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor, nn

Batch: TypeAlias = Any
"""A tensor, or a nested tuple, list or dict of tensors, whose first dimension is the row."""

LossFn: TypeAlias = Callable[[nn.Module, Batch], Tensor]
"""A loss that returns one value per row."""


class GradientError(ValueError):
    """A model, loss or batch from which no per-row gradient can be taken; the message names the fix."""


class FallbackWarning(UserWarning):
    """Some parameters have no layer rule and use the slower generic path; the message names them."""


@dataclass(frozen=True, slots=True)
class PerRow:
    """Loss and gradient norm of every row of a logical batch, detached.

    A row whose loss or gradient is NaN or infinite has `finite` False, loss 0 and norm 0.

    Args:
        losses: Loss of each row.
        norms: Gradient norm of each row.
        finite: Whether loss and gradient of each row are finite.

    >>> import torch
    >>> PerRow(torch.zeros(2), torch.tensor([0.5, 4.0]), torch.ones(2, dtype=torch.bool)).norms.clamp(max=1)
    tensor([0.5000, 1.0000])
    """

    losses: Tensor
    norms: Tensor
    finite: Tensor


Weigh: TypeAlias = Callable[[PerRow], Tensor]
"""Norms and losses of the rows to their weights: shape (rows,), or (k, rows) for k sums at once."""


@dataclass(frozen=True, slots=True)
class GradientSum:
    """Σ wᵢ gᵢ by parameter name, one dict per weighting, with the norms and losses and the weights it came from.

    Args:
        sums: Sum by name of the parameter, one dict per weighting.
        per_row: Norms and losses of all rows.
        weights: The weight of each row.
    """

    sums: list[dict[str, Tensor]]
    per_row: PerRow
    weights: Tensor
