"""Canaries through a simulated search: an attacker who sees the best trial alone guesses whether a row was there.

The canary is as strong as the theorem allows for: the release of every trial moves by the canary's whole bound, and the
search prefers the trials in which it moved most. The number of trials has the search's own distribution and their noise
its own size; no model is trained. A search whose share forgets the trials is caught: its best trial tells more than its
certificate says.
"""

from __future__ import annotations

import numpy as np

from veil.accounting import AccountingError
from veil.accounting.pld.profiles import gaussian_distance
from veil.auditing.lower_bounds import LowerBound, clopper_pearson
from veil.foundation.randomness import Seed
from veil.training.searching import NumberOfTrials, Search, score_event


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
    if not isinstance(search.trials, NumberOfTrials):
        raise AccountingError(
            "this audit is for searches by selection: those by composition are audited trial by trial"
        )
    distance = gaussian_distance(score_event(search.plans[0]))
    assert distance is not None
    generator = seed.generator("searches", 0)
    coins = np.repeat([True, False], searches)
    places = generator.random(len(coins))
    table = np.cumsum(search.trials.chances(search.trials.quantile(1 - 1e-9)))
    numbers = np.searchsorted(table, places) + 1
    # The largest of n uniforms is the n-th root of one: no trial has to be drawn by itself.
    best = generator.random(len(coins)) ** (1.0 / numbers)
    from scipy.special import ndtri

    scores = ndtri(best) + distance * coins
    order = generator.permutation(len(coins))
    delta = search.settings.delta_for(search.facts)
    return clopper_pearson(scores[order], coins[order], delta, confidence)
