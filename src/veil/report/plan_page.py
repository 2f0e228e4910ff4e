"""The page of `veil plan`: what a budget can buy, with sliders that recompute ε and noise from prepared tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from veil.foundation.files import FOR_ALL, write_whole
from veil.report.cleaning import Record, clean
from veil.report.figures import Cell, Figure, Forest, Interval, Lines, Series, Table, as_json
from veil.report.page import SCRIPTS, asset, filled
from veil.report.wording import number, percent

# Beyond this a picture of all groups cannot be read; the table has them all.
DRAWN_GROUPS = 24


def write_plan_page(record: Record, noise: Mapping[str, Any], path: Path) -> Path:
    """Write the page of a plan.

    Args:
        record: What `veil plan --json` prints.
        noise: Tables that the page recomputes noise from (`veil.advice.noise_tables`).
        path: The HTML file.

    Returns:
        The path.
    """
    path = Path(path)
    write_whole(path, render_plan(record, noise).encode(), FOR_ALL)
    return path


def render_plan(record: Record, noise: Mapping[str, Any]) -> str:
    """The whole page as text; it loads nothing."""
    figures = figures_of(record)
    sections = [
        ("summary", "Summary"),
        ("sliders", "Noise"),
        ("groups", "Groups"),
        ("people", "People"),
        ("read", "Read"),
    ]
    twin = {
        "title": f"What a budget can buy: {Path(str(record['data'])).name}",
        "sections": sections,
        "plan": clean(dict(record)),
        "noise": dict(noise),
        "figures": {name: clean(as_json(figure)) for name, figure in figures.items()},
    }
    tables = {name: figure.table() for name, figure in figures.items()}
    tables["plan-groups"] = group_table(record["budgets"])
    scripts, styles = (*SCRIPTS, "plan.js"), asset("plan.css")
    return filled("plan.html.j2", twin, tables, scripts, styles, plan=record, near=nearest(record))


def nearest(record: Record) -> Mapping[str, Any]:
    """The budget of the list that is closest to the ε of the request."""
    wanted = float(record["epsilon"])
    found: Mapping[str, Any] = min(record["budgets"], key=lambda budget: abs(float(budget["epsilon"]) - wanted))
    return found


def figures_of(record: Record) -> dict[str, Figure]:
    """The forecast of the worst group over ε, and of each group at each ε; nothing where there is no forecast."""
    budgets = record["budgets"]
    if not record["forecast"]["made"]:
        return {}
    epsilons = tuple(float(budget["epsilon"]) for budget in budgets)
    worst = [budget["worst_group_accuracy"] for budget in budgets]
    half = tuple((span["high"] - span["low"]) / 2 for span in worst)
    middle = tuple((span["high"] + span["low"]) / 2 for span in worst)
    lines = Lines(
        title="Worst group by ε",
        x_label="ε",
        y_label="Accuracy of the worst group",
        span=(0.0, 1.0),
        band_label="half of the interval",
        series=(
            Series("expected", epsilons, tuple(span["expected"] for span in worst), role="summary"),
            Series("middle of the interval", epsilons, middle, band=half),
        ),
        note="A forecast for auto: 8 of 10 figures on tables that were left out of its fit lay in the interval.",
    )
    groups = sorted(budgets[0]["groups"], key=lambda group: -int(group["rows"]))[:DRAWN_GROUPS]
    places = [budgets[0]["groups"].index(group) for group in groups]
    forest = Forest(
        title="Each group" if len(places) == len(budgets[0]["groups"]) else f"The {DRAWN_GROUPS} largest groups",
        rows=tuple(str(group["group"]) for group in groups),
        series=tuple((f"ε = {e:g}", _dots(budgets, index, places)) for index, e in enumerate(epsilons)),
        x_label="Expected accuracy",
        interval_label="8 of 10 within",
    )
    return {"worst": lines, "forest": forest}


def _dots(budgets: Sequence[Mapping[str, Any]], index: int, places: Sequence[int]) -> tuple[Interval, ...]:
    spans = [(budgets[index]["groups"][place]["accuracy"], budgets[index]["groups"][place]["rows"]) for place in places]
    return tuple(Interval(span["expected"], span["low"], span["high"], int(rows)) for span, rows in spans)


def group_table(budgets: Sequence[Mapping[str, Any]]) -> Table:
    """Every group: its rows, and at each ε its forecast, or that it is too small to be heard."""
    rows = []
    for place, group in enumerate(budgets[0]["groups"]):
        cells = [Cell(str(group["group"]), str(group["group"])), Cell(number(group["rows"]), group["rows"])]
        for budget in budgets:
            own = budget["groups"][place]
            span = own["accuracy"]
            shown = percent(span["expected"]) if span else ("heard" if own["heard"] else "too small")
            mark = "" if own["heard"] or not span else " · too small"
            cells.append(Cell(shown + mark, span["expected"] if span else float(own["heard"])))
        rows.append(tuple(cells))
    columns = ("Group", "Rows", *(f"ε = {budget['epsilon']:g}" for budget in budgets))
    return Table("Expected accuracy of each group; too small: not weighted separately", columns, tuple(rows))
