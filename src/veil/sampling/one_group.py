"""One group at a time: a public lottery picks a group, then only its rows are sampled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from veil.foundation.randomness import Seed
from veil.problem.strata import Rows
from veil.sampling.poisson import PoissonSampler
from veil.sampling.subset import SubsetSampler


@dataclass(frozen=True, eq=False)
class OneGroupSampler:
    """Group g is chosen with public probability λ_g; then `within` draws from the strata of that group only.

    `within` is a Poisson or a subset sampler. `groups` gives the group of each stratum (a group may be cut into
    strata by owner); by default each stratum is a group. Which group was chosen is public: `chosen`.

    Args:
        within: Draws rows of the chosen group.
        probabilities: λ of each group.
        groups: Number of the group of each stratum.

    >>> from veil.problem.strata import Strata
    >>> within = SubsetSampler(Strata.from_labels(["a", "a", "b", "b"]), counts=(1, 2))
    >>> sampler = OneGroupSampler(within, probabilities=(0.0, 1.0))
    >>> sampler.chosen(Seed.from_int(0), step=0), sampler.draw(Seed.from_int(0), step=0)
    (1, array([2, 3]))
    """

    private: ClassVar[bool] = True

    within: PoissonSampler | SubsetSampler
    probabilities: Sequence[float]
    groups: Sequence[int] = ()

    def __post_init__(self) -> None:
        strata = len(self.within.strata.members)
        groups = tuple(int(group) for group in self.groups) or tuple(range(strata))
        probabilities = tuple(float(value) for value in self.probabilities)
        if len(groups) != strata:
            raise ValueError(f"{len(groups)} group numbers were given for {strata} strata")
        if set(groups) != set(range(len(probabilities))):
            raise ValueError(f"{len(probabilities)} probabilities do not match groups {sorted(set(groups))}")
        if not all(0.0 <= value <= 1.0 for value in probabilities) or abs(math.fsum(probabilities) - 1.0) > 1e-9:
            raise ValueError(f"probabilities {probabilities} must be between 0 and 1 and sum to 1")
        object.__setattr__(self, "groups", groups)
        object.__setattr__(self, "probabilities", probabilities)

    def chosen(self, seed: Seed, step: int) -> int:
        """The group that this step draws from (public).

        Args:
            seed: The secret seed of the run.
            step: Number of the step, from 0.

        Returns:
            Number of the group.
        """
        cumulative = np.cumsum(self.probabilities)
        place = seed.generator("sampling/one-group/" + self.within.purpose, step).random() * cumulative[-1]
        index = int(np.searchsorted(cumulative, place, side="right"))
        # A product rounded up to the total falls past the end: it belongs to the last group that can be chosen.
        return min(index, int(np.flatnonzero(self.probabilities)[-1]))

    def draw(self, seed: Seed, step: int) -> Rows:
        """Row ids of the batch, ascending, all of the chosen group.

        Args:
            seed: The secret seed of the run.
            step: Number of the step, from 0.

        Returns:
            Row numbers; the same for the same seed and step.
        """
        strata = self.strata_of(self.chosen(seed, step))
        return self.within.strata.rows_of((self.within.slots(seed, step, index) for index in strata), strata)

    def strata_of(self, group: int) -> tuple[int, ...]:
        """The strata that make up a group.

        Args:
            group: Number of the group.

        Returns:
            Numbers of its strata.
        """
        return tuple(index for index, own in enumerate(self.groups) if own == group)

    def rate_of(self, stratum: int) -> float:
        """The chance that a row of this stratum takes part in a step that chose its group.

        Args:
            stratum: Number of the stratum.

        Returns:
            A probability between 0 and 1.
        """
        return self.within.rate_of(stratum)

    def expected_of(self, group: int) -> float:
        """The public expected batch size of a step that chose this group: its divisor.

        Args:
            group: Number of the group.

        Returns:
            A number of rows, not always whole.
        """
        return math.fsum(self.within.expected_of(index) for index in self.strata_of(group))

    def expected_batch(self) -> float:
        """The public expected batch size over the lottery.

        Returns:
            A number of rows, not always whole.
        """
        return math.fsum(chance * self.expected_of(group) for group, chance in enumerate(self.probabilities))
