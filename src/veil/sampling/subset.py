"""Stratified sampling without replacement: an exact public count from every stratum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from veil.foundation.randomness import Seed
from veil.problem.strata import Rows, Strata


def subset_slots(generator: np.random.Generator, slots: int, count: int) -> Rows:
    """A uniformly random set of `count` of `slots` places, ascending; the cost follows the count, not the slots."""
    if count == 0:
        return np.empty(0, dtype=np.int64)
    return np.sort(generator.choice(slots, size=count, replace=False, shuffle=False)).astype(np.int64, copy=False)


@dataclass(frozen=True, eq=False)
class SubsetSampler:
    """`counts[s]` rows of stratum s, uniformly without replacement; sizes and counts are public.

    Samplers of one run that must be independent in the same step need different `purpose`s.

    Args:
        strata: The rows by stratum.
        counts: How many rows of each stratum are drawn.
        purpose: What the batch is for.

    >>> sampler = SubsetSampler(Strata.from_labels(["a", "b", "a", "b"]), counts=(1, 2))
    >>> sampler.draw(Seed.from_int(3), step=0), sampler.rate_of(0)
    (array([1, 2, 3]), 0.5)
    """

    private: ClassVar[bool] = True

    strata: Strata
    counts: Sequence[int]
    purpose: str = "batch"

    def __post_init__(self) -> None:
        counts = tuple(int(count) for count in self.counts)
        if len(counts) != len(self.strata.members):
            raise ValueError(f"{len(counts)} counts were given for {len(self.strata.members)} strata")
        for name, size, count, given in zip(self.strata.names, self.strata.sizes, counts, self.counts, strict=True):
            if count != given or not 0 <= count <= size:
                raise ValueError(f"stratum {name!r} has {size} slots: cannot draw {given}")
        object.__setattr__(self, "counts", counts)

    def draw(self, seed: Seed, step: int) -> Rows:
        """Row ids of the batch, ascending.

        Args:
            seed: The secret seed of the run.
            step: Number of the step, from 0.

        Returns:
            Row numbers; the same for the same seed and step.
        """
        return self.strata.rows_of(self.slots(seed, step, index) for index in range(len(self.strata.members)))

    def slots(self, seed: Seed, step: int, stratum: int) -> Rows:
        """The drawn slots of one stratum, holes included.

        Args:
            seed: The secret seed of the run.
            step: Number of the step, from 0.
            stratum: Number of the stratum.

        Returns:
            Positions in the stratum, ascending.
        """
        generator = seed.generator("sampling/subset/" + self.purpose, step, self.strata.names[stratum])
        return subset_slots(generator, self.strata.sizes[stratum], self.counts[stratum])

    def rate_of(self, stratum: int) -> float:
        """The chance that a row of this stratum takes part: its count over its slots (0 for an empty stratum).

        Args:
            stratum: Number of the stratum.

        Returns:
            A probability between 0 and 1.
        """
        size = self.strata.sizes[stratum]
        return self.counts[stratum] / size if size else 0.0

    def expected_of(self, stratum: int) -> float:
        """The number of drawn slots of one stratum (public, and always the same).

        Args:
            stratum: Number of the stratum.

        Returns:
            A number of rows, not always whole.
        """
        return float(self.counts[stratum])

    def expected_batch(self) -> float:
        """Σ counts, the divisor of a sum over the batch (public, and always the same).

        Returns:
            A number of rows, not always whole.
        """
        return float(sum(self.counts))
