"""People with several rows: the ε of all rows of one person in a run whose unit is one row.

Two ways, both never below the truth:

* *Together.* All k rows take part in the same releases: the dominating pairs for k rows (`pld.several`) are composed.
  This is exact up to rounding for Gaussians, Laplace noise and Poisson sampling. For others the smaller of both ways
  is taken.
* *One after another.* Rows are removed (or replaced) one by one, and every two tables on the way are neighbours. If one
  row has δ(ε') at ε', then k rows have δ(ε')·(1 + e^ε' + … + e^((k−1)ε')) at k·ε' (group privacy, Dwork and Roth 2014,
  Theorem 2.2 with its δ). It holds for every spending rule, every event and every split of the rows over cells.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import numpy as np

from veil.accounting import events as kinds
from veil.accounting.accountant import Accountant
from veil.accounting.conversion import Floats, epsilon_at_order
from veil.accounting.events import AccountingError, Event, Repeated, composable
from veil.accounting.ledger import Ledger
from veil.accounting.pld import Pld
from veil.accounting.rdp import Rdp
from veil.accounting.spending_rules import SpendingRule, TokenBucket

SHOWN = (2, 5, 10)
"""Numbers of rows that a certificate shows."""

_LEAST = 1e-250
_CLOSE = 1.005
_CLOSER = 2  # how often the accountant itself improves on Rényi costs
_HIGHEST_ORDER = 256
_MANY_RULES = 4
_OF_ALL_ROWS = kinds.Gaussian | kinds.Tree | kinds.Laplace | kinds.NoisyMax


def epsilon_of_rows(events: Iterable[Event | Repeated], rows: int, delta: float, accountant: Accountant) -> float:
    """The ε at `delta` of a person with `rows` rows of one cell, in releases whose events are those of one row.

    Formal guarantee: let two tables differ in up to `rows` rows of one cell, all added or removed, or all replaced, as
    the events' relation says. Then the releases are (ε, δ)-indistinguishable on them. One row has the accountant's own
    ε; more rows never have less.

    Args:
        events: What one row is charged, all of one relation, in a schedule or multiset that is fixed beforehand.
        rows: How many rows the person has, at least 1.
        delta: The δ, strictly between 0 and 1.
        accountant: The accountant of one row; several rows use privacy loss distributions wherever those are proved.

    Returns:
        ε, or `math.inf` where none is proved.

    Raises:
        AccountingError: `rows` is below 1, the accountant is an approximation, or it does not support an event.

    >>> from veil.accounting import PoissonGaussian
    >>> steps = [Repeated(PoissonGaussian(1.0, 0.005), 10_000)]
    >>> [round(epsilon_of_rows(steps, rows, 1e-5, Pld()), 1) for rows in (1, 2, 5)]
    [2.8, 6.2, 19.3]
    """
    if accountant.approximate:
        raise AccountingError(f"{accountant.name} is an approximation and may underestimate ε: use pld or rdp")
    items = composable(events)
    together = Pld(rows=rows)
    one = accountant.epsilon(items, delta)
    if rows == 1 or not items:
        return one
    proved = []
    alone = len(items) == 1 and items[0].times == 1
    if all(together.supports(i.event) and (alone or not isinstance(i.event, kinds.Selection)) for i in items):
        proved.append(together.epsilon(items, delta))
    if not proved or not all(_is_exact(item.event) for item in items):
        proved.append(_one_after_another(lambda by, each: by.epsilon(items, each), rows, delta, accountant))
    return max(min(proved), one)


def _is_exact(event: Event) -> bool:
    """Whether the pair for several rows can occur, so that no other proof gives less."""
    return isinstance(event, kinds.Gaussian | kinds.PoissonGaussian | kinds.Tree | kinds.Laplace)


def epsilon_of_person(ledger: Ledger, rows: int, accountant: Accountant) -> float:
    """The ε at the ledger's δ of a person with `rows` rows, however these are spread over groups and owners.

    Formal guarantee: as `epsilon_of_rows`, for rows of any cells, whatever the run chose under its spending rules.

    Args:
        ledger: Terms and reservations of a run whose unit is a row.
        rows: How many rows the person has, at least 1.
        accountant: What turns events into ε.

    Returns:
        ε at the ledger's δ; infinity where none is proved.

    >>> from veil.accounting import Account, Gaussian, Ledger, Pld, Relation, Repeated, Terms, TokenBucket
    >>> account = Account("all", "everybody", 2.0, TokenBucket((Repeated(Gaussian(10.0), 5),)))
    >>> ledger = Ledger(Terms(Relation.ADD_REMOVE, delta=1e-5, accountant="pld", accounts=(account,)))
    >>> one, two = (epsilon_of_person(ledger, rows, Pld()) for rows in (1, 2))
    >>> one < two < 3 * one
    True
    """
    terms = ledger.terms
    rules = list(dict.fromkeys(account.rule for account in terms.accounts))
    if rows > 1 and len(rules) == 1 and isinstance(rules[0], TokenBucket) and _in_one_cell(ledger, rules[0]):
        return epsilon_of_rows(rules[0].tokens, rows, terms.delta, accountant)
    # with many rules, what is quick has to do
    by = accountant if rows == 1 or len(rules) <= _MANY_RULES else _QuickRdp()
    return _one_after_another(lambda by, delta: _largest(rules, delta, by), rows, terms.delta, by)


def epsilons_shown(ledger: Ledger, accountant: Accountant, held_out: Sequence[Ledger] = ()) -> dict[str, float]:
    """The finite ε of people with 2, 5 and 10 rows; with many different rules of 2 alone, as each takes its time.

    A person's rows may be trained on and held out, in any mixture: `held_out` are the ledgers of what was measured.
    """
    few = len({account.rule for account in ledger.terms.accounts}) <= _MANY_RULES
    found = {str(rows): _of_any_part([ledger, *held_out], rows, accountant) for rows in (SHOWN if few else SHOWN[:1])}
    return {rows: epsilon for rows, epsilon in found.items() if math.isfinite(epsilon)}


def _of_any_part(ledgers: Sequence[Ledger], rows: int, accountant: Accountant) -> float:
    """The ε of a person whose rows are in several parts, each of which has a ledger of its own.

    Where all releases are Gaussian under one rule, j rows of one part and k − j of another move less than k rows of the
    part that is charged more: √((jμ)² + ((k − j)ν)²) ≤ k·max(μ, ν). Else rows are taken one after another, each at what
    the part costs that is charged more.
    """
    if len(ledgers) == 1 or all(map(_is_gaussian, ledgers)):
        return max(epsilon_of_person(ledger, rows, accountant) for ledger in ledgers)
    rules = list(dict.fromkeys(account.rule for ledger in ledgers for account in ledger.terms.accounts))
    by = accountant if len(rules) <= _MANY_RULES else _QuickRdp()
    least = min(ledger.terms.delta for ledger in ledgers)
    return _one_after_another(lambda by, delta: _largest(rules, delta, by), rows, least, by)


def _largest(rules: Sequence[SpendingRule], delta: float, by: Accountant) -> float:
    """The largest ε of some rules. A rule whose Rényi cost, which is quick, is below another's ε is not looked at."""
    quick = _QuickRdp()
    bounds = {rule: rule.guarantee(delta, quick) for rule in rules}
    largest = 0.0
    for rule in sorted(rules, key=bounds.__getitem__, reverse=True):
        if bounds[rule] > largest:
            largest = max(largest, rule.guarantee(delta, by))
    return largest


def _is_gaussian(ledger: Ledger) -> bool:
    rules = {account.rule for account in ledger.terms.accounts}
    return len(rules) == 1 and all(
        isinstance(rule, TokenBucket) and all(isinstance(token.event, kinds.Gaussian) for token in rule.tokens)
        for rule in rules
    )


def _in_one_cell(ledger: Ledger, rule: TokenBucket) -> bool:
    """Whether rows of several cells cost what as many rows of one cell cost.

    So it is when every release charges all cells alike, and only one kind of event draws rows, each row by itself: then
    k rows take part in a release, or fewer, wherever they stand.
    """
    cells = list(range(len(ledger.terms.accounts)))
    if len(cells) == 1:
        return True
    sampled = [token.event for token in rule.tokens if not isinstance(token.event, _OF_ALL_ROWS)]
    if len(sampled) > 1 or not all(isinstance(event, kinds.PoissonGaussian) for event in sampled):
        return False
    return all(len(entry["costs"]) == 1 and entry["costs"][0][1] == cells for entry in ledger.entries)


def _one_after_another(epsilon: Callable[[Accountant, float], float], rows: int, delta: float, by: Accountant) -> float:
    """k·ε' for a small ε' with ε(δ / (1 + e^ε' + … + e^((k−1)ε'))) ≤ ε', where `epsilon` is that of one row.

    Rényi costs, which are quick at any δ, find the place. If ε' is proved, so is the ε that `by` finds at its δ, as far
    as that is smaller.
    """
    if rows < 1:
        raise AccountingError(f"rows is {rows}: it must be at least 1")
    if rows == 1:
        return epsilon(by, delta)
    quick = _QuickRdp()
    found = _least_proved(lambda share: epsilon(quick, share), rows, delta)
    for _ in range(_CLOSER if math.isfinite(found) and found > 0 else 0):
        before, found = found, min(found, epsilon(by, _share(delta, found, rows)))
        if found > before / _CLOSE:
            break
    return rows * found


class _QuickRdp(Rdp):
    """Rényi accounting at the default orders that computes the cost of the same events once."""

    def epsilon(self, events: Iterable[Event | Repeated], delta: float) -> float:
        """The smallest ε ≥ 0 that one of the orders proves."""
        orders, costs = _rdp_curve(composable(events))
        return float(np.min(epsilon_at_order(costs, orders, delta)))


@lru_cache(maxsize=256)
def _rdp_curve(events: tuple[Repeated, ...]) -> tuple[Floats, Floats]:
    # high orders take long and matter for small ε only
    orders = Rdp().orders[Rdp().orders <= _HIGHEST_ORDER]
    return orders, Rdp([float(order) for order in orders]).curve(events)


def _least_proved(epsilon: Callable[[float], float], rows: int, delta: float) -> float:
    """The least ε' that bisection finds; inf where δ would become too small before one is proved."""
    low = high = epsilon(delta / rows)
    while high > 0:
        if not (math.isfinite(high) and _share(delta, high, rows) >= _LEAST):
            return math.inf
        if epsilon(_share(delta, high, rows)) <= high:
            break
        low, high = high, 1.5 * high
    while high > _CLOSE * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if epsilon(_share(delta, middle, rows)) <= middle else (middle, high)
    return high


def _share(delta: float, epsilon: float, rows: int) -> float:
    """δ / (1 + e^ε + … + e^((k−1)ε)), rounded down."""
    return delta * math.exp(-_log_geometric(epsilon, rows))


def _log_geometric(epsilon: float, rows: int) -> float:
    """ln(1 + e^ε + … + e^((k−1)ε)), rounded up."""
    top = (rows - 1) * epsilon
    return (top + math.log(math.fsum(math.exp(i * epsilon - top) for i in range(rows)))) * (1 + 1e-12)
