"""Privacy profiles: δ(ε) of one event's dominating pair, in both directions, each value with its error.

The profile of a pair (P, Q) is h(ε) = H_{e^ε}(P‖Q) = sup_S P(S) − e^ε·Q(S). Only ε ≥ 0 is written down here, for
the pair (`up`) and for its reverse (`down`), because there both are small numbers with small relative error;
negative ε follows from h(−ε) = 1 − e^−ε + e^−ε·H_{e^ε}(Q‖P).

Where the pairs come from:

* Gaussian, tree: N(μ, 1) against N(0, 1), μ = reach / κ (Balle and Wang 2018).
* Poisson, add-remove: (1−q)·N(0, κ²) + q·N(1, κ²) against N(0, κ²), and its reverse (Zhu, Dong, Wang 2022).
* Poisson, replace-one: (1−q)·N(0, κ²) + q·N(1, κ²) against (1−q)·N(0, κ²) + q·N(−1, κ²). Take any set S and let
  p be its mass under the noise alone. Moving the noise by a vector no longer than 1 lifts that mass to at most
  Φ(Φ⁻¹(p) + 1/κ) and lowers it to at least Φ(Φ⁻¹(p) − 1/κ) (Neyman and Pearson); one half space reaches both when
  the old and the new row point in opposite directions. So for every a = e^ε the worst P(S) − a·Q(S) is that of
  this pair, which is its own mirror image: one direction is enough.
* Subset without replacement, replace-one, rate γ: advanced joint convexity (Balle, Barthe, Gaboardi 2018) bounds
  the profile at ε ≥ 0 by γ·H_{a'}(N(μ, 1)‖N(0, 1)) with a' = 1 + (e^ε − 1)/γ. The relation is symmetric, so the same
  bound holds for the reverse, which fixes ε < 0 (the pair of Zhu, Dong, Wang 2022 for this sampling; Lebeda et al.
  2024 say why composing the ε ≥ 0 pair alone would be wrong). The joint function is a profile: in a = e^ε it is
  convex on both sides of a = 1, and with F = Φ(μ/2) its slopes there are γ(2F−1) − F ≤ F − 1.
* Laplace: two Laplace laws at distance reach.
* Noisy max with range η: the log-ratio lies in an interval of length η, so the pair is dominated by a two-point
  pair on the ends t and t − η (a law on an interval with a given mean is dominated by the one on its ends). The
  worst t at each ε is (ε + η)/2, which gives (1 − e^((ε−η)/2))² / (1 − e^−η) (cf. Dong, Durfee, Rogers 2020).
* Mixture: λ times the profile at ε ≥ 0, in both directions.
* Envelope: the largest of several profiles at each ε, in both directions. In a = e^ε a maximum of convex functions is
  convex, so it is a profile, and its pair dominates each of theirs; adaptive choices among them compose as it does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from veil.accounting import events as kinds
from veil.accounting.events import AccountingError, Event, Relation, Repeated, relation_of, repeated

FloatArray = NDArray[np.float64]
Profile = Callable[[FloatArray], tuple[FloatArray, FloatArray]]
"""Takes ε ≥ 0, returns δ(ε) and a bound on the absolute error of that number."""

UNIT = 2.0**-52
"""Spacing of doubles at 1; scipy's erfc, erfcx and ndtr err by a few of these, relatively."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A dominating pair, known by its profile and the profile of its reverse (both on ε ≥ 0)."""

    up: Profile
    down: Profile

    @property
    def symmetric(self) -> bool:
        """Whether both directions cost the same."""
        return self.up is self.down

    def reverse(self) -> Pair:
        """The same pair seen from the other side."""
        return Pair(self.down, self.up)


CLOSE = 0.25
"""Below this distance two Gaussians' tails are subtracted by quadrature, so that their small difference stays exact."""

_FIVE = np.polynomial.legendre.leggauss(5)
EIGHT = np.polynomial.legendre.leggauss(8)


def gaussian_terms(log_a: FloatArray, mu: float | FloatArray) -> tuple[FloatArray, FloatArray]:
    """H_a(N(μ, 1)‖N(0, 1)) for a ≥ 1, and its error if log a is off by a few units in the last place.

    `mu` is a number, or a column of numbers that are all on one side of `CLOSE`.

    With z = ln a/μ − μ/2 and the Mills ratio m it is φ(z)·(m(z) − m(z + μ)), so nothing overflows; for small μ the
    difference is the integral of 1 − t·m(t), whose five-point Gauss rule errs by less than rounding (z ≥ −μ/2).
    """
    near = log_a / mu - mu / 2
    far = log_a / mu + mu / 2
    if np.min(mu) >= CLOSE:
        first = special.ndtr(-near)
        second = 0.5 * np.exp(-0.5 * np.square(near)) * special.erfcx(far / math.sqrt(2))
        error = UNIT * (8 + 4 * far * (1 + np.abs(near))) * (first + second)
        return np.maximum(first - second, 0.0), error
    total = np.zeros_like(near)
    for place, weight in zip(*_FIVE, strict=True):
        t = near + mu * (0.5 + 0.5 * place)
        total += weight * (1 - t * (math.sqrt(math.pi / 2) * special.erfcx(t / math.sqrt(2))))
    value = np.exp(-0.5 * np.square(near)) / math.sqrt(2 * math.pi) * (0.5 * mu) * np.maximum(total, 0.0)
    return value, UNIT * (32 + 16 * np.square(far)) * value


def gaussian_pair(mu: float) -> Pair:
    """Two unit Gaussians at distance μ."""

    def profile(epsilon: FloatArray) -> tuple[FloatArray, FloatArray]:
        return gaussian_terms(epsilon, mu)

    return Pair(profile, profile)


def amplified(epsilon: FloatArray, rate: float | FloatArray) -> FloatArray:
    """ln(1 + (e^ε − 1)/γ), small or large."""
    with np.errstate(over="ignore"):
        small = np.log1p(np.expm1(epsilon) / rate)
    large = epsilon - _of_each(math.log, rate) + np.log1p(-(1 - rate) * np.exp(-epsilon))
    return np.where(epsilon < 1.0, small, large)


def _of_each(function: Callable[[float], float], numbers: float | FloatArray) -> float | FloatArray:
    """A function of a number, or of each in a column: numpy's own may differ in the last digit between the two."""
    if isinstance(numbers, float):
        return function(numbers)
    return np.array([[function(number)] for number in numbers[:, 0].tolist()])


@dataclass(frozen=True, slots=True, eq=False)
class _SampledUp:
    """γ·H_{1+(e^ε−1)/γ} of two Gaussians at distance μ: the mixture (1−γ)Q + γP against Q."""

    rate: float | FloatArray
    mu: float | FloatArray

    def __call__(self, epsilon: FloatArray) -> tuple[FloatArray, FloatArray]:
        value, error = gaussian_terms(amplified(epsilon, self.rate), self.mu)
        return self.rate * value, self.rate * error


@dataclass(frozen=True, slots=True, eq=False)
class _SampledDown:
    """N(0, 1) against the mixture: b·H_{aq/b} with b = 1 − a(1 − q); nothing is lost beyond ε = −ln(1−q)."""

    rate: float | FloatArray
    mu: float | FloatArray

    def __call__(self, epsilon: FloatArray) -> tuple[FloatArray, FloatArray]:
        edge = -_of_each(math.log1p, -self.rate)
        inside = epsilon < edge
        weight = np.where(inside, -np.expm1(np.minimum(epsilon - edge, 0.0)), 1.0)
        log_a = np.log1p(np.expm1(np.minimum(epsilon, edge)) / weight)
        value, error = gaussian_terms(log_a, self.mu)
        # the weight is off by a few units of the edge, which matters where it is about to vanish
        return np.where(inside, weight * value, 0.0), np.where(inside, 4 * (weight + edge) * error, 0.0)


def poisson_pair(rate: float, noise: float) -> Pair:
    """Poisson sampling when one row is added or removed."""
    return Pair(_SampledUp(rate, 1 / noise), _SampledDown(rate, 1 / noise))


def poisson_replace_pair(rate: float, noise: float) -> Pair:
    """Poisson sampling when one row is replaced by its opposite.

    The likelihood ratio grows along the line; it is e^ε at z = x/κ = κ ln w where c·w² − (1−q)(a−1)·w − a·c = 0 and
    c = q·e^(−1/2κ²). A small error in z costs only its square, because the half space is optimal.
    """
    log_c = math.log(rate) - 0.5 / noise**2

    def profile(epsilon: FloatArray) -> tuple[FloatArray, FloatArray]:
        with np.errstate(divide="ignore"):
            log_b = np.log(-(1 - rate) * np.expm1(-epsilon))
        root = 0.5 * np.logaddexp(2 * log_b, math.log(4) + 2 * log_c - epsilon)
        z = noise * (epsilon + np.logaddexp(log_b, root) - math.log(2) - log_c)
        at = np.exp(epsilon + special.log_ndtr(-z))
        gain = rate * special.ndtr(1 / noise - z)
        loss = rate * np.exp(epsilon + special.log_ndtr(-z - 1 / noise)) - (1 - rate) * np.expm1(-epsilon) * at
        if noise > 1 / CLOSE:
            # shifts are small: write tails as differences from the middle one, Φ̄(z ∓ 1/κ) = Φ̄(z) ± strip
            close = z <= 2 * noise
            gain = np.where(close, rate * _strips(z, 1 / noise, epsilon), gain)
            loss = np.where(close, -np.expm1(-epsilon) * at, loss)
        exponent = epsilon + np.square(np.abs(z) + 1 / noise)
        return np.maximum(gain - loss, 0.0), UNIT * (16 + 8 * exponent) * (gain + loss)

    return Pair(profile, profile)


def _strips(z: FloatArray, width: float, epsilon: FloatArray) -> FloatArray:
    """∫φ over [z − width, z] plus e^ε times ∫φ over [z, z + width], for z·width ≤ 2 (eight-point Gauss rule)."""
    total = np.zeros_like(z)
    for place, weight in zip(*EIGHT, strict=True):
        shift = width * (0.5 + 0.5 * place)
        total += weight * (np.exp(-0.5 * np.square(z - shift)) + np.exp(epsilon - 0.5 * np.square(z + shift)))
    strips: FloatArray = total * (0.5 * width / math.sqrt(2 * math.pi))
    return strips


def subset_pair(rate: float, mu: float) -> Pair:
    """A batch without replacement when one row is replaced."""
    profile = _SampledUp(rate, mu)
    return Pair(profile, profile)


def laplace_pair(distance: float) -> Pair:
    """Two unit Laplace laws at this distance."""

    def profile(epsilon: FloatArray) -> tuple[FloatArray, FloatArray]:
        value = -np.expm1(np.minimum(epsilon - distance, 0.0) / 2)
        return value, np.where(epsilon < distance, 4 * UNIT * (value + distance), 0.0)

    return Pair(profile, profile)


def noisy_max_pair(span: float) -> Pair:
    """The worst pair of a mechanism whose log-ratios span at most η."""

    def profile(epsilon: FloatArray) -> tuple[FloatArray, FloatArray]:
        root = -np.expm1(np.minimum(epsilon - span, 0.0) / 2)
        value = np.square(root) / -math.expm1(-span)
        return value, np.where(epsilon < span, 8 * UNIT * (value + span * root / -math.expm1(-span)), 0.0)

    return Pair(profile, profile)


def response_pair(size: float) -> Pair:
    """Two outcomes whose log-ratios are ±`size`: what a noisy max between two candidates really can be."""

    def profile(epsilon: FloatArray) -> tuple[FloatArray, FloatArray]:
        value = -np.expm1(np.minimum(epsilon - size, 0.0)) / (1.0 + math.exp(-size))
        return value, np.where(epsilon < size, 8 * UNIT * (value + size), 0.0)

    return Pair(profile, profile)


def mixture_pair(probability: float, pair: Pair) -> Pair:
    """The pair that is drawn with this public probability, and otherwise tells nothing."""

    def scaled(profile: Profile) -> Profile:
        def mixed(epsilon: FloatArray) -> tuple[FloatArray, FloatArray]:
            value, error = profile(epsilon)
            return probability * value, probability * error

        return mixed

    up = scaled(pair.up)
    return Pair(up, up if pair.symmetric else scaled(pair.down))


def envelope_pair(pairs: Sequence[Pair]) -> Pair:
    """The pair that dominates all of these: the largest value, and the largest error, at each ε."""

    def largest(profiles: list[Profile]) -> Profile:
        together = _together(profiles)

        def profile(epsilon: FloatArray) -> tuple[FloatArray, FloatArray]:
            found = [one(epsilon) for one in together]
            values, errors = (np.max(np.vstack([each[side] for each in found]), axis=0) for side in (0, 1))
            return values, errors

        return profile

    up = largest([pair.up for pair in pairs])
    return Pair(up, up if all(pair.symmetric for pair in pairs) else largest([pair.down for pair in pairs]))


def _together(profiles: Sequence[Profile]) -> list[Profile]:
    """The same profiles with those of one form as one, which gives a line of values for each of them."""
    alike: dict[tuple[type, bool], list[Profile]] = {}
    others: list[Profile] = []
    for one in profiles:
        if isinstance(one, _SampledUp | _SampledDown):
            alike.setdefault((type(one), bool(one.mu >= CLOSE)), []).append(one)
        else:
            others.append(one)
    for (form, _), members in alike.items():
        rates, distances = (np.array([[getattr(one, name)] for one in members]) for name in ("rate", "mu"))
        others.append(form(rates, distances))
    return others


def gaussian_distance(event: Event) -> float | None:
    """μ when the event costs exactly what a Gaussian costs, 0 when it costs nothing, None otherwise."""
    match event:
        case kinds.Gaussian():
            return event.reach / event.noise_multiplier
        case kinds.Tree():
            return gaussian_distance(event.as_gaussian())
        case kinds.SubsetGaussian() | kinds.PoissonGaussian() if event.rate == 0:
            return 0.0
        case kinds.SubsetGaussian() if event.rate == 1:
            return event.reach / event.noise_multiplier
        case kinds.PoissonGaussian() if event.rate == 1:
            return (1 if event.relation is Relation.ADD_REMOVE else 2) / event.noise_multiplier
        case kinds.Mixture() if event.probability == 0:
            return 0.0
        case kinds.Envelope():
            distances = [gaussian_distance(one) for one in event.events]
            known = [distance for distance in distances if distance is not None]
            return max(known) if len(known) == len(distances) else None
        case kinds.Mixture() if event.probability == 1:
            return gaussian_distance(event.event)
        case kinds.Choice():
            squares = [_squared_distance(run) for run in event.runs]
            known = [square for square in squares if square is not None]
            return math.sqrt(max(known)) * (1 + 4 * UNIT) if len(known) == len(squares) else None
    return None


def _squared_distance(items: Iterable[Repeated]) -> float | None:
    """μ² of events that together cost exactly what a Gaussian costs, None where one of them does not."""
    distances = [(gaussian_distance(item.event), item.times) for item in items]
    known = [times * distance**2 for distance, times in distances if distance is not None]
    return math.fsum(known) if len(known) == len(distances) else None


def pair_of(event: Event) -> Pair:
    """The dominating pair of an event that costs something and is not plainly Gaussian."""
    distance = gaussian_distance(event)
    if distance is not None:
        return gaussian_pair(distance)
    match event:
        case kinds.PoissonGaussian(noise, rate, Relation.ADD_REMOVE):
            return poisson_pair(rate, noise)
        case kinds.PoissonGaussian(noise, rate):
            return poisson_replace_pair(rate, noise)
        case kinds.SubsetGaussian(noise):
            return subset_pair(event.rate, event.reach / noise)
        case kinds.Laplace(noise):
            return laplace_pair(event.reach / noise)
        case kinds.NoisyMax():
            return noisy_max_pair(event.range)
        case kinds.Mixture(probability, inner):
            return pair_of(inner) if probability == 1 else mixture_pair(probability, pair_of(inner))
        case kinds.Envelope(members):
            costly = [one for one in members if gaussian_distance(one) != 0.0]
            return envelope_pair([pair_of(one) for one in costly])
    raise AccountingError(f"{type(event).__name__} is not supported by the PLD accountant: use rdp")


def supported(event: Event) -> bool:
    """Whether `pair_of` knows the event."""
    if isinstance(event, kinds.Choice):
        return gaussian_distance(event) is not None
    return not isinstance(event, kinds.Selection)


@dataclass(frozen=True, slots=True)
class Part:
    """A dominating pair and how many times it is composed with itself."""

    pair: Pair
    times: int


def parts_of(events: Iterable[Event | Repeated], realisable: bool = False) -> tuple[Part, ...]:
    """The pairs to compose: equal events counted, all Gaussians folded into one, what costs nothing left out.

    `realisable` takes for a noisy max one pair that can occur, in place of the worst case at every ε.
    """
    items = repeated(events)
    if not items:
        return ()
    relation_of(items)
    parts: list[Part] = []
    squares: list[float] = []
    for item in items:
        distance = gaussian_distance(item.event)
        if distance is None:
            alone = realisable and isinstance(item.event, kinds.NoisyMax)
            pair = response_pair(item.event.range / 2) if alone else pair_of(item.event)  # type: ignore[union-attr]
            parts.append(Part(pair, item.times))
        elif distance > 0:
            squares.append(item.times * distance**2)
    if squares:
        # folding rounds to the unit; a few units more keep the fold on the private side
        parts.append(Part(gaussian_pair(math.sqrt(math.fsum(squares)) * (1 + 4 * UNIT)), 1))
    return tuple(parts)
