"""Planning: what a budget can buy on a table, from public facts and made-up rows. Nothing is trained on the rows.

`advise` opens the rows as a dry run does, for their shape alone, and says what it read. Everything else follows from
that shape: the plans of `auto` at four budgets, a forecast for each group, what people with several rows are promised,
a sensible δ, time and memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from veil.accounting import TokenBucket
from veil.accounting.people import SHOWN, epsilon_of_rows
from veil.advice.forecast import Span, calibration, measurable, smallest_signal, spread_over_groups
from veil.advice.made_up import Shape
from veil.advice.noise_tables import DELTA_STOPS, EPOCHS, EPSILON_STOPS, nearest_stop, noise_tables
from veil.advice.owners import owner_budgets
from veil.advice.shapes import read_from_rows, shape_of
from veil.advice.simulating import TYPICAL, simulate
from veil.errors import require
from veil.foundation.randomness import Seed
from veil.methods import Method, create, planned
from veil.methods.auto import noise_of_one
from veil.methods.convex.steered_descent import memory_for
from veil.methods.convex.steering import HEARD, LUCK, known_to
from veil.plans import Plan, Settings
from veil.problem import PublicFacts
from veil.request import Request
from veil.tables.opening import Opened
from veil.tables.table_run import opened_to_plan

EPSILONS = (0.3, 1.0, 3.0, 8.0)
AUTO = "auto"
DELTAS = (1e-5, 1e-6, 1e-8)


@dataclass(frozen=True)
class Budget:
    """What one ε can buy: the plan of `auto`, its noise, and the forecast where there is one."""

    epsilon: float
    kappa: float
    plan: Plan
    worst: Span | None
    by_group: tuple[Span, ...] | None

    def as_json(self, facts: PublicFacts) -> dict[str, Any]:
        """Noise against signal of all rows and of each group, and the forecasts."""
        needed = int(self.plan.details["rows_to_be_heard"])
        together = dict(self.plan.details["heard_together"])
        noise = self.kappa / math.sqrt(self.plan.options["error_share"] + self.plan.options["offset_share"])
        spans = self.by_group or (None,) * len(facts.groups)
        return {
            "epsilon": self.epsilon,
            "noise": self.kappa,
            "noise_of_errors": noise,
            "rows_per_noise": facts.rows / self.kappa,
            "noise_multiplier": self.plan.details["noise_multiplier"],
            "rows_to_be_heard": needed,
            "worst_group_accuracy": self.worst.as_json() if self.worst else None,
            "groups": [
                {
                    "group": name,
                    "rows": rows,
                    "heard": name not in together,
                    "heard_with": together.get(name),
                    "missing_rows": max(0, needed - rows),
                    "errors_known_to": known_to(noise, rows) if rows else None,
                    "accuracy": span.as_json() if span else None,
                }
                for name, rows, span in zip(facts.groups, facts.group_sizes, spans, strict=True)
            ],
        }


@dataclass(frozen=True)
class Advice:
    """The answer of `veil plan`: `record` is its JSON; facts and settings are what its page is made from."""

    record: dict[str, Any]
    facts: PublicFacts
    settings: Settings

    def page_tables(self) -> dict[str, Any]:
        """What the page recomputes noise from, for every place of its sliders, and where these start."""
        facts, settings = self.facts, self.settings
        tables = noise_tables(facts.rows)
        deltas = sorted({settings.delta_for(facts), *DELTA_STOPS}, reverse=True)
        first = self.record["budgets"][0]
        return {
            **tables.as_json(),
            "epsilons": list(EPSILON_STOPS),
            "deltas": deltas,
            "single": [
                [
                    noise_of_one(facts, settings.model_copy(update={"epsilon": epsilon, "delta": delta}))
                    for epsilon in EPSILON_STOPS
                ]
                for delta in deltas
            ],
            "heard": {"noise": first["noise_of_errors"] / first["noise"], "known_to": HEARD, "luck": LUCK},
            "start": {
                "epsilon": nearest_stop(EPSILON_STOPS, settings.epsilon),
                "delta": deltas.index(settings.delta_for(facts)),
                "epochs": nearest_stop(EPOCHS, settings.epochs),
                "batch": nearest_stop(tables.batches, min(settings.batch_size, facts.rows)),
            },
        }


def advise(request: Request) -> Advice:
    """What ε = 0.3, 1, 3 and 8 can buy on a table, before anything is spent.

    Args:
        request: As for `veil train`. Its ε is that of the person-level promise and of the settings shown.

    Returns:
        The advice; nothing was trained on the rows, and nothing is charged.

    Raises:
        InputError: The request or the table is wrong, as in a dry run.
    """
    require(request.private_preprocessing is None, "veil plan releases nothing: omit --private-preprocessing")
    opened = opened_to_plan(request)
    facts, settings = replace(opened.problem.public, budgets=None), opened.settings
    method = opened.method if opened.method.name == AUTO else create(AUTO)
    shape, why = _shape(opened, request, facts)
    budgets, seconds = _budgets(shape, facts, method, settings)
    own = planned(method, facts, settings)
    record = {
        "data": str(request.data),
        "target": request.target,
        "method": request.method,
        "unit": facts.unit,
        "rows": facts.rows,
        "columns": None if opened.encoding is None else len(opened.encoding.columns),
        "classes": list(facts.classes),
        "epsilon": settings.epsilon,
        "headline": _headline(budgets, facts),
        "read": read_from_rows(facts, opened.not_covered),
        "delta": _delta(facts, settings),
        "budgets": [budget.as_json(facts) for budget in budgets],
        "forecast": _about_forecast(why, facts),
        "people": _people(own, facts, settings, budgets),
        "cost": _cost(opened, own, seconds),
        "method_noise": None if opened.method.name == AUTO else _method_noise(opened, settings),
        "owners": owner_budgets(opened.problem.public, settings),
        "settings": {"epochs": settings.epochs, "batch_size": min(settings.batch_size, facts.rows)},
    }
    return Advice(record, facts, settings)


def _headline(budgets: Sequence[Budget], facts: PublicFacts) -> str:
    """What to expect, in two sentences."""
    sizes, needed = facts.group_sizes, [int(budget.plan.details["rows_to_be_heard"]) for budget in budgets]
    enough = next((b.epsilon for b, rows in zip(budgets, needed, strict=True) if min(sizes) >= rows), None)
    small, most = sum(size < needed[-1] for size in sizes), budgets[-1].epsilon
    heard = (
        f"From ε = {enough:g} on every group is large enough to be weighted separately."
        if enough is not None
        else f"{small} of {len(sizes)} groups are too small to be weighted separately even at ε = {most:g}."
    )
    spans = [(budget.epsilon, budget.worst) for budget in budgets if budget.worst is not None]
    if not spans:
        return heard
    buys = ", ".join(f"{100 * worst.expected:.0f} % at ε = {epsilon:g}" for epsilon, worst in spans)
    return f"Expect about {buys} in the worst group. {heard}"


def _shape(opened: Opened, request: Request, facts: PublicFacts) -> tuple[Shape | None, str | None]:
    """The shape to simulate, or why there is no forecast."""
    if facts.task != "classification":
        return None, "Numbers are not forecast: their error depends on the unit of the target."
    if opened.encoding is None:
        return None, "Images are not forecast: what they show is not known before they are read."
    groups = opened.request.group
    return shape_of(facts, opened.encoding, groups, str(request.target or _target(opened))), None


def _target(opened: Opened) -> str:
    from veil.tables.preparing import columns_of

    return columns_of(opened.request).target


def _budgets(
    shape: Shape | None, facts: PublicFacts, method: Method, settings: Settings
) -> tuple[list[Budget], float | None]:
    """The four budgets with their forecasts, and how long training on all rows takes."""
    each = [settings.model_copy(update={"epsilon": epsilon}) for epsilon in EPSILONS]
    kappas = [noise_of_one(facts, own) for own in each]
    plans = [planned(method, facts, own) for own in each]
    if shape is None:
        found = zip(EPSILONS, kappas, plans, strict=True)
        return [Budget(epsilon, kappa, plan, None, None) for epsilon, kappa, plan in found], None
    runs = [simulate(shape, method, own) for own in each]
    crossed = shape.class_of_group is not None
    worst = [calibration().worst(crossed, smallest_signal(facts, kappa)) for kappa in kappas]
    budgets = [
        Budget(epsilon, kappa, plan, span, tuple(spread_over_groups(span, run.by_group, facts)))
        for epsilon, kappa, plan, span, run in zip(EPSILONS, kappas, plans, worst, runs, strict=True)
    ]
    return budgets, max(run.seconds for run in runs)


def _delta(facts: PublicFacts, settings: Settings) -> dict[str, Any]:
    """δ as it is, what is sensible, and what a smaller one would cost."""
    value, sensible = settings.delta_for(facts), 1.0 / (2 * facts.rows)
    noise = noise_of_one(facts, settings)
    smaller = [delta for delta in DELTAS if delta < value]
    others = [{"delta": d, "more_noise": _noise_at(facts, settings, d) / noise - 1} for d in smaller]
    too_large = value > 1.0 / facts.rows
    said = (
        f"δ = {value:.1e} is above 1 / rows: it would allow a method that publishes a row at random. Use "
        f"{sensible:.1e} or less."
        if too_large
        else f"δ = {value:.1e} is sensible: at most 1 / (2 × rows), so far below one row that no row can be given away."
        if value <= sensible
        else f"δ = {value:.1e} is below 1 / rows, but above the default of {sensible:.1e}."
    )
    return {"value": value, "sensible": sensible, "too_large": too_large, "sentence": said, "smaller": others}


def _noise_at(facts: PublicFacts, settings: Settings, delta: float) -> float:
    return noise_of_one(facts, settings.model_copy(update={"delta": delta}))


def _people(plan: Plan, facts: PublicFacts, settings: Settings, budgets: Sequence[Budget]) -> dict[str, Any]:
    """What people with several rows are promised, and what a promise for people would cost."""
    if facts.unit == "person":
        counted = "people" if facts.rows_together == 1 else "rows"
        said = f"The promise is for people: group sizes are numbers of {counted}."
        return {"unit": "person", "sentence": said, "several": []}
    rule, delta, accountant = (plan.rules or (None,))[0], plan.delta, settings.accountant_for()
    assert isinstance(rule, TokenBucket), "auto has a fixed list of releases"
    nearest = min(budgets, key=lambda budget: abs(math.log(budget.epsilon / settings.epsilon)))
    weight = calibration().weights[2]
    several = []
    for rows in SHOWN:
        epsilon = epsilon_of_rows(rule.tokens, rows, delta, accountant)
        fewer = None if nearest.worst is None else nearest.worst.expected - weight * math.log(rows)
        several.append(
            {
                "rows": rows,
                "epsilon": epsilon if math.isfinite(epsilon) else None,
                "people": facts.rows // rows,
                "worst_group_accuracy": None if fewer is None else calibration().around(fewer).as_json(),
            }
        )
    said = (
        "The promise is for rows. If several rows may be about one person, give --person: the noise stays the same, "
        "but people count in place of rows."
    )
    return {"unit": "row", "epsilon": nearest.epsilon, "sentence": said, "several": several}


def _about_forecast(why: str | None, facts: PublicFacts) -> dict[str, Any]:
    """How the forecast was made and how far off it may be."""
    if why is not None:
        return {"made": False, "sentence": why}
    known = calibration()
    small = len(facts.groups) - len(measurable(facts))
    return {
        "made": True,
        "method": AUTO,
        "error": known.error,
        "tables": known.tables,
        "cells": known.cells,
        "typical": {"right": TYPICAL.right},
        "groups_left_out": small,
        "sentence": f"Forecast for the method auto, from stored results on {known.tables} tables and made-up rows of "
        f"the same shape. On tables that were left out of the fit it was {100 * known.error:.1f} points "
        f"off on average. How hard your table is cannot be known without reading it: 8 of 10 figures lay within "
        "the interval.",
    }


def _cost(opened: Opened, plan: Plan, seconds: float | None) -> dict[str, Any]:
    """Time and memory of training with `auto` on one core of this machine."""
    if opened.encoding is None:
        return {"seconds": None, "bytes": None, "steps": plan.steps, "sentence": "Unknown before the images are read."}
    head = list(opened.factory.suiting(AUTO)(opened.problem, Seed.from_int(0)).modules())[-1]
    assert isinstance(head, nn.Linear), "auto trains one linear layer"
    needed = memory_for(plan.facts.rows * plan.facts.rows_per_unit, head.in_features)
    time = "" if seconds is None else f"About {_rounded(seconds)} on one core of this machine, and "
    said = f"{time}{'about' if time else 'About'} {max(needed / 1e9, 0.01):.2g} GB of memory for the rows."
    return {"seconds": seconds, "bytes": needed, "steps": plan.steps, "sentence": said}


def _rounded(seconds: float) -> str:
    return f"{max(1, round(seconds))} s" if seconds < 90 else f"{round(seconds / 60)} minutes"


def _method_noise(opened: Opened, settings: Settings) -> list[dict[str, Any]]:
    """The noise multiplier and the steps of another method at each budget; once where owners set their own."""
    facts, found = opened.problem.public, []
    for epsilon in EPSILONS if facts.budgets is None else (None,):
        own = settings if epsilon is None else settings.model_copy(update={"epsilon": epsilon})
        plan = planned(opened.method, facts, own)
        noise = plan.details.get("noise_multiplier") if plan.private else None
        found.append({"epsilon": epsilon, "steps": plan.steps, "noise_multiplier": noise})
    return found
