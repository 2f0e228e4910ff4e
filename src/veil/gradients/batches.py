"""Batches: counting and slicing nested tensors whose first dimension is the row."""

from __future__ import annotations

import torch
from torch import Tensor

from veil.foundation.nested import mapped, tensors
from veil.gradients.records import Batch, GradientError


def count_rows(batch: Batch) -> int:
    """The number of rows on which all tensors of the batch agree.

    >>> count_rows((torch.zeros(3, 2), torch.zeros(3)))
    3
    """
    sizes = {tensor.shape[0] if tensor.ndim else -1 for tensor in tensors(batch)}
    if not sizes:
        raise GradientError("the batch contains no tensor: give a tensor, or a tuple, list or dict of tensors")
    if len(sizes) > 1 or -1 in sizes:
        raise GradientError(
            f"the tensors of the batch have first dimensions {sorted(sizes)}: the first dimension of each must be "
            "the row (pass rows= if the batch holds something else)"
        )
    return sizes.pop()


def sliced(batch: Batch, start: int, stop: int) -> Batch:
    """Rows `start` to `stop` of every tensor."""
    return mapped(batch, lambda tensor: tensor[start:stop])


def detached(batch: Batch) -> Batch:
    """The batch without gradient history, so that no gradient is taken with respect to rows."""
    if not any(tensor.requires_grad for tensor in tensors(batch)):
        return batch
    return mapped(batch, lambda tensor: tensor.detach() if tensor.requires_grad else tensor)


def zeroed(values: Tensor, keep: Tensor) -> Tensor:
    """`values` with the rows where `keep` is False set to exactly 0, even where they were NaN."""
    shape = (-1,) + (1,) * (values.ndim - 1)
    return torch.where(keep.view(shape), values, torch.zeros((), dtype=values.dtype, device=values.device))
