"""A tail that follows the gradients: as more of them vanish, the tail of the order grows by as much."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veil.bounding import Bound, Ordered, by_row
from veil.bounding.ordered import Order, StretchedTail, Tail
from veil.gradients import PerRow
from veil.plans.controllers.protocol import Counting, State
from veil.releases import GradientRelease, Statistic

MEMORY = 0.1  # how far one step's count moves the share


@dataclass(frozen=True)
class FollowingTail(Counting):
    """γ = (1 − a)·line + a·γ₀: where a share 1 − a of the gradients has vanished, the tail of the others stays γ₀.

    a is the moving mean of the noisy share of drawn rows whose bounded gradient fills half of its threshold or more. A
    row adds 1[filled] − ½ to the count: at most ½ in size; it is charged jointly with the gradient. The tail of a step
    follows from values released before it, so it is a public constant of the step, as the order's theorem needs.
    """

    inner: Bound
    tail: Tail
    line: float
    order: Order
    ranks: tuple[int, ...]

    def start(self) -> State:
        """Every gradient fills its threshold."""
        return {"active_share": np.array([1.0])}

    def release(self, state: State, step: int) -> GradientRelease:
        """The order with the present tail, and the count."""
        bound = Ordered(self.inner, StretchedTail(self.tail, self.length(state)), self.order, self.ranks)
        count = Statistic("active", self._measure, 0.5, self.count_sigma)
        return GradientRelease(self.draw, bound, self.kappa, self.batch, self.relation, (count,))

    def observe(self, state: State, step: int, statistics: Mapping[str, NDArray[np.float64]]) -> State:
        """Move the share towards what was counted, over the expected batch."""
        counted = float(statistics["active"][0]) / self.batch + 0.5
        share = float(state["active_share"][0])
        return {"active_share": np.array([min(max(share + MEMORY * (counted - share), 0.0), 1.0)])}

    def length(self, state: State) -> float:
        """γ, never longer than the expected line unless it began so."""
        share = float(state["active_share"][0])
        return max(self.tail.length, (1.0 - share) * self.line + share * self.tail.length)

    def _measure(self, per_row: PerRow, cells: Tensor) -> Tensor:
        filled = self.inner.weights(per_row, cells) * per_row.norms
        return (filled >= 0.5 * by_row(self.inner.limits, cells, filled.dtype)).to(torch.float64)[:, None] - 0.5
