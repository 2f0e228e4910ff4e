"""Global scale: the ceiling Z up to which rows are only scaled follows the longest rows (Esipova et al. 2023)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veil.bounding import GlobalScale
from veil.gradients import PerRow
from veil.plans.controllers.protocol import Counting, State
from veil.releases import GradientRelease, Statistic


@dataclass(frozen=True)
class AdaptiveScale(Counting):
    """Z ← Z·exp(−η_Z + f̃), f̃ the noisy share of rows longer than τ·Z, over the expected batch.

    Z settles where a share η_Z of the rows is longer than τ·Z. The bound C does not move, so every step costs the same.
    """

    cells: int
    clip: float
    start_ceiling: float
    rate: float
    tau: float

    def start(self) -> State:
        """The first ceiling."""
        return {"ceiling": np.array([self.start_ceiling])}

    def release(self, state: State, step: int) -> GradientRelease:
        """Scale by C/Z or clip to C, and count the rows longer than τ·Z."""
        ceiling = float(state["ceiling"][0])
        longest = self.tau * ceiling

        def measure(per_row: PerRow, cells: Tensor) -> Tensor:
            return (per_row.norms > longest).to(torch.float64)[:, None]

        bound = GlobalScale((self.clip,) * self.cells, ceiling)
        statistic = Statistic("above_ceiling", measure, 1.0, self.count_sigma)
        return GradientRelease(self.draw, bound, self.kappa * self.clip, self.batch, self.relation, (statistic,))

    def observe(self, state: State, step: int, statistics: Mapping[str, NDArray[np.float64]]) -> State:
        """Move the ceiling; a noisy share beyond ±1 is held there, so that one draw cannot throw it."""
        share = min(max(float(statistics["above_ceiling"][0]) / self.batch, -1.0), 1.0)
        ceiling = float(state["ceiling"][0]) * math.exp(share - self.rate)
        return {"ceiling": np.array([min(max(ceiling, 1e-8), 1e8)])}
