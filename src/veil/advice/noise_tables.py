"""Noise tables: Rényi costs of one step of DP-SGD, prepared for a page that recomputes ε and noise without Python.

For every batch size and every noise multiplier on a grid the table holds ρ(α), the cost of one step at a few orders α.
The page adds it up over the steps and converts it as the Rényi accountant does:

    ε = min over α of  T·ρ(α) + log((α−1)/α) − (log δ + log α)/(α−1)

Then it takes the smallest noise on the grid whose ε is at most the one asked for. Nothing is interpolated: every noise
that is shown was accounted for as it is, with costs that were rounded up. It is at most 6 % above what these orders
need and never below it; `veil train` uses privacy loss distributions, which need a little less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veil.accounting import PoissonGaussian
from veil.accounting.conversion import epsilon_at_order
from veil.accounting.rdp import rdp

ORDERS = (1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 16.0, 20.0, 28.0, 40.0, 64.0, 96.0, 160.0)
STEP = 1.06
LEAST, MOST = 0.4, 120.0
SMALLEST_BATCH, BATCHES = 32, 8
EPSILON_STOPS = (
    *(0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.4, 1.7, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0),
    *(7.0, 8.0, 9.0, 10.0),
)
DELTA_STOPS = (1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-10)
EPOCHS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 40, 60, 80, 100)
_DIGITS = 5


@dataclass(frozen=True)
class NoiseTables:
    """ρ(α) of one step by batch size and noise multiplier; `costs` is [batch, noise, order]."""

    rows: int
    batches: tuple[int, ...]
    noises: tuple[float, ...]
    costs: NDArray[np.float64]

    def epsilon(self, batch: int, noise: float, steps: int, delta: float) -> float:
        """ε of so many steps with a batch size and a noise multiplier of the tables: what the page shows."""
        costs = self.costs[self.batches.index(batch), self.noises.index(noise)]
        return float(np.min(epsilon_at_order(steps * costs, np.array(ORDERS), delta)))

    def noise(self, batch: int, steps: int, delta: float, epsilon: float) -> float | None:
        """The smallest noise multiplier of the tables that is enough; None where none is."""
        return next((k for k in self.noises if self.epsilon(batch, k, steps, delta) <= epsilon), None)

    def as_json(self) -> dict[str, Any]:
        """What the page holds."""
        return {
            "rows": self.rows,
            "batches": list(self.batches),
            "noises": list(self.noises),
            "orders": list(ORDERS),
            "epochs": list(EPOCHS),
            "costs": self.costs.tolist(),
        }


def noise_tables(rows: int) -> NoiseTables:
    """Tables for a number of rows.

    >>> tables = noise_tables(10_000)
    >>> noise = tables.noise(512, 390, 1e-5, 1.0)
    >>> tables.epsilon(512, noise, 390, 1e-5) <= 1.0
    True
    """
    batches = batch_sizes(rows)
    count = math.ceil(math.log(MOST / LEAST) / math.log(STEP))
    noises = tuple(round(LEAST * STEP**place, 4) for place in range(count + 1))
    costs = [[rounded_up(rdp(PoissonGaussian(noise, batch / rows), ORDERS)) for noise in noises] for batch in batches]
    return NoiseTables(rows, batches, noises, np.array(costs))


def nearest_stop(stops: Sequence[float], wanted: float) -> int:
    """The place of the stop that is nearest by ratio."""
    return min(range(len(stops)), key=lambda place: abs(math.log(stops[place] / wanted)))


def batch_sizes(rows: int) -> tuple[int, ...]:
    """Powers of two from 32 on, and all rows at once; 512, which is the default, is among them where it fits.

    >>> batch_sizes(1_000)
    (32, 64, 128, 256, 512, 1000)
    """
    powers = [SMALLEST_BATCH * 2**place for place in range(BATCHES)]
    return (*(power for power in powers if power < rows), rows)


def rounded_up(costs: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """Five digits of each number, never below it.

    >>> rounded_up([0.1234561, 20.0]).tolist()
    [0.12346, 20.0]
    """
    values = np.asarray(costs, dtype=np.float64)
    with np.errstate(divide="ignore"):
        unit = 10.0 ** (np.where(values > 0, np.floor(np.log10(values)), 0.0) - _DIGITS + 1)
    up = np.ceil(values / unit) * unit
    tidy = np.array([float(f"{value:.{_DIGITS}g}") for value in up.ravel()]).reshape(up.shape)
    return np.where(tidy >= values, tidy, up)
