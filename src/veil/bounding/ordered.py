"""Ordered importance: rows with a low loss fall into a tail and weigh less; every row keeps its limit.

The rows of a batch stand in a line, each as long as its threshold C, the hardest first. The end of the line is the
tail, of length γ. An importance function on the tail falls from at most 1 to at least 0; before the tail importance
is 1. A row's weight ρ is the mean importance over its own stretch.

Measured from the end, u = 0, importance is a function h(u) that never falls, fixed before any row is read, and 1 from
u = γ on. With e_k the summed thresholds of the rows behind row k,

    ρ_k = (H(e_k + C_k) − H(e_k)) / C_k,   H(u) = ∫₀ᵘ h

which holds for lines longer and shorter than the tail alike.

Theorem (Tian et al., Theorem 3.3, here for any h). Let row-local scores order the rows and let ‖v_k‖ ≤ C_k. Adding or
removing row a moves Σ ρ_k·v_k by at most C_a. Proof: rows behind a do not move. A row k before a moves from e_k to
e_k + C_a; its weight grows because h does, and C_k·Δρ_k = D(e_k + C_k) − D(e_k) with D(e) = H(e + C_a) − H(e). Rows
before a touch each other, so the sum telescopes to D(start of the line) − D(e_a), and row a itself adds at most
D(e_a). What remains is D(start of the line) ≤ C_a, since h ≤ 1.

It is a statement about add-remove. Replacing a row by another of the same threshold is one removal and one addition:
the two sums lie within C of the sum without either row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc
from torch import Tensor

from veil.bounding.bounds import Bound, by_row
from veil.errors import require
from veil.gradients import PerRow

Floats = NDArray[np.float64]
Order = Literal["loss", "ascending", "random", "owner"]
ORDERS: tuple[str, ...] = ("loss", "ascending", "random", "owner")
_FEW = 16  # whole α up to which a sum is faster than the special function


class Tail(Protocol):
    """A tail importance function of length γ, given by the area that it removes."""

    @property
    def length(self) -> float:
        """γ, in the unit of the thresholds."""
        ...

    def lost(self, distance: Floats) -> Floats:
        """∫₀ᵘ (1 − h): what is discarded of the last u of the line. Exact, never falling, and constant from γ on."""
        ...


@dataclass(frozen=True, slots=True)
class BetaTail:
    """The flipped distribution function of a Beta(α, β): importance I_{u/γ}(α, β) at distance u from the end.

    Its integral is γ·(x·I_x(α, β) − α/(α+β)·I_x(α+1, β)) at x = u/γ. For a small whole α, I_x is elementary:
    1 − (1−x)^β·Σ_{j<α} β(β+1)…(β+j−1)·x^j/j!, which takes a third of the time. α = β = 1 is a straight line.

    Args:
        length: γ, above 0.
        alpha: α, between 0.01 and 1000.
        beta: β, between 0.01 and 1000.

    >>> BetaTail(2.0).lost(np.array([0.0, 1.0, 2.0, 9.0]))
    array([0.  , 0.75, 1.  , 1.  ])
    """

    length: float
    alpha: float = 1.0
    beta: float = 1.0

    def __post_init__(self) -> None:
        check_length(self.length)
        for name, value in (("alpha", self.alpha), ("beta", self.beta)):
            require(0.01 <= value <= 1000, f"{name} is {value}: it must be between 0.01 and 1000")

    def lost(self, distance: Floats) -> Floats:
        """In closed form.

        Args:
            distance: Distances from the end of the line, at least 0.

        Returns:
            For each distance, how much importance is lost between it and the end.
        """
        x = np.minimum(distance / self.length, 1.0)
        mean, (first, second) = self.alpha / (self.alpha + self.beta), self._shares(x)
        return np.asarray(self.length * (x - x * first + mean * second), dtype=np.float64)

    def _shares(self, x: Floats) -> tuple[Floats, Floats]:
        """I_x(α, β) and I_x(α + 1, β)."""
        if self.alpha not in range(1, _FEW + 1):
            return betainc(self.alpha, self.beta, x), betainc(self.alpha + 1.0, self.beta, x)
        rest = (1.0 - x) ** self.beta
        term, total = np.ones_like(x), np.ones_like(x)
        for j in range(1, int(self.alpha)):
            term = term * x * ((self.beta + j - 1) / j)
            total += term
        last = term * x * ((self.beta + self.alpha - 1) / self.alpha)
        return 1.0 - rest * total, 1.0 - rest * (total + last)


@dataclass(frozen=True, slots=True)
class StepTail:
    """Equal parts of the tail, each of one importance: `levels` from the front of the tail to its end.

    Args:
        length: Length of the tail, above 0.
        levels: Importance of each part, from the front to the end.

    >>> StepTail(2.0, (0.5, 0.0)).lost(np.array([1.0, 2.0, 3.0]))
    array([1. , 1.5, 1.5])
    """

    length: float
    levels: tuple[float, ...] = (0.5, 0.25, 0.125, 0.0)

    def __post_init__(self) -> None:
        check_length(self.length)
        check_importance(self.levels)

    def lost(self, distance: Floats) -> Floats:
        """Straight between the edges of the parts.

        Args:
            distance: Distances from the end of the line, at least 0.

        Returns:
            For each distance, how much importance is lost between it and the end.
        """
        taken = 1.0 - np.array(self.levels[::-1])
        edges = np.linspace(0.0, self.length, len(taken) + 1)
        areas = np.concatenate([[0.0], np.cumsum(taken) * (self.length / len(taken))])
        return np.asarray(np.interp(distance, edges, areas))


@dataclass(frozen=True, slots=True)
class LinearTail:
    """Importance given at equal distances, from the front of the tail to its end, and joined by straight lines.

    Args:
        length: Length of the tail, above 0.
        points: Importance at equal distances, from the front to the end.

    >>> LinearTail(2.0, (1.0, 0.0)).lost(np.array([1.0, 2.0]))
    array([0.75, 1.  ])
    """

    length: float
    points: tuple[float, ...]

    def __post_init__(self) -> None:
        check_length(self.length)
        require(len(self.points) >= 2, "a piecewise linear tail needs the importance at two points or more")
        check_importance(self.points)

    def lost(self, distance: Floats) -> Floats:
        """Trapezia up to the point below, and a piece of the next one.

        Args:
            distance: Distances from the end of the line, at least 0.

        Returns:
            For each distance, how much importance is lost between it and the end.
        """
        taken = 1.0 - np.array(self.points[::-1])
        pieces = len(taken) - 1
        width = self.length / pieces
        areas = np.concatenate([[0.0], np.cumsum(0.5 * (taken[1:] + taken[:-1])) * width])
        place = np.minimum(distance / self.length, 1.0) * pieces
        index = np.minimum(place.astype(np.int64), pieces - 1)
        part = place - index
        slope = taken[index + 1] - taken[index]
        return np.asarray(areas[index] + width * part * (taken[index] + 0.5 * part * slope))


@dataclass(frozen=True, slots=True)
class StretchedTail:
    """Another tail of the same shape, as long as wanted.

    >>> StretchedTail(BetaTail(2.0), 4.0).lost(np.array([2.0, 4.0]))
    array([1.5, 2. ])
    """

    shape: Tail
    length: float

    def __post_init__(self) -> None:
        check_length(self.length)

    def lost(self, distance: Floats) -> Floats:
        """As in the other tail, distances and areas in the same proportion."""
        factor = self.length / self.shape.length
        return np.asarray(factor * self.shape.lost(distance / factor))


def tail_from(function: Callable[[float], float], length: float, points: int = 1025) -> LinearTail:
    """A tail from a function of the place in it, 0 (front) to 1 (end), that must not increase and must stay in [0, 1].

    The function is read at `points` places, and what is used are the straight lines between them, integrated exactly:
    whatever the function does elsewhere, the limit of every row holds.

    Args:
        function: The share of a row at a place of the tail.
        length: How many rows of weight 1 the tail is long.
        points: At how many places the function is read.

    Returns:
        The tail, as straight lines between the points.

    Raises:
        InputError: There are fewer than two points, or the shares rise or leave [0, 1].

    >>> tail_from(lambda place: 1 - place**2, 10.0, points=5).points
    (1.0, 0.9375, 0.75, 0.4375, 0.0)
    """
    require(points >= 2, f"points is {points}: a tail needs at least two points")
    return LinearTail(length, tuple(float(function(float(place))) for place in np.linspace(0.0, 1.0, points)))


def importance(thresholds: ArrayLike, order: NDArray[np.intp], tail: Tail) -> Floats:
    """ρ of every row, given the rows' thresholds and their order (`order[0]` is the front of the line).

    >>> importance([1.0, 1.0, 2.0], np.array([0, 1, 2]), BetaTail(4.0))
    array([0.875, 0.625, 0.25 ])
    """
    bounds = np.asarray(thresholds, dtype=np.float64)
    behind = order[::-1]
    stretch = bounds[behind]
    # From the end: rows behind a newcomer then have bit for bit the weights they had.
    edges = np.zeros(len(stretch) + 1)
    np.cumsum(stretch, out=edges[1:])
    lost = np.diff(tail.lost(np.minimum(edges, tail.length)))
    weights = np.empty(len(bounds))
    weights[behind] = 1.0 - np.divide(lost, stretch, out=np.zeros_like(lost), where=stretch > 0)
    return np.clip(weights, 0.0, 1.0, out=weights)


@dataclass(frozen=True, slots=True)
class UnitClipByCell:
    """Clip at a moving threshold C times a fixed factor per cell, in units of C: min(1/C, f/‖g‖), so the limit is f."""

    threshold: float
    limits: tuple[float, ...]
    row_local: bool = True
    needs_norms: bool = True

    def weights(self, per_row: PerRow, cells: Tensor) -> Tensor:
        """min(1/C, f/‖g‖)."""
        factors = by_row(self.limits, cells, per_row.norms.dtype)
        tiny = torch.finfo(per_row.norms.dtype).tiny
        return torch.clamp(factors / per_row.norms.clamp_min(tiny), max=1.0 / self.threshold)


@dataclass(frozen=True, slots=True)
class Ordered:
    """Bound each row by `inner`, then weigh it by its place in the order: the limits stay those of `inner`.

    A row's weight depends on the other rows, so this bound is not row-local; its limits hold by the theorem above.
    What the theorem needs is kept here: the score of a row looks at that row alone (ties: the row that comes first in
    the batch, which is the one with the smaller row id, goes first), every row is held to its threshold before it is
    weighed, and places are summed in double precision. Weights are rounded to the precision of the gradients in the
    end; a public factor just below 1 makes room for that.

    Orders: "loss" (the hardest row first), "ascending" (the easiest first), "owner" (owners with the smaller `ranks`
    first, then the loss), "random" (by a hash of the row's loss and norm, which are its own as well). Losses are cut to
    multiples of 1/4096 (for the hash, losses and norms to 1/16): should the last digits of a loss depend on the size of
    the batch, as some matrix products have it, they do not decide who goes first.

    Args:
        inner: A bound that looks at one row at a time.
        tail: How importance falls towards the end of the line.
        order: "loss", "ascending", "owner" or "random".
        ranks: Rank of each cell, for the order by owner.

    >>> from veil.gradients import PerRow
    >>> per_row = PerRow(torch.tensor([1.0, 2.0]), torch.tensor([0.5, 4.0]), torch.ones(2, dtype=torch.bool))
    >>> from veil.bounding import Clip
    >>> Ordered(Clip((1.0,)), BetaTail(1.0)).weights(per_row, torch.zeros(2, dtype=torch.long))  # the second is harder
    tensor([0.5000, 0.2500])
    """

    inner: Bound
    tail: Tail
    order: Order = "loss"
    ranks: tuple[int, ...] = ()
    row_local: bool = False
    needs_norms: bool = True

    def __post_init__(self) -> None:
        require(self.inner.row_local, "an ordered bound needs a per-row bound: clip or normalise")
        require(self.order in ORDERS, f'order is "{self.order}": it must be one of {", ".join(ORDERS)}')
        if self.order == "owner":
            require(len(self.ranks) == len(self.limits), "the order by owner needs a rank for every cell")
        room = self.room(torch.float32)
        require(
            room <= 0.1,
            f"the smallest threshold {self._smallest():.3g} is too small for the rounding of a tail of length "
            f"{self.tail.length:.3g}: bring the budgets closer together or shorten the tail",
        )

    @property
    def limits(self) -> tuple[float, ...]:
        """Those of the bound underneath."""
        return self.inner.limits

    def room(self, dtype: torch.dtype) -> float:
        """How much of the smallest limit the rounding of weights could take.

        Only rows in the tail change their weight when a row comes or goes. Their stretches are γ and one threshold
        long together, and each weight is rounded twice (with and without the newcomer) by half a unit.

        Args:
            dtype: The precision of the weights.

        Returns:
            A share of the limit, by which all weights are lowered.
        """
        largest, smallest = max(self.limits), self._smallest()
        return torch.finfo(dtype).eps * (self.tail.length + largest + smallest) / smallest

    def weights(self, per_row: PerRow, cells: Tensor) -> Tensor:
        """The inner weight times ρ.

        Args:
            per_row: Gradient norm and loss of each row of the batch.
            cells: Number of the cell of each row.

        Returns:
            One factor for each row, by which its gradient is multiplied.
        """
        dtype = per_row.norms.dtype
        norms = per_row.norms.detach().cpu().numpy().astype(np.float64)
        limits = np.array(self.limits)[cells.numpy()]
        inner = self.inner.weights(per_row, cells).cpu().numpy().astype(np.float64)
        inner = np.minimum(inner, limits / np.maximum(norms, 1e-300))
        line = self.line(per_row.losses.detach().cpu().numpy().astype(np.float64), norms, cells.numpy())
        weights = inner * importance(limits, line, self.tail) * (1.0 - self.room(dtype))
        return torch.from_numpy(weights).to(per_row.norms.device, dtype)

    def line(self, losses: Floats, norms: Floats, cells: NDArray[np.int64]) -> NDArray[np.intp]:
        """The rows from the front of the line to its end.

        Args:
            losses: Loss of each row of the batch.
            norms: Gradient norm of each row.
            cells: Number of the cell of each row.

        Returns:
            Positions in the batch, the front of the line first.
        """
        if self.order == "random":
            return descending(_hash(np.floor(losses * 16.0), np.floor(norms * 16.0)))
        scores = np.floor(losses * 4096.0)
        if self.order == "loss":
            return descending(scores)
        if self.order == "ascending":
            return descending(-scores)
        return np.lexsort((-scores, np.array(self.ranks)[cells]))

    def _smallest(self) -> float:
        return min((limit for limit in self.limits if limit > 0), default=1.0)


def descending(scores: NDArray[np.floating]) -> NDArray[np.intp]:
    """The rows by falling score; of equal ones the first goes first.

    >>> descending(np.array([1.0, 3.0, 3.0, 2.0]))
    array([1, 2, 3, 0])
    """
    return np.argsort(-scores, kind="stable")


def check_length(length: float) -> None:
    """A tail has a length above 0."""
    require(np.isfinite(length) and length > 0, f"the tail's length is {length}: it must be finite and above 0")


def check_importance(values: Sequence[float]) -> None:
    """Importance never rises towards the end and stays within [0, 1]."""
    levels = np.asarray(values, dtype=np.float64)
    require(levels.size > 0, "a tail needs at least one importance")
    inside = bool(np.all((levels >= 0) & (levels <= 1)))
    require(inside, "the importance in the tail is outside [0, 1]: give a function with values from 0 to 1")
    rises = np.flatnonzero(np.diff(levels) > 0)
    where = float(rises[0] / max(levels.size - 1, 1)) if rises.size else 0.0
    require(not rises.size, f"the importance increases at {where:.0%} of the tail: it must not increase")


def _hash(losses: Floats, norms: Floats) -> Floats:
    """A number in [0, 1) per row that looks random and depends on that row's loss and norm alone."""
    mixed = losses.view(np.uint64) ^ (np.ascontiguousarray(norms).view(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53
