"""Together: what several runs on the same rows cost each of them, as one (ε, δ).

Every run splits rows into those it trains on and those it measures, and a row pays for one of the two. Runs of the same
number split alike, so that a row has as many possible histories as there are ways to choose a part for each number. The
largest ε of any of them, composed by privacy loss distributions at the sum of all δ, holds for every row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from veil.accounting.events import AccountingError, Relation, Repeated
from veil.accounting.ledger import Terms
from veil.accounting.spending_rules import TokenBucket
from veil.errors import require

# Each history takes a second or so to compose.
MOST_HISTORIES = 24


@dataclass(frozen=True)
class RunTerms:
    """What one run may cost: the terms of the rows it trains on and of those it holds out, and its certified ε.

    Args:
        number: Runs of the same number hold the same rows out.
        training: Terms of the rows that are trained on.
        held_out: Terms of the rows that are measured, or None.
        epsilon: The largest ε of any row.
        each_row: Whether every row of a person counts: the terms are then those of one row, and ε that of all.
    """

    number: int
    training: Terms
    held_out: Terms | None
    epsilon: float
    each_row: bool = False


@dataclass(frozen=True)
class Together:
    """What all runs cost a row: ε at δ; `added_up` is the plain sum of their ε.

    Args:
        epsilon: The ε of all runs together.
        delta: The sum of their δ.
        added_up: The sum of their ε.
        relation: The neighbouring relation of the sum.
        runs: How many runs there are.
    """

    epsilon: float
    delta: float
    added_up: float
    relation: Relation
    runs: int

    @property
    def sentence(self) -> str:
        """In words.

        Returns:
            One sentence.
        """
        more = "" if self.epsilon >= self.added_up else f"; added up one by one, ε = {self.added_up:.3g}"
        at = f"at δ = {self.delta:.2g} under {self.relation.value}"
        return f"All {self.runs} runs together cost ε = {self.epsilon:.3g} {at}{more}."

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values.

        Returns:
            All fields and the sentence.
        """
        return {**asdict(self), "relation": self.relation.value, "sentence": self.sentence}


def cost_together(runs: Sequence[RunTerms]) -> Together:
    """What several runs cost a row that takes part in all of them.

    Args:
        runs: The terms of every run.

    Returns:
        The smaller of two bounds: ε and δ added up, or all releases composed at the sum of all δ.

    Raises:
        InputError: There is no run.

    >>> from veil.accounting import Account, Gaussian, Terms
    >>> account = Account("all", "all", 1.0, TokenBucket((Repeated(Gaussian(4.0)),)))
    >>> terms = Terms(Relation.ADD_REMOVE, 1e-5, "pld", (account,))
    >>> found = cost_together([RunTerms(number, terms, None, 0.93) for number in range(4)])
    >>> round(found.epsilon, 2), found.added_up
    (1.82, 3.72)
    """
    require(len(runs) > 0, "there is no run to add up")
    relations = {run.training.relation for run in runs}
    relation = relations.pop() if len(relations) == 1 else Relation.REPLACE_ONE
    costs = [_under(relation, run) for run in runs]
    added, delta = math.fsum(cost[0] for cost in costs), math.fsum(cost[1] for cost in costs)
    found = None if relations else _composed(runs, delta)
    return Together(added if found is None else min(found, added), delta, added, relation, len(runs))


def _under(relation: Relation, run: RunTerms) -> tuple[float, float]:
    """(ε, δ) of a run; replacing a row is removing one and adding one, so that ε counts twice."""
    if run.training.relation is relation:
        return run.epsilon, run.training.delta
    return 2 * run.epsilon, (1 + math.exp(min(run.epsilon, 700.0))) * run.training.delta


def _composed(runs: Sequence[RunTerms], delta: float) -> float | None:
    """ε of the most expensive history of any cell; None where releases cannot be composed, or there are too many."""
    from veil.accounting.pld import Pld

    if any(run.training.accountant != "pld" or run.each_row for run in runs):
        return None
    histories: set[tuple[Repeated, ...]] = set()
    for cell in {(one.group, one.owner) for run in runs for one in run.training.accounts}:
        parts = []
        for number in sorted({run.number for run in runs}):
            own = [run for run in runs if run.number == number]
            both = [_tokens([run.training for run in own], cell), _tokens([run.held_out for run in own], cell)]
            if None in both:
                return None
            parts.append(list(dict.fromkeys(tuple(tokens or ()) for tokens in both)))
        if math.prod(map(len, parts)) > 4096:
            return None
        for chosen in product(*parts):
            histories.add(tuple(sorted((token for part in chosen for token in part), key=repr)))
        if len(histories) > MOST_HISTORIES:
            return None
    try:
        return max(Pld().epsilon(history, delta) for history in histories if history)
    except AccountingError:
        return None


def _tokens(terms: Sequence[Terms | None], cell: tuple[str, str]) -> list[Repeated] | None:
    """All tokens of a cell; None where a rule has no tokens."""
    rules = [one.rule for each in terms if each is not None for one in each.accounts if (one.group, one.owner) == cell]
    if not all(isinstance(rule, TokenBucket) for rule in rules):
        return None
    return [token for rule in rules if isinstance(rule, TokenBucket) for token in rule.tokens]
