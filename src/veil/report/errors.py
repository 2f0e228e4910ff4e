"""Errors on the page: how far predicted numbers are from the true ones, for every group."""

from __future__ import annotations

from typing import Any

from veil.report.cleaning import Record
from veil.report.figures import Bar, Bars, Cell, Table
from veil.report.wording import counts_people, number, percent

CONSTANT = "Always answering the group's mean"
_COLUMNS = ("root_mean_squared_error", "mean_absolute_error", "error_of_the_mean", "r2")
# Numbers of metrics that the cards and the table of errors show.
SHOWN = (*_COLUMNS, "worst_group_error", "average_group_error")


def errors_of(run: Record) -> dict[str, Any] | None:
    """What the cards say; None where a run predicts classes, or where nothing was measured."""
    metrics = run.get("metrics") or {}
    worst = metrics.get("worst_group")
    if metrics.get("worst_group_error") is None or worst is None:
        return None
    return {"worst": worst, **{name: metrics.get(name) for name in SHOWN}, "of_worst": metrics["by_group"][worst]}


def error_headline(errors: Record, privacy: str) -> str:
    """The one sentence about a model that predicts numbers."""
    own = errors["of_worst"]
    usual = own.get("error_of_the_mean")
    against = f"; always answering the group's mean would be off by {number(usual)}" if usual is not None else ""
    return (
        f"For the worst-off group, {errors['worst']}, predictions are off by {number(errors['worst_group_error'])} "
        f"(root mean square) {privacy}{against}."
    )


def error_figure(run: Record) -> Bars | None:
    """The error of every group, with a mark for the constant answer."""
    scores = _scores(run)
    if not scores:
        return None
    return Bars(
        title="Error of each group",
        bars=tuple(Bar(name, own["root_mean_squared_error"], own["error_of_the_mean"]) for name, own in scores.items()),
        x_label="Root mean squared error, in the target's unit",
        row_label="Group",
        value_label="Root mean squared error",
        mark_label=CONSTANT,
        note="Shorter is better. The mark is the error of always answering the group's mean.",
    )


def error_table(run: Record) -> Table | None:
    """All figures of every group."""
    scores = _scores(run)
    if not scores:
        return None
    trained = {group["name"]: group.get("rows") for group in run.get("groups") or []}
    epsilons = (run.get("privacy") or {}).get("by_group") or {}
    rows = tuple(
        (
            Cell(name, name),
            *(Cell(number(own[key]), own[key]) for key in _COLUMNS[:-1]),
            Cell(percent(own["r2"]), own["r2"]),
            *(Cell(number(value), value) for value in (trained.get(name), own.get("n"), epsilons.get(name))),
        )
        for name, own in scores.items()
    )
    heads = ("Root mean squared error", "Mean absolute error", CONSTANT, "Variance explained")
    many = "people" if counts_people(run) else "rows"
    return Table("Groups", ("Group", *heads, f"Training {many}", "Evaluation rows", "ε"), rows)


def _scores(run: Record) -> dict[str, Record]:
    scores = (run.get("metrics") or {}).get("by_group") or {}
    return {name: own for name, own in scores.items() if "root_mean_squared_error" in own}
