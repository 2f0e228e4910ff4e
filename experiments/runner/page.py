"""Page: what came out, as Markdown and SVG; both follow from the spec and the stored runs alone."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.runner.causes import trend_cause
from experiments.runner.claims import judge
from experiments.runner.columns import TWIN, Column, column, value_of
from experiments.runner.figure import Line, Panel, bar_chart, line_chart
from experiments.runner.results import Results
from experiments.runner.spec import Arm, Plot, Spec, Trend, X
from veil.metrics.ordered_objective import change_against_budget

_CAUSES = (
    'What is said after "Why" was measured in these runs on test rows, at the moment of the claim. A step\'s length is '
    "that of all clipped gradients that the tail leaves, an owner's part of it is that of its rows. At a Cond. (2) of "
    "0 or below, an owner's loss may rise while the others learn."
)
# A mean that is further from the paper's than this gets a sentence.
FAR = 2.0


def page_of(spec: Spec, stored: Mapping[str, Any]) -> str:
    """The Markdown page: claims first, then the table, what differs and why, the figure, how it was made."""
    results = Results.of(spec, stored)
    drawn = [f"![{spec.title}]({spec.name}.svg)", ""] if spec.plot is not None else []
    parts = [
        [f"# {spec.title}", "", f"{spec.shows}. {spec.about.strip()}", ""],
        _claims(results),
        _trends(results),
        _table(results),
        _why(results),
        drawn,
        _how(results, stored),
    ]
    return "\n".join(line for part in parts for line in part)


def _claims(results: Results) -> list[str]:
    if not results.spec.claims:
        return []
    verdicts = judge(results)
    kept, failed = (sum(verdict.holds is wanted for verdict in verdicts) for wanted in (True, False))
    left = len(verdicts) - kept - failed
    counts = f"{failed} fail{'s' if failed == 1 else ''}, {kept} hold{'s' if kept == 1 else ''}"
    heading = f"## What {results.spec.claimed_by} claims: {counts}{f', {left} not run' if left else ''}"
    legend = [_CAUSES, ""] if any(verdict.measured for verdict in verdicts) else []
    return [heading, "", *(verdict.line() for verdict in verdicts), "", *legend]


def _trends(results: Results) -> list[str]:
    """The lines through mean changes, with their p-values; nothing where an arm has not been run."""
    lines = [line for trend in results.spec.trends if (line := _trend(results, trend))]
    return ["## Change against the budget", "", *lines, ""] if lines else []


def _trend(results: Results, trend: Trend) -> str:
    changes = {}
    for name, place in trend.against.items():
        above, below = (results.figure(arm, None, name) for arm in (trend.above, trend.below))
        found = [column(name).scaled(above[seed] - below[seed]) for seed in sorted(set(above) & set(below))]
        if found:
            changes[place] = found
    if len(changes) < 3:
        return ""
    line = change_against_budget(list(changes), list(map(statistics.mean, changes.values())))
    holds = line.slope < 0 and line.p_value < 0.05
    return (
        f"- **{'Holds' if holds else 'Not shown'}:** {trend.text}. {line.slope:+.1f} points per unit of ε, Pearson's "
        f"r = {line.correlation:.2f}, p = {line.p_value:.2g}, {len(changes)} owners, changes averaged over seeds."
        f"{'' if holds else f'{_not_shown(changes, line.slope)}{trend_cause(results, trend)}'}"
    )


def _not_shown(changes: Mapping[float, Sequence[float]], slope: float) -> str:
    """Why a trend is not shown: how far the seeds alone turn the line, or that changes do not lie along one."""
    seeds = min(map(len, changes.values()))
    if seeds < 2:
        return ""
    variance = statistics.mean(map(statistics.variance, changes.values()))
    middle = statistics.mean(changes)
    turned = math.sqrt(variance / seeds / sum((place - middle) ** 2 for place in changes))
    if abs(slope) > 2 * turned:
        first, *others = (statistics.mean(changes[place]) for place in sorted(changes))
        return (
            f" Why: the seeds alone turn the line by {turned:.1f} only (standard error), but the changes do not lie "
            f"along it: {first:+.1f} at ε = {min(changes):g}, {statistics.mean(others):+.1f} on average at all others."
        )
    return (
        f" Why: from seed to seed an owner's change differs by {math.sqrt(variance):.1f} points (standard deviation), "
        f"which with {seeds} seeds turns the line by {turned:.1f} points per unit of ε by itself (standard error)."
    )


def _table(results: Results) -> list[str]:
    spec = results.spec
    columns = [(column(name), any(name in arm.paper for arm in spec.arms)) for name in spec.figures]
    heads = ["arm", *([spec.vary.name] if spec.vary is not None else [])]
    for shown, printed in columns:
        heads += [f"{shown.heading}: paper", "ours", "difference"] if printed else [shown.heading]
    heads += ["ε", "noise", "seeds", "s per run"]
    lines = ["## Figures", "", _row(heads), "|---|" + "--:|" * (len(heads) - 1)]
    empty = []
    for (label, x), by_seed in results.runs.items():
        if by_seed:
            lines.append(_row(_cells(results, spec.arm(label), x, columns)))
        else:
            empty.append(label if x is None else f"{label} at {x}")
    lines += _constant(results, columns)
    lines += ["", *_legend([shown for shown, _ in columns], spec.on_validation_rows)]
    return [*lines, "", *([f"Not run: {'; '.join(empty)}.", ""] if empty else [])]


def _cells(results: Results, arm: Arm, x: X | None, columns: Sequence[tuple[Column, bool]]) -> list[str]:
    runs = list(results.at(arm.label, x).values())
    cells = [arm.label, *([] if results.spec.vary is None else ["–" if x is None else str(x)])]
    for shown, printed in columns:
        numbers = list(results.figure(arm.label, x, shown.name).values())
        ours = _spread(shown, numbers)
        if printed:
            paper, away = _paper(results, arm, x, shown), _away(results, arm, x, shown)
            cells += ["–" if paper is None else f"{paper:g}", ours, "–" if away is None else f"{away:+.1f}"]
        else:
            cells.append(ours)
    noise = {run["noise_multiplier"] for run in runs}
    epsilons = [run["epsilon"] for run in runs]
    cells.append("∞" if None in epsilons else f"{max(epsilons):.3f}")
    cells.append("–" if None in noise else f"{max(noise):.2f}")
    return [*cells, str(len(runs)), f"{statistics.mean(run['seconds'] for run in runs):.0f}"]


def _constant(results: Results, columns: Sequence[tuple[Column, bool]]) -> list[str]:
    """The line of a constant answer, where runs know its figures: the most frequent class for every row."""
    known = {run["seed"]: run["constant"] for run in results.all_runs() if run.get("constant")}
    if not known:
        return []
    cells = ["constant answer", *([] if results.spec.vary is None else ["–"])]
    for shown, printed in columns:
        numbers = [] if shown.name == TWIN else [value_of(one, shown.name) for one in known.values()]
        ours = _spread(shown, [number for number in numbers if number is not None])
        cells += ["–", ours, "–"] if printed else [ours]
    return [_row([*cells, "–", "–", "–", "–"])]


def _paper(results: Results, arm: Arm, x: X | None, shown: Column) -> float | None:
    """What the paper prints, in its own unit (percent for shares)."""
    printed = arm.paper.get(shown.name)
    if isinstance(printed, list):
        vary = results.spec.vary
        return printed[vary.values.index(x)] if vary is not None and x is not None else None
    return printed


def _away(results: Results, arm: Arm, x: X | None, shown: Column) -> float | None:
    paper, numbers = _paper(results, arm, x, shown), list(results.figure(arm.label, x, shown.name).values())
    return shown.scaled(statistics.mean(numbers)) - paper if paper is not None and numbers else None


def _legend(columns: Sequence[Column], validation: bool) -> list[str]:
    rows = "validation" if validation else "test"
    words = [
        f"Shares in percent on {rows} rows, mean ± standard deviation over seeds. ε is the certificate's, for the group"
    ]
    words += ["or owner that has the most; noise is that of the gradients over their bound."]
    if any(shown.reads_training_rows for shown in columns):
        words += ["Figures that look at training rows are exact: no ε covers them."]
    if any(shown.name == TWIN for shown in columns):
        words += [
            "π is the largest difference between groups of the accuracy lost, on average over seeds, against the arm",
            "without privacy that has the same model (–: there is none, or the arm is not private); ± is that of these",
            "two groups over seeds.",
        ]
    return [" ".join(words)]


def _why(results: Results) -> list[str]:
    """A sentence for every arm whose figures are far from the paper's."""
    lines = []
    for arm in results.spec.arms:
        away = [
            f"{column(name).heading} {difference:+.1f}{'' if x is None else f' at {x}'}"
            for x in results.values(arm.label)
            for name in arm.paper
            if (difference := _away(results, arm, x, column(name))) is not None and abs(difference) > FAR
        ]
        if away:
            lines.append(f"- {arm.label} ({', '.join(away)}): {arm.why or 'why is not known.'}")
    return [f"Further than {FAR:g} from the paper:", "", *lines, ""] if lines else []


def _how(results: Results, stored: Mapping[str, Any]) -> list[str]:
    spec, scale = results.spec, results.spec.scale(results.scale)
    runs = results.all_runs()
    seeds = sorted({run["seed"] for run in runs})
    minutes = sum(run["seconds"] for run in runs) / 60
    facts = {
        "data": {spec.data: spec.data_options | scale.data_options},
        "model": {spec.model: spec.model_options | scale.model_options},
        "settings": spec.settings | scale.settings,
    }
    lines = ["## How it was made", "", f"    {stored['command']}", ""]
    lines += [f"    {key} {json.dumps(value, ensure_ascii=False)}" for key, value in facts.items()]
    for arm in spec.arms:
        if any(results.at(arm.label, x) for x in results.values(arm.label)):
            own = {
                "model": arm.model,
                "data": arm.data_options,
                "options": arm.options,
                "settings": arm.settings,
            }
            said = " ".join(f"{key} {json.dumps(value, ensure_ascii=False)}" for key, value in own.items() if value)
            lines.append(f"    {arm.label}: {arm.method}{f' {said}' if said else ''}")
    version = ", ".join(f"{name} {number}" for name, number in stored["version"].items())
    machine = stored["machine"]
    lines += [*([] if not runs else ["", _versions(runs)]), ""]
    lines += [
        f"Scale {results.scale}; seeds {', '.join(map(str, seeds)) or 'none'}; {minutes:.1f} minutes of training in "
        f"all, one thread per run; {version}; {machine.get('cores', '?')} cores, {machine.get('architecture', '?')}.",
        "",
    ]
    return lines


def _versions(runs: Sequence[Mapping[str, Any]]) -> str:
    """The version of the code that made the runs; where there are several, which arms each of them made."""
    arms: dict[str, set[str]] = {}
    for run in runs:
        arms.setdefault(run.get("code") or "an unknown version", set()).add(run["arm"])
    if len(arms) > 1:
        said = "; ".join(f"{code}: {', '.join(sorted(names))}" for code, names in sorted(arms.items()))
        return f"Runs of different versions of the code stand side by side, and may differ by that alone. {said}."
    (code,) = arms
    if all(run.get("code") for run in runs):
        return f"All runs are of one version of the code, {code}."
    return "These runs are of an earlier version of the code, which was not recorded: today's may give other figures."


def svg_of(spec: Spec, stored: Mapping[str, Any]) -> str | None:
    """The figure, or None where the spec asks for none."""
    if spec.plot is None:
        return None
    results, plot = Results.of(spec, stored), spec.plot
    labels = [arm.label for arm in spec.arms if not plot.arms or arm.label in plot.arms]
    if plot.kind == "bars":
        return _bars(results, plot, labels)
    panels = [_panel(results, plot, name, labels) for name in plot.figures]
    return line_chart(spec.title, panels)


def _bars(results: Results, plot: Plot, labels: Sequence[str]) -> str:
    bars, series = [], {column(name).heading: list[float]() for name in plot.figures}
    for label, x in [key for key in results.runs if key[0] in labels and results.runs[key]]:
        bars.append(label if x is None else f"{label}, {x}")
        for name in plot.figures:
            numbers = list(results.figure(label, x, name).values())
            mean = statistics.mean(numbers) if numbers else float("nan")
            series[column(name).heading].append(column(name).scaled(mean))
    percent = all(column(name).percent for name in plot.figures)
    return bar_chart(results.spec.title, bars, series, "percent" if percent else "")


def _panel(results: Results, plot: Plot, name: str, labels: Sequence[str]) -> Panel:
    shown = column(name)
    title = f"{shown.heading}{', percent' if shown.percent else ''}"
    if plot.kind == "curve":
        lines = [_curve(results, label, x, name) for label in labels for x in results.values(label)]
        last = max((x for line in lines for x, _, _ in line.points), default=1.0)
        return Panel(title, "steps", tuple(line for line in lines if line.points), ((0.0, "0"), (last, f"{last:g}")))
    assert results.spec.vary is not None
    places = _places([x for x in results.values(*(arm.label for arm in results.spec.arms)) if x is not None])
    lines = []
    for label in labels:
        points = []
        for x, place in places.items():
            numbers = [shown.scaled(value) for value in results.figure(label, x, name).values()]
            if numbers:
                points.append((place, statistics.mean(numbers), _deviation(numbers)))
        lines.append(Line(label, tuple(points)))
    ticks = tuple((place, str(x)) for x, place in places.items())
    return Panel(title, results.spec.vary.name, tuple(line for line in lines if line.points), ticks)


def _places(xs: Sequence[X]) -> dict[X, float]:
    """Numbers stand where they are, words at equal distances."""
    numbers = all(not isinstance(x, str) for x in xs)
    return {x: float(x) if numbers else float(index) for index, x in enumerate(xs)}


def _curve(results: Results, label: str, x: X | None, name: str) -> Line:
    side = 1 if name == "worst_group_accuracy" else 2
    curves = [run["curve"] for run in results.at(label, x).values() if run["curve"]]
    points = []
    # Curves of runs with other numbers of evaluations do not line up: only the common part is drawn.
    for along in zip(*curves, strict=False):
        numbers = [100 * point[side] for point in along]
        points.append((float(along[0][0]) + 1, statistics.mean(numbers), _deviation(numbers)))
    return Line(label if x is None else f"{label}, {x}", tuple(points))


def _deviation(numbers: Sequence[float]) -> float:
    return statistics.stdev(numbers) if len(numbers) > 1 else 0.0


def _spread(shown: Column, numbers: Sequence[float]) -> str:
    if not numbers:
        return "–"
    mean = shown.shown(statistics.mean(numbers))
    return f"{mean} ± {shown.shown(statistics.stdev(numbers))}" if len(numbers) > 1 else mean


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
