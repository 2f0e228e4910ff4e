"""Private selection by privacy profiles: what the best of a random number of runs costs, from the δ(ε) of one run.

Let f be the probability generating function of the number of runs K, and let an outcome y of a run be preferred to a
share x of all outcomes, x being Q(≤ y). The density of the best is f'(x)·q(y). On a neighbouring table it is
f'(x')·q'(y), so with R the largest f'(x)/f'(x') that can occur,

    A(y) − e^ε·A'(y) ≤ f'(x)·(q(y) − e^ε/R·q'(y)),      f'(x) ≤ f'(1) = E[K],

and integrated over where this is above 0:  **δ_A(ε) ≤ E[K]·δ_Q(ε − log R)**. (Koskela, Redberg and Wang 2024 have this
with a slightly larger R; equal outcomes are ordered by a fair coin, which is part of y.)

*Truncated negative binomial*: f'(x) is proportional to (γ + (1−γ)·b)^−(1+η), where b = 1 − x is the share of outcomes
that are preferred to y. With b' ≤ e^s·b + δ_Q(s), a ratio of two lines in b, it follows that
(γ + (1−γ)·b')/(γ + (1−γ)·b) ≤ max(e^s, 1 + (1−γ)/γ·δ_Q(s)), for every s ≥ 0. The two are equal at one s, the smallest
value; and there it is attained, by the test of Neyman and Pearson. So log R = (1+η)·s with e^s − 1 = (1−γ)/γ·δ_Q(s).

*Poisson* with mean μ: f'(x)/f'(x') = e^(μ(x − x')), so log R = μ·δ_Q(0). That there was no run is as likely on both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from veil.accounting.events import AccountingError, Choice, Event, Repeated, Selection
from veil.accounting.pld.profiles import FloatArray
from veil.accounting.rdp.closed import negative_binomial_mean

Profile = Callable[[FloatArray], FloatArray]
_ROUNDS, _PLACES = 8, 33


def selection_among(items: Sequence[Event | Repeated]) -> Selection | None:
    """The selection that is all there is among the events; None where there is none.

    Privacy profiles do not compose, so one that is composed with anything else is rejected.
    """
    events = [item.event if isinstance(item, Repeated) else item for item in items]
    found = [event for event in events if isinstance(event, Selection)]
    if not found:
        return None
    times = sum(item.times if isinstance(item, Repeated) else 1 for item in items)
    if len(events) > 1 or times != 1:
        raise AccountingError("a Selection composed with other events is not supported by the PLD accountant: use rdp")
    return found[0]


def runs_of(event: Selection) -> tuple[tuple[Repeated, ...], ...]:
    """The runs that each of the selected ones may be."""
    first = event.events[0]
    if len(event.events) == 1 and first.times == 1 and isinstance(first.event, Choice):
        return first.event.runs
    return (event.events,)


def mean_runs(event: Selection) -> float:
    """The expected number of runs.

    >>> from veil.accounting.events import Gaussian
    >>> mean_runs(Selection((Repeated(Gaussian(1.0)),), 1.0, gamma=0.25))
    4.0
    """
    if math.isinf(event.shape):
        assert event.mean is not None
        return event.mean
    assert event.gamma is not None
    return negative_binomial_mean(event.shape, event.gamma)


def selection_shift(event: Selection, profile: Profile) -> float:
    """log R: by how much selection raises ε, beside the δ that is multiplied; never too small.

    `profile` is δ(ε) of one run, never below the truth.
    """
    if math.isinf(event.shape):
        assert event.mean is not None
        return event.mean * float(profile(np.zeros(1))[0])
    assert event.gamma is not None
    odds = (1.0 - event.gamma) / event.gamma
    # e^s − 1 ≥ odds·δ(s) from the crossing on; there is one, because δ falls from at most 1.
    low, high = 0.0, math.log1p(odds)
    for _ in range(_ROUNDS):
        places = np.linspace(low, high, _PLACES)
        beyond = np.flatnonzero(np.expm1(places) >= odds * profile(places))
        last = int(beyond[0]) if len(beyond) else _PLACES - 1
        low, high = float(places[max(last - 1, 0)]), float(places[last])
        if last == 0:
            break
    return (1.0 + event.shape) * high * (1 + 1e-12)
