"""Nested tensors: a tensor, or dicts, tuples and lists of nested tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

Nested: TypeAlias = Any
"""A tensor, or a dict, tuple or list of nested tensors."""


def tensors(nested: Nested) -> Iterator[Tensor]:
    """Every tensor, in order."""
    if isinstance(nested, Tensor):
        yield nested
    elif isinstance(nested, dict):
        for value in nested.values():
            yield from tensors(value)
    elif isinstance(nested, tuple | list):
        for value in nested:
            yield from tensors(value)


def mapped(nested: Nested, function: Callable[[Tensor], Any]) -> Nested:
    """The same with every tensor replaced by `function` of it; anything else stays as it is.

    >>> mapped({"x": torch.zeros(3, 2), "name": "a"}, len)
    {'x': 3, 'name': 'a'}
    """
    if isinstance(nested, Tensor):
        return function(nested)
    if isinstance(nested, dict):
        return {key: mapped(value, function) for key, value in nested.items()}
    if isinstance(nested, tuple) and hasattr(nested, "_fields"):
        return type(nested)(*(mapped(value, function) for value in nested))
    if isinstance(nested, tuple | list):
        return type(nested)(mapped(value, function) for value in nested)
    return nested


def row_of(nested: Nested, row: int) -> Nested:
    """One row, as a batch of one.

    >>> row_of({"x": torch.tensor([[1], [2]])}, 1)
    {'x': tensor([[2]])}
    """
    return mapped(nested, lambda part: part[row : row + 1])


def joined(parts: Sequence[Nested]) -> Nested:
    """Nested tensors of the same structure as one, along the first dimension.

    >>> joined([{"x": torch.zeros(1, 2)}, {"x": torch.ones(2, 2)}])["x"].shape
    torch.Size([3, 2])
    """
    pieces = [iter(list(tensors(part))) for part in parts]
    return mapped(parts[0], lambda _: torch.cat([next(piece) for piece in pieces]))
