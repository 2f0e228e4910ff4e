"""Choosing columns to cross with a private release of how strongly each is related to the target.

    A = Σ t_i ⊗ (x_i, 1) and Σ (x_i, 1), with noise;   t is the class less its even share, or the number in [−1, 1]

A row is no longer than 1, and so is t: together a row moves both by 2. A column's strength is what is left of its
squared covariances without the noise, over the variance of its values. Columns that are named first (those of the
groups) are crossed in any case; then the strongest.

A number has levels at a few of its knots, with as much of the root of what the knots hold between each two: half way
between as many knots and as many rows. A category of many values has levels of values with similar targets, as far as
noise can tell. One of few values, and a column of the groups, has a level for each of its commonest values and a last
one for the rest. In the columns of the groups a level that few rows have, by the released means, is longer: else what a
small group has for itself would be learned last.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from veil.accounting import Gaussian, Relation
from veil.methods.convex.feature_rows import finite, shortened
from veil.models.crosses import LEVELS, Crosses
from veil.models.knots import Knots
from veil.noise import GaussianNoise
from veil.problem.sums import Part, RowSums

CROSSES = "crosses"
SENSITIVITY = 2.0
# A rare level is at most so many times as long as an even one.
LONGEST = 4.0


@dataclass(frozen=True)
class CrossRelease:
    """`noise` is that of the release over what a row added or removed moves."""

    noise: float
    relation: Relation

    def event(self) -> Gaussian:
        """What it costs every row."""
        return Gaussian(self.noise, self.relation)

    def make(self, layer: Crosses, knots: Knots, rows: RowSums, classes: int, noise: GaussianNoise) -> None:
        """Choose columns and levels for the layer. The cost is reserved before."""
        sigma = self.noise * SENSITIVITY
        sums = rows.total(Joint(knots, len(layer.blocks), classes))
        released = noise.add(0, {CROSSES: sums}, sigma, CROSSES)[CROSSES]
        size = float(released[0, -1].clamp_min(1.0))
        scale = torch.full((released.shape[1],), len(layer.blocks) ** 0.5, dtype=released.dtype)
        scale[-1] = 1.0
        means, joint = (released[0] / size * scale)[:-1], released[1:] / size * scale
        sd = sigma / size * float(scale[0])
        columns = _chosen(layer, _strengths(layer.blocks, means, joint, sd))
        layer.levels.zero_()
        for place, column in enumerate(columns):
            block = layer.blocks[column]
            many = len(block) > LEVELS and block[0] not in knots.numbers and column not in layer.first
            found = _alike(block, means, joint, sd) if many else _levels(block, knots, means)
            if column in layer.first and block[0] not in knots.numbers:
                # What is below its noise is not taken for rare.
                known = (means[block] @ found).clamp_min(2 * sd)
                found *= (1 / (LEVELS * known)).sqrt().clamp(1.0, LONGEST)
            layer.levels[block, place] = found.to(layer.levels.dtype)


@dataclass(frozen=True)
class Joint:
    """Sums of rows (over √columns) with a 1 behind them, and of those by target, both at most 1 long.

    A row counts with its share, which is 1 where it is alone.
    """

    knots: Knots
    columns: int
    classes: int

    def __call__(self, part: Part) -> Tensor:
        rows = finite(self.knots(part.inputs.flatten(1).double()))
        rows = shortened(rows / math.sqrt(self.columns))
        behind = torch.cat([rows, torch.ones(len(rows), 1, dtype=rows.dtype)], dim=1) * part.shares[:, None]
        return torch.cat([behind.sum(dim=0, keepdim=True), target_vectors(part.targets, self.classes).T @ behind])


def target_vectors(targets: Tensor, classes: int) -> Tensor:
    """Each row's target as a vector no longer than 1: a class less its even share, or the number itself."""
    if classes < 2:
        return torch.nan_to_num(targets.reshape(-1, 1).double()).clamp(-1.0, 1.0)
    return torch.nn.functional.one_hot(targets.long(), classes).double() - 1 / classes


def _strengths(blocks: list[list[int]], means: Tensor, joint: Tensor, sd: float) -> Tensor:
    """How strongly each column is related to the target."""
    covariances = joint[:, :-1] - joint[:, -1:] * means
    clear = (covariances.square() - sd**2).sum(dim=0)
    # Of a value that nearly nobody has, noise would look like strength.
    spread = (means.abs() * (1 - means.abs())).clamp_min(4 * sd)
    return torch.stack([(clear[block] / spread[block]).sum() for block in blocks])


def _chosen(layer: Crosses, strengths: Tensor) -> list[int]:
    by_strength = torch.argsort(strengths, descending=True).tolist()
    return list(dict.fromkeys([*layer.first, *by_strength]))[: layer.chosen]


def _levels(block: list[int], knots: Knots, means: Tensor) -> Tensor:
    """How each place of a column's block counts for the levels."""
    found = torch.zeros(len(block), LEVELS, dtype=means.dtype)
    if block[0] in knots.numbers:
        count = knots.places.shape[1]
        fine = torch.arange(len(block) - count, len(block))
        places = _spread(means[block][fine])
        below = places.floor().long().clamp(max=LEVELS - 2)
        # In single precision, too, both shares are exact and make 1 together.
        share = torch.round((places - below) * 2**20) / 2**20
        found[fine, below] = 1 - share
        found[fine, below + 1] = share
        return found
    for rank, place in enumerate(torch.argsort(means[block], descending=True).tolist()):
        found[place, min(rank, LEVELS - 1)] = 1.0
    return found


def _alike(block: list[int], means: Tensor, joint: Tensor, sd: float) -> Tensor:
    """A level for values of a category that are alike in how their rows' targets differ from the others'."""
    covariances, held = (joint[:, :-1] - joint[:, -1:] * means)[:, block], means[block].clamp_min(2 * sd)
    # Of several classes, the direction in which values differ most; which way round is the same on every machine.
    direction = torch.linalg.svd(covariances / held.sqrt(), full_matrices=False)[0][:, 0]
    apart = (direction * direction[direction.abs().argmax()].sign()) @ covariances
    order = torch.argsort(apart * apart.square() / (apart.square() + sd**2) / held)
    found = torch.zeros(len(block), LEVELS, dtype=means.dtype)
    found[order, _spread(means[block][order]).round().long()] = 1.0
    return found


def _spread(held: Tensor) -> Tensor:
    """Where knots or values in a row lie among the levels, by the shares of rows that they hold."""
    mass = held.clamp_min(1e-9).sqrt()
    through = (mass.cumsum(0) - mass / 2) / mass.sum()
    return (through * LEVELS - 0.5).clamp(0, LEVELS - 1)
