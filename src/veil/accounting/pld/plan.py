"""Where to look: the tilt, the window and the step for one question about a composed privacy loss.

Nothing here can make an answer unsound. A poor choice costs tightness or time: whatever the window leaves out is
bounded again, rigorously, on the final grid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from veil.accounting.pld.compose import Factor, Law, factor
from veil.accounting.pld.grid import Extent, extent_of, sketch, uniform
from veil.accounting.pld.profiles import FloatArray, Part

POINTS_AT_MOST = 1 << 21
"""No grid and no window is longer; a coarser step is looser but as sound."""

_FAR = np.geomspace(1e-3, 1e4, 57)

_SPARE = 1e-8
"""Share of δ that a window may leave above its top."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of the composed law: ε at `delta`, δ at `epsilon`, or (both given) a closer look at the point."""

    delta: float | None = None
    epsilon: float | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer's rough place (`guess`), what the transform around it needs, and an ε proved at δ (`bound`)."""

    guess: float
    tilt: float
    steeper: float
    milder: float
    width: float
    variance: float
    plain_variance: float
    delta: float
    extents: tuple[Extent, ...]
    parts: tuple[Part, ...]
    bound: float

    @property
    def times(self) -> int:
        """How many pairs are composed."""
        return sum(part.times for part in self.parts)

    def step(self, looseness: float) -> float:
        """A step whose chords raise ε by about this share: T·(λ+1)·step²/8 against ε ≈ (λ+1)·variance.

        T jumps onto the grid never move ε by more than T steps, so no finer step than that is needed.
        """
        size = min(max(self.guess / (1 + self.tilt), 0.02 * self.plain_variance), self.variance)
        step = math.sqrt(8 * looseness * size / self.times)
        widest = max(extent.above + extent.below for extent in self.extents)
        return max(step, looseness * self.guess / self.times, widest / POINTS_AT_MOST)

    def law(self, step: float, upper: bool) -> tuple[Law, float]:
        """The laws on the grid, and a bound on the mass that their composition puts at ∞."""
        grids = [uniform(part.pair, step, extent) for part, extent in zip(self.parts, self.extents, strict=True)]
        factors = tuple(factor(dots, part.times, upper) for (_, dots), part in zip(grids, self.parts, strict=True))
        law = Law(step, tuple(start for start, _ in grids), factors)
        infinite = sum(dots.infinity * part.times for (_, dots), part in zip(grids, self.parts, strict=True))
        return law, infinite * math.exp(max(law.log_moment(0.0), 0.0) + infinite + law.doubt(0.0))

    def window(self, law: Law, lowest: float) -> tuple[int, int]:
        """First multiple and number of multiples, wide enough that little is left above and little wraps."""
        spare = -math.log(self.delta * _SPARE)
        top = (law.log_moment(self.steeper) + spare) / self.steeper
        tilted = top - spare / self.tilt
        plain = -(law.log_moment(-self.milder) + spare) / self.milder
        low = min(max(tilted, plain), lowest)
        first, last = law.span
        begin = max(first, math.floor(low / law.step) - 1)
        end = min(last, max(math.ceil(top / law.step), begin + math.ceil(self.width / law.step)) + 2)
        return begin, max(end - begin + 1, 16)


def _log_moments(factors: Sequence[Factor], tilts: FloatArray) -> FloatArray:
    """ln M of the composition at each tilt."""
    return sum((item.log_moments(tilts) for item in factors), np.zeros(len(tilts)))


def _cumulants(factors: Sequence[Factor], tilts: FloatArray) -> tuple[FloatArray, FloatArray]:
    """ln M and variance of the composition at each tilt."""
    each = [item.cumulants(tilts) for item in factors]
    return sum((one[0] for one in each), np.zeros(len(tilts))), sum((one[2] for one in each), np.zeros(len(tilts)))


@dataclass(frozen=True, slots=True)
class _Tilts:
    """Tilts from hardly any to far out, and ln M of a composition at each."""

    factors: Sequence[Factor]
    tilts: FloatArray
    moments: FloatArray

    @classmethod
    def of(cls, factors: Sequence[Factor], unit: float) -> _Tilts:
        """For a composed loss of this standard deviation."""
        tilts = _FAR / unit
        return cls(factors, tilts, _log_moments(factors, tilts))

    def best(self, score: Callable[[FloatArray, FloatArray], FloatArray]) -> float:
        """The tilt of least score, to a few per cent."""
        near = int(np.argmin(score(self.tilts, self.moments)))
        tilts = np.geomspace(self.tilts[max(near - 1, 0)], self.tilts[min(near + 1, len(self.tilts) - 1)], 9)
        return float(tilts[int(np.argmin(score(tilts, _log_moments(self.factors, tilts))))])


def _log_constant(tilts: FloatArray) -> FloatArray:
    """ln of the largest (1 − e^(ε−x))·e^(λ(ε−x)): what a tail bound for δ gains over one for the mass above ε."""
    gain: FloatArray = tilts * np.log(tilts) - (tilts + 1) * np.log1p(tilts)
    return gain


def _width(factors: Sequence[Factor], tilt: float, loss: float, spare: float) -> float:
    """How wide a window keeps mass from above, shown lower and undone by the tilt, from counting at `loss`."""
    tilts = tilt * np.geomspace(1.1, 32.0, 33)
    moments = _log_moments(factors, tilts)
    return float(np.min((moments + spare - tilts * loss) / (tilts - tilt)))


@dataclass(frozen=True, slots=True)
class _Sketch:
    """A coarse law that dominates the composition, to plan with and to bound with."""

    extents: tuple[Extent, ...]
    factors: tuple[Factor, ...]
    infinite: float

    @property
    def unit(self) -> float:
        """Standard deviation of the composed loss."""
        return math.sqrt(float(_cumulants(self.factors, np.zeros(1))[1][0]))

    def moment(self, tilt: float) -> float:
        """ln M(λ)."""
        return float(_log_moments(self.factors, np.array([tilt]))[0])

    def bound(self, tilt: float, delta: float) -> float:
        """An ε that Chernoff's bound proves at δ; inf when the mass at ∞ leaves nothing."""
        if self.infinite >= delta:
            return math.inf
        doubt = sum(item.doubt(tilt) for item in self.factors) + 1e-12
        gain = float(_log_constant(np.array(tilt)))
        return (self.moment(tilt) + doubt - math.log(delta - self.infinite) + gain) / tilt


def _sketched(parts: Sequence[Part], tail: float, strict: bool) -> _Sketch:
    # cut at −y the profile rises by t(y) at most, and only for ε < −y: composed, δ rises by less than T·t(y) of itself
    low = tail if strict else max(tail, 1e-8)
    extents = tuple(extent_of(part.pair, tail / part.times, low / part.times) for part in parts)
    dots = [sketch(part.pair, extent) for part, extent in zip(parts, extents, strict=True)]
    factors = tuple(factor(one, part.times) for one, part in zip(dots, parts, strict=True))
    infinite = sum(one.infinity * part.times for one, part in zip(dots, parts, strict=True))
    excess = max(sum(item.log_moment(0.0) + item.doubt(0.0) for item in factors), 0.0) + infinite
    return _Sketch(extents, factors, infinite * math.exp(min(excess, 700.0)))


def plan(parts: Sequence[Part], question: Question, strict: bool = False) -> Plan:
    """A plan for one direction of the pairs; `strict` keeps the lower tails too, which only lower bounds need."""
    delta = question.delta or 1e-30
    rough = _sketched(parts, 1e-7 * delta, strict)
    unit = rough.unit
    tried = _Tilts.of(rough.factors, unit)
    if question.epsilon is None:
        log_delta = math.log(delta)
        tilt = tried.best(lambda tilts, moments: (moments - log_delta + _log_constant(tilts)) / tilts)
        guess = max(rough.bound(tilt, delta), 0.0)
    else:
        guess = question.epsilon
    if question.epsilon is not None or guess == 0 or math.isinf(guess):
        guess = guess if math.isfinite(guess) else 0.0
        tilt = tried.best(lambda tilts, moments: moments - tilts * guess + _log_constant(tilts))
    if question.delta is None:
        reached = rough.moment(tilt) - tilt * guess + float(_log_constant(np.array(tilt)))
        delta = max(math.exp(min(reached, 0.0)) * 1e-2, 1e-280)
        rough = _sketched(parts, 1e-7 * delta, strict)
        unit = rough.unit
        tried = _Tilts.of(rough.factors, unit)
    spare = -math.log(delta * _SPARE)
    steeper = tried.best(lambda tilts, moments: (moments + spare) / tilts)
    mirrored = [Factor(-item.losses, item.mass, item.times) for item in rough.factors]
    milder = _Tilts.of(mirrored, unit).best(lambda tilts, moments: (moments + spare) / tilts)
    variance = float(_cumulants(rough.factors, np.array([tilt]))[1][0])
    loss = guess if question.epsilon is not None else max(guess - 5 / tilt, 0.0)
    width = _width(rough.factors, tilt, loss, spare)
    return Plan(
        guess,
        tilt,
        steeper,
        milder,
        width,
        variance,
        unit**2,
        delta,
        rough.extents,
        tuple(parts),
        rough.bound(tilt, delta),
    )
