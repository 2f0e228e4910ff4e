"""Panels: which figures a run's record allows. A figure is made only when its data are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from veil.report.cleaning import Record
from veil.report.figures import Bar, Bars, Figure, Forest, Heat, Interval, Lines, Point, Scatter, Series
from veil.report.intervals import Spread
from veil.report.variants import Variant, front_of
from veil.report.wording import STATE_NAMES, STATE_NOTES, is_of_people, spelled

CROSS = " × "
STD_NOTE = "Whiskers are one standard deviation over seeds."
NOT_STATE = {"step", "epsilon", "worst_group_accuracy", "average_group_accuracy", "accuracy", "group_accuracy"}
NOT_STATE |= {"realised_excess_risk"}  # two bounds of the whole run, not values of groups


def privacy_figures(run: Record) -> dict[str, Figure]:
    """ε of a row, by group and by owner, against the budget, and ε over the steps."""
    privacy, certificate = run.get("privacy") or {}, run.get("certificate") or {}
    budgets = certificate.get("budgets") or {}
    spent = certificate.get("spent_by_group") or {}
    common = max(budgets.values()) if budgets and len(set(budgets.values())) == 1 else None
    figures: dict[str, Figure] = {}
    one, many = ("person", "people") if is_of_people(run) else ("row", "rows")
    by_group, by_owner = privacy.get("by_group") or {}, privacy.get("by_owner") or {}
    if by_group:
        figures["epsilon-groups"] = Bars(
            title=f"ε of a single {one}, by group",
            bars=tuple(Bar(name, value, common, spent.get(name)) for name, value in by_group.items()),
            x_label="ε (smaller is more private)",
            row_label="Group",
            value_label="Guaranteed ε",
            mark_label="Budget" if common is not None else "",
            inner_label="Spent by the ledger" if spent else "",
            note="" if common is not None else f"Owners set budgets: a group shows the largest ε among its {many}.",
        )
    if len(by_owner) > 1:
        figures["epsilon-owners"] = Bars(
            title=f"ε of a single {one}, by owner",
            bars=tuple(Bar(name, value, budgets.get(name)) for name, value in by_owner.items()),
            x_label="ε (smaller is more private)",
            row_label="Owner",
            value_label="Guaranteed ε",
            mark_label="Budget" if budgets else "",
            note=f"For each single {one} of this owner, not for all {many} of the owner together.",
        )
    limits = (run.get("budget") or {}).get("limits") or []
    if limits:
        figures["epsilon-budget"] = Bars(
            title="The data set's budget after this run",
            bars=tuple(Bar(_whose(limit), limit["spent_epsilon"], limit["epsilon"]) for limit in limits),
            x_label="ε charged by all runs on the data set",
            row_label="Rows",
            value_label="Charged ε",
            mark_label="Budget",
            note="As of when this run was saved; `veil budget show` shows the current state.",
        )
    history = run.get("history") or {}
    spending = _points(history, "epsilon")
    if len(spending) > 1:
        budget = max(budgets.values(), default=None)
        figures["epsilon-steps"] = Lines(
            title="ε over the steps",
            x_label="Step",
            y_label="ε reserved so far",
            series=(_series("ε reserved", spending, "summary"),),
            format="number",
            references=(("largest budget" if common is None else "budget", budget),) if budget is not None else (),
            note="Read from the ledger: the largest over all groups. The guarantee is the certified ε.",
        )
    return figures


def _whose(limit: Record) -> str:
    """The rows that a limit of the budget store applies to."""
    return " / ".join(str(limit[key]) for key in ("group", "owner") if limit.get(key)) or "every row"


def training_figures(run: Record) -> dict[str, Figure]:
    """Accuracy of each group over the steps, and what the controller released on the way."""
    history = run.get("history") or {}
    names = _group_names(run)
    figures: dict[str, Figure] = {}
    curves = _curves(history, names)
    if curves:
        figures["curves"] = Lines(
            title="Accuracy of each group over the steps",
            x_label="Step",
            y_label="Accuracy on evaluation rows",
            series=curves,
            span=(0.0, 1.0),
        )
    for name in history:
        if name not in NOT_STATE and (lines := _state_lines(run, name)) is not None:
            figures[f"state-{name}"] = lines
    return figures


def _curves(history: Record, names: Sequence[str]) -> tuple[Series, ...]:
    found = _points(history, "group_accuracy")
    series = []
    for column, name in enumerate(names):
        own = [(step, values[column]) for step, values in found if column < len(values)]
        if any(value is not None for _, value in own):
            series.append(_series(name, own))
    average = _points(history, "average_group_accuracy")
    if len(average) > 1:
        series.append(_series("Average over groups", average, "summary"))
    return tuple(series) if len(found) > 1 or len(average) > 1 else ()


def _state_lines(run: Record, name: str) -> Lines | None:
    """One controller value over time: a line per group, per owner, or a single one."""
    values = [(s, v if isinstance(v, list) else [v]) for s, v in _points(run.get("history") or {}, name)]
    widths = {len(value) for _, value in values}
    if len(values) < 2 or len(widths) != 1 or not all(_numeric(value) for _, value in values):
        return None
    width = widths.pop()
    names = _part_names(run, name, width)
    series = tuple(
        _series(names[column], [(step, value[column]) for step, value in values], "group" if width > 1 else "summary")
        for column in range(width)
    )
    title = STATE_NAMES.get(name, spelled(name))
    label = spelled(name.removeprefix("cell_"))
    note = STATE_NOTES.get(name, "")
    return Lines(title=title, x_label="Step", y_label=label, series=series, format="number", note=note)


def _part_names(run: Record, name: str, width: int) -> list[str]:
    groups = [group["name"] for group in run.get("groups") or []]
    owners = [owner["name"] for owner in run.get("owners") or []]
    if width == 1:
        return [spelled(name)]
    if width == len(groups):
        return groups
    return owners if width == len(owners) else [f"part {index + 1}" for index in range(width)]


def forest_figure(subject: Variant, baselines: Sequence[Variant], names: Sequence[str]) -> Forest | None:
    """Accuracy of each group with its interval, the subject beside its baselines."""
    if not any(subject.groups.get(name, {}).get("accuracy") is not None for name in names):
        return None

    def intervals(variant: Variant) -> tuple[Interval, ...]:
        scores = [variant.groups.get(name, {}) for name in names]
        return tuple(Interval(s.get("accuracy"), s.get("low"), s.get("high"), s.get("n")) for s in scores)

    return Forest(
        title="Accuracy of each group",
        rows=tuple(names),
        series=tuple((variant.name, intervals(variant)) for variant in [subject, *baselines]),
        x_label="Accuracy on evaluation rows",
        note=f"The line is the 95 % interval that the number of evaluation rows allows ({interval_name(subject)}).",
    )


def interval_name(subject: Variant) -> str:
    """How the intervals on the page were found."""
    kinds = {score.get("interval") for score in subject.groups.values()}
    return "by bootstrap" if "bootstrap" in kinds else "Wilson's"


def heat_figure(groups: Sequence[Mapping[str, Any]]) -> Heat | None:
    """Crossed groups as a grid: the last attribute across, the others down."""
    parts = {group["name"]: group["name"].rsplit(CROSS, 1) for group in groups if CROSS in group["name"]}
    if len(parts) < 4 or len(parts) != len(groups):
        return None
    rows = tuple(dict.fromkeys(part[0] for part in parts.values()))
    columns = tuple(dict.fromkeys(part[1] for part in parts.values()))
    if len(rows) < 2 or len(columns) < 2 or all(group.get("accuracy") is None for group in groups):
        return None
    known = {group["name"]: group for group in groups}

    def grid(key: str) -> tuple[tuple[Any, ...], ...]:
        return tuple(tuple(known.get(row + CROSS + column, {}).get(key) for column in columns) for row in rows)

    return Heat(
        title="Where attributes cross",
        rows=rows,
        columns=columns,
        values=grid("accuracy"),
        counts=grid("n"),
        row_label="Group",
        column_label="and",
        value_label="Accuracy",
        count_label="Evaluation rows",
        diverging=True,
        note="Orange is below the middle of these values, blue above.",
    )


def pareto_figure(variants: Sequence[Variant], subject: Variant) -> Scatter | None:
    """Worst-group against average accuracy, one point per variant."""
    points = []
    for variant, on_front in zip(variants, front_of(variants), strict=True):
        average, worst = variant.figures["average_group_accuracy"], variant.figures["worst_group_accuracy"]
        if average["mean"] is not None and worst["mean"] is not None:
            own = variant.name == subject.name
            place = (average["mean"], worst["mean"], average["std"], worst["std"])
            points.append(Point(variant.name, *place, on_front, variant.private, own))
    if len(points) < 2:
        return None
    return Scatter(
        title="Worst group against average",
        x_label="Average over groups",
        y_label="Worst group",
        points=tuple(points),
        note=f"Up and to the right is better. {_front_note(points)}{STD_NOTE if _seeds(variants) > 1 else ''}",
    )


def gap_figure(variants: Sequence[Variant]) -> Forest | None:
    """Worst group beside average, one line per variant, the best worst group first."""
    known = sorted((v for v in variants if v.worst is not None), key=lambda v: -(v.worst or 0.0))
    if len(known) < 2:
        return None

    def intervals(figure: str) -> tuple[Interval, ...]:
        return tuple(_one_std(variant.figures[figure]) for variant in known)

    return Forest(
        title="How far the worst group is from the average",
        rows=tuple(variant.name for variant in known),
        series=(
            ("Worst group", intervals("worst_group_accuracy")),
            ("Average over groups", intervals("average_group_accuracy")),
        ),
        x_label="Accuracy on evaluation rows",
        row_label="Method",
        interval_label="mean ± one std",
        joined=True,
        note="Mean over seeds; the thin line is one standard deviation to each side." if _seeds(variants) > 1 else "",
    )


def _front_note(points: Sequence[Point]) -> str:
    kind = "private methods" if any(point.private for point in points) else "methods"
    front = f"The dashed line joins the {kind} that no other beats in both. " if _fronts(points) > 1 else ""
    return front + ("Diamonds are not private. " if {point.private for point in points} == {True, False} else "")


def _fronts(points: Sequence[Point]) -> int:
    return sum(point.front for point in points)


def _seeds(variants: Sequence[Variant]) -> int:
    return max(len(variant.members) for variant in variants)


def _one_std(value: Spread) -> Interval:
    mean, std = value["mean"], value["std"]
    return Interval(mean) if mean is None or std is None else Interval(mean, mean - std, mean + std)


def _group_names(run: Record) -> list[str]:
    scores = (run.get("metrics") or {}).get("by_group") or {}
    return list(scores) or [group["name"] for group in run.get("groups") or []]


def _points(history: Record, name: str) -> list[tuple[float, Any]]:
    steps, values = history.get("step") or [], history.get(name) or []
    return [(step, value) for step, value in zip(steps, values, strict=False) if value is not None]


def _series(name: str, points: Sequence[tuple[float, Any]], role: str = "group") -> Series:
    return Series(name, tuple(step for step, _ in points), tuple(value for _, value in points), role)


def _numeric(values: Sequence[Any]) -> bool:
    return all(value is None or isinstance(value, (int, float)) for value in values)
