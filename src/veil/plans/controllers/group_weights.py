"""Group weights: exponential weights on released group losses, and batch sizes from weights.

Released losses carry Gaussian noise of known size, larger for smaller groups. Their sum over the releases is used as it
is, never clipped to the range of a loss: that would push groups with much noise towards its middle. It is shrunk
towards the mean of the groups by its known noise instead, which is post-processing and treats both signs alike, so
that groups with equal losses keep equal weights up to what their real differences, not their noise, can explain.
"""

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
    steps: int
    latest: Latest = field(default_factory=Latest, compare=False, repr=False)

    def unheard(self) -> dict[str, NDArray[np.float64]]:
        """Before the first release: every group weighs the same."""
        groups = len(self.facts.groups)
        nothing = np.zeros(groups)
        return {
            "weights": np.full(groups, 1.0 / groups),
            "losses": nothing,
            "loss_sums": nothing,
            "releases": np.zeros(1),
        }

    def heard(self, state: State, values: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        """λ_g ∝ exp(η·S_g): S_g is what the group's released losses sum to, shrunk by its known noise."""
        sums, releases = state["loss_sums"] + values, state["releases"] + 1
        totals = shrunk(sums, releases * self.losses.variances(self.facts))
        weights = exponential_weights(totals, self.step_size)
        return {"weights": weights, "losses": np.asarray(values), "loss_sums": sums, "releases": releases}

    def steady(self, state: State, step: int) -> int:
        """Until the next loss release."""
        return self.every - step % self.every

    def observe(self, state: State, step: int, statistics: Mapping[str, NDArray[np.float64]]) -> State:
        """Gradients come without statistics."""
        return state

    def side_release(self, state: State, step: int) -> SideRelease | None:
        """The losses of all groups, every k steps but for the last: no step would use it."""
        return self.losses if (step + 1) % self.every == 0 and step + 1 < self.steps else None


def reweigh(weights: NDArray[np.float64], losses: NDArray[np.float64], step_size: float) -> NDArray[np.float64]:
    """λ_g ∝ λ_g·exp(η·L_g), never below `FLOOR`/G: a group that was given up could never come back.

    >>> reweigh(np.array([0.5, 0.5]), np.array([0.0, np.log(3.0)]), 1.0).round(3)
    array([0.25, 0.75])
    """
    return exponential_weights(np.log(weights) + step_size * losses, 1.0)


def exponential_weights(totals: NDArray[np.float64], step_size: float) -> NDArray[np.float64]:
    """exp(η·S_g), normalised, never below `FLOOR`/G.

    >>> exponential_weights(np.array([0.0, np.log(3.0)]), 1.0).round(3)
    array([0.25, 0.75])
    """
    raised = np.exp(step_size * (totals - totals.max()))
    shares = raised / raised.sum()
    floored = np.maximum(shares, FLOOR / len(shares))
    return np.asarray(floored / floored.sum())


def shrunk(values: NDArray[np.float64], variances: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values moved towards their common mean, each by its known noise (empirical Bayes, random effects).

    A is the variance between the true values at which the spread that is seen is the spread that is expected (Paule &
    Mandel): Σ (x_g − μ)²/(v_g + A) = G − 1, or 0 if noise alone explains it. The result is μ + A/(A + v_g)·(x_g − μ).

    >>> shrunk(np.array([0.0, 4.0]), np.array([1.0, 1.0])).round(3)
    array([0.25, 3.75])
    >>> shrunk(np.array([0.0, 1.0]), np.array([1.0, 1.0])).round(3)
    array([0.5, 0.5])
    """

    def mean_and_spread(between: float) -> tuple[float, float]:
        precision = 1.0 / (variances + between)
        mean = float(precision @ values / precision.sum())
        return mean, float(precision @ np.square(values - mean))

    wanted = len(values) - 1
    low, high = 0.0, 0.0
    if mean_and_spread(0.0)[1] > wanted:
        high = float(np.square(values - values.mean()).sum()) or 1.0
        while mean_and_spread(high)[1] > wanted:
            low, high = high, 2 * high
        while high - low > 1e-9 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if mean_and_spread(middle)[1] > wanted else (low, middle)
    mean, _ = mean_and_spread(high)
    return np.asarray(mean + high / (high + variances) * (values - mean))


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

    >>> int(rounded(np.array([2.5, 3.5, 4.0]), np.array([9, 9, 9]), np.random.default_rng(0)).sum())
    10
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
