"""Levels: rate, clip and cost of each owner under a plan."""

from __future__ import annotations

from dataclasses import dataclass

from veil.errors import InputError, require
from veil.plans.controllers import first_release
from veil.plans.plan import Plan


@dataclass(frozen=True)
class LevelRow:
    """One owner or level: its sampling rate, its bound and its cost."""

    owner: str
    rows: int
    budget: float
    rate: float
    clip: float
    expected_uses: float
    epsilon: float


def level_table(plan: Plan) -> list[LevelRow]:
    """The table of owners under a plan: rate, clip, expected uses of one row over the run, and the exact ε.

    Args:
        plan: A plan of a method that draws rows at individual rates, such as `idp-sgd`.

    Returns:
        One line for each owner or level.

    Raises:
        InputError: The method is not private, or has no individual rates.

    >>> import veil
    >>> rows = veil.Problem.from_arrays(
    ...     [[0.0]] * 400, [0, 1] * 200, owners=["a", "b"] * 200, budgets={"a": 0.5, "b": 2.0}
    ... )
    >>> plan = veil.plan(rows, "idp-sgd", steps=20, batch_size=40, delta=1e-4)
    >>> [(line.owner, line.budget, line.epsilon <= line.budget) for line in level_table(plan)]
    [('a', 0.5, True), ('b', 2.0, True)]
    """
    require(plan.rules is not None, f"{plan.method} is not private: its owners have no budgets")
    release = first_release(plan.controller)
    rates = getattr(release.draw, "rates", None)
    if rates is None or plan.rules is None:
        raise InputError(f"{plan.method} does not draw rows at individual rates: it has no table of levels")
    accountant, rows = plan.settings.accountant_for(plan.facts), []
    for owner, name in enumerate(plan.facts.owners):
        cells = [index for index, cell in enumerate(plan.facts.cells) if cell.owner == owner]
        rows.append(
            LevelRow(
                owner=name,
                rows=plan.facts.owner_sizes[owner],
                budget=plan.facts.budget_of(cells[0], plan.settings.epsilon),
                rate=max(rates[cell] for cell in cells),
                clip=max(release.bound.limits[cell] for cell in cells),
                expected_uses=plan.steps * max(rates[cell] for cell in cells),
                epsilon=max(plan.rules[cell].guarantee(plan.delta, accountant) for cell in cells),
            )
        )
    return rows
