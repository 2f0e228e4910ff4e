"""Group thresholds: a group of which many rows are clipped gets a higher one (DPSGD-F, Xu et al. 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veil.bounding import UnitGroupClip
from veil.gradients import PerRow
from veil.plans.controllers.protocol import Counting, State
from veil.releases import GradientRelease, Statistic


@dataclass(frozen=True)
class GroupThresholds(Counting):
    """C_k = C₀·(1 + s̃_k/s̃), s̃_k the noisy share of group k's rows longer than C₀ and s̃ that of all rows.

    Shares are over expected rows, which are public. Gradients are released in units of the largest threshold of all
    groups with noise κ, so every step costs the same. A row is in one group and adds 1 to one count.
    """

    group_of_cell: tuple[int, ...]
    expected: tuple[float, ...]
    base: float
    memory: float
    largest_ratio: float

    def start(self) -> State:
        """Every group at C₀ until the first counts are released."""
        groups = len(self.expected)
        return {"thresholds": np.full(groups, self.base), "shares": np.zeros(groups), "seen": np.zeros(1)}

    def loudest(self) -> State:
        """The noise follows the largest threshold: every group at the largest that counts can bring."""
        return {**self.start(), "thresholds": np.full(len(self.expected), self.base * (1.0 + self.largest_ratio))}

    def release(self, state: State, step: int) -> GradientRelease:
        """Clip each group at its threshold, and count who is longer than C₀."""
        bound = UnitGroupClip(tuple(float(state["thresholds"][group]) for group in self.group_of_cell))
        statistic = Statistic("clipped_counts", self._count, 1.0, self.count_sigma)
        return GradientRelease(self.draw, bound, self.kappa, self.batch / bound.largest, self.relation, (statistic,))

    def observe(self, state: State, step: int, statistics: Mapping[str, NDArray[np.float64]]) -> State:
        """New thresholds from a running average of the noisy counts; negative counts are 0."""
        # A group without declared rows is never drawn; its share stays 0.
        expected = np.maximum(np.array(self.expected), 1e-9)
        seen = float(state["seen"][0])
        # A plain average at first, then one that forgets: 1 − memory is the weight of the newest counts.
        fresh = max(1.0 / (seen + 1.0), 1.0 - self.memory)
        shares = state["shares"] + fresh * (statistics["clipped_counts"] / expected - state["shares"])
        clamped = np.clip(shares, 0.0, 1.0)
        overall = float((clamped * expected).sum() / expected.sum())
        ratio = np.minimum(clamped / max(overall, 1e-12), self.largest_ratio) if overall > 0 else np.zeros(len(shares))
        return {"thresholds": self.base * (1.0 + ratio), "shares": shares, "seen": np.array([seen + 1.0])}

    def _count(self, per_row: PerRow, cells: Tensor) -> Tensor:
        member = torch.nn.functional.one_hot(torch.tensor(self.group_of_cell)[cells], len(self.expected))
        return member.to(torch.float64) * (per_row.norms > self.base).to(torch.float64)[:, None]
