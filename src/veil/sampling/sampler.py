"""Sampler: the interface for drawing batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from veil.foundation.randomness import Seed
from veil.problem.strata import Rows, Strata


class Sampler(Protocol):
    """Which rows take part in a step: a pure function of the seed, the step and public constants."""

    @property
    def private(self) -> bool:
        """Whether the ledger knows how to charge for it."""
        ...

    def draw(self, seed: Seed, step: int) -> Rows:
        """Row ids of the batch, ascending.

        Args:
            seed: The secret seed of the run.
            step: Number of the step, from 0.

        Returns:
            Row numbers; the same for the same seed and step.
        """
        ...

    def expected_batch(self) -> float:
        """The public expected batch size: the divisor of a sum over the batch.

        Returns:
            A number of rows, not always whole.
        """
        ...


def per_stratum(strata: Strata, values: Sequence[float], what: str) -> tuple[float, ...]:
    """`values` as a tuple of floats, checked to have one for each stratum."""
    if len(values) != len(strata.members):
        raise ValueError(f"{len(values)} {what} were given for {len(strata.members)} strata")
    return tuple(float(value) for value in values)
