"""Release: sampling, bound and noise of one step in one object, from which the ledger's cost is computed.

Nothing stores a clip or a sigma twice. `GradientRelease.events` reads the very limits, rates and standard deviations
that `GradientRelease.make` applies, so the ledger records what happens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veil.accounting.events import (
    AccountingError,
    Event,
    Gaussian,
    PoissonGaussian,
    Relation,
    joint_noise_multiplier,
)
from veil.bounding import Bound, Clip, check_row_local, looks_at_one_row
from veil.errors import require
from veil.foundation.randomness import Seed
from veil.gradients import GradientEngine, GradientSum, PerRow, Weigh
from veil.noise import GaussianNoise
from veil.problem import Problem, PublicFacts, Strata
from veil.sampling import OneGroupSampler, PoissonSampler, Sampler
from veil.sampling.draws import Draw, OneGroup


@dataclass(frozen=True)
class Statistic:
    """A further value from the same sample: Σ over rows of `measure`, each row's vector at most `limit` long.

    Noise of standard deviation `sigma` is added, and it is charged jointly with the gradient. `measure` may look at
    each row's norm, loss and cell.

    Args:
        name: Its name in the history.
        measure: Returns one vector per row.
        limit: The largest length of a row's vector, above 0.
        sigma: Standard deviation of the noise.
        due: Whether this step releases it. Where not, it is charged all the same: steps with and without it cost
            the same.

    >>> long = Statistic("long rows", lambda per_row, cells: (per_row.norms > 1).float(), limit=1.0, sigma=5.0)
    >>> long.name, long.limit
    ('long rows', 1.0)
    """

    name: str
    measure: Callable[[PerRow, Tensor], Tensor]
    limit: float
    sigma: float
    due: bool = True


@dataclass(frozen=True)
class Released:
    """The released values: the noisy sum of gradients and statistics. `view` is private and not stored.

    Args:
        total: The noisy sum of gradients by parameter.
        divisor: The public number that makes it a mean.
        statistics: Further released values by name.
        view: The private values of the step.
    """

    total: dict[str, Tensor]
    divisor: float
    statistics: dict[str, NDArray[np.float64]]
    view: PrivateView = field(repr=False)

    @property
    def gradient(self) -> dict[str, Tensor]:
        """The noisy mean gradient by parameter."""
        return {name: value / self.divisor for name, value in self.total.items()}


@dataclass(frozen=True)
class PrivateView:
    """The private values of a step: only for callbacks that are marked as not covered.

    Args:
        rows: Row numbers of the batch.
        cell_of: Number of the cell of every row of the table.
        per_row: Gradient norm and loss of each row.
        weights: The factor of each row.
    """

    rows: NDArray[np.int64]
    cell_of: NDArray[np.int64]
    per_row: PerRow
    weights: Tensor

    @cached_property
    def cells(self) -> Tensor:
        """Number of the cell of each row of the batch."""
        return torch.from_numpy(self.cell_of[self.rows])


@dataclass(frozen=True)
class GradientRelease:
    """One step: draw rows, bound each, add noise of standard deviation `sigma` once, divide by the public `divisor`.

    Without a divisor it is the expected batch of the group that a public lottery chose (`OneGroup`). `relation` is None
    for methods that are not private; then nothing is charged and nothing may be.

    Args:
        draw: Which rows take part.
        bound: How much each of them can move the sum.
        sigma: Standard deviation of the noise.
        divisor: Public number that the sum is divided by.
        relation: The neighbouring relation.
        statistics: Further values from the same rows.

    >>> from veil.bounding import Clip
    >>> from veil.problem import Cell
    >>> from veil.sampling.draws import Poisson
    >>> facts = PublicFacts(("all",), ("everybody",), (Cell(0, 0, 1000),), (1,))
    >>> step = GradientRelease(Poisson((0.01,)), Clip((2.0,)), sigma=3.0, divisor=10.0, relation=Relation.ADD_REMOVE)
    >>> step.events(facts)  # noise over bound: 3 / 2
    {0: PoissonGaussian(noise_multiplier=1.5, rate=0.01, relation=<Relation.ADD_REMOVE: 'add-remove'>)}
    """

    draw: Draw
    bound: Bound
    sigma: float
    divisor: float | None
    relation: Relation | None
    statistics: tuple[Statistic, ...] = ()

    def noise_multiplier(self, cell: int) -> float | None:
        """σ_eff of a cell: noise over bound, of gradient and statistics together; None if all is bounded to 0.

        Args:
            cell: Number of the cell.

        Returns:
            Standard deviation of the noise over the bound, or None.
        """
        limit = self.bound.limits[cell]
        multipliers = [self.sigma / limit] if limit > 0 else []
        multipliers += [statistic.sigma / statistic.limit for statistic in self.statistics]
        return joint_noise_multiplier(*multipliers) if multipliers else None

    def update_noise(self, facts: PublicFacts) -> float:
        """Standard deviation of the noise in every coordinate of an update.

        Args:
            facts: What is public about the rows.

        Returns:
            Noise over divisor; where a lottery picks the group, and with it the divisor, the root mean square.
        """
        if self.divisor is not None:
            return self.sigma / self.divisor
        assert isinstance(self.draw, OneGroup), "only a lottery has an undetermined divisor"
        batches = zip(self.draw.probabilities, self.draw.batches(facts), strict=True)
        # A group without declared rows has no noise to speak of: nothing of it is ever drawn.
        return self.sigma * math.sqrt(sum(chance / rows**2 for chance, rows in batches if rows > 0))

    def check_rows(self, cells: int) -> None:
        """Reject a bound or a statistic that depends on other rows: its cost would be higher than charged.

        Args:
            cells: How many cells there are.

        Raises:
            InputError: The weight of a row, or its value in a statistic, depends on other rows.
        """
        check_row_local(self.bound, cells)
        for statistic in self.statistics:
            require(
                looks_at_one_row(statistic.measure, cells),
                f'the statistic "{statistic.name}" computes the value of a row from other rows, so one row can exceed '
                "its bound: make the value of a row depend on that row alone",
            )

    def events(self, facts: PublicFacts) -> dict[int, Event]:
        """What each cell is charged for this step, computed from what `make` applies.

        Args:
            facts: What is public about the rows.

        Returns:
            One event for each cell that takes part.

        Raises:
            AccountingError: The method is not private.
        """
        if self.relation is None:
            raise AccountingError("this release belongs to a method that is not private, which has no cost to reserve")
        charges: dict[int, Event] = {}
        for cell in range(len(facts.cells)):
            multiplier = self.noise_multiplier(cell)
            event = None if multiplier is None else self.draw.event(cell, multiplier, self.relation, facts)
            if event is not None:
                charges[cell] = event
        return charges

    def make(
        self,
        engine: GradientEngine,
        problem: Problem,
        sampler: Sampler,
        seed: Seed,
        step: int,
        noise: GaussianNoise,
    ) -> Released:
        """Touch the rows: draw, sum within the bound, add noise. The caller has reserved `events` before.

        Args:
            engine: Computes gradients row by row.
            problem: The private rows.
            sampler: Draws the batch.
            seed: The secret seed of the run.
            step: Number of the step, from 0.
            noise: Source of the noise.

        Returns:
            The noisy gradient and statistics.
        """
        rows = sampler.draw(seed, step)
        result = self.bounded_sum(engine, problem, rows)
        return self.complete(result, problem, rows, sampler, seed, step, noise)

    def bounded_sum(self, engine: GradientEngine, problem: Problem, rows: NDArray[np.int64]) -> GradientSum:
        """The sum of drawn rows' gradients, each within its limit; it is private until `complete` adds the noise.

        Args:
            engine: Computes gradients row by row.
            problem: The private rows.
            rows: Row numbers of the batch.

        Returns:
            The sum, without noise.
        """
        pieces = problem.alike(rows) if self.bound.row_local else []
        if len(pieces) > 1:
            return _joined([self._bounded(engine, problem, rows[piece]) for piece in pieces], np.concatenate(pieces))
        return self._bounded(engine, problem, rows)

    def _bounded(self, engine: GradientEngine, problem: Problem, rows: NDArray[np.int64]) -> GradientSum:
        weigh = self.weigh(problem, rows)
        if self.bound.needs_norms or self.relation is not None or len(rows) == 0:
            return engine.weighted_sum(problem.batch(rows), weigh, rows=len(rows))
        return _sum_without_norms(engine, problem.batch(rows), weigh)

    def weigh(self, problem: Problem, rows: NDArray[np.int64]) -> Weigh:
        """The weights of drawn rows within their limits, as the gradient engine wants them.

        Args:
            problem: The private rows.
            rows: Row numbers of the batch.

        Returns:
            A function from norms and losses to one weight for each row.
        """
        return _Weigh(self.bound, problem, rows)

    def complete(
        self,
        result: GradientSum,
        problem: Problem,
        rows: NDArray[np.int64],
        sampler: Sampler,
        seed: Seed,
        step: int,
        noise: GaussianNoise,
    ) -> Released:
        """Noise, once, on the bounded sum and on the statistics of the same rows.

        Args:
            result: What `bounded_sum` returned.
            problem: The private rows.
            rows: Row numbers of the batch.
            sampler: What drew the batch; it knows the public divisor.
            seed: The secret seed of the run.
            step: Number of the step, from 0.
            noise: Source of the noise.

        Returns:
            The noisy gradient and statistics.
        """
        view = PrivateView(rows, problem.cell_of, on_cpu(result.per_row), result.weights.cpu())
        total = noise.add(step, result.sums[0], self.sigma, "gradient")
        due = [one for one in self.statistics if one.due]
        statistics = {one.name: self._statistic(one, view.per_row, view.cells, step, noise) for one in due}
        return Released(total, self._divisor(sampler, seed, step), statistics, view)

    def _divisor(self, sampler: Sampler, seed: Seed, step: int) -> float:
        if self.divisor is not None:
            return self.divisor
        assert isinstance(sampler, OneGroupSampler), "only a lottery has an undetermined divisor"
        return sampler.expected_of(sampler.chosen(seed, step))

    def _statistic(
        self, statistic: Statistic, per_row: PerRow, cells: Tensor, step: int, noise: GaussianNoise
    ) -> NDArray[np.float64]:
        values = statistic.measure(per_row, cells).to(torch.float64)
        lengths = torch.linalg.vector_norm(values, dim=1)
        scales = torch.clamp(statistic.limit / lengths.clamp_min(1e-300), max=1.0) * per_row.finite
        total = scales @ values
        if not bool(torch.isfinite(total).all()):
            # Some row is not finite: such rows count as 0, and the others as before.
            bounded = values * scales[:, None]
            total = torch.where(torch.isfinite(bounded), bounded, 0.0).sum(dim=0)
        noisy = noise.add(step, {statistic.name: total}, statistic.sigma, "statistic")[statistic.name]
        return noisy.to(torch.float64).numpy()


def _joined(parts: Sequence[GradientSum], places: NDArray[np.int64]) -> GradientSum:
    """One sum of several; `places` are those of their rows, one part after another, in the whole."""
    back = torch.from_numpy(np.argsort(places))
    sums = [
        {name: sum((part.sums[i][name] for part in parts[1:]), own) for name, own in first.items()}
        for i, first in enumerate(parts[0].sums)
    ]
    of_rows = [part.per_row for part in parts]
    per_row = PerRow(
        *(torch.cat([getattr(one, name) for one in of_rows])[back] for name in ("losses", "norms", "finite"))
    )
    return GradientSum(sums, per_row, torch.cat([part.weights for part in parts], -1)[..., back])


def _sum_without_norms(engine: GradientEngine, batch: tuple[Tensor, Tensor], weigh: Weigh) -> GradientSum:
    """Σ wᵢ gᵢ by one ordinary backward pass, for methods that bound no row. Norms are left at 0."""
    parameters = {name: p for name, p in engine.model.named_parameters() if p.requires_grad}
    losses = engine.loss(engine.model, batch)
    finite = torch.isfinite(losses.detach())
    per_row = PerRow(torch.where(finite, losses.detach(), 0.0), torch.zeros_like(losses), finite)
    weights = weigh(per_row) * finite
    total = (torch.where(finite, losses, 0.0) * weights).sum()
    gradients = torch.autograd.grad(total, list(parameters.values()), allow_unused=True)
    sums = {n: torch.zeros_like(p) if g is None else g for (n, p), g in zip(parameters.items(), gradients, strict=True)}
    return GradientSum([sums], per_row, weights)


NORM_ERROR = 1e-4
NORM_FLOOR = 1e-12
_PRECISE = (torch.float32, torch.float64)


class _Weigh:
    """The bound as the engine wants it: norms and losses of consecutive rows in, weights within the limits out."""

    def __init__(self, bound: Bound, problem: Problem, rows: NDArray[np.int64]) -> None:
        self.row_local = bound.row_local
        self._bound, self._cell_of, self._rows, self._seen = bound, problem.cell_of, rows, 0
        self._shares = None if problem.weights is None else torch.from_numpy(problem.weights[rows])

    def __call__(self, per_row: PerRow) -> Tensor:
        norms = per_row.norms
        rows = slice(self._seen, self._seen + norms.shape[0])
        self._seen = rows.stop
        # A number per row is weighed on the CPU, wherever the gradients are.
        per_row = on_cpu(per_row)
        weights = self._clipped(per_row, rows) if type(self._bound) is Clip else self._weights(per_row, rows)
        if self._shares is not None:  # in [0, 1]: what is within its limit stays so
            weights = weights * self._shares[rows].to(weights.dtype)
        return weights if norms.is_cpu else weights.to(norms.device)

    def _weights(self, per_row: PerRow, rows: slice) -> Tensor:
        weights = self._bound.weights(per_row, self._cells(rows))
        if self.row_local:
            return _within(weights, self._ceilings(per_row, rows).to(weights.dtype))
        return weights * (1 - NORM_ERROR) if self._bound.needs_norms else weights

    def _clipped(self, per_row: PerRow, rows: slice) -> Tensor:
        """The same for a clip, in half of the operations: no row above its limit and none longer than it was."""
        return self._ceilings(per_row, rows).to(per_row.norms.dtype).clamp_max_(1.0)

    def _ceilings(self, per_row: PerRow, rows: slice) -> Tensor:
        norms = per_row.norms if per_row.norms.dtype in _PRECISE else per_row.norms.to(torch.float32)
        lowered, alike = _lowered(tuple(self._bound.limits), norms.dtype)
        return (lowered if alike else lowered.index_select(0, self._cells(rows))).div(norms + NORM_FLOOR)

    def _cells(self, rows: slice) -> Tensor:
        return torch.from_numpy(self._cell_of[self._rows[rows]])


@lru_cache(maxsize=32)
def _lowered(limits: tuple[float, ...], dtype: torch.dtype) -> tuple[Tensor, bool]:
    """What rows of each cell are held to; one number, and True, if it is the same for all."""
    lowered, alike = torch.tensor(limits, dtype=dtype) * (1 - NORM_ERROR), len(set(limits)) == 1
    return (lowered[:1] if alike else lowered), alike


def on_cpu(per_row: PerRow) -> PerRow:
    """The same numbers, where bounds, statistics and callbacks look at them."""
    if per_row.norms.is_cpu:
        return per_row
    return PerRow(per_row.losses.cpu(), per_row.norms.cpu(), per_row.finite.cpu())


def clamp_to_limits(weights: Tensor, norms: Tensor, limits: Tensor) -> Tensor:
    """The weights, lowered where a row would exceed its limit: the guarantee holds even if a bound is wrong.

    Norms in single precision are right to a part in ten thousand and to `NORM_FLOOR` at worst, so every row stays that
    much below: the square of a slope of 1e-23 is 0.

    Args:
        weights: What each row's gradient would be multiplied by.
        norms: The norm of each row's gradient.
        limits: The most that each row may add to the sum.

    Returns:
        Weights that keep every row within its limit.

    >>> one = torch.ones(2)
    >>> clamp_to_limits(one, torch.tensor([0.5, 4.0]), one).round(decimals=2)
    tensor([1.0000, 0.2500])
    """
    lowered = limits * (1 - NORM_ERROR)
    return _within(weights, torch.div(lowered, norms.to(limits.dtype) + NORM_FLOOR).to(weights.dtype))


def _within(weights: Tensor, ceilings: Tensor) -> Tensor:
    return torch.clamp(weights, -ceilings, ceilings)


@dataclass(frozen=True)
class LossRelease:
    """Σ over rows of each group's loss, bounded to [0, ζ], plus Gaussian noise τ: how hard each group is now.

    `rate` is the Poisson rate (1: every row). A row is in one group, so the vector of group sums moves by at most ζ
    when a row comes or goes, and when it is replaced within its group; `one_sided=False` charges 2ζ nevertheless.

    Args:
        purpose: What the release is for; samples and noise of different purposes are independent.
        ceiling: ζ, the largest loss that counts.
        tau: Standard deviation of the noise.
        relation: The neighbouring relation.
        rate: Probability that a row takes part, above 0 and at most 1.
        one_sided: Whether replacing a row is charged one ζ, not two.

    >>> from veil.problem import Cell
    >>> facts = PublicFacts(("all",), ("everybody",), (Cell(0, 0, 1000),), (1,))
    >>> LossRelease("losses", ceiling=2.0, tau=6.0, relation=Relation.ADD_REMOVE).events(facts)
    {0: Gaussian(noise_multiplier=3.0, relation=<Relation.ADD_REMOVE: 'add-remove'>, one_sided=True)}
    """

    summed: ClassVar[str] = "losses"

    purpose: str
    ceiling: float
    tau: float
    relation: Relation
    rate: float = 1.0
    one_sided: bool = True

    def event(self) -> Event:
        """What it costs a row. A sampled one is charged the full distance of two rows under replace-one.

        Returns:
            The cost of one release.
        """
        multiplier = self.tau / self.ceiling
        if self.rate == 1.0:
            return Gaussian(multiplier, self.relation, one_sided=self.one_sided)
        return PoissonGaussian(multiplier, self.rate, self.relation)

    def events(self, facts: PublicFacts) -> dict[int, Event]:
        """The same for every cell.

        Args:
            facts: What is public about the rows.

        Returns:
            One event for each cell.
        """
        return dict.fromkeys(range(len(facts.cells)), self.event())

    def make(
        self,
        losses: Callable[[NDArray[np.int64]], Tensor],
        problem: Problem,
        seed: Seed,
        step: int,
        noise: GaussianNoise,
        strata: Strata | None = None,
    ) -> NDArray[np.float64]:
        """One value per group, from noisy sums. `losses` gives the loss of each row.

        Args:
            losses: Given row numbers, returns the loss of each.
            problem: The private rows.
            seed: The secret seed of the run.
            step: Number of the step, from 0.
            noise: Source of the noise.
            strata: `problem.strata()`, where the caller has them: to make them looks at every row.

        Returns:
            The noisy mean loss of each group.
        """
        strata = problem.strata() if strata is None else strata
        # A purpose of its own: this sample is independent of the gradient's sample.
        rows = PoissonSampler.uniform(strata, self.rate, self.purpose).draw(seed, step)
        sums = self.sums(losses(rows), problem, rows)
        noisy = noise.add(step, {self.summed: sums}, self.tau, self.purpose)[self.summed]
        return self.said(np.asarray(noisy.numpy()), problem.public)

    def sums(self, losses: Tensor, problem: Problem, rows: NDArray[np.int64]) -> Tensor:
        """The bounded losses of each group's rows, summed: private until noise is added.

        Args:
            losses: Loss of each drawn row; one that is not a number counts as 0.
            problem: The private rows.
            rows: Row numbers of the drawn rows.

        Returns:
            One sum for each group, without noise.
        """
        values = torch.nan_to_num(losses.to(torch.float64), nan=0.0, posinf=self.ceiling).clamp(0.0, self.ceiling)
        # Of the drawn rows alone: `group_of` is that of every row.
        of_cell = np.array([cell.group for cell in problem.public.cells], dtype=np.int64)
        groups = torch.from_numpy(of_cell[problem.cell_of[rows]])
        return torch.zeros(len(problem.public.groups), dtype=torch.float64).index_add_(0, groups, values)

    def said(self, noisy: NDArray[np.float64], facts: PublicFacts) -> NDArray[np.float64]:
        """The mean loss per group over the declared group sizes.

        Args:
            noisy: One noisy sum for each group.
            facts: What is public about the rows.

        Returns:
            One mean loss for each group; it may be negative.
        """
        return np.asarray(noisy / (np.array(facts.group_sizes, dtype=np.float64) * self.rate))

    def variances(self, facts: PublicFacts) -> NDArray[np.float64]:
        """How much each group's value wavers, in public constants: by noise, and by which rows were drawn at most.

        Args:
            facts: What is public about the rows.

        Returns:
            An upper bound on the variance of each group's value.
        """
        sizes = np.array(facts.group_sizes, dtype=np.float64)
        drawn = self.ceiling**2 * (1.0 - self.rate) / (self.rate * sizes)
        return np.asarray((self.tau / (sizes * self.rate)) ** 2 + drawn)


SideRelease = LossRelease
