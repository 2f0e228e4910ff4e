"""Group weights: exponential weights on released group losses, and batch sizes from weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from veil.accounting import Relation
from veil.foundation.randomness import Seed
from veil.plans.controllers.protocol import Latest, State
from veil.problem import PublicFacts
from veil.releases import LossRelease, SideRelease

FLOOR = 1e-3


@dataclass(frozen=True, kw_only=True)
class LossDriven:
    """Base of controllers whose state changes only with a release of the group losses, every `every` steps."""

    facts: PublicFacts
    losses: LossRelease
    relation: Relation
    every: int
    sigma: float
    step_size: float
    latest: Latest = field(default_factory=Latest, compare=False, repr=False)

    def steady(self, state: State, step: int) -> int:
        """Until the next loss release."""
        return self.every - step % self.every

    def observe(self, state: State, step: int, statistics: Mapping[str, NDArray[np.float64]]) -> State:
        """Gradients come without statistics."""
        return state

    def side_release(self, state: State, step: int) -> SideRelease | None:
        """The losses of all groups, every k steps."""
        return self.losses if (step + 1) % self.every == 0 else None


def reweigh(weights: NDArray[np.float64], losses: NDArray[np.float64], step_size: float) -> NDArray[np.float64]:
    """λ_g ∝ λ_g·exp(η·L_g), never below `FLOOR`/G: a group that was given up could never come back.

    >>> reweigh(np.array([0.5, 0.5]), np.array([0.0, np.log(3.0)]), 1.0).round(3)
    array([0.25, 0.75])
    """
    logits = np.log(weights) + step_size * losses
    raised = np.exp(logits - logits.max())
    shares = raised / raised.sum()
    floored = np.maximum(shares, FLOOR / len(shares))
    return np.asarray(floored / floored.sum())


def shares_within(weights: NDArray[np.float64], batch: float, ceilings: NDArray[np.float64]) -> NDArray[np.float64]:
    """batch·λ_g, at most `ceilings`; what a small group cannot take goes to the others in proportion.

    >>> shares_within(np.array([0.8, 0.1, 0.1]), 10.0, np.array([4.0, 100.0, 100.0]))
    array([4., 3., 3.])
    """
    shares = np.zeros(len(weights))
    open_groups = np.ones(len(weights), dtype=bool)
    left = min(batch, float(ceilings.sum()))
    while left > 1e-12 and open_groups.any():
        given = left * weights[open_groups] / weights[open_groups].sum()
        room = (ceilings - shares)[open_groups]
        shares[open_groups] += np.minimum(given, room)
        left -= float(np.minimum(given, room).sum())
        full = np.flatnonzero(open_groups)[given >= room]
        if len(full) == 0:
            break
        open_groups[full] = False
    return shares


def rounded(
    shares: NDArray[np.float64], ceilings: NDArray[np.int64], generator: np.random.Generator
) -> NDArray[np.int64]:
    """Whole numbers near `shares` with the same (rounded) sum: bankers' rounding, the rest placed at random.

    As in appendix B of the ASC paper: what is missing is given to random groups (that have rows left), what is too
    much is taken from random groups that are not at 0.

    >>> rounded(np.array([2.5, 3.5, 4.0]), np.array([9, 9, 9]), np.random.default_rng(0)).sum()
    np.int64(10)
    """
    total = int(min(round(float(shares.sum())), int(ceilings.sum())))
    counts = np.minimum(np.rint(shares).astype(np.int64), ceilings)
    while counts.sum() != total:
        missing = counts.sum() < total
        candidates = np.flatnonzero(counts < ceilings) if missing else np.flatnonzero(counts > 0)
        counts[generator.choice(candidates)] += 1 if missing else -1
    return counts


def rounding_generator(step: int) -> np.random.Generator:
    """Public randomness for rounding: it needs no secret, and the same step rounds alike."""
    return Seed.from_int(0).generator("rounding", step)
