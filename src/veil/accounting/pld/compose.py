"""Composition of grid laws by a tilted Fourier transform, with every error on a chosen side.

The law of a sum of losses is a convolution. Before the transform each mass p(x) is *tilted* to p(x)·e^(λx)/M(λ), so
that the tilted sum is centred on the ε in question: what was a tail of 1e-12 is then the bulk, and round-off is
small against it. Undoing the tilt multiplies by M(λ)^T·e^(−λx).

* Wrap-around. A transform of size N shows mass from outside the window inside it: mass from below is shown N steps
  higher, with weight e^(−λ·N·step). Wrapped mass only adds, so an upper bound needs nothing; a lower bound
  subtracts what may have been added (`wrap`).
* Truncation. Mass above the window is at most M(λ')^T·e^(−λ'·top) for every λ' ≥ 0 (Chernoff): it counts as loss ∞.
* Round-off. Higham's bound for the transform, ‖error‖₂ ≤ 8·u·log₂N·‖result‖₂, through T multiplications of
  numbers of modulus at most 1, bounds the error of each tilted mass by `roundoff`; it is added (or subtracted).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from veil.accounting.pld.grid import Dots
from veil.accounting.pld.profiles import UNIT, FloatArray

_DROP = 60.0
"""Frequencies whose composed amplitude is below e^−60 are taken as 0; the error is part of `roundoff`."""


@dataclass(frozen=True, slots=True)
class Factor:
    """One law with non-negative masses at losses, composed `times` times."""

    losses: FloatArray
    mass: FloatArray
    times: int

    def cumulants(self, tilts: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """ln M, mean and variance of the composed law under each tilt."""
        weight, total, log_moments = self._tilted(tilts)
        # einsum, not a matrix product: threads of a linear algebra library cost more than they give here
        mean = np.einsum("ij,j->i", weight, self.losses) / total
        square = np.einsum("ij,j->i", weight, np.square(self.losses)) / total
        return log_moments, self.times * mean, self.times * np.maximum(square - mean**2, 0.0)

    def log_moments(self, tilts: FloatArray) -> FloatArray:
        """ln M of the composed law at each tilt."""
        return self._tilted(tilts)[2]

    def _tilted(self, tilts: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Masses under each tilt and their sum, up to a factor; ln M of the composed law."""
        weight = np.multiply.outer(tilts, self.losses)
        low, high = self._ends
        shift = np.maximum(low * tilts, high * tilts)
        weight -= shift[:, None]
        np.exp(np.minimum(weight, 0.0, out=weight), out=weight)
        weight *= self.mass
        total = weight.sum(axis=1)
        return weight, total, self.times * (np.log(total) + shift)

    @property
    def _ends(self) -> tuple[float, float]:
        """The outermost losses of any mass: losses grow, or fall."""
        held = np.flatnonzero(self.mass > 0)
        return (float(self.losses[held[0]]), float(self.losses[held[-1]])) if len(held) else (0.0, 0.0)

    def doubt(self, tilt: float) -> float:
        """How far ln of any mass of this composition can be off by rounding."""
        widest = max(abs(float(self.losses[0])), abs(float(self.losses[-1])))
        return self.times * UNIT * (16 + 4 * abs(tilt) * widest + math.log2(len(self.mass) + 1))

    def log_moment(self, tilt: float) -> float:
        """ln M(λ)^T, never too small by more than what `Law.doubt` covers."""
        exponent = tilt * self.losses
        low, high = self._ends
        shift = max(tilt * low, tilt * high)
        return self.times * (math.log(float(np.sum(self.mass * np.exp(np.minimum(exponent - shift, 0.0))))) + shift)


def factor(dots: Dots, times: int, upper: bool = True) -> Factor:
    """The dots as a law that is never too small (or never too large)."""
    return Factor(dots.losses, dots.upper if upper else dots.lower, times)


@dataclass(frozen=True, slots=True)
class Law:
    """Laws on multiples of one step, to be composed; `starts` are the multiples where their masses begin."""

    step: float
    starts: tuple[int, ...]
    factors: tuple[Factor, ...]

    @property
    def times(self) -> int:
        """How many laws are composed."""
        return sum(item.times for item in self.factors)

    @property
    def span(self) -> tuple[int, int]:
        """First and last multiple that the sum can reach."""
        first = sum(start * item.times for start, item in zip(self.starts, self.factors, strict=True))
        return first, first + sum((len(item.mass) - 1) * item.times for item in self.factors)

    def log_moment(self, tilt: float) -> float:
        """ln E[e^(λL)] of the sum."""
        return sum(item.log_moment(tilt) for item in self.factors)

    def doubt(self, tilt: float) -> float:
        """How far ln of any composed mass can be off by rounding in weights, moments and powers."""
        return sum(item.doubt(tilt) for item in self.factors)


@dataclass(frozen=True, slots=True)
class Window:
    """Tilted masses of the composed law at the losses (first + j)·step: mass(x) = e^(log_scale − λx)·tilted."""

    step: float
    first: int
    tilt: float
    log_scale: float
    tilted: FloatArray
    roundoff: float
    doubt: float

    def losses(self, start: int = 0) -> FloatArray:
        """The losses from the `start`-th on."""
        return self.step * np.arange(self.first + start, self.first + len(self.tilted), dtype=np.float64)


def _power(base: NDArray[np.complex128], exponent: int) -> NDArray[np.complex128]:
    """Entry-wise power by squaring, in about log₂ of the exponent multiplications."""
    result: NDArray[np.complex128] | None = None
    square = base
    while exponent:
        if exponent & 1:
            result = square if result is None else result * square
        exponent >>= 1
        if exponent:
            square = square * square
    return np.ones_like(base) if result is None else result


def _folded(mass: FloatArray, size: int) -> FloatArray:
    """The masses on a circle of `size` places."""
    if len(mass) > size:
        mass = np.pad(mass, (0, -len(mass) % size)).reshape(-1, size).sum(axis=0)
    return mass


def compose(law: Law, tilt: float, first: int, size: int) -> Window:
    """The tilted law of the sum on `size` multiples of the step from `first` on."""
    size = fft.next_fast_len(size, real=True)
    depth = 8 * UNIT * (math.log2(size) + 4)
    spectrum = np.ones(size // 2 + 1, dtype=np.complex128)
    kept = np.arange(len(spectrum))
    roundoff = depth + math.exp(-_DROP)
    log_scale = 0.0
    origin = 0
    for start, item in zip(law.starts, law.factors, strict=True):
        log_moment = item.log_moment(tilt) / item.times
        weights = item.mass * np.exp(np.minimum(tilt * item.losses - log_moment, 700.0))
        transform = np.asarray(fft.rfft(_folded(weights, size), size), dtype=np.complex128)[kept]
        large = np.square(transform.real) + np.square(transform.imag) >= math.exp(-2 * _DROP / item.times)
        kept, spectrum = kept[large], spectrum[large] * _power(transform[large], item.times)
        roundoff += item.times * (depth * math.sqrt(float(np.sum(np.square(weights)))) + 8 * UNIT)
        log_scale += item.times * log_moment
        origin += start * item.times
    full = np.zeros(size // 2 + 1, dtype=np.complex128)
    full[kept] = spectrum
    tilted = np.asarray(fft.irfft(full, size), dtype=np.float64)
    tilted = np.roll(tilted, (origin - first) % size)
    return Window(law.step, first, tilt, log_scale, tilted, roundoff, law.doubt(tilt))


@dataclass(frozen=True, slots=True)
class Nodes:
    """The profile of the composed law at consecutive grid losses; between them it is linear in e^ε."""

    losses: FloatArray
    delta: FloatArray
    step: float

    def epsilon(self, delta: float) -> float:
        """Where the profile falls to `delta`, rounded up: inf if never in here, the first loss if it starts below."""
        over = np.flatnonzero(~(self.delta <= delta))
        if len(over) == 0:
            return float(self.losses[0])
        last = int(over[-1])
        if last == len(self.delta) - 1:
            return math.inf
        if self.step > 700:
            return float(self.losses[last + 1])  # e^step overflows: the next node is the chord's upper end
        share = (self.delta[last] - delta) / (self.delta[last] - self.delta[last + 1])
        found = float(self.losses[last]) + math.log1p(float(share) * math.expm1(self.step))
        return min(float(self.losses[last + 1]), found + 8 * UNIT * (abs(found) + self.step))

    def at(self, epsilons: FloatArray) -> FloatArray:
        """The profile, rounded up outside the nodes: flat above them, and below them the chord to δ = 1 at e^ε = 0."""
        index = np.clip(np.searchsorted(self.losses, epsilons, side="right") - 1, 0, len(self.losses) - 2)
        share = np.clip(np.expm1(epsilons - self.losses[index]) / math.expm1(self.step), 0.0, 1.0)
        inside = self.delta[index] * (1 - share) + self.delta[index + 1] * share
        before = 1 - (1 - self.delta[0]) * np.exp(np.minimum(epsilons - self.losses[0], 0.0))
        return np.where(epsilons < self.losses[0], before, inside)


def _tail_sums(mass: FloatArray, step: float) -> tuple[FloatArray, FloatArray]:
    """For each place j the sums of mass_i and of mass_i·e^(x_j − x_i) over i > j, in blocks that cannot overflow."""
    heavy = np.cumsum(mass[::-1])[::-1] - mass
    light = np.empty_like(mass)
    block = max(1, int(300.0 / step))
    carry = 0.0
    for end in range(len(mass), 0, -block):
        start = max(0, end - block)
        thin = np.exp(-step * np.arange(end - start, dtype=np.float64))
        piece = mass[start:end] * thin
        # the carry is Σ mass_i·e^(x_end − x_i) over i ≥ end
        light[start:end] = (np.cumsum(piece[::-1])[::-1] - piece + carry * math.exp(-step * (end - start))) / thin
        carry = float(light[start] + mass[start])
    return heavy, light


def nodes(window: Window, lowest: float, reference: float, upper: bool, extra: float) -> Nodes:
    """δ at every grid loss of the window from `lowest` on.

    Upper: round-off and `extra` (mass at ∞) are added. Lower: round-off and `extra` (what wrapped) are taken away.
    """
    last = window.step * (window.first + len(window.tilted) - 1)
    reference = min(reference, last)
    # further down the weight that undoes the tilt would overflow
    deepest = math.ceil((reference - 600.0 / window.tilt) / window.step) - window.first
    start = max(0, math.floor(lowest / window.step) - window.first, deepest)
    if start > len(window.tilted) - 2:
        rest = min(extra, 1.0) if upper else 0.0
        return Nodes(max(lowest, last) + window.step * np.arange(2.0), np.full(2, rest), window.step)
    losses = window.losses(start)
    tilted = window.tilted[start:]
    tilted = np.maximum(tilted, 0.0) + window.roundoff if upper else np.maximum(tilted - window.roundoff, 0.0)
    mass = tilted * np.exp(np.maximum(-window.tilt * (losses - reference), -700.0))
    heavy, light = _tail_sums(mass, window.step)
    sign = 1.0 if upper else -1.0
    # running sums of N terms are off by N units at most
    value = heavy - light + sign * 4 * UNIT * len(losses) * (heavy + mass)
    scale = math.exp(min(window.log_scale - window.tilt * reference + sign * window.doubt, 700.0))
    with np.errstate(over="ignore"):
        delta = np.minimum(scale * np.maximum(value, 0.0) + sign * extra, 1.0)
    return Nodes(losses, np.maximum(delta, 0.0), window.step)


def wrap(law: Law, window: Window, loss: float, milder: float) -> float:
    """What wrap-around can have added to δ at `loss` (and above), by Chernoff's bound.

    Mass from below the window is shown once, higher, with a weight of at most e^(−λ·N·step). Mass from above is shown
    lower and counts only where it still lies above `loss`.
    """
    size = len(window.tilted)
    first, last = law.span
    width = size * law.step
    below, above = -math.inf, math.inf
    if first < window.first:
        least = min(law.log_moment(0.0), law.log_moment(-milder) + milder * window.first * law.step)
        below = least - window.tilt * width + law.doubt(milder)
    if last < window.first + size:
        above = -math.inf
    else:
        for steeper in window.tilt * np.array([1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 8.0, 16.0]):
            decay = -float(steeper - window.tilt) * width
            bound = law.log_moment(float(steeper)) - float(steeper) * loss + decay - math.log(-math.expm1(decay))
            above = min(above, bound + law.doubt(float(steeper)))
    return math.exp(min(below, 0.0)) + math.exp(min(above, 0.0))
