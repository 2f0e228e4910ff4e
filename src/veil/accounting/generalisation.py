"""What privacy says about the gap between training rows and new rows (distributional generalisation).

All bounds hold on average over the draw of the training rows and over training itself, and not for one model. They
follow from the total variation distance between the trained models of two neighbouring tables ("TV stability",
Kulynych et al. 2022).

`gap_bounds` is what a run proves for each group. Veil's relations keep the group and the owner of every row, so the
argument does too. Let the rows of each cell (a group and an owner) be independent draws from a distribution of that
cell, z_i one of its training rows, z a new row of the same cell, and φ any function of a row and a model with values in
[0, 1], chosen after training or not:

* *replace-one*: E φ(z; M(S)) = E φ(z_i; M(S with z in place of z_i)), as exchanging z and z_i changes no distribution.
  The two tables are neighbours, so |E φ(z_i; M(S)) − E φ(z; M(S))| ≤ TV.
* *add-remove*: z_i and z both are independent of S without z_i, so E φ(z_i; M(S − z_i)) = E φ(z; M(S − z_i)). Each side
  differs from its own with M(S) by at most TV, hence |E φ(z_i; M(S)) − E φ(z; M(S))| ≤ 2·TV.

The mean over a group's rows has the largest bound of its cells. New rows of a group with several owners come from these
in the proportions of the training rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from veil.accounting.accountant import Accountant
from veil.accounting.conversion import check_epsilon
from veil.accounting.events import AccountingError, Event, Relation, Repeated, relation_of
from veil.accounting.ledger import Ledger
from veil.accounting.spending_rules import SpendingRule

_MANY_RULES = 16


def gap_bounds(ledger: Ledger, accountant: Accountant) -> dict[str, float]:
    """How far the mean of a [0, 1] figure over a group's training rows can be from new rows, by group.

    Formal guarantee: see the first lines of this module. 1 says nothing. With many different rules the ε of each is
    used alone, which is looser and takes no time.
    """
    terms = ledger.terms
    rules = dict.fromkeys(account.rule for account in terms.accounts)
    few = len(rules) <= _MANY_RULES
    apart = 1 if terms.relation is Relation.REPLACE_ONE else 2
    bound = {rule: min(1.0, apart * tv_from_rule(rule, terms.delta, accountant, tight=few)) for rule in rules}
    found: dict[str, float] = {}
    for account in terms.accounts:
        found[account.group] = max(found.get(account.group, 0.0), bound[account.rule])
    return found


def gap_sentence(bounds: Mapping[str, float]) -> str:
    """The bounds of all groups in one plain sentence.

    >>> gap_sentence({"a": 1.0, "b": 1.0})
    'This guarantee is too weak to bound how much better a model looks on its training rows than on new rows.'
    """
    said = {group: bound for group, bound in bounds.items() if bound < 1.0}
    if not said:
        return (
            "This guarantee is too weak to bound how much better a model looks on its training rows than on new rows."
        )
    least, most = min(said, key=lambda group: said[group]), max(said, key=lambda group: said[group])
    few, many = f"{100 * said[least]:.1f}", f"{100 * said[most]:.1f}"
    points = f"{many} points" if few == many else f'{few} ("{least}") to {many} ("{most}") points'
    text = (
        "If the rows of each group and owner were drawn independently, the accuracy (or any share) measured on a "
        f"group's training rows is at most {points} from that on new rows of the group, on average over draws and runs"
    )
    silent = len(bounds) - len(said)
    return text + (f"; for {silent} of {len(bounds)} groups the guarantee says nothing." if silent else ".")


def tv_from_rule(rule: SpendingRule, delta: float, accountant: Accountant, *, tight: bool = True) -> float:
    """TV stability of whatever a run chooses under a rule: by its (ε, δ) and, if `tight`, by all it proves at ε = 0."""
    found = tv_from_privacy(rule.guarantee(delta, accountant), delta)
    return min(found, rule.total_variation(accountant)) if tight else found


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
    """TV stability as δ at ε = 0 of the privacy profile, when any one row is replaced: exact for a tight accountant.

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
    runs over rows *and over training*: the calibration error of one model is another figure, without such a bound. A
    row falls into one bin only, so the bins' differences add up to no more than the mass by which the two joint
    distributions differ, which is 2·TV.

    >>> calibration_gap(0.05)
    0.1
    """
    _check_share("total variation", tv)
    return min(1.0, 2 * tv)
