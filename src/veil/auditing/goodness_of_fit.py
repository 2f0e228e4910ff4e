"""Goodness of fit: do released values have the mean, the variance and the independence that the plan says?

A bound on ε moves little when noise is 5 % too small; the variance of two million released values moves by a hundred
standard deviations. These tests look at private rows (which were drawn) and are for the maker of a mechanism.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from veil.accounting.events import Relation
from veil.auditing.canaries import BASE_LOSS, NORM, TENSORS, Canaries, CanaryStep, drawn_alone
from veil.gradients import PerRow

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Check:
    """One check of a mechanism. Random checks have a p-value; the others hold or fail."""

    name: str
    passed: bool
    finding: str
    p_value: float | None = None


def normal_check(name: str, z: float, level: float, finding: str) -> Check:
    """Two-sided: passes unless |z| is rarer than `level`."""
    p = float(2.0 * stats.norm.sf(abs(z)))
    return Check(name, p >= level, f"{finding} (z = {z:+.2f})", p)


class Residuals:
    """What is left of released values when the bounded canaries that took part are subtracted: noise and nothing else.

    `watch` is handed to a canary run; `checks` then gives eight checks. In units of the noise each tensor's
    residual is N(0, 1), independent over canaries, steps and tensors.
    """

    def __init__(self, canaries: Canaries, relation: Relation, cell_names: tuple[str, ...]) -> None:
        count = len(canaries)
        self._canaries, self._names = canaries, cell_names
        signs = np.ones(count) if relation is Relation.ADD_REMOVE else np.where(canaries.coins, 1.0, -1.0)
        self._signs = signs
        self._here = canaries.problem.present[canaries.problem.targets.numpy() != 0.0]
        self._steps = 0
        self._squares = np.zeros(len(TENSORS))
        self._between = 0.0
        self._sums = np.zeros((len(TENSORS), count))
        self._before: Floats | None = None
        self._lagged = np.zeros(len(TENSORS))
        self._taken, self._expected, self._variance = np.zeros(count), np.zeros(count), np.zeros(count)
        cells = len(cell_names)
        self._drawn, self._drawn_sum = np.zeros((len(TENSORS), cells)), np.zeros((len(TENSORS), cells))
        self._batches: list[float] = []
        self._statistics: list[float] = []

    def watch(self, step: CanaryStep) -> None:
        """Take one step into account."""
        canaries = self._canaries
        ids = canaries.problem.inputs[step.view.rows, 0].numpy()
        plays = ids < len(canaries)
        taken = np.zeros(len(canaries))
        taken[ids[plays]] = 1.0
        share = np.zeros(len(canaries))
        share[ids[plays]] = self._parts_of_limits(step)[canaries.cells[ids[plays]]]
        if not step.release.bound.row_local:  # a bound that orders rows gives each its own part of the limit
            moved = (step.view.weights * step.view.per_row.norms).double().numpy()[plays]
            share[ids[plays]] = moved / np.array(step.release.bound.limits)[canaries.cells[ids[plays]]]
        residual = step.values - self._signs * share * step.shift / math.sqrt(2.0)
        self._steps += 1
        self._squares += (residual**2).sum(axis=1)
        self._between += float(residual[0] @ residual[1])
        self._sums += residual
        if self._before is not None:
            self._lagged += (residual * self._before).sum(axis=1)
        self._before = residual
        self._participation(step, taken)
        self._further_values(step)
        signed = residual * self._signs
        for cell in range(len(self._names)):
            mine = (canaries.cells == cell) & (taken > 0)
            self._drawn[:, cell] += mine.sum()
            self._drawn_sum[:, cell] += signed[:, mine].sum(axis=1)

    def _further_values(self, step: CanaryStep) -> None:
        """The noise on statistics, in units of what is charged."""
        for statistic in (one for one in step.release.statistics if one.due):
            exact = statistic.measure(step.view.per_row, step.view.cells).double()
            lengths = torch.linalg.vector_norm(exact, dim=1, keepdim=True).clamp_min(1e-300)
            exact = exact * torch.clamp(statistic.limit / lengths, max=1.0)
            noise = step.statistics[statistic.name] - exact.sum(dim=0).numpy()
            self._statistics += (noise / statistic.sigma).ravel().tolist()

    def _parts_of_limits(self, step: CanaryStep) -> Floats:
        """How much of its limit a canary of each cell may use: all of it, unless the bound shortens rows further."""
        limits = np.array(step.release.bound.limits)
        if not step.release.bound.row_local:
            return np.ones(len(limits))
        cells = torch.arange(len(limits))
        per_row = PerRow(
            torch.full((len(limits),), BASE_LOSS),
            torch.full((len(limits),), NORM),
            torch.ones(len(limits), dtype=torch.bool),
        )
        moved = step.release.bound.weights(per_row, cells).double().numpy() * NORM
        return np.asarray(np.minimum(moved, limits) / limits)

    def _participation(self, step: CanaryStep, taken: Floats) -> None:
        rate = step.rate * self._here
        self._taken += taken
        self._expected += rate
        self._variance += rate * (1.0 - rate)
        spread = float((rate * (1.0 - rate)).sum())
        if drawn_alone(step.release) and spread > 0:
            self._batches.append(float(taken.sum() - rate.sum()) / math.sqrt(spread))

    def checks(self, level: float) -> list[Check]:
        """The checks; each random one raises a false alarm with probability `level`."""
        further = [_spread_check("statistics have their noise", self._statistics, level)] if self._statistics else []
        return [*self._noise(level), *self._bounds(level), *self._draws(level), *further]

    def _noise(self, level: float) -> list[Check]:
        canaries, steps = self._sums.shape[1], self._steps
        total = canaries * steps
        found = []
        for index, name in enumerate(TENSORS):
            ratio = math.sqrt(self._squares[index] / total)
            z = (self._squares[index] / total - 1.0) * math.sqrt(total / 2.0)
            found.append(normal_check(f"noise has its size ({name} half)", z, level, f"{ratio:.4f} × what is charged"))
        z = self._between / math.sqrt(total)
        found.append(normal_check("halves of the parameters have independent noise", z, level, "correlation"))
        if steps > 1:
            z = float(self._lagged.sum()) / math.sqrt(len(TENSORS) * canaries * (steps - 1))
            found.append(normal_check("steps have independent noise, one after the other", z, level, "correlation"))
            spread = float((self._sums**2).sum()) / steps
            count = len(TENSORS) * canaries
            z = (spread - count) / math.sqrt(2.0 * count)
            found.append(normal_check("steps have independent noise, over the run", z, level, "spread of sums"))
        return found

    def _bounds(self, level: float) -> list[Check]:
        found = []
        for index, name in enumerate(TENSORS):
            for cell, label in enumerate(self._names):
                drawn = self._drawn[index, cell]
                if drawn == 0:
                    continue
                z = self._drawn_sum[index, cell] / math.sqrt(drawn)
                title = f"a row moves the sum by its bound ({name} half, {label})"
                found.append(normal_check(title, z, level, f"off by {self._drawn_sum[index, cell] / drawn:+.4f} σ"))
        return found

    def _draws(self, level: float) -> list[Check]:
        found = []
        for cell, label in enumerate(self._names):
            mine = (self._canaries.cells == cell) & self._here & (self._variance > 0)
            count = int(mine.sum())
            if count < 2:
                continue
            gap = float((self._taken - self._expected)[mine].sum())
            z = gap / math.sqrt(float(self._variance[mine].sum()))
            expected = float(self._expected[mine].sum())
            found.append(
                normal_check(f"rows take part at their rate ({label})", z, level, f"{gap / expected:+.2%} off")
            )
            ratio = (self._taken - self._expected)[mine] ** 2 / self._variance[mine]
            variance = self._variance[mine]
            # Var of a squared standardised binomial: 2 + (1 − 6v/T)/v with v its variance; small rates have long tails.
            doubt = math.sqrt(float((2.0 + 1.0 / variance).sum()))
            z = float(ratio.sum() - count) / doubt
            found.append(
                normal_check(
                    f"participation has the spread of independent draws ({label})",
                    z,
                    level,
                    f"dispersion {ratio.mean():.3f}",
                )
            )
        if len(self._batches) > 1:
            name = "the size of batches has the spread of independent draws"
            found.append(_spread_check(name, self._batches, level))
        return found


def _spread_check(name: str, values: list[float], level: float) -> Check:
    """Whether the squares of standard normal values add up to what they should (χ², two-sided)."""
    spread, count = float(np.square(values).sum()), len(values)
    p = 2.0 * min(float(stats.chi2.cdf(spread, count)), float(stats.chi2.sf(spread, count)))
    return Check(name, p >= level, f"dispersion {spread / count:.3f} over {count} values", p)
