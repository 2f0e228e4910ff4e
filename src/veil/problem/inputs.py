"""Inputs: what a caller gives as the inputs of all rows, as one tensor or as rows that are taken by number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from veil.errors import InputError, require
from veil.foundation.nested import tensors
from veil.problem.rows import (
    UNUSUAL,
    ArrayRows,
    Collate,
    ItemRows,
    NestedRows,
    Rows,
    numbers,
    ragged_paths,
    row_size,
    usable,
)

LOADER = "a DataLoader draws batches, and here Veil draws them: give its data set, Problem.from_dataset(loader.dataset)"


@dataclass(frozen=True)
class Inputs:
    """The inputs of all rows: a tensor, or a source of rows and an empty tensor; how many, and the shape of one."""

    tensor: Tensor
    source: Rows | None
    rows: int
    shape: tuple[int, ...]


def as_inputs(inputs: Any, targets: Any) -> Inputs:
    """Check inputs of any kind that `Problem.from_arrays` takes."""
    require(not is_loader(inputs), LOADER)
    if isinstance(inputs, np.memmap) and inputs.ndim > 1:
        return Inputs(torch.empty(0), ArrayRows(inputs), len(inputs), tuple(inputs.shape[1:]))
    if isinstance(inputs, dict) or _several(inputs, targets):
        return _nested(inputs)
    listed = isinstance(inputs, list) and all(isinstance(row, Tensor | np.ndarray | list) for row in inputs)
    if listed and _ragged(inputs):
        return _items([numbers(row) for row in inputs])
    x = inputs.detach().cpu() if isinstance(inputs, Tensor) else torch.as_tensor(np.asarray(inputs))
    x = x.to(torch.int64) if x.dtype in UNUSUAL else x
    x = _finite(x[:, None] if x.ndim == 1 else x)
    return Inputs(x, None, len(x), tuple(x.shape[1:]))


def is_loader(given: Any) -> bool:
    """Whether somebody gave a torch DataLoader where rows are wanted."""
    return isinstance(given, torch.utils.data.DataLoader)


def itself(item: Any) -> Any:
    """An item of which the model is given all."""
    return item


def _ragged(rows: list[Any]) -> bool:
    """Whether rows of a list have different lengths."""
    return len({len(row) if isinstance(row, list) or np.ndim(row) else -1 for row in rows}) > 1


def _several(inputs: Any, targets: Any) -> bool:
    """Whether a tuple holds several inputs, each with one entry per row."""
    if not isinstance(inputs, tuple) or not inputs or not hasattr(targets, "__len__"):
        return False
    arrays = all(isinstance(part, Tensor | np.ndarray | dict | list) for part in inputs)
    return arrays and all(isinstance(part, dict) or len(part) == len(targets) for part in inputs)


def _nested(inputs: Any) -> Inputs:
    leaves = list(_columns(inputs))
    require(len(leaves) > 0, "the inputs hold no array: give at least one")
    sizes = {len(column) for column in leaves}
    require(len(sizes) == 1, f"the inputs have {' and '.join(map(str, sorted(sizes)))} rows: the numbers must match")
    rows = sizes.pop()
    if any(isinstance(column, list) and _ragged(column) for column in leaves):
        return _items([numbers(_row(inputs, row)) for row in range(rows)])
    parts = _converted(inputs)
    return Inputs(torch.empty(0), NestedRows(parts), rows, (row_size(parts, rows),))


def _items(items: list[Any]) -> Inputs:
    for item in items:
        for part in tensors(item):
            _finite(part[None])
    collate = Collate(ragged_paths(items))
    source = ItemRows(items, itself, collate, collate(items[:1]))
    return Inputs(torch.empty(0), source, len(items), source.shape)


def _columns(inputs: Any) -> list[Any]:
    """Every array of nested inputs."""
    if isinstance(inputs, dict | tuple):
        parts = inputs.values() if isinstance(inputs, dict) else inputs
        return [column for part in parts for column in _columns(part)]
    return [inputs]


def _row(inputs: Any, row: int) -> Any:
    if isinstance(inputs, dict):
        return {key: _row(part, row) for key, part in inputs.items()}
    return tuple(_row(part, row) for part in inputs) if isinstance(inputs, tuple) else inputs[row]


def _converted(inputs: Any, where: str = "inputs") -> Any:
    if isinstance(inputs, dict):
        return {key: _converted(part, str(key)) for key, part in inputs.items()}
    if isinstance(inputs, tuple):
        return tuple(_converted(part, where) for part in inputs)
    array = inputs if isinstance(inputs, Tensor) else np.asarray(inputs)
    if isinstance(array, np.ndarray) and array.dtype.kind not in "biuf":
        raise InputError(f'"{where}" holds no numbers: encode it, or leave it out of the inputs')
    return _finite(usable(array))


def _finite(x: ArrayLike | Tensor) -> Tensor:
    """Numbers in the default precision; the first one that is not finite is named by its place."""
    assert isinstance(x, Tensor)
    if x.is_floating_point():
        x = x.to(torch.get_default_dtype())
        if bool(torch.isfinite(x.sum())):  # then all are, and this takes a tenth of the time
            return x
        finite = torch.isfinite(x if x.ndim > 1 else x[:, None]).flatten(1)
        if not bool(finite.all()):
            row = int(torch.nonzero(~finite.all(dim=1))[0])
            column = int(torch.nonzero(~finite[row])[0])
            raise InputError(
                f"feature {column} of row {row} is not a finite number: fill in missing values or remove the row"
            )
    return x
