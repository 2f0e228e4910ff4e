"""What privacy says about the gap between training rows and new rows (distributional generalisation).

All bounds hold on average over the draw of the training rows and over training itself. They need rows drawn
independently from one distribution, a fixed number of them, and privacy when one row is *replaced*. The total
variation distance between the trained models of two neighbouring tables ("TV stability") is the one number from which
all of them follow (Kulynych et al. 2022).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from veil.accounting.accountant import Accountant
from veil.accounting.conversion import check_epsilon
from veil.accounting.events import AccountingError, Event, Relation, Repeated, relation_of


def _check_share(name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise AccountingError(f"{name} is {value}: it must be between 0 and 1")


def tv_from_privacy(epsilon: float, delta: float) -> float:
    """Proposition 2.6: an (ε, δ)-private algorithm is TV stable with (e^ε − 1 + 2δ)/(e^ε + 1).

    Tight for what one (ε, δ) pair can say; a whole privacy profile says more (`tv_from_events`).

    >>> round(tv_from_privacy(1.0, 1e-5), 5)
    0.46212
    """
    check_epsilon(epsilon)
    _check_share("delta", delta)
    if epsilon > 700:
        return 1.0
    return min(1.0, math.tanh(epsilon / 2) + 2 * delta / (math.exp(epsilon) + 1))


def tv_from_events(accountant: Accountant, events: Iterable[Event | Repeated]) -> float:
    """TV stability as δ at ε = 0 of the privacy profile, under replace-one: exact for a tight accountant.

    Assumes a schedule fixed in the plan, and rejects accountants that only approximate. Rényi costs bound it through
    the KL divergence (Pinsker, Bretagnolle–Huber).
    """
    given = tuple(events)
    if accountant.approximate:
        raise AccountingError(f"the {accountant.name} accountant is an approximation: it does not prove a bound")
    if given and relation_of(given) is not Relation.REPLACE_ONE:
        raise AccountingError("generalisation bounds need replace-one events, where the number of rows is fixed")
    return min(1.0, accountant.delta(given, 0.0))


def property_gap(tv: float, low: float = 0.0, high: float = 1.0) -> float:
    """Theorem 2.5: the mean of any property with values in [low, high] differs by at most (high − low)·TV.

    The property φ(row; model) may be chosen after training; the gap is between a random training row and a new row.

    >>> property_gap(0.1, -1.0, 1.0)
    0.2
    """
    _check_share("total variation", tv)
    if not high >= low:
        raise AccountingError(f"the range [{low}, {high}] of the property is empty")
    return tv * (high - low)


def subgroup_gap(tv: float, share: float, rows: int) -> float:
    """Subgroup distributional generalisation: the gap of a [0, 1] property averaged within one group.

    Given which rows belong to the group, its rows are independent draws from the group's own distribution, and
    exchanging one of them for a new one is a replacement; so, as long as the group has a row at all, the gap is at
    most TV however small the group. A table without the group, of probability (1 − share)^rows, counts in full.
    (Applying Theorem 2.5 to the property "in the group and φ" would only give TV/share.)

    >>> subgroup_gap(0.1, 0.01, 10_000)
    0.1
    """
    _check_share("total variation", tv)
    _check_share("the group's share", share)
    if rows < 1:
        raise AccountingError(f"{rows} rows: there must be at least one")
    empty = (1.0 - share) ** rows
    return min(1.0, tv * (1.0 - empty) + empty)


def calibration_gap(tv: float) -> float:
    """The expected calibration error on training rows and on new rows differs by at most 2·TV, for any bins.

    The error of a bin is |E[1{score in bin}·(label − score)]| with labels and scores in [0, 1], and the expectation
    runs over rows and over training. A row falls into one bin only, so the bins' differences add up to no more than
    the mass by which the two joint distributions differ, which is 2·TV.

    >>> calibration_gap(0.05)
    0.1
    """
    _check_share("total variation", tv)
    return min(1.0, 2 * tv)
