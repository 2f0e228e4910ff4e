"""Placing knots with private releases: noisy histograms of all numbers, finer at each stage where the rows are.

    stage 1:       rows in equal bins of [−1, 1], all columns at once: a row adds 1 to one bin of each column
    stages 2, 3:   the same in bins that hold as much mass each, by what the stage before released
    at the end:    knots with as much mass between each two

Mass is the root of the rows' density where there are several stages: with as many rows between each two, nearly all
knots of a column would stand where half of its rows have the same number. A single histogram is too coarse for
densities: its mass is rows. A count is used where it exceeds the noise; otherwise the column keeps evenly spaced knots.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from veil.accounting import Gaussian, Relation
from veil.models.knots import Knots
from veil.noise import GaussianNoise
from veil.problem.sums import Part, RowSums

KNOTS = "knots"


@dataclass(frozen=True)
class KnotRelease:
    """`noise` is that of one stage over what a row added or removed moves."""

    noise: float
    relation: Relation
    stages: int
    bins: int

    def event(self) -> Gaussian:
        """What one stage costs every row."""
        return Gaussian(self.noise, self.relation)

    def make(self, layer: Knots, rows: RowSums, noise: GaussianNoise) -> None:
        """Release places from the numbers of all rows and put them into the layer. The cost is reserved before."""
        columns, sigma = len(layer.numbers), self.noise * math.sqrt(len(layer.numbers))
        edges = torch.linspace(-1.0, 1.0, self.bins + 1, dtype=torch.float64).repeat(columns, 1)
        believed = torch.ones(columns, self.bins, dtype=torch.float64)
        for stage in range(self.stages):
            if stage > 0:
                edges = _quantiles(edges, self._mass(edges, believed), self.bins + 1)
            counts = noise.add(stage, {KNOTS: rows.total(Counts(layer, edges))}, sigma, KNOTS)[KNOTS]
            believed = _believed(counts, sigma)
        layer.places.copy_(_quantiles(edges, self._mass(edges, believed), layer.places.shape[1]))

    def _mass(self, edges: Tensor, believed: Tensor) -> Tensor:
        """What lies between each two edges: the root of the density, over the width."""
        return (believed * edges.diff(dim=1)).sqrt() if self.stages > 1 else believed


@dataclass(frozen=True)
class Counts:
    """Rows in each bin, one line per column of numbers; a row counts with its share, which is 1 where it is alone."""

    layer: Knots
    edges: Tensor

    def __call__(self, part: Part) -> Tensor:
        found = torch.zeros(self.edges.shape[0], self.edges.shape[1] - 1, dtype=torch.float64)
        values, inner = self.layer.values(part.inputs.flatten(1)), self.edges[:, 1:-1].contiguous()
        places = torch.searchsorted(inner, values.T.contiguous().double(), right=True)
        return found.scatter_add_(1, places, part.shares.double().expand_as(places))


def _believed(counts: Tensor, sigma: float) -> Tensor:
    """Counts less the noise, and as many in all bins where a column shows nothing but noise."""
    bins = counts.shape[1]
    spread = (counts - counts.mean(dim=1, keepdim=True)).square().sum(dim=1, keepdim=True)
    known = (1 - bins * sigma**2 / spread.clamp_min(1e-12)).clamp(0.0, 1.0)
    sure = (counts - sigma).clamp_min(0.0)
    sure = sure / sure.sum(dim=1, keepdim=True).clamp_min(1e-12)
    return known * sure + (1 - known + 0.02) / bins


def _quantiles(edges: Tensor, mass: Tensor, count: int) -> Tensor:
    """Places with as much mass between each two, the first and the last at the ends."""
    below = torch.cat([torch.zeros(len(mass), 1, dtype=mass.dtype), mass.cumsum(dim=1)], dim=1)
    wanted = torch.linspace(0.0, 1.0, count, dtype=mass.dtype) * below[:, -1:]
    bins = (torch.searchsorted(below, wanted.contiguous(), right=True) - 1).clamp(0, mass.shape[1] - 1)
    share = ((wanted - below.gather(1, bins)) / mass.gather(1, bins).clamp_min(1e-12)).clamp(0.0, 1.0)
    found = torch.lerp(edges.gather(1, bins), edges.gather(1, bins + 1), share)
    found[:, 0], found[:, -1] = edges[:, 0], edges[:, -1]
    return found
