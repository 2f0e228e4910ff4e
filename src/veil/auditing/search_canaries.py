"""Canaries through a search: an attacker who sees the best trial alone guesses whether a row was there.

`audit_search` simulates the search under the strongest canary that the theorem allows for: the release of every trial
moves by the canary's whole bound, and the search prefers the trials in which it moved most. The number of trials has
the search's own distribution and their noise its own size; no model is trained. A search whose share forgets the trials
is caught: its best trial tells more than its certificate says.

`fit_search` takes what real searches published instead. It knows how the number of trials is distributed and by how
much the canary moves a trial, but not the noise: that is read off what was published.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from veil.accounting import AccountingError
from veil.accounting.pld.profiles import gaussian_distance
from veil.auditing.lower_bounds import ASSUMPTIONS, LARGEST_EPSILON, LowerBound, clopper_pearson
from veil.errors import require
from veil.foundation.randomness import Seed
from veil.training.searching import NumberOfTrials, Search, score_event

Floats = NDArray[np.float64]
_FIT = "best-of-trials-fit"
_REPEATED = 4_000


def audit_search(search: Search, searches: int, seed: Seed, confidence: float = 0.95) -> LowerBound:
    """A lower bound on the ε of a search, from `searches` of them with and as many without the canary.

    Args:
        search: The search as planned; its trials are scored by Gaussian counts, as all searches are.
        searches: How often the whole search is repeated on each side.
        seed: Where numbers of trials, noise and order come from.
        confidence: The chance that the bound holds.

    Returns:
        The bound on ε at the δ of the whole.

    Raises:
        AccountingError: The search is paid by composition, which has no best trial alone.
    """
    trials = _random_number(search)
    distance = gaussian_distance(score_event(search.plans[0]))
    assert distance is not None
    generator = seed.generator("searches", 0)
    coins = np.repeat([True, False], searches)
    scores = best_of_trials(trials, len(coins), generator) + distance * coins
    order = generator.permutation(len(coins))
    delta = search.settings.delta_for(search.facts)
    return clopper_pearson(scores[order], coins[order], delta, confidence)


def fit_search(search: Search, published: Floats, moved: float, seed: Seed, confidence: float = 0.95) -> LowerBound:
    """A lower bound on the ε of a search, from what searches without the canary published.

    The noise of a trial is unknown. Its upper limit follows from the length of all that was published, whose
    distribution is known but for that noise; with more noise, so short a list would be rarer than 1 − `confidence`.

    Args:
        search: The search as planned.
        published: The published value of each search in the canary's direction, less what it is without noise.
        moved: By how much the canary moves this value.
        seed: Where the simulation that gives the limit comes from.
        confidence: The chance that the bound holds.

    Returns:
        The bound on ε at the δ of the whole. It assumes that trials are Gaussian and chosen by this value.

    Raises:
        AccountingError: The search is paid by composition, which has no best trial alone.
        InputError: Nothing was published, or the canary moves nothing.
    """
    require(len(published) > 0 and moved > 0, "the fit needs published values and a canary that moves them")
    trials = _random_number(search)
    generator = seed.generator("published", 0)
    drawn = best_of_trials(trials, _REPEATED * len(published), generator).reshape(_REPEATED, -1)
    lengths = np.linalg.norm(drawn, axis=1)
    most_noise = float(np.linalg.norm(published) / np.quantile(lengths, 1 - confidence))
    epsilon = epsilon_of_best(trials, moved / most_noise, search.settings.delta_for(search.facts))
    return LowerBound(_FIT, epsilon, confidence, ASSUMPTIONS[_FIT])


def best_of_trials(trials: NumberOfTrials, searches: int, generator: np.random.Generator) -> Floats:
    """The largest of a random number of standard normal values, for each of some searches."""
    table = np.cumsum(trials.chances(trials.quantile(1 - 1e-9)))
    numbers = np.searchsorted(table, generator.random(searches)) + 1
    # The largest of n uniforms is the n-th root of one: no trial has to be drawn by itself.
    return np.asarray(ndtri(generator.random(searches) ** (1.0 / numbers)))


def epsilon_of_best(trials: NumberOfTrials, distance: float, delta: float) -> float:
    """The ε at δ that thresholds prove for the best of Gaussian trials which a row moves by so many deviations.

    >>> number = NumberOfTrials.expecting(5.0)
    >>> round(epsilon_of_best(number, 1.0, 1e-3), 2), epsilon_of_best(number, 0.0, 1e-3)
    (3.61, 0.0)
    """
    places = np.linspace(-8.0, 8.0 + distance, 4_001)
    without, inside = (np.clip(trials.chance_of_all_below(ndtr(places - far)), 0.0, 1.0) for far in (0.0, distance))

    def missing(epsilon: float) -> float:
        into = (1 - inside) - np.exp(epsilon) * (1 - without)
        away = without - np.exp(epsilon) * inside
        return float(max(into.max(), away.max())) - delta

    return float(brentq(missing, 0.0, LARGEST_EPSILON)) if missing(0.0) > 0 else 0.0


def _random_number(search: Search) -> NumberOfTrials:
    if not isinstance(search.trials, NumberOfTrials):
        raise AccountingError(
            "this audit is for searches by selection: those by composition are audited trial by trial"
        )
    return search.trials
