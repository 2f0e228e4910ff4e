"""Quality panels: parity figures, calibration, ROC and confusion of each group, and audits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from veil.report.cleaning import Record
from veil.report.errors import SHOWN
from veil.report.figures import Bar, Bars, Cell, Figure, Heat, Lines, Series, Table
from veil.report.variants import FIGURES
from veil.report.wording import label, number, percent


def quality_figures(run: Record) -> dict[str, Figure]:
    """What `metrics.parity` and the extra keys of `metrics.by_group` allow."""
    metrics = run.get("metrics") or {}
    scores = metrics.get("by_group") or {}
    figures: dict[str, Figure] = {}
    parity = [(k, v) for k, v in (metrics.get("parity") or {}).items() if isinstance(v, (int, float))]
    if parity:
        figures["parity"] = Bars(
            title="Parity between groups",
            bars=tuple(Bar(label(name), value) for name, value in parity),
            x_label="Difference (0: groups are treated alike)",
            row_label="Notion",
            value_label="Difference",
            note=_one_class_note(scores),
        )
    if calibration := _lines(scores, "calibration", "confidence", "accuracy"):
        said = ("Calibration of each group", "Confidence of the model", "Share predicted correctly", "perfect")
        figures["calibration"] = _unit_square(*said, calibration)
    if roc := _lines(scores, "roc", "fpr", "tpr"):
        said = ("ROC curve of each group", "False positive rate", "True positive rate", "chance")
        figures["roc"] = _unit_square(*said, roc)
    for index, (name, score) in enumerate(scores.items()):
        if (heat := _confusion(name, score.get("confusion"), run.get("classes") or [])) is not None:
            figures[f"confusion-{index}"] = heat
    return figures


def _one_class_note(scores: Record) -> str:
    tables = [score["confusion"] for score in scores.values() if score.get("confusion")]
    if not tables or not all(sum(sum(row) > 0 for row in table) == 1 for table in tables):
        return ""
    return (
        "Each group has rows of one class only: selection rates differ because the classes do, and equal opportunity "
        "compares the groups of positive rows."
    )


def score_table(run: Record) -> Table | None:
    """Every further number that `metrics.by_group` gives of each group, or None where there is none."""
    scores = (run.get("metrics") or {}).get("by_group") or {}
    elsewhere = ("n", "accuracy", *SHOWN)
    keys = dict.fromkeys(key for score in scores.values() for key in score if key not in elsewhere)
    names = [key for key in keys if any(_is_number(score.get(key)) for score in scores.values())]
    if not names:
        return None
    rows = tuple(
        (Cell(group, group), *(Cell(number(score.get(key)), score.get(key)) for key in names))
        for group, score in scores.items()
    )
    return Table("Further figures of each group", ("Group", *(label(key) for key in names)), rows)


def head_table(run: Record) -> Table | None:
    """Every head of a model that has several, by group: accuracies, and errors where it gives a number."""
    heads = (run.get("metrics") or {}).get("heads") or {}
    if not heads:
        return None
    kinds = {
        name: "root_mean_squared_error" if own.get("worst_group_error") is not None else "accuracy"
        for name, own in heads.items()
    }
    groups = dict.fromkeys(group for own in heads.values() for group in own["by_group"])
    rows = [
        (group, [own["by_group"].get(group, {}).get(kinds[name]) for name, own in heads.items()]) for group in groups
    ]
    for said, key in (("Worst group", "worst_group"), ("Average over groups", "average_group")):
        of = {name: "error" if kind != "accuracy" else kind for name, kind in kinds.items()}
        rows.append((said, [own.get(f"{key}_{of[name]}") for name, own in heads.items()]))
    rows.append(("All rows", [own.get(kinds[name]) for name, own in heads.items()]))
    shown = [percent if kind == "accuracy" else number for kind in kinds.values()]
    return Table(
        f"All heads; other figures are those of {next(iter(heads))}",
        ("Group", *(f"{name}: {kind.replace('_', ' ')}" for name, kind in kinds.items())),
        tuple(
            (Cell(said, said), *(Cell(show(value), value) for show, value in zip(shown, values, strict=True)))
            for said, values in rows
        ),
    )


def further_figures(run: Record) -> dict[str, float]:
    """Numbers of `metrics` that are not elsewhere on the page, by their label."""
    metrics = run.get("metrics") or {}
    elsewhere = (*FIGURES, *SHOWN, "epsilon")
    return {label(key): value for key, value in metrics.items() if _is_number(value) and key not in elsewhere}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _unit_square(title: str, x_label: str, y_label: str, diagonal: str, series: tuple[Series, ...]) -> Lines:
    return Lines(
        title=title,
        x_label=x_label,
        y_label=y_label,
        series=series,
        x_format="percent",
        span=(0.0, 1.0),
        diagonal=diagonal,
    )


def _lines(scores: Record, key: str, x: str, y: str) -> tuple[Series, ...]:
    series = []
    for name, score in scores.items():
        curve = score.get(key) or {}
        points = [(a, b) for a, b in zip(curve.get(x) or [], curve.get(y) or [], strict=False) if None not in (a, b)]
        if points:
            series.append(Series(name, tuple(a for a, _ in points), tuple(b for _, b in points)))
    return tuple(series)


def _confusion(name: str, counts: Any, classes: Sequence[Any]) -> Heat | None:
    """Shares of each true class, with the counts."""
    if not counts or len(counts) != len(classes):
        return None
    labels = tuple(str(label) for label in classes)
    totals = [sum(row) for row in counts]
    return Heat(
        title=f"Confusion: {name}",
        rows=labels,
        columns=labels,
        values=tuple(
            tuple(n / total if total else None for n in row) for row, total in zip(counts, totals, strict=True)
        ),
        counts=tuple(tuple(row) for row in counts),
        row_label="True class",
        column_label="Predicted",
        value_label="Share of the true class",
        count_label="Rows",
        note="Down: the true class. Across: the predicted class.",
    )


def audit_figures(audits: Sequence[Record]) -> dict[str, Figure]:
    """Lower bounds of the attacks against the guarantee, for each audit with results by group."""
    figures: dict[str, Figure] = {}
    for index, audit in enumerate(audits):
        by_group = audit.get("by_group") or {}
        rows = [(name, one) for name, one in by_group.items() if isinstance(one, dict)]
        bars = tuple(Bar(name, one.get("epsilon_lower"), one.get("epsilon")) for name, one in rows)
        if audit.get("epsilon_lower") is not None:
            bars = (Bar("all rows", audit["epsilon_lower"], audit.get("epsilon")), *bars)
        if any(bar.value is not None for bar in bars):
            figures[f"audit-{index}"] = Bars(
                title=f"What the attack {audit.get('attack', 'audit')} found",
                bars=bars,
                x_label="ε",
                row_label="Rows",
                value_label="Lower bound on ε from the attack",
                mark_label="Guaranteed ε" if any(bar.mark is not None for bar in bars) else "",
            )
    return figures
