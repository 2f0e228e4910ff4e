"""Costs: what a run takes from a budget, and how the costs of several runs are put together.

Runs are chosen one after another, each after a look at what the earlier ones released; some go on at the same time.
Two kinds of composition are then sound: sums of ε and of δ, and sums of Rényi costs at one order that was fixed before.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from veil.accounting.conversion import rho_for_budget
from veil.accounting.events import AccountingError, Relation, Repeated
from veil.accounting.rdp import cost_at
from veil.accounting.spending_rules import RenyiFilter, SpendingRule, TokenBucket
from veil.errors import InputError, require

Composition = Literal["sum", "renyi"]
NAME_LENGTH = 500


def checked_name(name: str, what: str) -> str:
    """A name that every store can hold; anything else raises `InputError`."""
    require(0 < len(name) <= NAME_LENGTH, f"{what} must have between 1 and {NAME_LENGTH} characters")
    require(name.isprintable(), f"{what} contains an unprintable character: choose another name")
    return name


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a run to every row of a cell: (ε, δ), and the Rényi cost if the budget uses it.

    Args:
        epsilon: ε of the run.
        delta: δ of the run.
        rho: Rényi cost at the order of the budget, or None.

    >>> Cost(0.5, 1e-6).epsilon
    0.5
    """

    epsilon: float
    delta: float
    rho: float | None = None

    def __post_init__(self) -> None:
        require(0 <= self.epsilon < math.inf, f"epsilon is {self.epsilon}: it must be 0 or more and finite")
        require(0 <= self.delta < 1, f"delta is {self.delta}: it must be at least 0 and below 1")
        require(self.rho is None or 0 <= self.rho < math.inf, f"a Rényi cost of {self.rho} is not finite")


@dataclass(frozen=True, slots=True)
class DataSet:
    """What is fixed about a budget when it is made.

    `groups` and `owner` name the columns that make its groups and owners: only a run that has the same ones is charged
    group by group. `order` is that of the Rényi costs, chosen when the budget is made. `person` names the column of
    people where the budget is theirs; else it is each row's.

    Args:
        name: Name of the data set.
        relation: The neighbouring relation of all runs.
        groups: Columns that make the groups.
        owner: Column of the owners, or "".
        composition: How runs add up: "sum" (ε and δ) or "renyi".
        order: Order of the Rényi costs.
        person: Column of people, or "".

    >>> DataSet("people", groups=("sex",)).composition
    'sum'
    """

    name: str
    relation: Relation = Relation.ADD_REMOVE
    groups: tuple[str, ...] = ()
    owner: str = ""
    composition: Composition = "sum"
    order: float | None = None
    person: str = ""

    def __post_init__(self) -> None:
        checked_name(self.name, "the name of a data set")
        for column in (*self.groups, *(name for name in (self.owner, self.person) if name)):
            checked_name(column, "the name of a column")
        require(
            self.composition in get_args(Composition),
            f'composition is "{self.composition}": it must be {" or ".join(get_args(Composition))}',
        )


def require_same_unit(dataset: DataSet, person: str | None) -> None:
    """Reject a run whose ε is not for what the budget is kept for: a row, or a person by the same column."""
    kept, asked = dataset.person, person or ""
    if kept == asked:
        return
    of = {name: f'people by "{name}"' if name else "rows" for name in (kept, asked)}
    way = f"train with --person {kept}" if kept else f"make another budget with --person {asked}"
    raise InputError(f'the budget of "{dataset.name}" is kept for {of[kept]}, and the run protects {of[asked]}: {way}')


def order_for(epsilon: float, delta: float) -> float:
    """The order at which (ε, δ) allows the most Gaussian releases, whose Rényi cost is linear in the order.

    >>> order_for(1.0, 1e-5) > order_for(8.0, 1e-5)
    True
    """
    best, room = 0.0, 0.0
    for order in np.geomspace(1.05, 4096.0, 400).tolist():
        try:
            found = rho_for_budget(epsilon, delta, order) / order
        except AccountingError:
            continue
        if found > room:
            best, room = order, found
    require(best > 0, f"no Rényi order allows ε = {epsilon:g} at δ = {delta:g}: compose by sum instead")
    return best


def cost_of(rule: SpendingRule, epsilon: float, delta: float, dataset: DataSet, relation: Relation) -> Cost:
    """What a run's rule costs a budget; `epsilon` is what the rule guarantees at `delta`."""
    if dataset.order is not None:
        _require_same(relation, dataset)
        return Cost(epsilon, delta, renyi_cost(rule, dataset.order))
    return translated(Cost(epsilon, delta), relation, dataset)


def amount(epsilon: float, delta: float, dataset: DataSet, relation: Relation | None = None) -> Cost:
    """The cost of a release known only by its (ε, δ)."""
    cost = Cost(epsilon, delta)
    if dataset.order is None:
        return translated(cost, relation or dataset.relation, dataset)
    _require_same(relation or dataset.relation, dataset)
    require(
        delta == 0,
        f'the budget of "{dataset.name}" adds Rényi costs, which an amount with δ above 0 does not have: use δ = 0',
    )
    # Pure ε is at most ε, and at most αε²/2, at any order.
    return Cost(epsilon, 0.0, min(epsilon, dataset.order * epsilon**2 / 2))


def translated(cost: Cost, relation: Relation, dataset: DataSet) -> Cost:
    """A cost under the budget's relation: replacing a row is removing one and adding one."""
    if relation is dataset.relation:
        return cost
    if dataset.relation is Relation.REPLACE_ONE:
        return Cost(2 * cost.epsilon, (1 + math.exp(min(cost.epsilon, 700.0))) * cost.delta)
    _require_same(relation, dataset)
    return cost


def renyi_cost(rule: SpendingRule, order: float) -> float:
    """The Rényi cost of all that a rule admits, at one order."""
    if isinstance(rule, TokenBucket):
        return events_cost(rule.tokens, order)
    if isinstance(rule, RenyiFilter):
        # A Rényi cost at one order bounds the cost at every smaller one.
        require(
            rule.order >= order,
            f"the run keeps its costs at order {rule.order:g}, below the budget's {order:g}: the costs cannot be added",
        )
        return rule.rho
    raise InputError(f"a {type(rule).__name__} has no Rényi cost: use a budget with composition by sum")


def events_cost(events: Sequence[Repeated], order: float) -> float:
    """The summed Rényi cost of events at one order."""
    return math.fsum(item.times * cost_at(item.event, order) for item in events)


def largest(costs: Iterable[Cost]) -> Cost:
    """The largest of each component: an upper bound for every row."""
    found = list(costs)
    require(len(found) > 0, "there is no cell to charge")
    rhos = [cost.rho for cost in found if cost.rho is not None]
    return Cost(
        max(cost.epsilon for cost in found),
        max(cost.delta for cost in found),
        max(rhos) if len(rhos) == len(found) else None,
    )


def total(costs: Iterable[Cost]) -> Cost:
    """What several runs cost together: the sum of each component."""
    found = list(costs)
    rhos = [cost.rho for cost in found if cost.rho is not None]
    return Cost(
        math.fsum(cost.epsilon for cost in found),
        math.fsum(cost.delta for cost in found),
        math.fsum(rhos) if len(rhos) == len(found) else None,
    )


def _require_same(relation: Relation, dataset: DataSet) -> None:
    require(
        relation is dataset.relation,
        f'the budget of "{dataset.name}" is kept for {dataset.relation} and the run is {relation}: '
        "make the budget with --relation replace-one and composition by sum, which accepts both",
    )
