"""Rows of features that need no training: in double precision, each by itself, no longer than their bound."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from veil.methods.convex.stairs import Stairs
from veil.methods.convex.whitening import Features
from veil.problem.sums import Part

# Rows stay this much inside their bound, so that rounding never brings one out of it.
INSIDE = 1 - 1e-9
# Features of images take far more memory on the way than in the end.
_ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class Featured:
    """Rows as features make them, in double precision; one that is not finite becomes 0."""

    features: nn.Sequential
    stairs: Stairs | None = None

    def __call__(self, part: Part) -> Features:
        pieces = torch.split(part.inputs, _ROWS_AT_ONCE)
        rows = torch.cat([finite(_in_double(self.features, inputs)) for inputs in pieces])
        return Features(rows if self.stairs is None else self.stairs.climbed(rows), part)


def _in_double(features: nn.Sequential, inputs: Tensor) -> Tensor:
    """Features in double precision: in single, how a row is rounded would follow from how many others there are."""
    rows = inputs
    for part in features:
        rows = through(part, rows.double())
    return rows.double()


def through(features: nn.Module, inputs: Tensor) -> Tensor:
    """Features of some rows or of none: some take no empty batch, so a row of zeros goes through in its place."""
    rows: Tensor = features(inputs if len(inputs) else inputs.new_zeros(1, *inputs.shape[1:]))
    return rows[: len(inputs)]


def finite(rows: Tensor) -> Tensor:
    """Flat rows; one that is not finite, or so long that its length is not, becomes 0."""
    flat = rows.flatten(1)
    return torch.where(torch.isfinite(torch.linalg.vector_norm(flat, dim=1, keepdim=True)), flat, 0.0)


def shortened(rows: Tensor) -> Tensor:
    """Rows that are longer than 1 at length 1, a little inside."""
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows * (INSIDE / lengths.clamp_min(INSIDE))


def bounded_slopes(
    rows: Tensor, lengths: Tensor, weights: Tensor, margins: Tensor, targets: Tensor, limits: Tensor
) -> Tensor:
    """Each row's softmax slope p − e_y, lowered where slope ⊗ row would be longer than its limit."""
    slopes = torch.softmax(rows @ weights.T + margins, dim=1) - targets
    # Weights that grew beyond all measure give no slope: such a row counts as 0.
    slopes = torch.where(torch.isfinite(slopes).all(dim=1, keepdim=True), slopes, 0.0)
    norms = (torch.linalg.vector_norm(slopes, dim=1) * lengths).clamp_min(torch.finfo(rows.dtype).tiny)
    slopes *= torch.clamp(limits / norms, max=1.0)[:, None]
    return slopes
