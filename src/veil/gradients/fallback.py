"""Fallback: per-row gradients by torch.func for the parameters that no layer rule covers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from veil.foundation.nested import mapped
from veil.gradients.batches import sliced
from veil.gradients.records import Batch, FallbackWarning, LossFn

_LOOPED = "one row at a time"


@contextmanager
def without_advice() -> Iterator[None]:
    """Without torch.func's remarks on missing batching rules: the engine's own warning says that this is slow."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        yield


class _Lossy(nn.Module):
    """The loss as a module, so that `functional_call` can exchange the model's parameters around it."""

    def __init__(self, model: nn.Module, loss: LossFn) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, batch: Batch) -> Tensor:
        return self.loss(self.model, batch).sum()


def per_row_gradients(
    model: nn.Module, loss: LossFn, batch: Batch, rows: int, parameters: dict[str, Tensor], warned: set[str]
) -> dict[str, Tensor]:
    """Gradients of every row's loss with respect to `parameters` only, each of shape (rows, *parameter).

    `warned` remembers that the slow way was announced.
    """
    lossy = _Lossy(model, loss)
    chosen = {f"model.{name}": parameter.detach() for name, parameter in parameters.items()}

    def of_row(values: dict[str, Tensor], row: Batch) -> Tensor:
        result: Tensor = functional_call(lossy, values, (mapped(row, lambda tensor: tensor.unsqueeze(0)),))
        return result

    try:
        with without_advice():
            gradients = vmap(grad(of_row), in_dims=(None, 0), randomness="different")(chosen, batch)
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        if _LOOPED not in warned:
            warned.add(_LOOPED)
            warnings.warn(
                f"torch.func cannot batch this model ({_first_line(error)}): using one row at a time, which is slow",
                FallbackWarning,
                stacklevel=2,
            )
        gradients = _one_by_one(lossy, batch, rows, chosen)
    return {name: gradients[f"model.{name}"].detach() for name in parameters}


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _one_by_one(lossy: nn.Module, batch: Batch, rows: int, chosen: dict[str, Tensor]) -> dict[str, Tensor]:
    results: dict[str, list[Tensor]] = {name: [] for name in chosen}
    leaves = {name: value.clone().requires_grad_() for name, value in chosen.items()}
    for row in range(rows):
        value: Any = functional_call(lossy, leaves, (sliced(batch, row, row + 1),))
        found = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
        for (name, leaf), gradient in zip(leaves.items(), found, strict=True):
            results[name].append(torch.zeros_like(leaf) if gradient is None else gradient)
    return {name: torch.stack(items) for name, items in results.items()}
