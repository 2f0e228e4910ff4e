"""Random numbers of a row: what a transform draws for a row is a function of seed, step, row and view alone.

Transforms draw from the generators that everybody uses: those of torch, numpy and Python. Each row starts them again,
so its draws are the same in whichever batch, micro-batch or process it is read, and whatever other rows there are.
A generator that a transform keeps for itself is out of reach; `repeats` finds out.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, partial
from hashlib import blake2b
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from veil.foundation.generators import random_state, set_random_state, set_seed
from veil.foundation.nested import Nested, tensors
from veil.foundation.randomness import Seed, mixed

Begin: TypeAlias = Callable[[int, int], None]
"""Starts the random numbers of a view (second) of a row (first)."""

# In the place of a row: what is drawn for a batch as a whole, the same for all batches of a step.
BATCH = -1
# Makes the key of the step under way where it is needed; outside of a run each row has the same draws every time.
_STEP: ContextVar[Callable[[], bytes]] = ContextVar("veil_step", default=bytes)
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def begin_step(seed: Seed, step: int) -> None:
    """Let rows draw for this step from now on; `end_steps` ends it."""
    _STEP.set(partial(seed.key, "rows", step))


def end_steps() -> None:
    """Let rows draw as they do outside of a run."""
    _STEP.set(bytes)


@contextmanager
def drawn_by_row(device: torch.device | None = None) -> Iterator[Begin]:
    """Start the generators of torch, numpy and Python again for each row; afterwards all stand where they stood.

    >>> with drawn_by_row() as begin:
    ...     begin(7, 0)
    ...     first = random.random()
    ...     begin(7, 0)
    ...     first == random.random()
    True
    """
    place, key = device or torch.device("cpu"), _STEP.get()()
    before = random_state(place), np.random.get_state(), random.getstate()  # noqa: NPY002 (that of transforms)

    def begin(row: int, view: int) -> None:
        described = row.to_bytes(16, "little", signed=True) + view.to_bytes(8, "little")
        found = blake2b(described, digest_size=32, key=key).digest()
        set_seed(place, int.from_bytes(found[:8], "little") >> 2)
        np.random.seed(np.frombuffer(found[8:24], "<u4"))  # noqa: NPY002 (that of transforms)
        random.seed(found[24:])

    try:
        yield begin
    finally:
        set_random_state(place, before[0])
        np.random.set_state(before[1])  # noqa: NPY002 (that of transforms)
        random.setstate(before[2])


def repeats(make: Callable[[], Any]) -> bool:
    """Whether the same random numbers give the same nested tensors: if not, they come from somewhere else too."""
    with drawn_by_row() as begin:
        begin(0, 0)
        first = list(tensors(make()))
        begin(0, 0)
        second = list(tensors(make()))
    return len(first) == len(second) and all(map(_same, first, second))


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(torch.isclose(one, other, equal_nan=True).all())


def fingerprints(batch: Nested) -> list[int]:
    """A number for each row of a batch, from its values alone; zeros that only fill a row up do not change it.

    A row is known by what it holds, because a loss is not told its number: rows that are equal have equal draws.

    >>> short, long = torch.tensor([[5, 7]]), torch.tensor([[1, 0, 0], [5, 7, 0]])
    >>> fingerprints(short)[0] == fingerprints(long)[1]
    True
    """
    total: Tensor | None = None
    for place, part in enumerate(tensors(batch)):
        values = part.detach().reshape(len(part), math.prod(part.shape[1:]))
        if values.is_complex():
            values = torch.view_as_real(values).flatten(1)
        if values.is_floating_point():
            values = values.contiguous().view(_INTEGERS[values.element_size()])
        factors = _factors(place, values.shape[1]).to(values.device)
        own = (values.to(torch.int64) * factors).sum(1)
        total = own if total is None else total + own
    assert total is not None, "a batch has at least one tensor"
    found: list[int] = total.tolist()
    return found


@lru_cache(maxsize=16)
def _factors(place: int, count: int) -> Tensor:
    """Odd numbers of 64 bits that look random, for the values of a row."""
    numbers = np.arange(1, count + 1, dtype=np.uint64) + (np.uint64(place) << np.uint64(40))
    return torch.from_numpy((mixed(numbers) | np.uint64(1)).view(np.int64))
