"""Owners: what individual budgets mean for the people behind the rows, from public facts."""

from __future__ import annotations

from typing import Any

from veil.errors import InputError
from veil.methods.budget_advice import budget_advice
from veil.plans import Settings
from veil.problem import PublicFacts


def owner_budgets(facts: PublicFacts, settings: Settings) -> dict[str, Any] | None:
    """The budget and the rows of every owner, and which of them decides the noise; None without budgets.

    `auto` gives every row the same noise, so the owner with the smallest ε decides it. A method for individual budgets
    (idp-sgd, ino-sgd) draws or bounds rows by their owner instead.
    """
    if facts.budgets is None:
        return None
    owners: list[dict[str, Any]] = [
        {"owner": name, "rows": rows, "epsilon": budget}
        for name, rows, budget in zip(facts.owners, facts.owner_sizes, facts.budgets, strict=True)
    ]
    least = min(owners, key=lambda owner: owner["epsilon"])
    said = (
        f'With auto the smallest budget decides for all: ε = {least["epsilon"]:g} of "{least["owner"]}" '
        f"({least['rows']:,} of {facts.rows:,} rows). With --method idp-sgd the rows of every owner are used up to "
        "their own ε."
    )
    return {"owners": owners, "tightest": least["owner"], "sentence": said, "advice": _advice(facts, settings)}


def _advice(facts: PublicFacts, settings: Settings) -> list[str]:
    """What the budgets mean for the most private owner, and what others would change; nothing if all are the same."""
    if len(set(facts.budgets or ())) < 2:
        return []
    try:
        return list(budget_advice(facts, settings).sentences)
    except InputError as error:
        return [f"idp-sgd has no plan for these budgets: {error}."]
