"""Shuffled epochs: every row once per epoch in random order. Not private: no accountant charges for it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from veil.foundation.randomness import Seed
from veil.problem.strata import HOLE, Rows, Strata


@lru_cache(maxsize=2)
def _order(seed: Seed, epoch: int, slots: int) -> Rows:
    """The order of one epoch; kept because every step of the epoch needs it."""
    order: Rows = seed.generator("sampling/shuffled", epoch).permutation(slots)
    order.flags.writeable = False
    return order


@dataclass(frozen=True, eq=False)
class ShuffledSampler:
    """Batches of `batch_size` rows from a new random order in every epoch; the last of an epoch may be smaller.

    Args:
        strata: The rows by stratum.
        batch_size: Rows of a batch, at least 1.

    >>> sampler = ShuffledSampler(Strata.of_size(5), batch_size=2)
    >>> seed = Seed.from_int(0)
    >>> sorted(int(row) for step in range(3) for row in sampler.draw(seed, step))
    [0, 1, 2, 3, 4]
    """

    private: ClassVar[bool] = False

    strata: Strata
    batch_size: int

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch size is {self.batch_size}: it must be at least 1")
        if sum(self.strata.sizes) < 1:
            raise ValueError("there must be at least one row to shuffle")

    @property
    def steps_per_epoch(self) -> int:
        """Batches that hold every row once."""
        return -(-sum(self.strata.sizes) // self.batch_size)

    def draw(self, seed: Seed, step: int) -> Rows:
        """Row ids of the batch, ascending.

        Args:
            seed: The secret seed of the run.
            step: Number of the step, from 0.

        Returns:
            Row numbers; the same for the same seed and step.
        """
        epoch, batch = divmod(step, self.steps_per_epoch)
        order = _order(seed, epoch, sum(self.strata.sizes))
        slots = order[batch * self.batch_size : (batch + 1) * self.batch_size]
        ends = np.cumsum(self.strata.sizes)
        homes = np.searchsorted(ends, slots, side="right")
        rows = np.empty(len(slots), dtype=np.int64)
        for home in np.unique(homes):
            own = homes == home
            rows[own] = self.strata.members[home][slots[own] - (ends[home] - self.strata.sizes[home])]
        return np.sort(rows[rows != HOLE])

    def expected_batch(self) -> float:
        """Rows per step, on average over an epoch.

        Returns:
            A number of rows, not always whole.
        """
        return sum(self.strata.sizes) / self.steps_per_epoch
