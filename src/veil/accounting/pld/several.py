"""Pairs for several rows of one person: all k rows added or removed at once, or all k replaced.

The rows stand in one cell and take part in the same releases. Where the pairs come from:

* Gaussian, tree, Laplace, noisy max: the rows' contributions add up, so the distance (or the range) is k times as long.
* Poisson, add-remove: Σ_j w_j·N(j, κ²) against N(0, κ²), and its reverse, with w = Binomial(k, q). Take any set S and
  let p be its mass under the noise alone. If j rows were drawn, the sum moves by a vector no longer than j, so S has a
  mass of at most Φ(Φ⁻¹(p) + j/κ) and at least Φ(Φ⁻¹(p) − j/κ); one half space reaches all of these at once when all
  rows point in one direction. Which other rows were drawn is a mixture with the same weights on both sides. A half
  line's mass grows with every further row, so the bound grows with k.
* Subset of b from n rows, replace-one: w = Hypergeometric, j of the k rows drawn. Advanced joint convexity (Balle,
  Barthe, Gaboardi 2018) bounds the profile at ε ≥ 0 by Σ_{j≥1} w_j·H_{a'}(N(jμ, 1)‖N(0, 1)) with
  a' = 1 + (e^ε − 1)/(1 − w_0): a batch with j of the rows becomes one without them by exchanging j rows. The reverse
  has the same bound. As for one row, both sides together are a profile: with F = E[Φ(Jμ/2) | J ≥ 1] the slopes at
  a = 1 are (1 − w_0)(2F − 1) − F ≤ F − 1.
* Mixture and envelope: as for one row, with these pairs inside.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from scipy import special

from veil.accounting import events as kinds
from veil.accounting.events import AccountingError, Event, Relation, Repeated, relation_of, repeated
from veil.accounting.pld.profiles import (
    CLOSE,
    EIGHT,
    UNIT,
    FloatArray,
    Pair,
    Part,
    amplified,
    envelope_pair,
    gaussian_distance,
    gaussian_pair,
    gaussian_terms,
    laplace_pair,
    mixture_pair,
    noisy_max_pair,
    supported,
)

_AT_ONCE = 1 << 18


def _log_binomial(rows: int, rate: float) -> FloatArray:
    """ln of the chance that j of the rows are drawn, for j = 1 … rows."""
    return np.array(
        [math.log(math.comb(rows, j)) + j * math.log(rate) + (rows - j) * math.log1p(-rate) for j in range(1, rows + 1)]
    )


def _where_ratio(log_ratio: FloatArray, log_weight: FloatArray, mu: float) -> FloatArray:
    """The z at which ln Σ_j w_j·e^(jμz − j²μ²/2) is `log_ratio`, by Newton's method from the right.

    The sum's logarithm is convex and rises at least by μ per unit, so every step stays right of the root.
    """
    j = np.arange(1, len(log_weight) + 1, dtype=np.float64)[:, None]
    offset = log_weight[:, None] - np.square(j * mu) / 2
    found = np.empty_like(log_ratio)
    chunk = max(_AT_ONCE // len(log_weight), 1)
    for first in range(0, len(log_ratio), chunk):
        target = log_ratio[first : first + chunk]
        z = np.min((target - offset) / (j * mu), axis=0)
        for _ in range(60):
            terms = offset + j * mu * z
            top = terms.max(axis=0)
            terms = np.exp(terms - top)
            total = terms.sum(axis=0)
            step = (top + np.log(total) - target) / (mu * (j * terms).sum(axis=0) / total)
            z = z - step
            if not np.any(np.abs(step) > 1e-12 * (1 + np.abs(z))):
                break
        found[first : first + chunk] = z
    return found


def _between(z: FloatArray, width: float) -> FloatArray:
    """The normal mass of [z − width, z], with a small relative error everywhere."""
    centre = np.abs(z - width / 2)
    direct: FloatArray = special.ndtr(width / 2 - centre) - special.ndtr(-width / 2 - centre)
    if width >= CLOSE:
        return direct
    total = np.zeros_like(z)
    for place, weight in zip(*EIGHT, strict=True):
        total += weight * np.exp(-0.5 * np.square(centre + width / 2 * place))
    return np.where(centre * width <= 2, total * (0.5 * width / math.sqrt(2 * math.pi)), direct)


def poisson_rows_pair(rows: int, rate: float, noise: float) -> Pair:
    """Poisson sampling when k rows are added or removed together.

    The likelihood ratio grows along the line, so half lines are optimal; a small error in where they begin costs only
    its square.
    """
    mu, log_weight = 1 / noise, _log_binomial(rows, rate)
    edge = -rows * math.log1p(-rate)
    some = -math.expm1(-edge)

    def moved(z: FloatArray) -> FloatArray:
        return sum((math.exp(w) * _between(z, (j + 1) * mu) for j, w in enumerate(log_weight)), np.zeros_like(z))

    def doubt(z: FloatArray, epsilon: FloatArray) -> FloatArray:
        return UNIT * (64 + 4 * float(-log_weight.min()) + 16 * (epsilon + np.square(np.abs(z) + rows * mu)))

    def up(epsilon: FloatArray) -> tuple[FloatArray, FloatArray]:
        with np.errstate(over="ignore"):
            small = np.log(np.expm1(epsilon) + some)
        large = epsilon + np.log1p(-(1 - some) * np.exp(-epsilon))
        z = _where_ratio(np.where(epsilon < 1.0, small, large), log_weight, mu)
        gain, loss = moved(z), -np.expm1(-epsilon) * np.exp(epsilon + special.log_ndtr(-z))
        return np.maximum(gain - loss, 0.0), doubt(z, epsilon) * (gain + loss)

    def down(epsilon: FloatArray) -> tuple[FloatArray, FloatArray]:
        inside = epsilon < edge
        asked = np.where(inside, epsilon, 0.0)
        z = _where_ratio(-asked + np.log(-np.expm1(asked - edge)), log_weight, mu)
        gain, loss = np.exp(asked) * moved(z), np.expm1(asked) * special.ndtr(z)
        value, error = np.maximum(gain - loss, 0.0), doubt(z, asked) * (gain + loss)
        return np.where(inside, value, 0.0), np.where(inside, error, 0.0)

    return Pair(up, down)


def _hypergeometric(rows: int, size: int, batch: int) -> list[float]:
    """The chance that j of the rows are in a batch, for j = 1 … rows."""
    drawn = []
    for j in range(1, rows + 1):
        chance = float(math.comb(rows, j))
        for i in range(rows):
            chance *= ((batch - i) if i < j else (size - batch - (i - j))) / (size - i)
        drawn.append(max(chance, 0.0))
    return drawn


def subset_rows_pair(rows: int, size: int, batch: int, mu: float) -> Pair:
    """A batch without replacement when k of the `size` rows are replaced together."""
    k = min(rows, size)
    drawn = _hypergeometric(k, size, batch)
    # a share that is rounded up makes the bound larger
    some = min(math.fsum(drawn) * (1 + 8 * (k + 1) * UNIT), 1.0)

    def profile(epsilon: FloatArray) -> tuple[FloatArray, FloatArray]:
        log_a = amplified(epsilon, some)
        value, error = np.zeros_like(epsilon), np.zeros_like(epsilon)
        for j, weight in enumerate(drawn, start=1):
            if weight > 0:
                one, doubt = gaussian_terms(log_a, j * mu)
                value, error = value + weight * one, error + weight * (doubt + 8 * (k + 1) * UNIT * one)
        return value, error

    return Pair(profile, profile)


def pair_of_rows(event: Event, rows: int) -> Pair:
    """The dominating pair of an event for `rows` rows of one person that all take part in it."""
    distance = gaussian_distance(event)
    if distance is not None:
        return gaussian_pair(rows * distance)
    match event:
        case kinds.PoissonGaussian(noise, rate, Relation.ADD_REMOVE):
            return poisson_rows_pair(rows, rate, noise)
        case kinds.SubsetGaussian(noise, size, batch):
            return subset_rows_pair(rows, size, batch, event.reach / noise)
        case kinds.Laplace(noise):
            return laplace_pair(rows * event.reach / noise)
        case kinds.NoisyMax():
            return noisy_max_pair(rows * event.range)
        case kinds.Mixture(probability, inner):
            pair = pair_of_rows(inner, rows)
            return pair if probability == 1 else mixture_pair(probability, pair)
        case kinds.Envelope(members):
            return envelope_pair([pair_of_rows(one, rows) for one in members if gaussian_distance(one) != 0.0])
    raise AccountingError(f"{type(event).__name__} of several rows is not supported by the PLD accountant")


def supports_rows(event: Event) -> bool:
    """Whether `pair_of_rows` knows the event."""
    match event:
        case kinds.PoissonGaussian():
            return event.relation is Relation.ADD_REMOVE or gaussian_distance(event) is not None
        case kinds.Mixture(_, inner):
            return supports_rows(inner)
        case kinds.Envelope(members):
            return all(map(supports_rows, members))
    return supported(event)


def parts_of_rows(events: Iterable[Event | Repeated], rows: int) -> tuple[Part, ...]:
    """The pairs to compose for `rows` rows of one person, as `parts_of` has them for one."""
    items = repeated(events)
    if not items:
        return ()
    relation_of(items)
    parts, squares = [], []
    for item in items:
        distance = gaussian_distance(item.event)
        if distance is None:
            parts.append(Part(pair_of_rows(item.event, rows), item.times))
        elif distance > 0:
            squares.append(item.times * distance**2)
    if squares:
        # folding rounds to the unit; a few units more keep the fold on the private side
        parts.append(Part(gaussian_pair(rows * math.sqrt(math.fsum(squares)) * (1 + 8 * UNIT)), 1))
    return tuple(parts)
