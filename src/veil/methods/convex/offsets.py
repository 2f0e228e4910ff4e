"""The offset of a two-class score: where to cut, chosen by one noisy release after training.

    level_u = correct rows of unit u at cut 0
    step_ub = rows of class 0 less rows of class 1 whose score lies in bin b: what moving the cut over the bin wins

A row adds 1 to one level and ±1 to at most one step: together it moves them by √2. Sums of steps from 0 outwards give
how many rows are correct at every cut; a cubic through them takes out most of the noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from veil.methods.convex.steering import Units

Aim = Literal["worst-group", "balanced", "overall"]
AIMS: tuple[Aim, ...] = ("worst-group", "balanced", "overall")
REACH = 1.8
BINS = 12
SENSITIVITY = math.sqrt(2.0)
# Of cuts that serve the worst alike, the one that serves the others better.
_ALL = 0.2


def cuts() -> Tensor:
    """The cuts to choose from; 0 is in the middle."""
    return torch.linspace(-REACH, REACH, BINS + 1, dtype=torch.float64)


def counted(scores: Tensor, targets: Tensor, units: Tensor, shares: Tensor, count: int) -> Tensor:
    """Level and steps of each unit, one line each: the sums that are released. A row counts with its share."""
    found = torch.zeros(count, 1 + BINS, dtype=torch.float64)
    places = torch.bucketize(scores, cuts())
    inside = (places > 0) & (places <= BINS)
    found.index_put_((units, torch.zeros_like(units)), ((scores >= 0) == (targets == 1)) * shares, accumulate=True)
    wins = torch.where(targets == 0, shares, -shares)
    found.index_put_((units[inside], places[inside]), wins[inside], accumulate=True)
    return found


@dataclass(frozen=True)
class OffsetChoice:
    """Chooses a cut from released counts, for the given aim."""

    units: Units
    aim: Aim

    def choose(self, released: Tensor, noise: float) -> float:
        """The best cut for the aim; `noise` is the standard deviation of each count."""
        rows = torch.tensor(self.units.rows, dtype=released.dtype)
        level, steps, half = released[:, :1], released[:, 1:], BINS // 2
        below, above = steps[:, :half].flip(1).cumsum(1).flip(1), steps[:, half:].cumsum(1)
        correct = torch.cat([level - below, level, level + above], dim=1)
        smooth = _smoother()
        overall = smooth @ (correct.sum(0) / rows.sum())
        apart = (correct / rows[:, None]) @ smooth.T - overall
        between, variance = (apart**2).mean(dim=1), (noise / rows) ** 2
        known = torch.where(torch.tensor(self.units.heard), between / (between + variance).clamp_min(1e-12), 0.0)
        accuracy = overall + known[:, None] * apart
        wanted = {
            "worst-group": accuracy.min(dim=0).values + _ALL * overall,
            "balanced": accuracy.mean(dim=0),
            "overall": overall,
        }[self.aim]
        return float(cuts()[wanted.argmax()])


def _smoother() -> Tensor:
    """The matrix that puts a cubic through values at the cuts."""
    powers = torch.stack([(cuts() / REACH) ** power for power in range(4)], dim=1)
    smoother: Tensor = powers @ torch.linalg.pinv(powers)
    return smoother
