"""Stairs: coordinates of a number's knots in which smooth curves are large directions.

    h_k    a row's share of knot k; the shares of one number sum to 1
    c_j  = √(6/K)·Σ_{k ≥ j} h_k for j ≥ 1, c_0 = 0:  how much of the number lies at or above knot j

Shares of knots are as large in every direction: the curve of a number would be learned as fast where it jumps at every
knot as where it rises all along. Of the stairs of evenly filled knots, the m-th smoothest direction has 1/m² of the
variance of the first. √(6/K) makes their variance 1 in all, as that of the shares is nearly.

Only what rows are compared and whitened in changes. Weights come back as those of the shares: the model stays the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from veil.models.crosses import Crosses
from veil.models.knots import Knots
from veil.models.whitened import Projection


@dataclass(frozen=True)
class Stairs:
    """Where the shares of knots stand in a row: so many columns from `start` on, with so many knots each."""

    start: int
    columns: int
    knots: int

    @classmethod
    def of(cls, features: nn.Sequential) -> Stairs | None:
        """Those of a model's features; None where no number has knots, or a projection mixes all inputs."""
        curves = next((part for part in features if isinstance(part, Knots)), None)
        crosses = next((part for part in features if isinstance(part, Crosses)), None)
        if curves is None or crosses is None or any(isinstance(part, Projection) for part in features):
            return None
        columns, knots = curves.places.shape
        return cls(len(crosses.levels) - curves.added, columns, knots) if columns else None

    def climbed(self, rows: Tensor) -> Tensor:
        """Rows with stairs in place of shares."""
        stairs = self._shares(rows).flip(2).cumsum(2).flip(2)
        stairs[:, :, 0] = 0.0
        return self._replaced(rows, stairs)

    def back(self, weights: Tensor) -> Tensor:
        """Weights of the shares that score a row as these weights score its stairs; one line for each output."""
        steps = self._shares(weights).clone()
        steps[:, :, 0] = 0.0
        return self._replaced(weights, steps.cumsum(2))

    def _shares(self, rows: Tensor) -> Tensor:
        end = self.start + self.columns * self.knots
        return rows[:, self.start : end].reshape(len(rows), self.columns, self.knots)

    def _replaced(self, rows: Tensor, found: Tensor) -> Tensor:
        end = self.start + self.columns * self.knots
        scaled = found.flatten(1) * math.sqrt(6 / self.knots)
        return torch.cat([rows[:, : self.start], scaled, rows[:, end:]], dim=1)
