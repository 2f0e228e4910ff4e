"""Sums over rows: all that a full-batch method needs of its rows, wherever they lie.

    rows.through(view).total(measure)  =  Σ over parts of measure(view(part))

A view takes rows as they are to what is summed (features, whitened rows); it is kept where memory allows. A measure is
the sum over the rows of one part, each row within its bound. Both are public: they can be sent to where rows lie. What
comes back is private until noise is added, which is done once, to the whole sum.
"""

from __future__ import annotations

import math
import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from veil.problem.problem import Problem

View = Callable[[Any], Any]
Measure = Callable[[Any], Tensor]
# Rows of one piece: large enough for matrix products, small enough that a few copies in double precision do no harm.
ROWS_AT_ONCE = 32_768
# The share of the machine's memory that kept views may take.
KEPT = 0.5


@dataclass(frozen=True)
class Part:
    """Some rows that lie together.

    `shares` are 1, or those of a person's rows, which add up to 1; `weights` are shares times what each row counts.
    """

    inputs: Tensor
    targets: Tensor
    cells: Tensor
    shares: Tensor
    weights: Tensor

    def __len__(self) -> int:
        return len(self.cells)


@dataclass(frozen=True)
class Chain:
    """Views, one after the other, with a name each, by which those who keep what they give know them."""

    names: tuple[str, ...] = ()
    views: tuple[View, ...] = ()

    def then(self, view: View) -> Chain:
        """The same with one more view."""
        return Chain((*self.names, uuid.uuid4().hex), (*self.views, view))


class RowSums(Protocol):
    """Sums over all rows of a problem, of what each part of them gives."""

    def through(self, view: View) -> RowSums:
        """The same rows, seen through one more view."""
        ...

    def total(self, measure: Measure) -> Tensor:
        """The sum of a measure over all parts: private until noise is added."""
        ...


class RowsElsewhere(RowSums, Protocol):
    """Rows of which nothing but sums is here."""

    def identity(self, key: bytes) -> dict[str, str]:
        """Keyed digests of all rows, by what of them it is."""
        ...


class HeldRows:
    """The rows of one problem, in pieces; what they look like through the last views is kept where memory allows."""

    def __init__(self, problem: Problem, room: float | None = None) -> None:
        weights = problem.weights
        self._rows, self._share_of = problem.apart()
        self._weight_of = self._share_of if weights is None else self._share_of * weights
        self._room = KEPT * memory() if room is None else room
        self._kept: tuple[tuple[str, ...], list[Any]] = ((), [])

    def total(self, chain: Chain, measure: Measure) -> Tensor:
        """The sum of a measure over all pieces, seen through a chain of views."""
        found: Tensor | None = None
        with torch.no_grad():
            for seen in self._seen(chain):
                value = measure(seen)
                found = value if found is None else found + value
        assert found is not None, "there is always a piece, which may be empty"
        return found

    def _seen(self, chain: Chain) -> Iterator[Any]:
        """Every piece through the views. A chain that goes on from the kept one takes what that gave."""
        names, old = self._kept
        if names and names == chain.names:
            yield from old
            yield from self._made(chain, len(old))
            return
        onwards = bool(names) and chain.names[: len(names)] == names
        done = len(names) if onwards else 0
        self._kept = ((), [])
        kept, room, whole = list[Any](), self._room, bool(chain.names)
        old = old[::-1] if onwards else []
        for index in range(self._pieces):
            seen = old.pop() if old else _through(self._part(index), chain.views[:done])
            seen = _through(seen, chain.views[done:])
            room -= _size(seen) if whole else 0
            whole = whole and room >= 0
            if whole:
                kept.append(seen)
            yield seen
        self._kept = (chain.names, kept)

    def _made(self, chain: Chain, first: int) -> Iterator[Any]:
        for index in range(first, self._pieces):
            yield _through(self._part(index), chain.views)

    @property
    def _pieces(self) -> int:
        return max(1, math.ceil(len(self._rows.cell_of) / ROWS_AT_ONCE))

    def _part(self, index: int) -> Part:
        start = index * ROWS_AT_ONCE
        rows = start + np.flatnonzero(self._rows.present[start : start + ROWS_AT_ONCE])
        inputs, targets = self._rows.batch(rows)
        assert isinstance(inputs, Tensor), "solvers take rows that are one tensor"
        cells, shares, weights = (values[rows] for values in (self._rows.cell_of, self._share_of, self._weight_of))
        return Part(inputs, targets, torch.from_numpy(cells), torch.from_numpy(shares), torch.from_numpy(weights))


@dataclass(frozen=True)
class RowsHere:
    """Sums over the rows of a problem in this process."""

    held: HeldRows
    chain: Chain = Chain()

    def through(self, view: View) -> RowsHere:
        """The same rows, seen through one more view."""
        return RowsHere(self.held, self.chain.then(view))

    def total(self, measure: Measure) -> Tensor:
        """The sum of a measure over all rows."""
        return self.held.total(self.chain, measure)


def sums_of(problem: Problem) -> RowSums:
    """Sums over the rows of a problem, here or wherever they lie.

    >>> from veil.problem import Problem
    >>> rows = sums_of(Problem.from_arrays([[1.0], [2.0], [5.0]], [0, 1, 1]))
    >>> rows.through(lambda part: part.inputs + 1).total(lambda seen: seen.sum(dim=0))
    tensor([11.])
    """
    return RowsHere(HeldRows(problem)) if problem.elsewhere is None else problem.elsewhere


def memory() -> float:
    """The memory of this machine in bytes; infinite where unknown."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):
        return math.inf


def _through(seen: Any, views: tuple[View, ...]) -> Any:
    for view in views:
        seen = view(seen)
    return seen


def _size(seen: Any) -> int:
    """The bytes of a tensor, or of all tensors of an object."""
    if isinstance(seen, Tensor):
        return seen.nbytes
    return sum(value.nbytes for value in vars(seen).values() if isinstance(value, Tensor))
