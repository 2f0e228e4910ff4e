"""Profiles of single events against integrals in forty digits, and the laws made of them."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest

from veil.accounting.events import Relation
from veil.accounting.pld.grid import extent_of, sketch, uniform
from veil.accounting.pld.profiles import (
    Pair,
    envelope_pair,
    gaussian_pair,
    laplace_pair,
    mixture_pair,
    noisy_max_pair,
    poisson_pair,
    poisson_replace_pair,
    subset_pair,
)

PAIRS = {
    "gaussian": gaussian_pair(0.7),
    "gaussian, much noise": gaussian_pair(0.01),
    "poisson": poisson_pair(0.01, 0.8),
    "poisson, seen from the other side": poisson_pair(0.01, 0.8).reverse(),
    "poisson, much noise": poisson_pair(0.2, 50.0),
    "poisson, replace": poisson_replace_pair(0.01, 0.8),
    "poisson, replace, much noise": poisson_replace_pair(0.2, 50.0),
    "subset": subset_pair(0.05, 1.5),
    "laplace": laplace_pair(0.5),
    "noisy max": noisy_max_pair(0.5),
    "mixture": mixture_pair(0.3, poisson_pair(0.1, 1.0)),
}


def _tail(x: mp.mpf) -> mp.mpf:
    return mp.erfc(x / mp.sqrt(2)) / 2


def _gaussian(a: mp.mpf, mu: mp.mpf) -> mp.mpf:
    return _tail(mp.log(a) / mu - mu / 2) - a * _tail(mp.log(a) / mu + mu / 2)


def _up(rate: float, noise: float, epsilon: float) -> mp.mpf:
    return rate * _gaussian(1 + mp.expm1(epsilon) / rate, 1 / mp.mpf(noise))


def _down(rate: float, noise: float, epsilon: float) -> mp.mpf:
    weight = 1 - mp.exp(epsilon) * (1 - mp.mpf(rate))
    return weight * _gaussian(mp.exp(epsilon) * rate / weight, 1 / mp.mpf(noise)) if weight > 0 else mp.mpf(0)


def _replace(rate: float, noise: float, epsilon: float) -> mp.mpf:
    """The best half space, found by a search that knows nothing of the formula for its edge."""
    q, k, a = mp.mpf(rate), mp.mpf(noise), mp.exp(epsilon)

    def ratio(x: mp.mpf) -> mp.mpf:
        return mp.log(1 - q + q * mp.exp((x - 0.5) / k**2)) - mp.log(1 - q + q * mp.exp((-x - 0.5) / k**2)) - epsilon

    low, high = mp.mpf(-1), mp.mpf(1)
    while ratio(high) < 0:
        high *= 2
    for _ in range(160):
        middle = (low + high) / 2
        low, high = (middle, high) if ratio(middle) < 0 else (low, middle)
    first = (1 - q) * _tail(low / k) + q * _tail((low - 1) / k)
    return first - a * ((1 - q) * _tail(low / k) + q * _tail((low + 1) / k))


@pytest.mark.parametrize(
    ("pair", "truth", "epsilons"),
    [
        (gaussian_pair(0.7), lambda e: _gaussian(mp.exp(e), mp.mpf(0.7)), (0.0, 0.3, 2.0, 6.0, 20.0)),
        (gaussian_pair(0.01), lambda e: _gaussian(mp.exp(e), mp.mpf(0.01)), (0.0, 1e-4, 0.01, 0.1, 0.3)),
        (gaussian_pair(40.0), lambda e: _gaussian(mp.exp(e), mp.mpf(40)), (0.0, 700.0, 900.0, 1500.0)),
        (poisson_pair(0.01, 0.8), lambda e: _up(0.01, 0.8, e), (0.0, 1e-3, 0.1, 2.0, 8.0)),
        (poisson_pair(0.2, 50.0), lambda e: _up(0.2, 50.0, e), (0.0, 1e-4, 1e-2, 0.02)),
        (poisson_pair(0.01, 0.8).reverse(), lambda e: _down(0.01, 0.8, e), (0.0, 1e-3, 5e-3, 0.009, 0.02)),
        (poisson_pair(0.2, 50.0).reverse(), lambda e: _down(0.2, 50.0, e), (0.0, 1e-4, 1e-2, 0.02)),
        (poisson_replace_pair(0.01, 0.8), lambda e: _replace(0.01, 0.8, e), (0.0, 1e-3, 0.1, 2.0, 8.0)),
        (poisson_replace_pair(0.2, 50.0), lambda e: _replace(0.2, 50.0, e), (0.0, 1e-4, 1e-2, 0.05)),
        (poisson_replace_pair(0.3, 0.1), lambda e: _replace(0.3, 0.1, e), (0.0, 1.0, 60.0, 120.0)),
    ],
)
def test_a_profile_is_off_by_more_than_it_admits(pair: Pair, truth, epsilons) -> None:  # type: ignore[no-untyped-def]
    value, error = pair.up(np.array(epsilons))
    with mp.workdps(40):
        for index, epsilon in enumerate(epsilons):
            exact = truth(mp.mpf(epsilon))
            assert abs(mp.mpf(float(value[index])) - exact) <= mp.mpf(float(error[index]))
    assert np.all(error <= 1e-9 * value + 1e-18)


@pytest.mark.parametrize("relation", list(Relation))
def test_laplace_profile_differs_from_its_closed_form(relation: Relation) -> None:
    distance = 2.0 if relation is Relation.REPLACE_ONE else 1.0
    value, _ = laplace_pair(distance).up(np.array([0.0, 0.5, 3.0]))
    assert value[0] == pytest.approx(1 - math.exp(-distance / 2))
    assert value[1] == pytest.approx(1 - math.exp((0.5 - distance) / 2))
    assert value[2] == 0


def test_noisy_max_profile_is_below_some_two_point_mechanism_of_its_range() -> None:
    span = 0.8
    for epsilon in (0.0, 0.2, 0.6):
        best = 0.0
        for t in np.linspace(1e-6, span - 1e-6, 2001):
            mass = (1 - math.exp(t - span)) / (math.exp(t) - math.exp(t - span))
            best = max(best, mass * (math.exp(t) - math.exp(epsilon)))
        value = float(noisy_max_pair(span).up(np.array([epsilon]))[0][0])
        assert best <= value * (1 + 1e-12)
        assert value == pytest.approx(best, rel=1e-5)


@pytest.mark.parametrize("name", PAIRS)
def test_the_law_on_the_grid_does_not_reproduce_the_profile_at_its_dots(name: str) -> None:
    pair = PAIRS[name]
    extent = extent_of(pair, 1e-14)
    start, dots = uniform(pair, float(pair.up(np.zeros(1))[0][0]) / 7, extent)
    assert dots.losses[-start] == 0
    assert dots.mass.sum() + dots.infinity == pytest.approx(1, abs=1e-12)
    assert np.sum(dots.mass * np.exp(-dots.losses)) <= 1 + 1e-9
    for index in range(-start, len(dots.losses), max(1, (len(dots.losses) + start) // 9)):
        epsilon = dots.losses[index]
        own = np.sum(dots.upper * np.maximum(-np.expm1(epsilon - dots.losses), 0)) + dots.infinity
        value = float(pair.up(np.array([epsilon]))[0][0])
        assert own >= value
        assert own <= value * (1 + 1e-6) + 1e-12


@pytest.mark.parametrize("name", PAIRS)
def test_the_law_on_the_grid_is_below_the_profile_between_dots(name: str) -> None:
    pair = PAIRS[name]
    for dots in (sketch(pair, extent_of(pair, 1e-10)), uniform(pair, 0.003, extent_of(pair, 1e-10))[1]):
        for epsilon in np.geomspace(1e-4, 1.0, 23):
            own = np.sum(dots.upper * np.maximum(-np.expm1(epsilon - dots.losses), 0)) + dots.infinity
            low = np.sum(dots.upper * np.maximum(-np.expm1(-epsilon - dots.losses), 0)) + dots.infinity
            up, down = (float(profile(np.array([epsilon]))[0][0]) for profile in (pair.up, pair.down))
            assert own >= up
            assert low >= -math.expm1(-epsilon) + math.exp(-epsilon) * down - 1e-15


def test_the_profile_of_a_subset_is_not_convex_at_zero() -> None:
    pair = subset_pair(0.2, 1.0)
    start, dots = uniform(pair, 1e-3, extent_of(pair, 1e-12))
    inside = 2 * 0.6914624612740131 - 1
    assert dots.mass[-start] == pytest.approx(0.8 * inside, rel=0.01)


@pytest.mark.parametrize("sampling", ["poisson", "subset", "both and more"])
def test_an_envelope_is_the_largest_of_its_profiles_to_the_last_bit(sampling):
    rates, noises = np.geomspace(1e-4, 0.9, 9), np.geomspace(0.3, 30.0, 9)  # distances on both sides of CLOSE
    pairs = [poisson_pair(float(q), float(k)) for q, k in zip(rates, noises, strict=True)]
    if sampling != "poisson":
        subsets = [subset_pair(float(q), 2 / float(k)) for q, k in zip(rates, noises, strict=True)]
        pairs = subsets if sampling == "subset" else [*pairs, *subsets, gaussian_pair(0.7)]
    envelope = envelope_pair(pairs)
    epsilon = np.concatenate(([0.0], np.geomspace(1e-12, 40.0, 300)))
    for side in ("up", "down"):
        found = getattr(envelope, side)(epsilon)
        alone = [getattr(pair, side)(epsilon) for pair in pairs]
        for part in (0, 1):
            assert np.array_equal(found[part], np.max([one[part] for one in alone], axis=0))
