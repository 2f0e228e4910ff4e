"""Connect the dots: a privacy profile becomes masses on a grid of privacy losses, never below the truth.

In a = e^ε a profile is convex. The chords through its values at some losses lie above it and are the profile of a
law on those losses: that law dominates the pair (Doroshenko et al. 2022). Each bit of mass between two dots is
split onto them so that both its P-mass and its Q-mass are kept, hence the error is of second order: the log of
E[e^(λL)] grows by at most λ(λ+1)·step²/8 per composition.

Every value comes with an error bound, so each mass comes with a `slack`: mass + slack is a law that dominates,
mass − slack (at least 0) lies below the chords' law. More mass is never less loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from veil.accounting.pld.profiles import UNIT, FloatArray, Pair, Profile


@dataclass(frozen=True, slots=True)
class Dots:
    """Masses of P at growing privacy losses, and `infinity`, the mass at the loss ∞."""

    losses: FloatArray
    mass: FloatArray
    slack: FloatArray
    infinity: float

    @property
    def upper(self) -> FloatArray:
        """Masses that are never too small."""
        return self.mass + self.slack

    @property
    def lower(self) -> FloatArray:
        """Masses that are never too large."""
        return np.maximum(self.mass - self.slack, 0.0)


@dataclass(frozen=True, slots=True)
class Extent:
    """How far the losses of a pair reach before less than the tail is left, below (as −ε) and above."""

    below: float
    above: float


# Where a tail is looked for first.
_TRIALS = 2.0 ** np.arange(-60, 41, dtype=np.float64)


@lru_cache(maxsize=64)
def _tried(profile: Profile) -> FloatArray:
    """The profile at `_TRIALS`: plans ask for several tails of the same one."""
    return profile(_TRIALS)[0]


@lru_cache(maxsize=64)
def _reach_of_tail(profile: Profile, tail: float, damped: bool = False) -> float:
    """An ε, not much too large, from which on the profile (if damped: e^−ε times it) is at most `tail`."""
    low, high = 0.0, 0.0
    trial, values = _TRIALS, _tried(profile)
    for again in range(3):
        value = profile(trial)[0] if again else values
        if damped:
            value = value * np.exp(-trial)
        below = np.flatnonzero(value <= tail)
        if len(below) == 0:
            return float(trial[-1])
        low, high = (float(trial[below[0] - 1]) if below[0] > 0 else low), float(trial[below[0]])
        trial = np.linspace(low, high, 9)[1:]
    return high


def extent_of(pair: Pair, above: float, below: float | None = None) -> Extent:
    """The range of losses that matters when tails of this size do not (`below` is the same as `above` if not given)."""
    low = above if below is None else below
    return Extent(_reach_of_tail(pair.down, low, damped=True), _reach_of_tail(pair.up, above))


def connect(pair: Pair, below: FloatArray, above: FloatArray) -> Dots:
    """The law of the chords through the losses −below and above (both from 0 upwards).

    What lies beyond goes to ∞ at the top, and up to the lowest dot at the bottom.
    """
    up, up_error = pair.up(above)
    down, down_error = pair.down(below[:0:-1])
    # chords ignore what is linear in a, so below 0 the small part h − (1 − a) stands for h
    damp = np.exp(-below[:0:-1])
    losses = np.concatenate((-below[:0:-1], above))
    value = np.concatenate((damp * down, up))
    error = np.concatenate((damp * down_error, up_error)) + 8 * UNIT * value
    gap = np.diff(losses)
    rise = np.diff(value)
    doubt = error[1:] + error[:-1]
    with np.errstate(over="ignore"):
        right, left = np.expm1(gap), -np.expm1(-gap)
    mass = np.zeros_like(value)
    mass[:-1] += rise / right
    mass[1:] -= rise / left
    mass[0] -= value[0]
    mass[len(below) - 1] += 1.0
    slack = np.zeros_like(value)
    slack[:-1] += doubt / right
    slack[1:] += doubt / left
    slack[0] += error[0]
    slack[len(below) - 1] += 8 * UNIT
    return Dots(losses, np.maximum(mass, 0.0), slack, float(value[-1] + error[-1]))


def uniform(pair: Pair, step: float, extent: Extent) -> tuple[int, Dots]:
    """The law on all multiples of `step` in the extent and one more at each end, and the multiple where it starts.

    With the one more, the outermost masses are no larger than the tail that lies beyond the extent.
    """
    bottom = math.ceil(extent.below / step) + 1
    top = math.ceil(extent.above / step) + 1
    return -bottom, connect(pair, step * np.arange(bottom + 1.0), step * np.arange(top + 1.0))


def sketch(pair: Pair, extent: Extent) -> Dots:
    """A law on few dots, dense near 0, spread in proportion further out and even over the bulk: for planning only."""
    scale = 0.1 * float(pair.up(np.zeros(1))[0][0])

    def spread(profile: Profile, reach: float) -> FloatArray:
        start = min(scale, reach / 8) if scale > 0 else reach / 8
        count = max(8, math.ceil(math.log(reach / start) / 0.08))
        bulk = min(_reach_of_tail(profile, 1 - 1e-9), reach)
        dots = np.sort(np.concatenate((np.geomspace(start, reach, count), np.linspace(bulk, reach, 65))))
        # dots that almost coincide would divide rounding errors by almost nothing
        apart = np.diff(dots, prepend=0.0) > np.minimum(0.01 * dots, 0.2 * (reach - bulk) / 64)
        return np.concatenate((np.zeros(1), dots[apart & (dots >= start)]))

    return connect(pair, spread(pair.down, extent.below), spread(pair.up, extent.above))
