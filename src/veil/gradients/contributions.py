"""Contributions: the forms in which a layer holds the gradients of all rows for one parameter.

A contribution knows three things about the per-row gradients it stands for: their squared norms, their weighted
sums, and (for oracles and odd cases) their values. `settle` picks the cheaper way to the norms by counted cost
and hands back the form that makes the sums cheapest afterwards.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from veil.gradients import costs
from veil.gradients.batches import zeroed

# A Gram norm may lose this share of its value to cancellation before the row is materialised instead.
GRAM_LOSS = 1e-4
PIECE = 32_768
# Squared norms above this meet tiny factors in double precision.
LARGE_SQUARE = 1e12
# Batches of products are twice as fast for a multiple of so many positions as for one to three fewer.
ALIGNED, PADDED = 16, 3


Take: TypeAlias = Callable[[tuple[int, ...], Tensor], Tensor]
"""Memory of a shape, with the type and device of a tensor."""


class Space:
    """Memory for written-out gradients, kept from pass to pass up to `limit` bytes.

    Fresh memory is mapped page by page, which can cost as much as the products that fill it.
    """

    def __init__(self) -> None:
        self.limit = 0
        self.held: dict[str, Tensor] = {}

    @property
    def bytes(self) -> int:
        """What is held now."""
        return sum(flat.numel() * flat.element_size() for flat in self.held.values())

    def take(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Memory that is free again as soon as `name` takes some the next time."""
        size, flat = prod(shape), self.held.get(name)
        if flat is None or flat.numel() < size or flat.dtype != like.dtype or flat.device != like.device:
            self.held.pop(name, None)
            flat = like.new_empty(size)
            if self.bytes + size * flat.element_size() > self.limit:
                return flat.view(shape)
            self.held[name] = flat
        return flat[:size].view(shape)


class Contribution(ABC):
    """Per-row gradients of one parameter, in whatever form the layer's rule recorded them."""

    @abstractmethod
    def settle(self, take: Take | None = None) -> tuple[Tensor, Contribution]:
        """Squared norms of shape (rows,), and the form to keep for the sums, written into memory that `take` gives."""

    @abstractmethod
    def values(self) -> Tensor:
        """The per-row gradients, shape (rows, *parameter)."""

    @abstractmethod
    def total(self, weights: Tensor) -> Tensor:
        """Weighted sums, shape (k, *parameter), for weights of shape (k, rows)."""

    def total_of_one(self, weights: Tensor) -> Tensor:
        """The weighted sum, shape (*parameter), for one weighting of shape (rows,)."""
        return self.total(weights.unsqueeze(0)).squeeze(0)

    @abstractmethod
    def kept(self, keep: Tensor) -> Contribution:
        """The same with exactly zero for the rows where `keep` is False."""


def squared_norms(values: Tensor) -> Tensor:
    """Sum of squares over everything but the first dimension."""
    if values.numel() == 0:
        return values.new_zeros(values.shape[0])
    flat = values if values.ndim == 2 else values.reshape(values.shape[0], -1)
    if flat.shape[1] <= PIECE:
        squares: Tensor = torch.linalg.vector_norm(flat, dim=1).square_()
        return squares
    # Long sums in single precision lose digits: wide rows are summed in pieces.
    return torch.stack([squared_norms(piece) for piece in torch.split(flat, PIECE, 1)]).sum(0)


def product_squares(left: Tensor, right: Tensor, left_squares: Tensor | None = None) -> Tensor:
    """Squared norms of left ⊗ right, row by row.

    The square of a tiny factor is 0 in single precision. Where the other factor is so large that the product still
    counts, both are squared in double precision.
    """
    lefts, rights = squared_norms(left) if left_squares is None else left_squares, squared_norms(right)
    if _all_small(lefts) and _all_small(rights):
        return lefts * rights
    return (squared_norms(left.double()) * squared_norms(right.double())).to(rights.dtype)


def _all_small(squares: Tensor) -> bool:
    """Whether none is large: a small sum of squares means that all are small; NaN is not."""
    return torch.dot(squares, squares).item() <= LARGE_SQUARE * LARGE_SQUARE


def inner_products(side: Tensor) -> Tensor:
    """Inner products of the positions of each row: (rows, T, T) from (rows, T, values)."""
    positions = side.shape[1]
    missing = -positions % ALIGNED
    if not 0 < missing <= PADDED:
        return side @ side.transpose(1, 2)
    side = F.pad(side, (0, 0, 0, missing))
    return (side @ side.transpose(1, 2))[:, :positions, :positions]


def large_positions(*grams: Tensor) -> bool:
    """Whether some position of (rows, T, T) inner products is so long that tiny partners of it must not become 0."""
    return not all(float(gram.diagonal(dim1=1, dim2=2).amax()) <= LARGE_SQUARE for gram in grams)


def doubtful(gram: Tensor) -> tuple[Tensor, Tensor | None]:
    """Squared norms from (rows, T, T) products whose sum they are, and the rows where cancellation ate the digits."""
    squares = gram.sum((1, 2))
    return squares, cancelling(squares, gram.diagonal(dim1=1, dim2=2).clamp_min(0).sqrt().sum(1))


def cancelling(squares: Tensor, reach: Tensor) -> Tensor | None:
    """The rows whose gradient is far shorter than its terms, the lengths of which add up to `reach`; None if none is.

    A bound needs the digits that are lost then, and such terms must meet no other row's in one sum: they are as long
    as they like, and what is added to them is rounded away.
    """
    lost = squares * GRAM_LOSS < reach.square() * torch.finfo(reach.dtype).eps
    return lost.nonzero().flatten() if bool(lost.any()) else None


def taken_apart(whole: Contribution, squares: Tensor, index: Tensor, exact: Tensor) -> tuple[Tensor, Contribution]:
    """Squared norms and form of a contribution some of whose rows had to be written out (`exact`)."""
    others = torch.ones(squares.shape[0], dtype=torch.bool, device=squares.device).index_fill(0, index, False)
    return squares.index_copy(0, index, squared_norms(exact)), Apart(whole.kept(others), index, exact)


@dataclass(slots=True)
class Rowwise(Contribution):
    """Per-row gradients as they are: (rows, *parameter); `squares` are their squared norms if already known.

    Args:
        rows: One gradient per row.
        squares: Their squared norms, or None.

    >>> Rowwise(torch.tensor([[3.0, 4.0], [0.0, 1.0]])).settle()[0]
    tensor([25.,  1.])
    """

    rows: Tensor
    squares: Tensor | None = None

    def settle(self, take: Take | None = None) -> tuple[Tensor, Contribution]:
        return squared_norms(self.rows) if self.squares is None else self.squares, self

    def values(self) -> Tensor:
        return self.rows

    def total(self, weights: Tensor) -> Tensor:
        flat = self.rows.reshape(self.rows.shape[0], -1)
        return (weights.to(flat.dtype) @ flat).view(weights.shape[0], *self.rows.shape[1:])

    def total_of_one(self, weights: Tensor) -> Tensor:
        if self.rows.ndim == 2 and weights.dtype == self.rows.dtype:
            return weights @ self.rows
        return (weights.to(self.rows.dtype) @ self.rows.reshape(self.rows.shape[0], -1)).view(self.rows.shape[1:])

    def kept(self, keep: Tensor) -> Contribution:
        return Rowwise(zeroed(self.rows, keep))


@dataclass(slots=True)
class Single(Contribution):
    """Gradient of a matrix that met one position per row: left ⊗ right, of shapes (rows, p) and (rows, d).

    `left_squares` are the squared norms of `left` if already known.
    """

    left: Tensor
    right: Tensor
    left_squares: Tensor | None = None

    def settle(self, take: Take | None = None) -> tuple[Tensor, Contribution]:
        return product_squares(self.left, self.right, self.left_squares), self

    def outer(self, shape: torch.Size) -> Outer:
        """The same as a sum over one position."""
        return Outer(self.left.unsqueeze(1), self.right.unsqueeze(1), shape)

    def values(self) -> Tensor:
        return self.left.unsqueeze(2) * self.right.unsqueeze(1)

    def total(self, weights: Tensor) -> Tensor:
        return torch.stack([self.total_of_one(row_weights) for row_weights in weights.unbind()])

    def total_of_one(self, weights: Tensor) -> Tensor:
        left, right = self.left, self.right
        scale = (weights if weights.dtype == left.dtype else weights.to(left.dtype)).unsqueeze(1)
        # The narrower side is scaled: fewer values to multiply.
        return (left * scale).t() @ right if left.shape[1] <= right.shape[1] else left.t() @ (right * scale)

    def kept(self, keep: Tensor) -> Contribution:
        return Single(zeroed(self.left, keep), zeroed(self.right, keep))


def prefers_gram(rows: int, positions: int, p: int, d: int) -> bool:
    """Whether inner products of positions are the cheaper way to norms."""
    return costs.by_gram(positions, p, d) < costs.by_values(rows, positions, p, d)


@dataclass(slots=True)
class Outer(Contribution):
    """Gradient of a matrix as a sum of outer products over positions: Σ_t left_t ⊗ right_t.

    `left` is (rows, positions, p), `right` is (rows, positions, d); the parameter has p·d values in `shape`.
    `left_inner` are the inner products of the positions of `left` if already known.
    """

    left: Tensor
    right: Tensor
    shape: torch.Size
    left_inner: Tensor | None = None

    def settle(self, take: Take | None = None) -> tuple[Tensor, Contribution]:
        rows, positions, p = self.left.shape
        d = self.right.shape[2]
        if positions == 1:
            return product_squares(self.left.flatten(1), self.right.flatten(1)), self
        if prefers_gram(rows, positions, p, d):
            return self.by_gram()
        if take is None:
            return Rowwise(self.values()).settle()
        values = torch.bmm(self.left.transpose(1, 2), self.right, out=take((rows, p, d), self.left))
        return Rowwise(values.view(rows, *self.shape)).settle()

    def by_gram(self) -> tuple[Tensor, Contribution]:
        """Squared norms from inner products of positions; rows in which those would cancel are written out."""
        lefts = inner_products(self.left) if self.left_inner is None else self.left_inner
        self.left_inner, rights = None, inner_products(self.right)
        if large_positions(lefts, rights):
            return Rowwise(self.values()).settle()
        squares, index = doubtful(rights.mul_(lefts))
        if index is None:
            return squares, self
        return taken_apart(self, squares, index, Outer(self.left[index], self.right[index], self.shape).values())

    def values(self) -> Tensor:
        return torch.bmm(self.left.transpose(1, 2), self.right).view(self.left.shape[0], *self.shape)

    def total(self, weights: Tensor) -> Tensor:
        left, right = self.left.flatten(0, 1), self.right.flatten(0, 1)
        scales = weights.to(left.dtype)
        if self.left.shape[1] > 1:
            scales = scales.repeat_interleave(self.left.shape[1], 1)
        # The narrower side is scaled: fewer values to multiply.
        if left.shape[1] <= right.shape[1]:
            sums = [(left * scale.unsqueeze(1)).t() @ right for scale in scales.unbind()]
        else:
            sums = [left.t() @ (right * scale.unsqueeze(1)) for scale in scales.unbind()]
        return (sums[0].unsqueeze(0) if len(sums) == 1 else torch.stack(sums)).view(-1, *self.shape)

    def kept(self, keep: Tensor) -> Contribution:
        return Outer(zeroed(self.left, keep), zeroed(self.right, keep), self.shape)


@dataclass(slots=True)
class Apart(Contribution):
    """Most rows in one form, and those at `index` (zero there) as they are."""

    most: Contribution
    index: Tensor
    exact: Tensor

    def settle(self, take: Take | None = None) -> tuple[Tensor, Contribution]:
        return self.most.settle(take)[0].index_copy(0, self.index, squared_norms(self.exact)), self

    def values(self) -> Tensor:
        return self.most.values().index_copy(0, self.index, self.exact)

    def total(self, weights: Tensor) -> Tensor:
        return self.most.total(weights) + Rowwise(self.exact).total(weights[:, self.index])

    def kept(self, keep: Tensor) -> Contribution:
        return Apart(self.most.kept(keep), self.index, zeroed(self.exact, keep[self.index]))


@dataclass(slots=True)
class Gathered(Contribution):
    """Gradient of a table whose entries were looked up: Σ_t onehot(index_t) ⊗ right_t.

    `index` is (rows, positions), `right` is (rows, positions, d) with zeros where a position does not count.
    """

    index: Tensor
    right: Tensor
    shape: torch.Size

    def settle(self, take: Take | None = None) -> tuple[Tensor, Contribution]:
        rows, positions, d = self.right.shape
        if positions == 1:
            return squared_norms(self.right), self
        # Sum what falls on the same (row, entry) pair, then square: exact, and linear in the positions.
        keys = self.index + self.shape[0] * torch.arange(rows, device=self.index.device).unsqueeze(1)
        entries, where = torch.unique(keys.flatten(), return_inverse=True)
        sums = self.right.new_zeros(entries.shape[0], d).index_add_(0, where, self.right.flatten(0, 1))
        squares = squared_norms(sums)
        owners = torch.div(entries, self.shape[0], rounding_mode="floor")
        squares = squares.new_zeros(rows).index_add_(0, owners, squares)
        if cancelling(squares, self.reach()) is None:
            return squares, self
        return squares, Entries(entries % self.shape[0], owners, sums, rows, self.shape)

    def reach(self) -> Tensor:
        """The lengths of the terms of each row, added up."""
        lengths: Tensor = torch.linalg.vector_norm(self.right, dim=2)
        return lengths.sum(1)

    def values(self) -> Tensor:
        rows, positions, d = self.right.shape
        result = self.right.new_zeros(rows, *self.shape)
        index = self.index.unsqueeze(2).expand(rows, positions, d)
        return result.scatter_add_(1, index, self.right)

    def total(self, weights: Tensor) -> Tensor:
        flat_index = self.index.flatten()
        sums = []
        for row_weights in weights.to(self.right.dtype):
            scaled = (self.right * row_weights.view(-1, 1, 1)).flatten(0, 1)
            sums.append(scaled.new_zeros(self.shape).index_add_(0, flat_index, scaled))
        return torch.stack(sums)

    def kept(self, keep: Tensor) -> Contribution:
        return Gathered(self.index, zeroed(self.right, keep), self.shape)


@dataclass(slots=True)
class Entries(Contribution):
    """Gradient of a table with every pair of row and entry once: entry `index` of row `owners` has slope `sums`."""

    index: Tensor
    owners: Tensor
    sums: Tensor
    rows: int
    shape: torch.Size

    def settle(self, take: Take | None = None) -> tuple[Tensor, Contribution]:
        return self.sums.new_zeros(self.rows).index_add_(0, self.owners, squared_norms(self.sums)), self

    def values(self) -> Tensor:
        result = self.sums.new_zeros(self.rows, *self.shape)
        result[self.owners, self.index] = self.sums
        return result

    def total(self, weights: Tensor) -> Tensor:
        scales = weights.to(self.sums.dtype)[:, self.owners]
        return self.sums.new_zeros(len(scales), *self.shape).index_add_(1, self.index, scales.unsqueeze(2) * self.sums)

    def kept(self, keep: Tensor) -> Contribution:
        return Entries(self.index, self.owners, zeroed(self.sums, keep[self.owners]), self.rows, self.shape)


@dataclass(slots=True)
class Tied(Contribution):
    """One parameter used as a table and as a matrix: the sum of a `Gathered` and an `Outer`, never materialised."""

    table: Gathered
    matrix: Outer

    def settle(self, take: Take | None = None) -> tuple[Tensor, Contribution]:
        table_squares, _ = self.table.settle()
        matrix_squares, _ = self.matrix.by_gram()
        # ⟨onehot(i_t) ⊗ r_t, l_s ⊗ q_s⟩ = l_s[i_t] · ⟨r_t, q_s⟩
        entries = self.table.index.unsqueeze(1).expand(-1, self.matrix.left.shape[1], -1)
        picked = self.matrix.left.gather(2, entries)
        inner = self.matrix.right @ self.table.right.transpose(1, 2)
        crossed = (picked * inner).sum((1, 2))
        squares = (table_squares + matrix_squares + 2 * crossed).clamp_min(0)
        lengths = [torch.linalg.vector_norm(side, dim=2) for side in (self.matrix.left, self.matrix.right)]
        index = cancelling(squares, self.table.reach() + (lengths[0] * lengths[1]).sum(1))
        if index is None:
            return squares, self
        return taken_apart(self, squares, index, self._of(index).values())

    def _of(self, index: Tensor) -> Tied:
        """Some rows of it."""
        table = Gathered(self.table.index[index], self.table.right[index], self.table.shape)
        return Tied(table, Outer(self.matrix.left[index], self.matrix.right[index], self.matrix.shape))

    def values(self) -> Tensor:
        return self.table.values() + self.matrix.values()

    def total(self, weights: Tensor) -> Tensor:
        return self.table.total(weights) + self.matrix.total(weights)

    def kept(self, keep: Tensor) -> Contribution:
        table, matrix = self.table.kept(keep), self.matrix.kept(keep)
        assert isinstance(table, Gathered)
        assert isinstance(matrix, Outer)
        return Tied(table, matrix)


def merged(parts: Sequence[Contribution], shape: torch.Size) -> Contribution:
    """One contribution for a parameter that was used several times: per row, gradients of all uses add up."""
    if len(parts) == 1:
        return parts[0]
    parts = [part.outer(shape) if isinstance(part, Single) else part for part in parts]
    outers = [part for part in parts if isinstance(part, Outer)]
    tables = [part for part in parts if isinstance(part, Gathered)]
    if len(outers) + len(tables) == len(parts):
        outer = table = None
        if outers:
            outer = Outer(
                torch.cat([part.left for part in outers], 1), torch.cat([part.right for part in outers], 1), shape
            )
        if tables:
            table = Gathered(
                torch.cat([part.index for part in tables], 1), torch.cat([part.right for part in tables], 1), shape
            )
        if outer is None or table is None:
            only = outer or table
            assert only is not None
            return only
        return Tied(table, outer)
    total = parts[0].values().clone()
    for part in parts[1:]:
        total += part.values().view_as(total)
    return Rowwise(total)


def through(given: Tensor, parameters: Sequence[Tensor], part: Contribution) -> list[tuple[Tensor, Contribution]]:
    """The contributions of `parameters`, given that of a tensor computed from them alone (a slice, a product, …)."""
    part = part.outer(given.shape) if isinstance(part, Single) else part
    if isinstance(part, Outer) and len(parameters) == 1 and _turned(given, parameters[0]):
        return [(parameters[0], Outer(part.right, part.left, parameters[0].shape))]
    values = part.values().view(-1, *given.shape)
    with torch.enable_grad():
        found = _pulled(given, parameters, values)
    return [(parameter, Rowwise(rows)) for parameter, rows in zip(parameters, found, strict=True) if rows is not None]


def _turned(given: Tensor, parameter: Tensor) -> bool:
    """Whether a tensor is the transpose of a matrix, in its memory, and nothing that only looks like it there."""
    before = None if given.grad_fn is None else given.grad_fn.next_functions[0][0]
    if id(getattr(before, "variable", None)) != id(parameter):
        return False
    if parameter.ndim != 2 or given.shape != parameter.shape[::-1] or given.stride() != parameter.stride()[::-1]:
        return False
    return given.data_ptr() == parameter.data_ptr()


def _pulled(given: Tensor, parameters: Sequence[Tensor], values: Tensor) -> Sequence[Tensor | None]:
    """The gradient of each row at the parameters, from that at the tensor computed from them."""
    found: tuple[Tensor | None, ...]
    try:
        found = torch.autograd.grad(
            given, parameters, values, retain_graph=True, is_grads_batched=True, allow_unused=True
        )
    except RuntimeError:  # an operation on the way that torch cannot batch
        each = [
            torch.autograd.grad(given, parameters, row, retain_graph=True, allow_unused=True) for row in values.unbind()
        ]
        found = tuple(
            None if any(row is None for row in rows) else torch.stack([row for row in rows if row is not None])
            for rows in zip(*each, strict=True)
        )
    return found
