"""FDPG's controller: groups whose gradients are cut most are drawn more often, as far as budgets allow.

Signals are ratios of noisy sums. Each is shrunk towards the mean of the groups by its known noise, so that groups
with equal norms keep equal rates, and nothing is cut off after the noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veil.accounting import Relation, RenyiFilter
from veil.accounting.rdp import cost_at
from veil.bounding import Bound
from veil.gradients import PerRow
from veil.plans.controllers.group_weights import FLOOR, reweigh, shares_within, shrunk
from veil.plans.controllers.parity import ParityRelease
from veil.plans.controllers.protocol import Latest, State
from veil.problem import PublicFacts
from veil.releases import GradientRelease, SideRelease, Statistic
from veil.sampling.draws import Poisson, PoissonUpTo

# Rates are kept this far inside a budget, so that rounding never makes a filter refuse.
MARGIN = 1e-9


@dataclass(frozen=True)
class ClippedNorm:
    """The paper's signal: the mean norm of the rows longer than `floor`, norms above β counted as β."""

    floor: float
    ceiling: float

    @property
    def scale(self) -> float:
        """What the ratio of the two sums is multiplied by."""
        return self.ceiling

    @property
    def least(self) -> float:
        """No group has a smaller signal."""
        return self.floor

    def parts(self, norms: Tensor) -> tuple[Tensor, Tensor]:
        """min(‖g‖/β, 1) and 1 for a row longer than the floor, else 0 and 0."""
        long = (norms > self.floor).to(torch.float64)
        return torch.clamp(norms / self.ceiling, max=1.0) * long, long


@dataclass(frozen=True)
class LostLength:
    """How many times longer a group's gradients are than what bounding leaves of them; norms above β count as β.

    A group that is drawn so many times as often has the share of an update, by length, that it would have without a
    bound. Where no row is clipped it is 1 for every group. `gamma` is that of normalised gradients, 0 for clipped ones.
    """

    clip: float
    ceiling: float
    gamma: float

    @property
    def scale(self) -> float:
        """What the ratio of the two sums is multiplied by."""
        return self.ceiling / self.clip

    @property
    def least(self) -> float:
        """No group has a smaller signal."""
        return 0.0 if self.gamma else 1.0

    def parts(self, norms: Tensor) -> tuple[Tensor, Tensor]:
        """min(‖g‖/β, 1), and the bounded length over C."""
        left = norms / (norms + self.gamma) if self.gamma else torch.clamp(norms / self.clip, max=1.0)
        return torch.clamp(norms / self.ceiling, max=1.0), left


@dataclass(frozen=True)
class NormStatistic:
    """Two sums per group, over parts of its rows in [0, 1], whose ratio is the signal. A row moves it by √2 at most."""

    group_of_cell: tuple[int, ...]
    groups: int
    signal: ClippedNorm | LostLength
    sigma: float

    def statistic(self) -> Statistic:
        """As the release wants it; both values come from the gradient's own sample."""
        return Statistic("norms", self._measure, math.sqrt(2.0), self.sigma)

    def ratios(self, sums: NDArray[np.float64], noise: float) -> NDArray[np.float64]:
        """The signal per group, shrunk by its `noise`; a group whose sum drowns in it gets the mean of the others."""
        scale, least = self.signal.scale, self.signal.least
        above, below = sums.reshape(2, self.groups)
        heard = below > 2 * noise
        if not heard.any():
            return np.full(self.groups, max(least, FLOOR * scale))
        rows = np.maximum(below, noise)
        means = np.where(heard, scale * above / rows, 0.0)
        # By the noise that a ratio has at the mean of all groups and with a count one standard error lower: one that
        # noise made small must not look surer than one that noise made large. And by which rows were drawn, at most (a
        # row's own ratio lies between least and scale).
        common, sure = scale * above[heard].sum() / below[heard].sum(), np.maximum(below - noise, noise)
        wavering = (noise / sure) ** 2 * (scale**2 + common**2) + (scale - least) ** 2 / (4 * rows)
        told = shrunk(means[heard], wavering[heard])
        signal = np.full(self.groups, told.mean())
        signal[heard] = told
        return np.asarray(np.maximum(signal, FLOOR * scale))

    def lost(self, sums: NDArray[np.float64], noise: float) -> float:
        """The signal of all rows together, between the least and the most that it can be without noise.

        Where the sum drowns in its `noise` it is the least.
        """
        above, below = sums.reshape(2, self.groups).sum(axis=1)
        heard = below > 2 * noise * math.sqrt(self.groups)
        ratio = float(above / below) if heard else 0.0
        return min(max(self.signal.least, self.signal.scale * ratio), self.signal.scale)

    def _measure(self, per_row: PerRow, cells: Tensor) -> Tensor:
        parts = self.signal.parts(per_row.norms.to(torch.float64))
        values = torch.zeros(len(cells), 2 * self.groups, dtype=torch.float64)
        return values.scatter_(1, self._columns[cells], torch.stack(parts, dim=1))

    @cached_property
    def _columns(self) -> Tensor:
        """Where the two values of a row of each cell stand."""
        group = torch.tensor(self.group_of_cell)
        return torch.stack([group, self.groups + group], dim=1)


@dataclass(frozen=True)
class FairRates:
    """Rates from group weights, within the plan's p* and within what every cell's rule still admits to the end.

    Without Rényi filters every step is charged at p*, whatever the rates are, and p* alone holds them.
    """

    facts: PublicFacts
    filters: tuple[RenyiFilter, ...]
    kappa: float
    batch: float
    largest: float
    relation: Relation

    def cost(self, cell: int, rate: float) -> float:
        """One step at a rate, at the cell's order."""
        if not self.filters:
            return 0.0
        event = Poisson((rate,) * len(self.facts.cells)).event(cell, self.kappa, self.relation, self.facts)
        return 0.0 if event is None else cost_at(event, self.filters[cell].order)

    def draw(self, rates: tuple[float, ...]) -> Poisson | PoissonUpTo:
        """What a step with these rates is charged by."""
        return Poisson(rates) if self.filters else PoissonUpTo(rates, self.largest)

    def choose(
        self, weights: NDArray[np.float64], spent: NDArray[np.float64], steps: int, later: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Rates that every cell can keep up for `steps` more steps, and which groups wanted more than they got.

        `spent` is public: it follows from earlier rates. `later` is what the releases beside the gradient will cost.
        """
        cells = np.array([max(cell.rows, 1) for cell in self.facts.cells], dtype=np.float64)
        group = np.array([cell.group for cell in self.facts.cells])
        wanted = cells * weights[group]
        asked = self.batch * weights[group] / wanted.sum()
        left = [(rule.rho * (1 - MARGIN) - spent[cell] - later) / steps for cell, rule in enumerate(self.filters)]
        ceilings = np.full(len(cells), self.largest)
        if self.filters:
            ceilings = np.array([self._affordable(cell, budget) for cell, budget in enumerate(left)])
        rates = np.minimum(shares_within(wanted, self.batch, cells * ceilings) / cells, ceilings)
        short = asked > rates * (1 + 1e-9)
        return rates, np.array([float(short[group == g].any()) for g in range(len(self.facts.groups))])

    def _affordable(self, cell: int, budget: float) -> float:
        """The largest rate up to p* at which a step costs at most `budget`."""
        low, high = 0.0, self.largest
        if self.cost(cell, high) <= budget:
            return high
        while high - low > 1e-3 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if self.cost(cell, middle) <= budget else (low, middle)
        return low


@dataclass(frozen=True)
class FdpgController:
    """q_k = G̃_k/ΣG̃ once every `every` steps; rows of group k are drawn in proportion to q_k.

    With a `step_size` η_q it is q_k ← q_k·exp(η_q·G̃_k), normalised, which goes on as long as signals differ.
    With `restore_length` an update is divided by b/`length`, where `length` is the signal of all rows together: it gets
    the length back that bounding took.
    State: `weights` q, `rates` per cell, `spent` (Rényi cost reserved so far, per cell), `sums` of the noisy
    statistics, `signal` G̃ and `cap_reached` per group, `length`. All of it is public or released.
    """

    fair: FairRates
    norms: NormStatistic
    parity: ParityRelease | None
    parity_rho: float
    bound: Bound
    sigma: float
    step_size: float | None
    memory: float
    steps: int
    every: int
    restore_length: bool = False
    _latest: Latest = field(default_factory=Latest, compare=False, repr=False)

    def start(self) -> State:
        """Every row has the same rate."""
        facts, groups = self.fair.facts, len(self.fair.facts.groups)
        first = {
            "weights": np.full(groups, 1.0 / groups),
            "sums": np.zeros(2 * groups),
            "signal": np.zeros(groups),
            "spent": np.zeros(len(facts.cells)),
            "length": np.ones(1),
        }
        return self._planned(first, 0)

    def loudest(self) -> State:
        """Noise is lengthened with the updates: by as much as a signal can be."""
        longest = self.norms.signal.scale if self.restore_length else 1.0
        return {**self.start(), "length": np.array([longest])}

    def release(self, state: State, step: int) -> GradientRelease:
        """Draw by the present rates; release the statistics with the gradient unless parity decides."""
        rates, length = tuple(state["rates"].tolist()), float(state["length"][0])
        statistics = () if self.parity else (self.norms.statistic(),)
        fixed = (self.bound, self.sigma, self.fair.batch / length, self.fair.relation, statistics)
        return self._latest.of((*rates, length), lambda: GradientRelease(self.fair.draw(rates), *fixed))

    def steady(self, state: State, step: int) -> int:
        """Until the next update of the rates."""
        return self.every - step % self.every

    def observe(self, state: State, step: int, statistics: Mapping[str, NDArray[np.float64]]) -> State:
        """Sum the noisy statistics; at the end of a period, new weights and rates."""
        if self.parity is not None:
            return state
        sums = state["sums"] + statistics["norms"]
        if (step + 1) % self.every or step + 1 >= self.steps:
            return {**state, "sums": sums}
        noise = self._noise(step)
        told = {**state, "length": np.array([self.norms.lost(sums, noise)])} if self.restore_length else state
        return self._reweighed(told, self.norms.ratios(sums, noise), sums * self.memory, step)

    def side_release(self, state: State, step: int) -> SideRelease | None:
        """Outcomes per group, where parity decides."""
        due = (step + 1) % self.every == 0 and step + 1 < self.steps
        return self.parity if due else None

    def hear(self, state: State, step: int, values: NDArray[np.float64]) -> State:
        """The violation of the parity notion takes the place of the mean norm."""
        return self._reweighed(state, values, state["sums"], step)

    def _reweighed(
        self, state: State, signal: NDArray[np.float64], sums: NDArray[np.float64], step: int
    ) -> dict[str, NDArray[np.float64]]:
        pace = self.step_size
        weights = signal / signal.sum() if pace is None else reweigh(state["weights"], signal, pace)
        return self._planned({**state, "weights": weights, "signal": signal, "sums": sums}, step + 1)

    def _planned(self, state: State, step: int) -> dict[str, NDArray[np.float64]]:
        """Rates from `step` to the next update, and their cost added to what is spent."""
        left, coming = self.steps - step, min(self.every, self.steps - step)
        later = self.parity_rho * ((self.steps - 1) // self.every - step // self.every)
        rates, capped = self.fair.choose(state["weights"], state["spent"], left, later)
        cost = np.array([self.fair.cost(cell, rate) for cell, rate in enumerate(rates.tolist())])
        spent = state["spent"] + coming * cost
        if step + coming < self.steps:
            spent = spent + self.parity_rho
        return {**state, "rates": rates, "spent": spent, "cap_reached": capped}

    def _noise(self, step: int) -> float:
        """The standard deviation of a noisy count in `sums`: geometric in the periods summed."""
        periods = (step + 1) // self.every
        squares = sum(self.memory ** (2 * age) for age in range(min(periods, 200)))
        return self.norms.sigma * math.sqrt(self.every * squares)
