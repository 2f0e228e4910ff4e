"""Poisson sampling: every slot takes part independently, with the public rate of its stratum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from veil.foundation.randomness import Seed
from veil.problem.strata import Rows, Strata
from veil.sampling.sampler import per_stratum

# Above this rate one uniform per slot is cheaper than throwing points and sorting them.
_DENSE_RATE = 0.2
# Above so many strata all of them share one stream: a stream takes some 30 microseconds to open.
_MANY = 32


def poisson_slots(generator: np.random.Generator, slots: int, rate: float) -> Rows:
    """Which of `slots` places take part when each does independently with probability `rate`, ascending.

    Sparse rates throw N ~ Poisson(slots · h) points, h = −ln(1 − rate), each on a uniform slot, and keep the slots
    that were hit. A slot is then hit Poisson(h) times independently of the others, so it is kept with probability
    1 − e^(−h) = rate. The cost is that of the points thrown, at most 12 % more than the slots kept.

    Exactness: the slot of a point is an unbiased integer, so all slots have exactly the same chance and only its
    level can be off. h is right to one ulp (log1p). N = 0 is resolved to 2⁻⁵³ absolute, which is 2⁻⁵³/(slots · rate)
    of the level. For large means λ numpy's rejection compares log-probabilities of size λ ln λ, which shifts the mean
    of N by at most about λ ln λ · 2⁻⁵² standard deviations: 10⁻¹⁴ of the level for 100 rows, 10⁻¹² for a million.
    (Geometric gaps from one 53-bit uniform each would resolve the chance of a slot to 2⁻⁵³/rate: 10⁻⁹ at rate 10⁻⁷.)

    >>> poisson_slots(np.random.default_rng(0), 4, 1.0)
    array([0, 1, 2, 3])
    """
    if slots == 0 or rate == 0.0:
        return np.empty(0, dtype=np.int64)
    if rate > _DENSE_RATE:
        return np.flatnonzero(generator.random(slots) < rate).astype(np.int64, copy=False)
    points = generator.integers(0, slots, size=generator.poisson(-math.log1p(-rate) * slots), dtype=np.int64)
    points.sort()
    first = np.ones(len(points), dtype=np.bool_)
    np.not_equal(points[1:], points[:-1], out=first[1:])
    return points[first]


@dataclass(frozen=True, eq=False)
class _Joint:
    """All strata in one line of slots: those at dense rates with one uniform per slot, the others by thrown points.

    As exact as `poisson_slots`: every sparse stratum has its own Poisson number of points, each on a uniform slot.
    """

    members: Rows
    sizes: Rows
    starts: Rows
    hazards: npt.NDArray[np.float64]
    dense: Rows
    dense_rates: npt.NDArray[np.float64]

    @classmethod
    def of(cls, strata: Strata, rates: npt.NDArray[np.float64]) -> _Joint:
        sizes = np.array(strata.sizes, dtype=np.int64)
        starts = np.cumsum(sizes) - sizes
        many = rates > _DENSE_RATE
        hazards: npt.NDArray[np.float64] = -np.log1p(-np.where(many, 0.0, rates)) * sizes
        dense = [np.arange(starts[index], starts[index] + sizes[index]) for index in np.flatnonzero(many)]
        slots = np.concatenate([np.empty(0, dtype=np.int64), *dense])
        return cls(strata.line, sizes, starts, hazards, slots, np.repeat(rates[many], sizes[many]))

    def draw(self, generator: np.random.Generator) -> Rows:
        """Row ids, ascending, holes first."""
        stratum = np.repeat(np.arange(len(self.sizes)), generator.poisson(self.hazards))
        points = np.unique(self.starts[stratum] + generator.integers(0, self.sizes[stratum], dtype=np.int64))
        hits = self.dense[generator.random(len(self.dense)) < self.dense_rates]
        return np.sort(self.members[np.concatenate([points, hits])])


@dataclass(frozen=True, eq=False)
class PoissonSampler:
    """Every row takes part independently with the rate of its stratum.

    `rates` has one number per stratum. Rates are public.
    Up to 32 strata have a stream each: the rate of one never changes what is drawn from another. More of them are drawn
    from one stream at once, so that thousands of rates take no longer than a few. Two samplers that must be independent
    in the same step need different `purpose`s: with the same they draw the same rows.

    Args:
        strata: The rows by stratum.
        rates: Probability of each stratum's rows to be drawn, between 0 and 1.
        purpose: What the batch is for.

    >>> sampler = PoissonSampler(Strata.from_labels(["a", "a", "b"]), rates=(1.0, 0.0))
    >>> sampler.draw(Seed.from_int(0), step=0), sampler.expected_batch()
    (array([0, 1]), 2.0)
    """

    private: ClassVar[bool] = True

    strata: Strata
    rates: Sequence[float]
    purpose: str = "batch"

    def __post_init__(self) -> None:
        rates = per_stratum(self.strata, self.rates, "rates")
        for name, rate in zip(self.strata.names, rates, strict=True):
            if not 0.0 <= rate <= 1.0:
                raise ValueError(f"the sampling rate of stratum {name!r} is {rate}: it must be between 0 and 1")
        object.__setattr__(self, "rates", rates)

    @classmethod
    def uniform(cls, strata: Strata, rate: float, purpose: str = "batch") -> PoissonSampler:
        """The same rate in every stratum.

        Args:
            strata: The rows by stratum.
            rate: The probability that a row is drawn, between 0 and 1.
            purpose: What the batch is for; samples of different purposes are independent.

        Returns:
            The sampler.
        """
        return cls(strata, (rate,) * len(strata.members), purpose)

    def draw(self, seed: Seed, step: int) -> Rows:
        """Row ids of the batch, ascending; it may be empty.

        Args:
            seed: The secret seed of the run.
            step: Number of the step, from 0.

        Returns:
            Row numbers; the same for the same seed and step.
        """
        if len(self.strata.members) > _MANY:
            rows = self._joint.draw(seed.generator("sampling/poisson/" + self.purpose + "/joint", step))
            return rows[np.searchsorted(rows, 0) :]
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
        generator = seed.generator("sampling/poisson/" + self.purpose, step, self.strata.names[stratum])
        return poisson_slots(generator, len(self.strata.members[stratum]), self.rates[stratum])

    @cached_property
    def _joint(self) -> _Joint:
        return _Joint.of(self.strata, np.array(self.rates))

    def rate_of(self, stratum: int) -> float:
        """The chance that a row of this stratum takes part.

        Args:
            stratum: Number of the stratum.

        Returns:
            A probability between 0 and 1.
        """
        return self.rates[stratum]

    def expected_of(self, stratum: int) -> float:
        """The expected number of drawn slots of one stratum, by its declared size (public).

        Args:
            stratum: Number of the stratum.

        Returns:
            A number of rows, not always whole.
        """
        return (self.strata.declared or self.strata.sizes)[stratum] * self.rates[stratum]

    def expected_batch(self) -> float:
        """Σ slots × rate, the divisor of a sum over the batch (public).

        Returns:
            A number of rows, not always whole.
        """
        return math.fsum(self.expected_of(index) for index in range(len(self.strata.members)))
