"""What the command line prints: results on standard output, all else on standard error."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

stdout = Console()
stderr = Console(stderr=True)
# The key of what a model without privacy reaches.
NOT_PRIVATE = "without_privacy"


LONGEST_SENTENCE = 1000


def say_error(sentence: str) -> None:
    """Print one sentence on standard error, on one line, with names and values escaped."""
    plain = "".join(character if character.isprintable() else repr(character)[1:-1] for character in sentence)
    short = plain if len(plain) <= LONGEST_SENTENCE else plain[:LONGEST_SENTENCE] + " …"
    stderr.print(f"[bold red]error:[/] {_escape(short)}", soft_wrap=True, highlight=False)


def say_warning(sentence: str) -> None:
    """Print one sentence on standard error that does not end the command."""
    stderr.print(f"[bold yellow]warning:[/] {_escape(sentence)}", soft_wrap=True, highlight=False)


def print_json(value: Any) -> None:
    """Exactly one JSON object on standard output."""
    typer.echo(json.dumps(value, ensure_ascii=False, allow_nan=False))


def percent(value: float | None) -> str:
    """A share as a percentage with one decimal; a dash where there is none."""
    return "–" if value is None or math.isnan(value) else f"{100 * value:.1f}"


def error(value: float | None) -> str:
    """An error with three digits; a dash where there is none."""
    return "–" if value is None or math.isnan(value) else f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def epsilon(value: float | None) -> str:
    """An ε with three digits; ∞ where there is no guarantee."""
    return "∞" if value is None else f"{value:.3g}"


def people_sentence(by_rows: Mapping[str, float]) -> str:
    """What a guarantee for rows means for people who have several."""
    shown = ", ".join(f"ε = {epsilon(value)} with {rows} rows" for rows, value in by_rows.items())
    return f"This protects rows. A person with several rows is protected less: {shown}."


def results_table(summaries: list[dict[str, Any]], group_rows: dict[str, int]) -> Table:
    """Methods side by side: accuracy per group, worst, average, overall, ε; errors where numbers are predicted."""
    from veil.report.usefulness import ALL, constant_answers, skewed

    of_group = of_rows(summaries[0]["metrics"])
    numbers = of_group != "accuracy"
    shown = error if numbers else percent
    title = "Root mean squared error by group, in the unit of the target" if numbers else "Accuracy by group, %"
    table = Table(title=title, title_justify="left", caption_justify="left")
    table.add_column("group")
    people = summaries[0]["privacy"].get("unit") == "one person"
    counted = "people" if people and summaries[0]["privacy"].get("rows_together", 1) == 1 else "rows"
    table.add_column(f"training {counted}", justify="right")
    table.add_column("test rows", justify="right")
    for summary in summaries:
        table.add_column(summary["method"], justify="right")
    metrics = [summary["metrics"] for summary in summaries]
    # A group that only the test table has was never trained on: it has a line too.
    unseen = {name: 0 for m in metrics for name in m["by_group"] if name not in group_rows}
    for name, rows in {**group_rows, **unseen}.items():
        scores = [m["by_group"].get(name, {"n": 0, of_group: None}) for m in metrics]
        table.add_row(_escape(name), f"{rows:,}", f"{scores[0]['n']:,}", *(shown(s[of_group]) for s in scores))
    table.add_section()
    word = "error" if numbers else "accuracy"
    for label, key in (
        ("worst group", f"worst_group_{word}"),
        ("average of groups", f"average_group_{word}"),
        ("overall", of_group),
    ):
        values = [shown(m[key]) + (within_noise(m) if label == "overall" else "") for m in metrics]
        table.add_row(label, "", "", *values, style="bold" if "worst" in label else "")
    if any(map(skewed, metrics)):  # then a high accuracy may be that of a constant answer
        table.add_row("balanced over classes", "", "", *(percent(m.get("balanced_accuracy")) for m in metrics))
        table.add_row("best constant answer", "", "", *(percent(constant_answers(m).get(ALL)) for m in metrics))
    if numbers:
        table.add_row("always answering the mean", "", "", *(error(m["error_of_the_mean"]) for m in metrics))
        table.add_row("variance explained, %", "", "", *(percent(m["r2"]) for m in metrics))
    table.add_section()
    promised = [_epsilon_range(summary["privacy"]) for summary in summaries]
    label = "ε (smallest to largest)" if any(" to " in shown for shown in promised) else "ε (every group)"
    table.add_row(label, "", "", *promised)
    owners = any(len(summary["privacy"]["by_owner"]) > 1 for summary in summaries)
    one, many = ("person", "people") if people else ("row", "rows")
    whose = f"ε is for each single {one} of an owner, not for all its {many}" if owners else None
    lines = [not_measured(summaries), whose]
    table.caption = "\n".join(line for line in lines if line) or None
    return table


def within_noise(metrics: Mapping[str, Any]) -> str:
    """What is added to an overall accuracy of which the released noise is more than a point: twice its deviation."""
    spread = 200 * (metrics.get("accuracy_noise") or 0.0)
    return f" ± {spread:.0f}" if spread > 1 else ""


def print_usefulness(metrics: Mapping[str, Any], config: Mapping[str, Any], findings: Mapping[str, Any]) -> None:
    """Whether the model is of use, in a sentence; and what to try where rare classes were not found."""
    from veil.report.usefulness import beside_no_privacy, skewed, usefulness

    found, said = usefulness(metrics), []
    if found is not None:
        said.append(found["sentence"])
        target, groups = config.get("target"), list(config.get("group") or ())
        if not found["useful"] and skewed(metrics) and target and target not in groups:
            crossed = ",".join(map(str, [*groups, target]))
            said.append(
                f"One class has most rows. Groups crossed with the target make the others count: --group {crossed}."
            )
    for sentence in (*said, beside_no_privacy(findings)):
        if sentence:
            stdout.print(sentence, soft_wrap=True, highlight=False, markup=False)


def of_rows(metrics: dict[str, Any]) -> str:
    """The figure that rows are judged by: accuracy, or the error of predicted numbers."""
    return "root_mean_squared_error" if "root_mean_squared_error" in metrics else "accuracy"


def _epsilon_range(privacy: dict[str, Any]) -> str:
    """The ε of all groups and owners: once where it is the same, else the smallest and the largest."""
    values = sorted([*privacy["by_group"].values(), *privacy["by_owner"].values()])
    shown = list(dict.fromkeys(map(epsilon, values)))
    return epsilon(privacy["epsilon"]) if len(shown) < 2 else f"{shown[0]} to {shown[-1]}"


def not_measured(summaries: list[dict[str, Any]]) -> str | None:
    """How many groups have too few rows for a figure; nothing where all have enough, or nothing was measured at all."""
    from veil.report.verdict import unmeasured

    judged = [one for one in summaries if one["metrics"][of_rows(one["metrics"])] is not None]
    missing, names = unmeasured(judged), {name for one in judged for name in one["metrics"]["by_group"]}
    if not missing:
        return None
    return f"– {len(missing)} of {len(names)} groups: too few rows to measure; excluded from worst and average"


def _escape(text: str) -> str:
    return text.replace("[", r"\[")
