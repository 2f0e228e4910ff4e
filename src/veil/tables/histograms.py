"""Noisy histograms over public bins: the one kind of release that private preprocessing makes.

A row falls into one bin of each column, so the stacked vector of counts of d columns moves by √d (in the ℓ₂ norm) when
a row comes or goes, and by √(2d) when it is replaced. Bins are public (octaves, equal steps, hash values), so an empty
bin is released with noise like any other and nothing is learned from which bins exist.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri

from veil.accounting import Gaussian, Relation
from veil.noise import GaussianNoise

Floats = NDArray[np.float64]
SMALLEST_OCTAVE = -20
LARGEST_OCTAVE = 50
_OCTAVES = LARGEST_OCTAVE - SMALLEST_OCTAVE


@dataclass(frozen=True, slots=True)
class HistogramRelease:
    """Counts of several columns at once, plus Gaussian noise of `kappa` times what one row can move.

    Counts of a column with a weight are multiplied by it before the noise and divided by it after: a weight above 1
    lowers its noise and raises that of all others.
    """

    purpose: str
    step: int
    columns: int
    kappa: float
    relation: Relation
    weights: Mapping[str, float] = field(default_factory=dict)

    @property
    def distance(self) -> float:
        """How far a neighbour moves all counts together."""
        squares = self.columns + sum(weight**2 - 1 for weight in self.weights.values())
        return math.sqrt(squares * (1 if self.relation is Relation.ADD_REMOVE else 2))

    @property
    def sigma(self) -> float:
        """The noise of one count of a column without a weight."""
        return self.kappa * self.distance

    def noise_of(self, name: str) -> float:
        """The noise of one count of a column."""
        return self.sigma / self._weight(name)

    def event(self) -> Gaussian:
        """The cost, the same for every cell."""
        return Gaussian(self.sigma / self.distance, self.relation, one_sided=True)

    def make(self, bins: Mapping[str, tuple[NDArray[np.int64], int]], noise: GaussianNoise) -> dict[str, Floats]:
        """Noisy counts by column, from each row's bin (−1: in no bin). The caller has reserved the event."""
        others = self.columns - len(self.weights)
        fits = len(bins.keys() - self.weights.keys()) <= others
        assert fits, "there are more columns than the noise was calibrated for"
        counts = {
            name: torch.from_numpy(self._weight(name) * np.bincount(which[which >= 0], minlength=total))
            for name, (which, total) in bins.items()
        }
        noisy = noise.add(self.step, counts, self.sigma, self.purpose)
        return {name: value.to(torch.float64).numpy() / self._weight(name) for name, value in noisy.items()}

    def _weight(self, name: str) -> float:
        return float(self.weights.get(name, 1.0))

    def threshold(self, bins: int, chance: float = 0.01) -> float:
        """Above this, a bin is taken as filled: with probability 1 − `chance` no empty bin of a release exceeds it."""
        return float(-self.sigma * ndtri(chance / max(bins, 1)))


def octave_bins(values: Floats) -> tuple[NDArray[np.int64], int]:
    """Each number's octave: negative ones, zero, positive ones, in ascending order; −1 where it is missing.

    >>> edges = octave_edges()
    >>> bins, total = octave_bins(np.array([0.0, 3.0, -3.0, np.nan]))
    >>> [tuple(map(float, edges[b])) for b in bins[:3]], int(bins[3]), total == len(edges)
    ([(0.0, 0.0), (2.0, 4.0), (-4.0, -2.0)], -1, True)
    """
    missing = np.isnan(values)
    size = np.abs(np.where(missing, 0.0, values))
    octave = np.floor(np.log2(np.maximum(size, 2.0**SMALLEST_OCTAVE)))
    octave = np.clip(octave, SMALLEST_OCTAVE, LARGEST_OCTAVE - 1) - SMALLEST_OCTAVE
    zero = size < 2.0**SMALLEST_OCTAVE
    bins = np.where(values > 0, _OCTAVES + 1 + octave, _OCTAVES - 1 - octave)
    bins = np.where(zero, _OCTAVES, bins)
    return np.where(missing, -1, bins).astype(np.int64), 2 * _OCTAVES + 1


def octave_edges() -> Floats:
    """Lower and upper edge of every octave bin."""
    powers = 2.0 ** np.arange(SMALLEST_OCTAVE, LARGEST_OCTAVE + 1)
    positive = np.column_stack([powers[:-1], powers[1:]])
    return np.concatenate([-positive[::-1, ::-1], [[0.0, 0.0]], positive])


def step_bins(values: Floats, low: float, high: float, steps: int) -> tuple[NDArray[np.int64], int]:
    """Each number's step of equal width between two bounds; outside counts as the first or last; −1 where missing."""
    missing = np.isnan(values)
    width = (high - low) or 1.0
    bins = np.clip(np.floor((np.where(missing, low, values) - low) / width * steps), 0, steps - 1)
    return np.where(missing, -1, bins).astype(np.int64), steps


def filled_range(counts: Floats, threshold: float, edges: Floats) -> tuple[float, float] | None:
    """From the first to the last bin whose noisy count exceeds the threshold; None where there is none.

    >>> filled_range(np.array([1.0, 50.0, 2.0, 60.0]), 10.0, np.array([[0, 1], [1, 2], [2, 3], [3, 4]]))
    (1.0, 4.0)
    """
    filled = np.flatnonzero(counts > threshold)
    if len(filled) == 0:
        return None
    return float(edges[filled[0], 0]), float(edges[filled[-1], 1])
