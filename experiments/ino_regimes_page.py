"""The page of the INO-SGD regimes, made from their JSON file alone: best against best first, then the map."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from scipy import stats

from experiments.runner.figure import Line, Panel, line_chart
from veil.metrics.owners import initial_drop

PRIVATE, OPEN, ALL = "0–4", "5–9", "all"
_LABEL = re.compile(r"steps (?P<steps>\d+), clip (?P<clip>[\d.]+), reach (?P<reach>[\d.]+), tail (?P<tail>[\d.]+)")
Runs = Mapping[str, Mapping[str, Any]]


class _Labelled(Protocol):
    @property
    def label(self) -> str: ...


Chosen = TypeVar("Chosen", bound=_Labelled)


def best(tuning: Mapping[str, Any], choices: Sequence[Chosen]) -> Chosen:
    """The choice with the largest mean of owners on validation rows."""
    return max(choices, key=lambda choice: score(tuning[choice.label]))


def score(by_seed: Mapping[str, Any]) -> float:
    """What settings are chosen by: the mean of the owners' accuracies at the end of the run."""
    return statistics.mean((run["end"][PRIVATE] + run["end"][OPEN]) / 2 for run in by_seed.values())


def write_page(found: Mapping[str, Runs], made_by: str, out: Path) -> None:
    """Write ino-regimes.md and its figure."""
    tuning, mapped, long = found["tuning"], found["map"], found["long"]
    lengths = sorted({part(label, "steps") for label in mapped})
    lines = [
        "# Where INO-SGD gains: clip × tail × steps on MNIST",
        "",
        "MNIST, the tanh CNN of Papernot et al., digits 0–4 at ε = 0.1 and digits 5–9 at ε = 1 (δ = 1e-5, add-remove, "
        "PLD, variant `sample`, 256 expected rows per step, plain SGD). The reach η is learning rate × clip: what a "
        "step moves if every gradient is clipped. Accuracies in percent; changes are paired by seed, with a 95 % "
        "interval (Student). Figures at the end are on the 10,000 test rows, along the run on 2,000 of them.",
        "",
        "## Best against best",
        "",
        "Clip, reach and tail of each method chosen by the mean accuracy of both owners on 5,000 validation rows that "
        "the tuning did not train on (one seed of its own, 100).",
        "",
        *_best_against_best(tuning, mapped, lengths),
        "",
        *_regime(mapped, lengths),
        "",
        "## The map: INO-SGD minus IDP-SGD, digits 0–4 and all digits, in points",
        "",
        *_map(mapped, lengths),
        "",
        "![Gain of digits 0–4 along the run](ino-regimes.svg)",
        "",
        "## Why: what the tail still finds",
        "",
        *_activity(mapped, lengths),
        "",
        *_long(long),
        "",
        "## Tuning",
        "",
        *_tuning(tuning),
        "",
        made_by,
    ]
    (out / "ino-regimes.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (out / "ino-regimes.svg").write_text(_figure(mapped, lengths), encoding="utf-8")


def part(label: str, name: str) -> float:
    """A number of a choice's label.

    >>> part("steps 60, clip 0.02, reach 2, tail 90", "clip")
    0.02
    """
    found = _LABEL.fullmatch(label)
    if found is None:
        raise ValueError(f'"{label}" is no label of a choice')
    return float(found[name])


def without_tail(label: str) -> str:
    """The label of IDP-SGD at the same settings."""
    return label.rsplit(", tail", 1)[0] + ", tail 0"


def changes(mapped: Runs, label: str, base: str, figure: str, moment: float = 1.0) -> list[float]:
    """INO-SGD minus IDP-SGD by seed, in points, at a share of the run."""
    seeds = sorted(set(mapped[label]) & set(mapped.get(base, {})))
    return [100 * (_at(mapped[label][s], figure, moment) - _at(mapped[base][s], figure, moment)) for s in seeds]


def _at(run: Mapping[str, Any], figure: str, moment: float) -> float:
    if moment == 1.0:
        return float(run["end"][figure])
    due = moment * run["steps"][-1]
    index = next(i for i, step in enumerate(run["steps"]) if step >= due - 0.5)
    own = {owner: curve[index] for owner, curve in run["accuracy"].items()}
    return float(own[figure] if figure in own else statistics.mean(own.values()))


def _said(values: Sequence[float]) -> str:
    if not values:
        return "–"
    mean = statistics.mean(values)
    if len(values) < 2:
        return f"{mean:+.1f}"
    low, high = interval(values)
    return f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]"


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the mean (Student)."""
    reach = float(stats.t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
    return statistics.mean(values) - reach, statistics.mean(values) + reach


def _mean(mapped: Runs, label: str, figure: str) -> str:
    values = [100 * run["end"][figure] for run in mapped[label].values()]
    return f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}" if len(values) > 1 else f"{values[0]:.1f}"


def _best_against_best(tuning: Runs, mapped: Runs, lengths: Sequence[float]) -> list[str]:
    lines = [
        "| steps | method | clip | reach | tail | seeds | digits 0–4 | digits 5–9 | all |",
        "|--:|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    verdicts = []
    for steps in lengths:
        tuned = [label for label in tuning if part(label, "steps") == steps]
        pair = []
        for ordered in (False, True):
            of_kind = [label for label in tuned if (part(label, "tail") > 0) is ordered]
            label = max(of_kind, key=lambda one: score(tuning[one]))
            if label not in mapped:
                continue
            pair.append(label)
            name = "INO-SGD" if ordered else "IDP-SGD"
            own = [f"{part(label, key):g}" for key in ("clip", "reach", "tail")]
            figures = [_mean(mapped, label, figure) for figure in (PRIVATE, OPEN, ALL)]
            lines.append("| " + " | ".join([f"{steps:g}", name, *own, str(len(mapped[label])), *figures]) + " |")
        if len(pair) == 2:
            gains = {figure: changes(mapped, pair[1], pair[0], figure) for figure in (PRIVATE, ALL)}
            verdicts.append(
                f"- {steps:g} steps: best INO-SGD minus best IDP-SGD is {_said(gains[PRIVATE])} points for digits 0–4 "
                f"and {_said(gains[ALL])} for all digits ({len(gains[ALL])} seeds)."
            )
    return [*verdicts, "", *lines]


def _regime(mapped: Runs, lengths: Sequence[float]) -> list[str]:
    """The paper's claim where it was found: the smallest clip, the shortest run, the longest tail."""
    labels = [label for label in mapped if part(label, "steps") == lengths[0] and part(label, "tail") > 0]
    clip = min(part(label, "clip") for label in labels)
    label = max((one for one in labels if part(one, "clip") == clip), key=lambda one: part(one, "tail"))
    base = without_tail(label)
    private, every = changes(mapped, label, base, PRIVATE), changes(mapped, label, base, ALL)
    word = "Holds" if min(statistics.mean(private) - 10, statistics.mean(every)) >= 0 else "Fails"
    return [
        f"**{word}: ten points for the most private owner without a loss overall, in the paper's regime** ({label}): "
        f"digits 0–4 {_mean(mapped, base, PRIVATE)} → {_mean(mapped, label, PRIVATE)}, {_said(private)} points "
        f"(smallest {min(private):+.1f}, {len(private)} seeds); all digits {_mean(mapped, base, ALL)} → "
        f"{_mean(mapped, label, ALL)}, {_said(every)}.",
    ]


def _map(mapped: Runs, lengths: Sequence[float]) -> list[str]:
    lines = [
        "| steps | clip | reach | tail | seeds | 0–4, a quarter in | 0–4, half-way | 0–4, end | all, end "
        "| IDP-SGD 0–4 | all |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for steps in lengths:
        for label in sorted((one for one in mapped if part(one, "steps") == steps), key=_order):
            base = without_tail(label)
            if label == base or base not in mapped:
                continue
            own = [f"{part(label, key):g}" for key in ("steps", "clip", "reach", "tail")]
            gains = [_said(changes(mapped, label, base, PRIVATE, moment)) for moment in (0.25, 0.5, 1.0)]
            last = [_said(changes(mapped, label, base, ALL)), _mean(mapped, base, PRIVATE), _mean(mapped, base, ALL)]
            lines.append("| " + " | ".join([*own, str(len(mapped[label])), *gains, *last]) + " |")
    return lines


def _order(label: str) -> tuple[float, ...]:
    return tuple(part(label, key) for key in ("steps", "clip", "reach", "tail"))


def _activity(mapped: Runs, lengths: Sequence[float]) -> list[str]:
    lines = [
        "Means over seeds, on test rows, at the longest tail and after the given share of the run: rows whose gradient "
        "is as long as its threshold, share of the clipped gradients that the tail removes (of digits 0–4, of digits "
        "5–9), share of the tail that has no gradient left, and Cond. (2) of digits 0–4 (at or below 0 their loss may "
        "rise).",
        "",
        "| steps | clip | moment | as long as the threshold | removed of 0–4 | of 5–9 | tail without gradients "
        "| Cond. (2), 0–4 |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for steps in lengths:
        longest = max(part(label, "tail") for label in mapped if part(label, "steps") == steps)
        for label in sorted((one for one in mapped if part(one, "steps") == steps), key=_order):
            if part(label, "tail") != longest:
                continue
            lines += [_moment(mapped[label], label, moment) for moment in (0.125, 0.5, 1.0)]
    return lines


def _moment(by_seed: Mapping[str, Any], label: str, moment: float) -> str:
    seen = []
    for run in by_seed.values():
        index = next(i for i, step in enumerate(run["steps"]) if step >= moment * run["steps"][-1] - 0.5)
        one, removed = run["activity"][index], run["activity"][index]["removed_by_owner"]
        seen.append((one["clipped"], removed[PRIVATE], removed[OPEN], one["idle"], run["condition"][PRIVATE][index]))
    means = [statistics.mean(values) for values in zip(*seen, strict=True)]
    shown = [f"{100 * value:.0f} %" for value in means[:4]]
    own = [f"{part(label, 'steps'):g}", f"{part(label, 'clip'):g}", f"{100 * moment:g} %"]
    return "| " + " | ".join([*own, *shown, f"{means[4]:+.2f}"]) + " |"


def _long(long: Runs) -> list[str]:
    """The run of the paper's length, one of each method as far as they were made."""
    labels = sorted((label for label in long if long[label]), key=_order)
    if not labels:
        return ["The run of the paper's length was not made."]
    runs = {"INO-SGD" if part(label, "tail") else "IDP-SGD": next(iter(long[label].values())) for label in labels}
    first = next(iter(runs.values()))
    shown = ("digits 0–4", "digits 5–9", "loss of 0–4", "tail without gradients")
    heads = [f"{name}: {what}" for name in runs for what in (shown if name == "INO-SGD" else shown[:3])]
    lines = [
        f"## A run of the paper's length: {first['steps'][-1]:,} steps",
        "",
        f"One run, one seed, not tuned at this length: {' and '.join(labels)}. The reach keeps the distance that noise "
        "moves the weights.",
        "",
        "| step | " + " | ".join(heads) + " |",
        "|--:|" + "--:|" * len(heads),
    ]
    for i, step in enumerate(first["steps"]):
        if i % 3 == 2 or step in (first["steps"][0], first["steps"][-1]):
            cells = [_long_cells(run, i) for run in runs.values()]
            lines.append("| " + " | ".join([str(step), *(cell for own in cells for cell in own)]) + " |")
    for name, run in runs.items():
        figures = ", ".join(f"{what} {100 * run['end'][what]:.1f}" for what in (PRIVATE, OPEN, ALL))
        lines += ["", f"{name} at the end, all test rows: {figures}; digits 0–4 have {_drop(run)}."]
    return lines


def _long_cells(run: Mapping[str, Any], place: int) -> list[str]:
    shares = [f"{100 * run['accuracy'][owner][place]:.1f}" for owner in (PRIVATE, OPEN)]
    ordered = any(one["removed"] for one in run["activity"])
    idle = [f"{100 * run['activity'][place]['idle']:.0f} %"] if ordered else []
    return [*shares, f"{run['loss'][PRIVATE][place]:.2f}", *idle]


def _drop(run: Mapping[str, Any]) -> str:
    drop = initial_drop(run["steps"], run["accuracy"][PRIVATE])
    if not drop.happened:
        return "no drop below their early peak"
    until = "the end" if drop.end is None else f"step {drop.end}"
    return f"a drop of {100 * drop.depth:.1f} points below their own early peak, from step {drop.start} to {until}"


def _tuning(tuning: Runs) -> list[str]:
    lines = [
        "| steps | clip | reach | tail | digits 0–4 | digits 5–9 | mean of both |",
        "|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for label in sorted(tuning, key=_order):
        own = [f"{part(label, key):g}" for key in ("steps", "clip", "reach", "tail")]
        figures = [_mean(tuning, label, figure) for figure in (PRIVATE, OPEN)]
        lines.append("| " + " | ".join([*own, *figures, f"{100 * score(tuning[label]):.1f}"]) + " |")
    return lines


def _figure(mapped: Runs, lengths: Sequence[float]) -> str:
    """The gain of the most private owner along the run, a panel per length, a line per clip, at the longest tail."""
    panels = []
    for steps in lengths:
        longest, lines = max(part(label, "tail") for label in mapped if part(label, "steps") == steps), []
        for label in sorted((one for one in mapped if part(one, "steps") == steps), key=_order):
            base = without_tail(label)
            if part(label, "tail") != longest or base not in mapped:
                continue
            at = next(iter(mapped[label].values()))["steps"]
            points = []
            for step in at:
                gains = changes(mapped, label, base, PRIVATE, min(step / at[-1], 0.999999))
                points.append((float(step), statistics.mean(gains), statistics.stdev(gains) if len(gains) > 1 else 0.0))
            name = f"clip {part(label, 'clip'):g}, reach {part(label, 'reach'):g}, tail {longest:g} %"
            lines.append(Line(name, tuple(points)))
        title = f"gain of digits 0–4 in points, {steps:g} steps"
        panels.append(Panel(title, "steps", tuple(lines), ((0.0, "0"), (steps, f"{steps:g}"))))
    return line_chart("INO-SGD minus IDP-SGD along the run", panels)
