"""A tail that follows the gradients: as more of them vanish, the tail of the order grows by as much."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veil.bounding import Bound, Ordered, by_row
from veil.bounding.ordered import Order, StretchedTail, Tail
from veil.gradients import PerRow
from veil.plans.controllers.protocol import Counting, Latest, State
from veil.releases import GradientRelease, Statistic
from veil.sampling.draws import Draw

COUNTS = 50  # along a run, at most
APART = 10  # steps from one count to the next, at least
MEMORY = 0.5  # how far a count moves the tail towards what was counted
LOUDEST = 0.25  # share of a batch: a count with more noise says nothing


@dataclass(frozen=True)
class FollowingTail(Counting):
    """γ = (1 − a)·line + a·γ₀: where a share 1 − a of the gradients has vanished, the tail of the others stays γ₀.

    a is the noisy share of drawn rows whose bounded gradient fills half of its threshold or more, counted in every
    `every`-th step from the first on; each count moves γ half of the way. Of a count, what its noise and the draw of
    rows make up by themselves (`margin`) moves nothing. A row adds 1[filled] − ½ to the count: at most ½ in size. The
    count is charged jointly with the gradient of its step, and the other steps are charged as if they had one too, so
    that all steps cost the same. The tail of a step follows from values released before it, so it is a public constant
    of the step, as the order's theorem needs.
    """

    inner: Bound
    tail: Tail
    line: float
    order: Order
    ranks: tuple[int, ...]
    every: int
    _latest: Latest = field(default_factory=Latest, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        self._with(100.0)  # may be too long for the rounding of weights: better said now than in mid-run

    def start(self) -> State:
        """Every gradient fills its threshold."""
        return {"tail_percent": np.array([self._least])}

    def release(self, state: State, step: int) -> GradientRelease:
        """The order with the present tail, and the count where one is due."""
        percent, due = float(state["tail_percent"][0]), self.counts and step % self.every == 0

        def made() -> GradientRelease:
            count = Statistic("filled", self._measure, 0.5, self.count_sigma, due)
            return GradientRelease(self.draw, self._with(percent), self.kappa, self.batch, self.relation, (count,))

        return self._latest.of((percent, due), made)

    def observe(self, state: State, step: int, statistics: Mapping[str, NDArray[np.float64]]) -> State:
        """Move the tail half of the way to what was counted, over the expected batch."""
        if "filled" not in statistics:
            return state
        vanished = (0.5 - float(statistics["filled"][0]) / self.batch - self.margin) / (1.0 - self.margin)
        before, wanted = float(state["tail_percent"][0]), self._least + (100.0 - self._least) * min(max(vanished, 0), 1)
        return {"tail_percent": np.array([before + MEMORY * (wanted - before)])}

    @property
    def margin(self) -> float:
        """Two standard deviations of a counted share where every gradient fills its threshold; below 1.

        Without it, noise would make the tail longer where nothing has vanished, and never shorter.
        """
        return min(2.0 * math.hypot(self.count_sigma / self.batch, 0.5 / math.sqrt(self.batch)), 0.9)

    @property
    def counts(self) -> bool:
        """Whether a count says anything beside its noise."""
        return self.count_sigma <= LOUDEST * self.batch

    @property
    def in_words(self) -> str:
        """What the tail does, or why it stays as it is."""
        return counted_every(self.every) if self.counts else hidden(self.count_sigma / self.batch)

    def drawn_by(self, draw: Draw, batch: float, line: float, steps: int) -> FollowingTail:
        """The same tail in so many steps over rows that are drawn otherwise: it starts as the same share of a line."""
        tail = StretchedTail(self.tail, self.tail.length * line / self.line)
        return replace(self, draw=draw, batch=batch, line=line, tail=tail, every=steps_apart(steps))

    @property
    def _least(self) -> float:
        return 100.0 * self.tail.length / self.line

    def _with(self, percent: float) -> Ordered:
        """The order with a tail of so many percent of the line."""
        return Ordered(self.inner, StretchedTail(self.tail, percent / 100.0 * self.line), self.order, self.ranks)

    def _measure(self, per_row: PerRow, cells: Tensor) -> Tensor:
        filled = self.inner.weights(per_row, cells) * per_row.norms
        return (filled >= 0.5 * by_row(self.inner.limits, cells, filled.dtype)).to(torch.float64)[:, None] - 0.5


def steps_apart(steps: int) -> int:
    """How many steps lie from one count to the next.

    >>> steps_apart(60), steps_apart(3000)
    (10, 60)
    """
    return max(APART, steps // COUNTS)


def counted_every(steps: int) -> str:
    """What a tail does that follows the gradients."""
    return f"follows the gradients, counted every {steps} steps"


def hidden(noise: float) -> str:
    """Why a tail stays as it is where the noise on the count is such a share of a batch."""
    return f"fixed: the noise on a count of gradients would be {noise:.0%} of a batch"
