"""Balance: how much of each limit is used, from the charges of all runs. Nothing here touches a database."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from veil.accounting.conversion import check_delta, epsilon_at_order, rho_for_budget
from veil.budget_store.costs import Cost, DataSet
from veil.errors import require

Cell = tuple[str, str]
# Plans are calibrated to within this of their ε (`veil.accounting.certificate.check_budgets`).
TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class Limit:
    """The (ε, δ) limit of a row over all runs, optionally for one group or owner.

    Args:
        epsilon: ε over all runs, above 0 and finite.
        delta: δ over all runs, at least 0 and below 1.
        group: Its group, or None for all.
        owner: Its owner, or None for all.

    >>> Limit(3.0, 1e-5, group="f").group
    'f'
    """

    epsilon: float
    delta: float
    group: str | None = None
    owner: str | None = None

    def __post_init__(self) -> None:
        require(0 < self.epsilon < math.inf, f"epsilon is {self.epsilon}: it must be above 0 and finite")
        require(0 <= self.delta < 1, f"delta is {self.delta}: it must be at least 0 and below 1")

    def covers(self, cell: Cell) -> bool:
        """Whether the rows of a cell are under this limit.

        Args:
            cell: Group and owner.

        Returns:
            True if the limit counts what is charged to the cell.
        """
        return self.group in (None, cell[0]) and self.owner in (None, cell[1])

    def name(self) -> str:
        """The limit in words.

        Returns:
            Like `group "Female"`, or "every row".
        """
        parts = [f'group "{self.group}"' if self.group else "", f'owner "{self.owner}"' if self.owner else ""]
        return ", ".join(part for part in parts if part) or "every row"


@dataclass(frozen=True, slots=True)
class Charge:
    """One run: the largest cost of any of its cells, and the cost of each cell where its groups are the budget's.

    A cell that the run does not name pays the largest: rows may have been there under another name.

    Args:
        most: The largest cost of any cell.
        cells: Cost by group and owner.

    >>> Charge(Cost(0.5, 1e-6), {("f", ""): Cost(0.2, 1e-6)}).most.epsilon
    0.5
    """

    most: Cost
    cells: Mapping[Cell, Cost] = field(default_factory=dict)

    def to(self, cell: Cell) -> Cost:
        """The cost to the rows of a cell.

        Args:
            cell: Group and owner.

        Returns:
            The cost of the cell; the highest of the run if the cell is not listed.
        """
        return self.cells.get(cell, self.most)


@dataclass(frozen=True, slots=True)
class Balance:
    """A limit and what is charged against it. `left` is the share that is left, between 0 and 1.

    Args:
        limit: The limit.
        spent_epsilon: ε that is charged.
        spent_delta: δ that is charged.
        left: The share that is left.

    >>> balance = Balance(Limit(3.0, 1e-5), spent_epsilon=1.0, spent_delta=0.0, left=0.6)
    >>> balance.left_epsilon
    2.0
    """

    limit: Limit
    spent_epsilon: float
    spent_delta: float
    left: float

    @property
    def left_epsilon(self) -> float:
        """ε that is not charged yet."""
        return max(self.limit.epsilon - self.spent_epsilon, 0.0)

    @property
    def left_delta(self) -> float:
        """δ that is not charged yet."""
        return max(self.limit.delta - self.spent_delta, 0.0)

    def as_json(self) -> dict[str, Any]:
        """Plain values, with `null` for every group or owner.

        Returns:
            The limit, what is spent and what is left.
        """
        return {
            "group": self.limit.group,
            "owner": self.limit.owner,
            "epsilon": self.limit.epsilon,
            "delta": self.limit.delta,
            "spent_epsilon": self.spent_epsilon,
            "spent_delta": self.spent_delta,
            "left_epsilon": self.left_epsilon,
            "left_delta": self.left_delta,
            "left": self.left,
        }


def balance(limit: Limit, charges: Sequence[Charge], dataset: DataSet) -> Balance:
    """The cost to the rows under a limit: the largest of all cells that runs have named."""
    totals = [_total(charge.to(cell) for charge in charges) for cell in _cells(limit, charges)]
    totals = totals or [_total(charge.most for charge in charges)]
    if dataset.order is not None:
        room = rho_for_budget(limit.epsilon, limit.delta, dataset.order)
        rho = max(total.rho for total in totals)
        epsilon = float(epsilon_at_order(rho, dataset.order, limit.delta)) if rho > 0 else 0.0
        return Balance(limit, epsilon, limit.delta if rho > 0 else 0.0, _share_left(rho, room))
    epsilon, delta = max(total.epsilon for total in totals), max(total.delta for total in totals)
    return Balance(limit, epsilon, delta, min(_share_left(epsilon, limit.epsilon), _share_left(delta, limit.delta)))


def overrun(limit: Limit, before: Sequence[Charge], asked: Charge, dataset: DataSet) -> str | None:
    """Why `asked` may not be added, or None if it may. Depends on charges only, never on a row."""
    after, now = balance(limit, [*before, asked], dataset), balance(limit, before, dataset)
    if after.spent_epsilon > limit.epsilon * (1 + TOLERANCE):
        what = f"ε would be {after.spent_epsilon:.4g} of {limit.epsilon:g}, and {now.left_epsilon:.4g} is left"
    elif after.spent_delta > limit.delta * (1 + TOLERANCE):
        what = f"δ would be {after.spent_delta:.3g} of {limit.delta:g}, and {now.left_delta:.3g} is left"
    else:
        return None
    return f'the budget of "{dataset.name}" does not allow this for {limit.name()}: {what}'


def check_limit(limit: Limit, dataset: DataSet) -> None:
    """Reject a limit that the budget's composition cannot enforce."""
    if dataset.order is not None:
        check_delta(limit.delta)
        rho_for_budget(limit.epsilon, limit.delta, dataset.order)


def _cells(limit: Limit, charges: Iterable[Charge]) -> set[Cell]:
    return {cell for charge in charges for cell in charge.cells if limit.covers(cell)}


@dataclass(frozen=True, slots=True)
class _Total:
    epsilon: float
    delta: float
    rho: float


def _total(costs: Iterable[Cost]) -> _Total:
    listed = list(costs)
    # A cost without a Rényi part never enters a budget that adds those: an endless cost refuses it.
    return _Total(
        math.fsum(cost.epsilon for cost in listed),
        math.fsum(cost.delta for cost in listed),
        math.fsum(math.inf if cost.rho is None else cost.rho for cost in listed),
    )


def _share_left(used: float, of: float) -> float:
    return max(0.0, 1.0 - used / of) if of > 0 else (0.0 if used > 0 else 1.0)
