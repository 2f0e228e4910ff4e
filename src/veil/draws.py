"""Draws: which rows take part, said in public constants that can be bound to rows and turned into events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from veil.accounting.events import AccountingError, Event, Gaussian, PoissonGaussian, Relation, SubsetGaussian
from veil.problem import PublicFacts
from veil.sampling import PoissonSampler, Sampler, ShuffledSampler, Strata, SubsetSampler


class Draw(Protocol):
    """Which rows take part, said in public constants: it can be bound to rows and turned into an event."""

    def sampler(self, strata: Strata) -> Sampler:
        """The sampler that does what this says."""

    def event(self, cell: int, noise_multiplier: float, relation: Relation, facts: PublicFacts) -> Event | None:
        """What a row of a cell is charged at this noise, or None if it never takes part."""

    def expected_batch(self, facts: PublicFacts) -> float:
        """The public divisor."""


@dataclass(frozen=True, slots=True)
class Poisson:
    """Each row of a cell takes part independently with the cell's public rate."""

    rates: tuple[float, ...]

    def sampler(self, strata: Strata) -> Sampler:
        """Poisson with these rates."""
        return PoissonSampler(strata, self.rates)

    def event(self, cell: int, noise_multiplier: float, relation: Relation, facts: PublicFacts) -> Event | None:
        """A Poisson-sampled Gaussian; rate 1 is the plain Gaussian."""
        rate = self.rates[cell]
        if rate == 0.0:
            return None
        if rate == 1.0:
            return Gaussian(noise_multiplier, relation)
        return PoissonGaussian(noise_multiplier, rate, relation)

    def expected_batch(self, facts: PublicFacts) -> float:
        """Σ declared rows × rate."""
        return sum(cell.rows * rate for cell, rate in zip(facts.cells, self.rates, strict=True))


@dataclass(frozen=True, slots=True)
class UniformSubset:
    """`batch` of all rows, uniformly without replacement, whatever their cell (replace-one)."""

    batch: int

    def sampler(self, strata: Strata) -> Sampler:
        """One stratum of all rows."""
        members = np.concatenate(strata.members)
        order = np.argsort(np.where(members < 0, len(members), members), kind="stable")
        return SubsetSampler(Strata((members[order],)), (self.batch,))

    def event(self, cell: int, noise_multiplier: float, relation: Relation, facts: PublicFacts) -> Event | None:
        """A subset of all rows."""
        return _subset_event(noise_multiplier, facts.rows, self.batch, relation)

    def expected_batch(self, facts: PublicFacts) -> float:
        """The batch size itself."""
        return float(self.batch)


@dataclass(frozen=True, slots=True)
class StratifiedSubset:
    """`counts[cell]` of each cell's rows, uniformly without replacement (replace-one within the cell)."""

    counts: tuple[int, ...]

    def sampler(self, strata: Strata) -> Sampler:
        """Stratified without replacement."""
        return SubsetSampler(strata, self.counts)

    def event(self, cell: int, noise_multiplier: float, relation: Relation, facts: PublicFacts) -> Event | None:
        """A subset of the cell's rows."""
        if self.counts[cell] == 0:
            return None
        return _subset_event(noise_multiplier, facts.cells[cell].rows, self.counts[cell], relation)

    def expected_batch(self, facts: PublicFacts) -> float:
        """The batch size itself."""
        return float(sum(self.counts))


@dataclass(frozen=True, slots=True)
class Shuffled:
    """Epochs in random order: for methods that are not private. It has no event, so no ledger takes it."""

    batch: int

    def sampler(self, strata: Strata) -> Sampler:
        """Shuffled batches."""
        return ShuffledSampler(strata, self.batch)

    def event(self, cell: int, noise_multiplier: float, relation: Relation, facts: PublicFacts) -> Event | None:
        """Refused: batches of one epoch exclude each other, which no amplification theorem here covers."""
        raise AccountingError("shuffled batches have no sampling guarantee: use Poisson sampling or subsets")

    def expected_batch(self, facts: PublicFacts) -> float:
        """The batch size itself."""
        return float(self.batch)


def _subset_event(noise_multiplier: float, size: int, batch: int, relation: Relation) -> Event:
    if relation is not Relation.REPLACE_ONE:
        raise AccountingError(f"sampling without replacement is proved for replace-one only, not for {relation}")
    return SubsetGaussian(noise_multiplier, size, batch)
