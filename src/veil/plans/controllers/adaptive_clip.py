"""Adaptive clip: the threshold follows a quantile of the gradient norms (Andrew et al. 2021)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veil.bounding import UnitClip
from veil.gradients import PerRow
from veil.plans.controllers.protocol import Counting, State
from veil.releases import GradientRelease, Statistic


@dataclass(frozen=True)
class AdaptiveClip(Counting):
    """C ← C·exp(−η·(b̃ − γ)), b̃ the noisy share of rows whose norm is at most C.

    Gradients are released in units of C with noise κ, so that every step costs the same and can be planned. A row adds
    1[‖g‖ ≤ C] − ½ to the count: at most ½ in size. With `steady_length` updates stay in units of the first threshold.
    """

    cells: int
    start_clip: float
    quantile: float
    rate: float
    steady_length: bool

    def start(self) -> State:
        """The first threshold."""
        return {"clip": np.array([self.start_clip])}

    def release(self, state: State, step: int) -> GradientRelease:
        """Clip at the present threshold, and count."""
        clip = float(state["clip"][0])

        def measure(per_row: PerRow, cells: Tensor) -> Tensor:
            return (per_row.norms <= clip).to(torch.float64)[:, None] - 0.5

        statistic = Statistic("below_clip", measure, 0.5, self.count_sigma)
        bound = UnitClip(clip, self.cells)
        unit = self.start_clip if self.steady_length else clip
        return GradientRelease(self.draw, bound, self.kappa, self.batch / unit, self.relation, (statistic,))

    def observe(self, state: State, step: int, statistics: Mapping[str, NDArray[np.float64]]) -> State:
        """Move the threshold towards the quantile; the share is over the expected batch, and the factor is capped."""
        share = float(statistics["below_clip"][0]) / self.batch + 0.5
        exponent = min(max(-self.rate * (share - self.quantile), -5.0), 5.0)
        clip = min(max(float(state["clip"][0]) * math.exp(exponent), 1e-8), 1e8)
        return {"clip": np.array([clip])}
