"""Remarks about a budget that is allowed and hardly protects: made before anything is spent, from public facts."""

from __future__ import annotations

import math

from veil.plans.plan import Plan

WEAK_EPSILON = 20.0


def budget_remarks(plan: Plan) -> list[str]:
    """One sentence each for a δ above 1 / rows and for an ε that promises next to nothing.

    Args:
        plan: The plan of a run; nothing is said of one that is not private.

    Returns:
        The sentences, none where the budget is a usual one.
    """
    if not plan.private:
        return []
    rows, said = plan.facts.rows, []
    if plan.delta > 1 / max(rows, 1):
        said.append(
            f"δ = {plan.delta:.2g} is above 1 / {rows:,} rows: that allows a method which publishes some rows whole. "
            "Use --delta auto."
        )
    epsilon = max((plan.settings.epsilon, *(plan.facts.budgets or ())))
    if epsilon > WEAK_EPSILON:
        said.append(
            f"ε = {epsilon:g} promises next to nothing: the odds about a row may change by a factor of 10 to the power "
            f"{epsilon / math.log(10):.0f}. Values up to 10 are usual."
        )
    return said
