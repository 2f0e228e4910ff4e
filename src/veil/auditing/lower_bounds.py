"""Lower bounds on ε from guesses about canaries, each with its assumption.

All take fair coins and the guesses that an attacker made of them, and return an ε that the true one exceeds with the
stated confidence. The fewer the assumptions, the lower the bound:

- `one_run`: none beyond fair coins (Steinke, Nasr, Jagielski 2023).
- `clopper_pearson`: canaries play independently of each other.
- `gdp_fit`: as before, and the trade-off curve is Gaussian.
- `fdp_fit`: as before, but the trade-off is that of the releases in the ledger with unknown noise.

An exact test on the number of right guesses serves the two fits: at a threshold fixed before they are counted, each is
right with a chance of at most (1 + TV)/2, so the number of right ones among n is at most binomial. TV is then a point
on the trade-off curve, and the family says what the curve is at the δ that is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from scipy.optimize import brentq
from scipy.special import bdtr, bdtrc, betaincinv

from veil.accounting import Pld, Repeated
from veil.accounting.conversion import gaussian_epsilon
from veil.accounting.events import AccountingError, Choice, Envelope, Event, Mixture, Selection
from veil.errors import require

Floats = NDArray[np.float64]
Coins = NDArray[np.bool_]

LARGEST_EPSILON = 200.0
ASSUMPTIONS = {
    "one-run": "The coin flips of the canaries are fair and independent; nothing is assumed about the mechanism.",
    "clopper-pearson": "The coin flips are fair, and canaries do not influence each other's scores.",
    "gdp-fit": "Canaries do not influence each other, and the trade-off curve is Gaussian.",
    "fdp-fit": "Canaries do not influence each other, and the releases are those of the ledger except for the noise.",
    "best-of-trials-fit": "Trials are Gaussian with unknown noise, and chosen by the value that the canary moves.",
}


@dataclass(frozen=True)
class LowerBound:
    """ε is above `epsilon` with probability `confidence` (over coins and noise), if `assumption` holds."""

    name: str
    epsilon: float
    confidence: float
    assumption: str


def _bound(name: str, epsilon: float, confidence: float) -> LowerBound:
    return LowerBound(name, max(epsilon, 0.0), confidence, ASSUMPTIONS[name])


def least_share(successes: ArrayLike, tries: ArrayLike, confidence: float) -> Floats:
    """Clopper and Pearson's one-sided lower limit on a chance, element by element.

    >>> round(float(least_share(90, 100, 0.95)), 3)
    0.836
    """
    hits, all_of = np.asarray(successes, dtype=np.float64), np.asarray(tries, dtype=np.float64)
    found = betaincinv(np.maximum(hits, 1.0), all_of - hits + 1.0, 1.0 - confidence)
    return np.where(hits == 0, 0.0, found)[()]


def least_variation(scores: Floats, coins: Coins, confidence: float) -> float:
    """A lower limit on TV, the advantage of the best guess: from the right guesses at two thresholds.

    Four fifths of the risk go to threshold 0, the best one if the mechanism does what it says. One fifth goes to the
    threshold that is best on a tenth of the canaries, tried on the others: it finds what a mechanism does instead.

    >>> coins = np.arange(1000) % 2 == 0
    >>> round(least_variation(np.where(coins, 1.0, -1.0), coins, 0.95), 3)
    0.994
    """
    risk = 1.0 - confidence
    return max(
        _variation_at(0.0, scores, coins, 1.0 - 0.8 * risk),
        _variation_at(_best_threshold(scores[::10], coins[::10]), *_rest(scores, coins), 1.0 - 0.2 * risk),
    )


def _variation_at(threshold: float, scores: Floats, coins: Coins, confidence: float) -> float:
    right = int(((scores > threshold) == coins).sum())
    return max(2.0 * float(least_share(right, len(coins), confidence)) - 1.0, 0.0)


def _rest(scores: Floats, coins: Coins) -> tuple[Floats, Coins]:
    others = np.arange(len(scores)) % 10 != 0
    return scores[others], coins[others]


def _best_threshold(scores: Floats, coins: Coins) -> float:
    """Half-way between the two neighbours where most guesses are right."""
    order = np.argsort(scores, kind="stable")
    ranked, inside = scores[order], coins[order]
    right = np.cumsum(~inside) + (inside.sum() - np.cumsum(inside))
    place = int(np.argmax(right))
    return float(ranked[place] + ranked[min(place + 1, len(ranked) - 1)]) / 2.0


def gdp_fit(scores: Floats, coins: Coins, delta: float, confidence: float = 0.95) -> LowerBound:
    """The ε of the μ-GDP mechanism whose TV = 2Φ(μ/2) − 1 is the least one that the guesses allow."""
    variation = least_variation(scores, coins, confidence)
    mu = 2.0 * float(stats.norm.ppf((1.0 + variation) / 2.0))
    return _bound("gdp-fit", gaussian_epsilon(mu, delta) if mu > 0 else 0.0, confidence)


def fdp_fit(
    scores: Floats,
    coins: Coins,
    events: Sequence[Repeated],
    delta: float,
    confidence: float = 0.95,
    rows: int = 1,
) -> LowerBound:
    """The ε of the ledger's releases with as much noise as makes their TV the least one that the guesses allow.

    `rows` is how many rows of a person each guess is about.

    If the noise were larger than that, so many right guesses would be rarer than 1 − `confidence`. TV is taken from
    above and ε from below (`Pld`), so numerical error is on the safe side.
    """
    variation = least_variation(scores, coins, confidence)
    if variation <= 0 or not events:
        return _bound("fdp-fit", 0.0, confidence)
    judge = Pld(1e-3, rows)

    def excess(log_scale: float) -> float:
        return judge.total_variation(scaled(events, math.exp(log_scale))) - variation

    scale = math.exp(_falling_root(excess))
    return _bound("fdp-fit", _epsilon_below(scaled(events, scale), delta, Pld(rows=rows)), confidence)


def _falling_root(function: Callable[[float], float], tolerance: float = 2e-4) -> float:
    """Where a falling function passes 0, on the side where it is not above 0."""
    low, high = -0.25, 0.25
    while function(low) < 0 and low > -7:
        low, high = low - 0.5, low
    while function(high) > 0 and high < 12:
        low, high = high, high + 0.5
    if function(low) <= 0:
        return low
    if function(high) > 0:
        return high
    root = float(brentq(function, low, high, xtol=tolerance)) + tolerance
    while function(root) > 0:
        root += tolerance
    return root


def _epsilon_below(events: Sequence[Repeated], delta: float, judge: Pld) -> float:
    epsilon = judge.lower_epsilon(events, delta)
    # The proved lower bound has no window where ε is tiny; the upper one is within a part in ten thousand there.
    return epsilon if epsilon > 0 else judge.epsilon(events, delta) * 0.999


def scaled(events: Sequence[Repeated], factor: float) -> tuple[Repeated, ...]:
    """The same releases with `factor` times the noise.

    >>> from veil.accounting import Gaussian
    >>> scaled([Repeated(Gaussian(1.0), 3)], 2.0)[0].event.noise_multiplier
    2.0
    """
    return tuple(Repeated(_scaled(item.event, factor), item.times) for item in events)


def _scaled(event: Event, factor: float) -> Event:
    if isinstance(event, Mixture):
        return Mixture(event.probability, _scaled(event.event, factor))  # type: ignore[arg-type]
    if isinstance(event, Envelope):
        return Envelope(tuple(_scaled(one, factor) for one in event.events))  # type: ignore[misc]
    if isinstance(event, Choice | Selection):
        raise AccountingError(f"{type(event).__name__} has no noise level that can be varied")
    return replace(event, noise_multiplier=event.noise_multiplier * factor)


def clopper_pearson(
    scores: Floats, coins: Coins, delta: float, confidence: float = 0.95, thresholds: int = 64
) -> LowerBound:
    """ε ≥ ln((TPR − δ)/FPR) and the same for the other error, at a threshold that half of the canaries chose.

    The other half counts. Of both directions the larger bound is taken, each limit at a quarter of the risk.
    """
    order = np.random.default_rng(0).permutation(len(scores))
    choosing, counting = order[: len(order) // 2], order[len(order) // 2 :]
    each = 1.0 - (1.0 - confidence) / 4.0
    places = np.quantile(scores[choosing], np.linspace(0.002, 0.998, thresholds))
    tried = _two_ways(scores[choosing], coins[choosing], places, delta, each)
    best = places[int(np.argmax(tried.max(axis=0)))]
    found = _two_ways(scores[counting], coins[counting], np.array([best]), delta, each).max()
    return _bound("clopper-pearson", float(found), confidence)


def _two_ways(scores: Floats, coins: Coins, thresholds: Floats, delta: float, each: float) -> Floats:
    """Bounds on ε from both errors, at each threshold: shape (2, thresholds)."""
    members, others = np.sort(scores[coins]), np.sort(scores[~coins])
    if len(members) == 0 or len(others) == 0:
        return np.zeros((2, len(thresholds)))
    hits = len(members) - np.searchsorted(members, thresholds, side="right")
    alarms = len(others) - np.searchsorted(others, thresholds, side="right")

    def log_ratio(right: NDArray[np.intp], of: int, wrong: NDArray[np.intp], among: int) -> Floats:
        gain = np.maximum(least_share(right, of, each) - delta, 1e-300)
        cost = 1.0 - least_share(among - wrong, among, each)
        return np.maximum(np.log(gain / cost), 0.0)

    into = log_ratio(hits, len(members), alarms, len(others))
    away = log_ratio(len(others) - alarms, len(others), len(members) - hits, len(members))
    return np.stack([into, away])


SHARES_GUESSED = (0.01, 0.03, 0.1, 0.3, 1.0)


def one_run(scores: Floats, coins: Coins, delta: float, confidence: float = 0.95) -> LowerBound:
    """The one-run bound: of the r canaries that the attacker is surest of, v are guessed right.

    Several r are tried, each at its part of the risk. The surest are those farthest from 0, on either side.
    """
    if len(scores) == 0:
        return _bound("one-run", 0.0, confidence)
    order = np.argsort(-np.abs(scores), kind="stable")
    right = np.cumsum(((scores > 0) == coins)[order])
    counts = sorted({max(1, round(share * len(scores))) for share in SHARES_GUESSED})
    each = 1.0 - (1.0 - confidence) / len(counts)
    found = max(one_run_epsilon(len(scores), r, int(right[r - 1]), delta, each) for r in counts)
    return _bound("one-run", found, confidence)


def one_run_epsilon(canaries: int, guesses: int, right: int, delta: float, confidence: float) -> float:
    """The largest ε at which so many right guesses are rarer than 1 − `confidence`; 0 if none is.

    >>> round(one_run_epsilon(1000, 1000, 750, 1e-5, 0.95), 2)
    0.98
    """
    require(0 <= right <= guesses <= canaries, "correct guesses cannot exceed guesses, nor guesses canaries")

    def rare(epsilon: float) -> bool:
        return one_run_p_value(canaries, guesses, right, epsilon, delta) < 1.0 - confidence

    if not rare(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while rare(high) and high < LARGEST_EPSILON:
        low, high = high, 2 * high
    for _ in range(24):
        middle = (low + high) / 2
        low, high = (middle, high) if rare(middle) else (low, middle)
    return low


def one_run_p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """A limit on the chance that an (ε, δ) mechanism lets `right` of `guesses` be right.

    At δ = 0 each guess is right with a chance of at most e^ε/(1 + e^ε), whatever the others were: a binomial tail. δ
    adds 2·m·δ·max over i of P[right − i ≤ W < right]/i (Steinke et al., Theorem 5.2).
    """
    chance = 1.0 / (1.0 + math.exp(-epsilon))
    below = np.concatenate([bdtr(np.arange(right), guesses, chance), [0.0]])
    tail = 1.0 if right == 0 else float(bdtrc(right - 1, guesses, chance))
    if delta == 0.0 or right == 0:
        return min(tail, 1.0)
    # P[right − i ≤ W < right] for i = 1 … right; the last place of `below` stands for P[W < 0] = 0.
    between = below[right - 1] - below[np.arange(right - 2, -2, -1)]
    worst = float((between / np.arange(1, right + 1)).max())
    return min(tail + 2.0 * canaries * delta * worst, 1.0)
