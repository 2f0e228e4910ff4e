"""Rows ahead: the rows of coming steps drawn together with those of this one, which changes none of them."""

from __future__ import annotations

from veil.foundation.randomness import Seed
from veil.problem.strata import Rows
from veil.sampling.sampler import Sampler

_MOST_STEPS = 16
# Row ids that are kept for coming steps.
_MOST_ROWS = 1 << 18


class RowsAhead:
    """The rows of a run that goes through its steps in order: what the sampler would draw at every step.

    Drawing is a pure function of seed and step. Several draws at once find their code in the caches, out of which the
    gradients of every step push it. Each block is twice as long as the one before, as a sampler may change.

    Args:
        seed: The secret seed of the run.

    >>> from veil.problem import Strata
    >>> from veil.sampling import PoissonSampler
    >>> sampler, seed = PoissonSampler.uniform(Strata.of_size(100), 0.1), Seed.from_int(0)
    >>> ahead = RowsAhead(seed)
    >>> all((ahead.draw(sampler, step) == sampler.draw(seed, step)).all() for step in range(20))
    True
    """

    def __init__(self, seed: Seed) -> None:
        self._seed = seed
        # What drew them, the step of the first, and the rows: put in place as one, so that no interrupt parts them.
        self._kept: tuple[Sampler | None, int, list[Rows]] = (None, 0, [])

    def draw(self, sampler: Sampler, step: int) -> Rows:
        """The rows of a step, by a sampler that must not change while it is used.

        Args:
            sampler: What draws the rows.
            step: Number of the step, from 0.

        Returns:
            Row numbers, the same as without drawing ahead.
        """
        owner, first, drawn = self._kept
        place = step - first
        if sampler is not owner or not 0 <= place < len(drawn):
            follows = sampler is owner and place == len(drawn)
            most = min(_MOST_STEPS, int(_MOST_ROWS / max(1.0, sampler.expected_batch())))
            count = max(1, min(2 * len(drawn), most)) if follows else 1
            drawn = [sampler.draw(self._seed, coming) for coming in range(step, step + count)]
            self._kept, place = (sampler, step, drawn), 0
        return drawn[place]
