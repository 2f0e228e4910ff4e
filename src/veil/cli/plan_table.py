"""`--dry-run`: the plan per group, before anything is released."""

from __future__ import annotations

import math
from typing import Any

from rich.table import Table

from veil.accounting import Gaussian, PoissonGaussian, Rdp, Repeated, SubsetGaussian
from veil.accounting.accountant import Accountant
from veil.methods.asc import AscController
from veil.plans import Plan
from veil.plans.controllers import first_release


def plan_rows(plan: Plan) -> list[dict[str, Any]]:
    """One record per cell: rows, expected rows per batch, rate, clip, noise, cost per step and of the whole plan."""
    release = first_release(plan.controller)
    facts = plan.facts
    events = release.events(facts) if plan.private else {}
    ranges = plan.controller.clip_ranges() if isinstance(plan.controller, AscController) else None
    records = []
    for cell, own in enumerate(facts.cells):
        event = events.get(cell)
        inner = getattr(event, "event", event)
        rate = inner.rate if isinstance(inner, PoissonGaussian | SubsetGaussian) else float(isinstance(inner, Gaussian))
        limit = release.bound.limits[cell]
        rule = plan.rules[cell] if plan.rules else None
        records.append(
            {
                "group": facts.groups[own.group],
                "owner": facts.owners[own.owner],
                "rows": own.rows,
                "rate": rate if event else None,
                "expected_rows": rate * own.rows if event else None,
                "clip": limit if math.isfinite(limit) else None,
                "clip_range": list(ranges[cell]) if ranges else None,
                "noise_multiplier": release.noise_multiplier(cell) if event else None,
                "epsilon_of_one_step": _single(plan).epsilon([Repeated(event)], plan.delta) if event else None,
                "epsilon": rule.guarantee(plan.delta, plan.settings.accountant_for(plan.facts)) if rule else None,
            }
        )
    return records


def _single(plan: Plan) -> Accountant:
    """The accountant of one release."""
    return Rdp() if plan.facts.rows_together == 1 else plan.settings.accountant_for(plan.facts)


def plan_json(plan: Plan) -> dict[str, Any]:
    """The plan as JSON values."""
    return {
        "method": plan.method,
        "steps": plan.steps,
        "delta": plan.delta if plan.private else None,
        "relation": plan.relation.value if plan.relation else None,
        "details": dict(plan.details),
        "groups": plan_rows(plan),
    }


def plan_table(plan: Plan) -> Table:
    """The plan as people read it: rates and clips are those of the first step."""
    several = len(plan.facts.owners) > 1
    page = Table(title=f"Plan of {plan.method}: {plan.steps:,} steps", title_justify="left")
    headings = ["group", *(["owner"] if several else []), "rows", "rows per batch", "rate", "clip", "noise / clip"]
    for heading in [*headings, "ε of one step", "ε of the plan"]:
        page.add_column(heading, justify="left" if heading in ("group", "owner") else "right")
    for row in plan_rows(plan):
        names = [row["group"], *([row["owner"]] if several else [])]
        page.add_row(*names, f"{row['rows']:,}", *(_shown(row[key]) for key in list(row)[4:5]), *_numbers(row))
    details = ", ".join(
        f"{name} {_shown(value)}" for name, value in plan.details.items() if not isinstance(value, dict)
    )
    page.caption = details
    page.caption_justify = "left"
    return page


def _numbers(row: dict[str, Any]) -> list[str]:
    clip = _shown(row["clip"])
    if row["clip_range"]:
        clip += f" ({_shown(row['clip_range'][0])} … {_shown(row['clip_range'][1])})"
    rest = (_shown(row[key]) for key in ("noise_multiplier", "epsilon_of_one_step", "epsilon"))
    return [_shown(row["rate"]), clip, *rest]


def _shown(value: Any) -> str:
    return "–" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
