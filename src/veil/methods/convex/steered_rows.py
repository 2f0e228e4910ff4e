"""Rows of steered descent in whitened coordinates, and the sums over them that are released with noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from veil.methods.convex.feature_rows import bounded_slopes, finite
from veil.methods.convex.offsets import counted
from veil.methods.convex.whitening import Features
from veil.problem import PublicFacts

CONSTANT = 0.3
# Where no error of numbers is released: the share of rows within the bound on slopes, rather too small than too large.
UNKNOWN_SHARE, SMALL = 0.5, 1e-3


@dataclass(frozen=True)
class Whitened:
    """Coordinates in which no direction is much larger than another, and the way back to the layer's own."""

    mean: Tensor
    matrix: Tensor
    energy: Tensor
    """The released mean square of each coordinate."""

    def rows(self, rows: Tensor) -> Tensor:
        """Rows in these coordinates, the constant behind them."""
        behind = torch.full((len(rows), 1), CONSTANT, dtype=rows.dtype)
        return finite(torch.cat([(rows - self.mean) @ self.matrix, behind], dim=1) / math.hypot(1.0, CONSTANT))

    @property
    def width(self) -> int:
        """Coordinates of a row, the constant included."""
        return self.matrix.shape[1] + 1

    def root(self, noise: Tensor) -> Tensor:
        """What becomes of independent noise in every coordinate: root·rootᵀ is the layer's covariance."""
        return self.matrix * noise / math.hypot(1.0, CONSTANT)

    def folded(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Weight and bias of a layer that takes rows as they were."""
        own = weights / math.hypot(1.0, CONSTANT)
        weight = own[:, :-1] @ self.matrix.T
        return weight, own[:, -1] * CONSTANT - weight @ self.mean


class Classes:
    """Rows in whitened coordinates with their classes and units: what is wrong with each, and which way it pulls."""

    # Of the loss in a score, where it is the same everywhere.
    curvature: float | None = None

    def __init__(self, rows: Tensor, targets: Tensor, units: Tensor, shares: Tensor, outputs: int) -> None:
        self.rows, self.targets, self.units, self.shares = rows, targets.long(), units, shares
        self.classes = nn.functional.one_hot(self.targets, outputs).to(rows.dtype)
        self.lengths = torch.linalg.vector_norm(rows, dim=1)

    def slopes(self, weights: Tensor, margins: Tensor, limit: float) -> Tensor:
        """Each row's slope, bounded: a row of a unit with a margin has to be won by that much more."""
        limits = torch.full_like(self.lengths, limit)
        shifted = -self.classes * margins[self.units][:, None]
        return bounded_slopes(self.rows, self.lengths, weights, shifted, self.classes, limits)

    @staticmethod
    def falling(off: float | None, limit: float) -> float:
        """How fast slopes fall as scores rise, on average: many lie at their bound and do not fall at all."""
        return 0.03

    def errors(self, weights: Tensor) -> Tensor:
        """1 where the most likely class is wrong."""
        return ((self.rows @ weights.T).argmax(dim=1) != self.targets).double()


class Numbers:
    """Rows in whitened coordinates with numbers in [−1, 1] to predict; a margin means nothing here."""

    curvature: float | None = 1.0

    def __init__(self, rows: Tensor, targets: Tensor, units: Tensor, shares: Tensor, outputs: int) -> None:
        self.rows, self.units, self.shares = rows, units, shares
        self.targets = torch.nan_to_num(targets.reshape(len(rows), outputs).to(rows.dtype)).clamp(-1.0, 1.0)
        self.lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True)

    def slopes(self, weights: Tensor, margins: Tensor, limit: float) -> Tensor:
        """How far each row is off, bounded."""
        off = torch.nan_to_num(self.rows @ weights.T - self.targets, nan=0.0)
        most = limit / self.lengths.clamp_min(torch.finfo(off.dtype).tiny)
        return torch.minimum(torch.maximum(off, -most), most)

    @staticmethod
    def falling(off: float | None, limit: float) -> float:
        """The share of rows within the bound, whose slopes follow their errors: from the released mean error `off`.

        Errors are taken as normal. A row that is off by more pulls no harder, whatever its prediction.
        """
        if off is None:
            return UNKNOWN_SHARE
        return math.erf(limit / (math.sqrt(math.pi) * min(max(off, SMALL), 1.0)))

    def errors(self, weights: Tensor) -> Tensor:
        """How far each row is off, at most 1."""
        off = torch.nan_to_num(self.rows @ weights.T - self.targets, nan=1.0)
        return off.abs().clamp(max=1.0).squeeze(1)


Work = Classes | Numbers


def kind_of(facts: PublicFacts) -> type[Classes] | type[Numbers]:
    """What is predicted."""
    return Classes if facts.task == "classification" else Numbers


@dataclass(frozen=True)
class InCoordinates:
    """A view: features as rows in whitened coordinates, with targets and units."""

    white: Whitened
    unit_of_cell: Tensor
    kind: type[Classes] | type[Numbers]
    outputs: int

    def __call__(self, seen: Features) -> Work:
        part = seen.part
        units = self.unit_of_cell[part.cells]
        return self.kind(self.white.rows(seen.rows), part.targets, units, part.weights, self.outputs)


@dataclass(frozen=True)
class Pull:
    """Σ of bounded gradients; a row counts with its share and its unit's voice, which is at most 1."""

    weights: Tensor
    margins: Tensor
    voices: Tensor
    limit: float

    def __call__(self, work: Work) -> Tensor:
        slopes = work.slopes(self.weights, self.margins, self.limit)
        slopes *= (self.voices[work.units] * work.shares)[:, None]
        return slopes.T @ work.rows


@dataclass(frozen=True)
class Errors:
    """The errors of each unit."""

    weights: Tensor
    units: int

    def __call__(self, work: Work) -> Tensor:
        wrong = work.errors(self.weights) * work.shares
        return torch.zeros(self.units, dtype=torch.float64).index_add_(0, work.units, wrong)


@dataclass(frozen=True)
class Cuts:
    """How many rows of each unit are correct at the cut 0, and what moving it wins."""

    weights: Tensor
    units: int

    def __call__(self, work: Work) -> Tensor:
        scores = work.rows @ (self.weights[1] - self.weights[0])
        return counted(scores, work.targets, work.units, work.shares, self.units)
