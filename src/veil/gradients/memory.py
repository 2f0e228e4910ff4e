"""Memory: how many rows one micro-batch may hold under a bound in bytes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from veil.foundation.nested import tensors
from veil.gradients.batches import sliced
from veil.gradients.records import Batch, GradientError, LossFn

# What a row's saved activations are multiplied by: themselves, their gradients, and what the rules keep or unfold.
PER_SAVED_BYTE = 3


def saved_bytes(model: nn.Module, loss: LossFn, batch: Batch) -> int:
    """Bytes that autograd saves in a forward pass over `batch`, parameters left out; the random state stays."""
    state = torch.get_rng_state()
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    held: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            held[storage.data_ptr()] = storage.nbytes()
        keep.append(tensor)
        return tensor

    keep: list[Tensor] = []  # held until counted, so that no address is used twice
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss(model, batch)
    torch.set_rng_state(state)
    return sum(held.values())


def affordable_rows(
    model: nn.Module,
    loss: LossFn,
    batch: Batch,
    max_memory: int,
    parameters: dict[str, Tensor],
    known: dict[tuple[Any, ...], int],
) -> int:
    """Rows per micro-batch that keep activations, their gradients and the sums within `max_memory` bytes.

    `known` remembers the bytes of one row by the shapes of a row.
    """
    key = tuple((tuple(tensor.shape[1:]), tensor.dtype) for tensor in tensors(batch))
    if key not in known:
        one, two = (saved_bytes(model, loss, sliced(batch, 0, rows)) for rows in (1, 2))
        known[key] = PER_SAVED_BYTE * max(two - one, 1)
    per_row = known[key]
    fixed = 2 * sum(parameter.numel() * parameter.element_size() for parameter in parameters.values())
    if fixed + per_row > max_memory:
        raise GradientError(
            f"max_memory is {max_memory} bytes, but the gradients of the model take {fixed} and one row {per_row}: "
            f"allow at least {fixed + per_row}"
        )
    return (max_memory - fixed) // per_row
