"""Draws: which rows take part, in public constants that can be applied to rows and turned into events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from veil.accounting.events import AccountingError, Event, Gaussian, Mixture, PoissonGaussian, Relation, SubsetGaussian
from veil.problem import PublicFacts, Strata
from veil.sampling import OneGroupSampler, PoissonSampler, Sampler, ShuffledSampler, SubsetSampler


class Draw(Protocol):
    """Which rows take part, in public constants: can be applied to rows and turned into an event."""

    def sampler(self, strata: Strata) -> Sampler:
        """The sampler for given rows.

        Args:
            strata: The rows by cell.

        Returns:
            The sampler.
        """

    def event(self, cell: int, noise_multiplier: float, relation: Relation, facts: PublicFacts) -> Event | None:
        """What a row of a cell is charged at this noise, or None if it never takes part.

        Args:
            cell: Number of the cell.
            noise_multiplier: Standard deviation of the noise over the bound.
            relation: The neighbouring relation.
            facts: Public facts about the rows.

        Returns:
            The event, or None.
        """

    def expected_batch(self, facts: PublicFacts) -> float:
        """The public divisor.

        Args:
            facts: Public facts about the rows.

        Returns:
            The number of rows that take part in a step, in expectation.
        """


@dataclass(frozen=True, slots=True)
class Poisson:
    """Each row of a cell takes part independently with the cell's public rate.

    Args:
        rates: The rate of each cell, between 0 and 1.

    >>> Poisson((0.01, 1.0)).event(0, 2.0, Relation.ADD_REMOVE, None)
    PoissonGaussian(noise_multiplier=2.0, rate=0.01, relation=<Relation.ADD_REMOVE: 'add-remove'>)
    """

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
        return sum(self.expected_of(cell, facts) for cell in range(len(facts.cells)))

    def expected_of(self, cell: int, facts: PublicFacts) -> float:
        """Declared rows × rate of one cell."""
        return facts.cells[cell].rows * self.rates[cell]


@dataclass(frozen=True, slots=True)
class PoissonUpTo:
    """Poisson with rates that may move up to `largest`, which is what every cell that takes part is charged.

    A lower rate costs no more: it is the largest one with probability rate/largest and none otherwise (joint
    convexity). The charge does not move with the rates, so it can be planned and composed by PLD.
    """

    rates: tuple[float, ...]
    largest: float

    def __post_init__(self) -> None:
        if max(self.rates) > self.largest:
            raise AccountingError(f"a rate is {max(self.rates):.6g}, above the largest that is charged")

    def sampler(self, strata: Strata) -> Sampler:
        """Poisson with the present rates."""
        return PoissonSampler(strata, self.rates)

    def event(self, cell: int, noise_multiplier: float, relation: Relation, facts: PublicFacts) -> Event | None:
        """A Poisson-sampled Gaussian at the largest rate."""
        if self.rates[cell] == 0.0:
            return None
        return Poisson((self.largest,) * len(self.rates)).event(cell, noise_multiplier, relation, facts)

    def expected_batch(self, facts: PublicFacts) -> float:
        """Σ declared rows × rate."""
        return Poisson(self.rates).expected_batch(facts)


@dataclass(frozen=True, slots=True)
class UniformSubset:
    """`batch` of all rows, uniformly without replacement, whatever their cell (replace-one)."""

    batch: int

    def sampler(self, strata: Strata) -> Sampler:
        """One stratum of all rows."""
        strata.check_declared()
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
        strata.check_declared()
        return SubsetSampler(strata, self.counts)

    def event(self, cell: int, noise_multiplier: float, relation: Relation, facts: PublicFacts) -> Event | None:
        """A subset of the cell's rows."""
        if self.counts[cell] == 0:
            return None
        return _subset_event(noise_multiplier, facts.cells[cell].rows, self.counts[cell], relation)

    def expected_batch(self, facts: PublicFacts) -> float:
        """The batch size itself."""
        return float(sum(self.counts))

    def expected_of(self, cell: int, facts: PublicFacts) -> float:
        """The cell's part of the batch."""
        return float(self.counts[cell])


@dataclass(frozen=True, slots=True)
class Shuffled:
    """Epochs in random order: for methods that are not private. It has no event, so no ledger takes it."""

    batch: int

    def sampler(self, strata: Strata) -> Sampler:
        """Shuffled batches."""
        return ShuffledSampler(strata, self.batch)

    def event(self, cell: int, noise_multiplier: float, relation: Relation, facts: PublicFacts) -> Event | None:
        """Rejected: batches of one epoch exclude each other, which no amplification theorem here covers."""
        raise AccountingError("shuffled batches have no sampling guarantee: use Poisson sampling or subsets")

    def expected_batch(self, facts: PublicFacts) -> float:
        """The batch size itself."""
        return float(self.batch)


@dataclass(frozen=True, slots=True)
class OneGroup:
    """A public lottery picks one group, then `within` draws from its cells only.

    No group's chance may exceed `largest_chance`. At 1 every group is charged as if it were chosen at every step. Below
    1 it is charged for the mixture: with that public probability it is chosen, otherwise nothing of it is touched (by
    joint convexity a smaller chance costs no more). The charge does not move with the chances, so it can be planned.
    """

    within: Poisson | StratifiedSubset
    probabilities: tuple[float, ...]
    group_of_cell: tuple[int, ...]
    largest_chance: float = 1.0

    def __post_init__(self) -> None:
        if max(self.probabilities) > self.largest_chance * (1 + 1e-9):
            raise AccountingError(f"a group has chance {max(self.probabilities):.4g}, above {self.largest_chance:.4g}")

    def sampler(self, strata: Strata) -> Sampler:
        """One group at a time."""
        inner = self.within.sampler(strata)
        assert isinstance(inner, PoissonSampler | SubsetSampler)
        return OneGroupSampler(inner, self.probabilities, self.group_of_cell)

    def event(self, cell: int, noise_multiplier: float, relation: Relation, facts: PublicFacts) -> Event | None:
        """The release within the group, or its mixture with nothing."""
        event = self.within.event(cell, noise_multiplier, relation, facts)
        if event is None or self.largest_chance == 1.0:
            return event
        assert isinstance(event, Gaussian | PoissonGaussian | SubsetGaussian)
        return Mixture(self.largest_chance, event)

    def expected_batch(self, facts: PublicFacts) -> float:
        """The expected batch over the lottery."""
        return sum(size * chance for size, chance in zip(self.batches(facts), self.probabilities, strict=True))

    def batches(self, facts: PublicFacts) -> list[float]:
        """The expected batch of each group, where it is chosen."""
        sizes = [0.0] * len(self.probabilities)
        for cell, group in enumerate(self.group_of_cell):
            sizes[group] += self.within.expected_of(cell, facts)
        return sizes


def _subset_event(noise_multiplier: float, size: int, batch: int, relation: Relation) -> Event:
    if relation is not Relation.REPLACE_ONE:
        raise AccountingError(f"sampling without replacement is proved for replace-one only, not for {relation}")
    # All rows are no sample: the plain Gaussian says the same.
    return SubsetGaussian(noise_multiplier, size, batch) if batch < size else Gaussian(noise_multiplier, relation)
