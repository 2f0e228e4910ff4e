"""The page of the INO-SGD regimes, made from their JSON file alone: best against best first, then the map."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scipy import stats

from experiments.runner.figure import Line, Panel, line_chart
from veil.metrics.owners import initial_drop

PRIVATE, OPEN, ALL = "0–4", "5–9", "all"
CONSTANT = "constant answer"
_LABEL = re.compile(
    r"steps (?P<steps>\d+), clip (?P<clip>[\d.]+), reach (?P<reach>[\d.]+), tail (?P<tail>[\d.]+)"
    r"(, shape (?P<alpha>[\d.]+) (?P<beta>[\d.]+))?"
)
Runs = Mapping[str, Mapping[str, Any]]
Figure = Callable[[Mapping[str, Any], float], float]


def score(by_seed: Mapping[str, Any]) -> float:
    """What settings are chosen by: the mean of the owners' accuracies at the end of the run."""
    return statistics.mean((run["end"][PRIVATE] + run["end"][OPEN]) / 2 for run in by_seed.values())


def write_page(found: Mapping[str, Runs], made_by: str, out: Path) -> None:
    """Write ino-regimes.md and its figure."""
    parts = ("tuning", "best", "map", "long", "beside")
    tuning, bests, mapped, long, beside = (found.get(part, {}) for part in parts)
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
        "the tuning did not train on: the whole grid with one seed, then the best few with three (100, 101, 102). The "
        "test rows were used once, with seeds that nothing else here uses. A shape α β is that of the Beta tail: 1 1 "
        "is the straight line of the paper's guide, 4 0.5 (with a tail of 60 %, where the default begins) takes nearly "
        "all of its rows away. This shape was the best of nine on these test rows (ino-shape) before it was compared "
        "with others on validation rows, so that its lines of the map are not free of selection; the choice here was "
        "among the shapes of the tuning below, on validation rows alone. Without privacy: the same network, batch and "
        "steps, at the best of five settings on validation rows (learning rate 0.3, momentum 0.9; seed 101).",
        "",
        *_best_against_best(tuning, bests, lengths),
        *_beside(beside),
        "",
        *_only_mapped(tuning, lengths),
        *_regime(mapped, lengths),
        "",
        "## What the paper claims, in its regime",
        "",
        *_claims(mapped, long, lengths),
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
    """A number of a choice's label; a label without a shape has a straight tail, α = β = 1.

    >>> part("steps 60, clip 0.02, reach 2, tail 90", "clip"), part("steps 60, clip 1, reach 2, tail 90", "alpha")
    (0.02, 1.0)
    """
    found = _LABEL.fullmatch(label)
    if found is None:
        raise ValueError(f'"{label}" is no label of a choice')
    return float(found[name] or 1.0)


def straight(label: str) -> bool:
    """Whether a choice has a straight tail, or none.

    >>> straight("steps 60, clip 1, reach 2, tail 60, shape 4 0.5")
    False
    """
    return (part(label, "alpha"), part(label, "beta")) == (1.0, 1.0)


def without_tail(label: str) -> str:
    """The label of IDP-SGD at the same settings."""
    return label.rsplit(", tail", 1)[0] + ", tail 0"


def finalists(tuning: Runs, steps: float, *, ordered: bool) -> list[str]:
    """The choices of a method that were tried with every validation seed."""
    own = [one for one in tuning if part(one, "steps") == steps and (part(one, "tail") > 0) is ordered]
    most = max((len(tuning[label]) for label in own), default=0)
    return [label for label in own if len(tuning[label]) == most]


def edges(tuning: Runs, label: str) -> list[str]:
    """Clip and reach of a choice, as far as they are the smallest or largest that its method was tried with."""
    ordered = part(label, "tail") > 0
    own = [one for one in tuning if part(one, "steps") == part(label, "steps") and (part(one, "tail") > 0) is ordered]
    found = []
    for name in ("clip", "reach"):
        tried = {part(one, name) for one in own}
        if len(tried) > 1 and part(label, name) in (min(tried), max(tried)):
            found.append(name)
    return found


def changes(mapped: Runs, label: str, base: str, figure: str, moment: float = 1.0) -> list[float]:
    """INO-SGD minus IDP-SGD by seed, in points, at a share of the run."""
    seeds = sorted(set(mapped[label]) & set(mapped.get(base, {})))
    return [
        100 * (_at_moment(mapped[label][s], figure, moment) - _at_moment(mapped[base][s], figure, moment))
        for s in seeds
    ]


def _at_moment(run: Mapping[str, Any], figure: str, moment: float) -> float:
    """Accuracy of an owner or of all rows: at the end of the run on all test rows, before it on fewer."""
    if moment == 1.0:
        return float(run["end"][figure])
    index = _place(run, moment)
    own = {owner: curve[index] for owner, curve in run["accuracy"].items()}
    return float(own[figure] if figure in own else statistics.mean(own.values()))


def _place(run: Mapping[str, Any], moment: float) -> int:
    """Where in the curves the first look after a share of the run is."""
    due = moment * run["steps"][-1]
    return next(place for place, step in enumerate(run["steps"]) if step >= due - 0.5)


def _said(values: Sequence[float], digits: int = 1) -> str:
    if not values:
        return "–"
    mean = f"{statistics.mean(values):+.{digits}f}"
    if len(values) < 2:
        return mean
    low, high = interval(values)
    return f"{mean} [{low:+.{digits}f}, {high:+.{digits}f}]"


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the mean (Student)."""
    reach = float(stats.t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
    return statistics.mean(values) - reach, statistics.mean(values) + reach


def _mean(mapped: Runs, label: str, figure: str) -> str:
    values = [100 * run["end"][figure] for run in mapped[label].values()]
    return f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}" if len(values) > 1 else f"{values[0]:.1f}"


def _best_against_best(tuning: Runs, bests: Runs, lengths: Sequence[float]) -> list[str]:
    lines = [
        "| steps | method | clip | reach | tail | shape | on the edge of its grid | choices tried | seeds | digits 0–4 "
        "| digits 5–9 | all |",
        "|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    verdicts = []
    for steps in lengths:
        pair = []
        for ordered in (False, True):
            few = finalists(tuning, steps, ordered=ordered)
            label = max(few, key=lambda one: score(tuning[one]), default="")
            if not bests.get(label):
                continue
            pair.append(label)
            tried = sum(part(one, "steps") == steps and (part(one, "tail") > 0) is ordered for one in tuning)
            edge = ", ".join(edges(tuning, label)) or "no"
            figures = [_mean(bests, label, figure) for figure in (PRIVATE, OPEN, ALL)]
            cells = ["INO-SGD" if ordered else "IDP-SGD", *_settings(label)[1:], edge, str(tried)]
            lines.append("| " + " | ".join([f"{steps:g}", *cells, str(len(bests[label])), *figures]) + " |")
        if len(pair) == 2:
            private, every = (changes(bests, pair[1], pair[0], figure) for figure in (PRIVATE, ALL))
            verdicts.append(
                f"- {steps:g} steps: best INO-SGD minus best IDP-SGD is {_said(private)} points for digits 0–4 "
                f"and {_said(every)} for all digits ({len(every)} seeds; on validation rows the means of both owners "
                f"are {100 * score(tuning[pair[1]]):.1f} and {100 * score(tuning[pair[0]]):.1f})."
            )
    return [*verdicts, "", *lines]


def _beside(beside: Runs) -> list[str]:
    """Lines of the same table: the network without privacy, and a constant answer."""
    lines = []
    for label in sorted(beside, key=lambda one: (one == CONSTANT, len(one), one)):
        steps, name = ("–", label) if label == CONSTANT else (label.removeprefix("steps "), "without privacy")
        figures = [_mean(beside, label, figure) for figure in (PRIVATE, OPEN, ALL)]
        seeds = "–" if label == CONSTANT else str(len(beside[label]))
        lines.append("| " + " | ".join([steps, name, *["–"] * 6, seeds, *figures]) + " |")
    return lines


def _settings(label: str) -> list[str]:
    """Steps, clip, reach, tail and shape as cells of a table."""
    shape = f"{part(label, 'alpha'):g} {part(label, 'beta'):g}" if part(label, "tail") else "–"
    return [*(f"{part(label, key):g}" for key in ("steps", "clip", "reach", "tail")), shape]


def _regime(mapped: Runs, lengths: Sequence[float]) -> list[str]:
    """The paper's claim where it was found: the smallest clip, the shortest run, the longest straight tail."""
    found = [_ten_points(mapped, _of_the_paper(mapped, lengths), "in the paper's regime")]
    for label in sorted((one for one in mapped if not straight(one)), key=_order):
        if mapped[label] and mapped.get(without_tail(label)):
            found += ["", _ten_points(mapped, label, "with a steep tail")]
    return found


def _ten_points(mapped: Runs, label: str, where: str) -> str:
    base = without_tail(label)
    private, every = changes(mapped, label, base, PRIVATE), changes(mapped, label, base, ALL)
    holds = min(statistics.mean(private) - 10, statistics.mean(every)) >= 0
    word, seeds = "Holds" if holds else "Fails", "one seed" if len(private) == 1 else f"{len(private)} seeds"
    idle = statistics.mean(run["activity"][-1]["idle"] for run in mapped[label].values())
    why = (
        f" Why: at the end {100 * idle:.0f} % of the tail have no gradient left; half-way digits 0–4 gain "
        f"{_said(changes(mapped, label, base, PRIVATE, 0.5))}."
    )
    return (
        f"**{word}: ten points for the most private owner without a loss overall, {where}** ({label}): digits 0–4 "
        f"{_mean(mapped, base, PRIVATE)} → {_mean(mapped, label, PRIVATE)}, {_said(private)} points (smallest "
        f"{min(private):+.1f}, {seeds}); all digits {_mean(mapped, base, ALL)} → "
        f"{_mean(mapped, label, ALL)}, {_said(every)}.{'' if holds else why}"
    )


def _only_mapped(tuning: Runs, lengths: Sequence[float]) -> list[str]:
    tuned = {part(label, "steps") for label in tuning}
    left = [f"{steps:g}" for steps in lengths if steps not in tuned]
    return [f"Runs of {' and '.join(left)} steps were not tuned: they are on the map alone.", ""] if left else []


def _of_the_paper(mapped: Runs, lengths: Sequence[float]) -> str:
    labels = [one for one in mapped if part(one, "steps") == lengths[0] and part(one, "tail") > 0 and straight(one)]
    clip = min(part(label, "clip") for label in labels)
    return max((one for one in labels if part(one, "clip") == clip), key=lambda one: part(one, "tail"))


def _claims(mapped: Runs, long: Runs, lengths: Sequence[float]) -> list[str]:
    """Figs. 5a, 7a and 12 at a quarter of the run, half-way and at its end, and the drop in the long run."""
    label = _of_the_paper(mapped, lengths)
    base = without_tail(label)
    points = 100.0
    figures = (
        (_accuracy_of(PRIVATE), points, 1.0, "Fig. 5a: the most private owner is more accurate (by over a point)"),
        (_accuracy_of(ALL), points, -0.5, "Fig. 7a: overall accuracy does not suffer (within half a point)"),
        (_loss, -1.0, 0.0, "Fig. 7a: the mean loss of both owners is lower"),
        (_worst, points, 1.0, "Fig. 12: the worst owner is more accurate (by over a point)"),
    )
    lines = [f"INO-SGD against IDP-SGD at {label}, after a quarter of the run, half-way and at its end.", ""]
    for figure, unit, margin, text in figures:
        for moment, said in ((0.25, "a quarter in"), (0.5, "half-way"), (1.0, "at the end")):
            seeds = sorted(set(mapped[label]) & set(mapped[base]))
            own, other = ([figure(mapped[one][seed], moment) for seed in seeds] for one in (label, base))
            gains = [unit * (a - b) for a, b in zip(own, other, strict=True)]
            holds = statistics.mean(gains) > margin
            why = "" if holds else _cause(mapped, label, base, moment)
            change = _said(gains) if unit == points else f"{_said(gains, 2)} lower"
            lines.append(f"- **{'Holds' if holds else 'Fails'}:** {text}, {said}. {change}, {len(gains)} seeds.{why}")
    return [*lines, *_drop_claim(long)]


def _cause(mapped: Runs, label: str, base: str, moment: float) -> str:
    """Why a claim fails, by what was measured at that moment."""
    means = [
        100 * statistics.mean(_at_moment(run, owner, moment) for run in mapped[one].values())
        for owner in (PRIVATE, OPEN)
        for one in (label, base)
    ]
    seen = [(run, _place(run, moment)) for run in mapped[label].values()]
    removed = 100 * statistics.mean(run["activity"][place]["removed_by_owner"][OPEN] for run, place in seen)
    condition = statistics.mean(run["condition"][PRIVATE][place] for run, place in seen)
    rising = ", so their loss may still rise while digits 5–9 are learnt" if condition <= 0 else ""
    return (
        f" Why: then digits 0–4 are at {means[0]:.1f} % with INO-SGD and {means[1]:.1f} % with IDP-SGD, and Cond. (2) "
        f"of theirs is {condition:+.2f}{rising}; digits 5–9, of whose clipped gradients the tail removes "
        f"{removed:.0f} %, are at {means[2]:.1f} and {means[3]:.1f} %."
    )


def _drop_claim(long: Runs) -> list[str]:
    """Whether the most private owner's initial drop is over earlier, in one run of the paper's length each."""
    runs = _long_runs(long)
    ends = {label: initial_drop(run["steps"], run["accuracy"][PRIVATE]).end for label, run in runs.items()}
    base = next((label for label in runs if not part(label, "tail")), None)
    lines = []
    for label, end in ends.items():
        if base is None or label == base:
            continue
        holds = (end or math.inf) < (ends[base] or math.inf)
        said = [f"{_named(one)} {_over(ends[one])}" for one in (label, base)]
        why = "" if holds else _drop_cause(runs[label], ends[base])
        lines.append(
            f"- **{'Holds' if holds else 'Fails'}, with one seed:** Fig. 5a: in a run of the paper's length the most "
            f"private owner's initial drop is over earlier with {_named(label)}. {'; '.join(said)}.{why}"
        )
    return lines


def _drop_cause(run: Mapping[str, Any], end: int | None) -> str:
    """What bound and tail did at the step where IDP-SGD's drop was over, or at the last one."""
    place = len(run["steps"]) - 1 if end is None else run["steps"].index(end)
    one = run["activity"][place]
    return (
        f" Why: at step {run['steps'][place]} Cond. (2) of digits 0–4 is {run['condition'][PRIVATE][place]:+.2f}, the "
        f"tail removes {100 * one['removed_by_owner'][OPEN]:.0f} % of the clipped gradients of digits 5–9, and "
        f"{100 * one['idle']:.0f} % of it has no gradient left."
    )


def _over(end: int | None) -> str:
    return "not over" if end is None else f"over by step {end}"


def _long_runs(long: Runs) -> dict[str, Mapping[str, Any]]:
    """The first run of every choice of the paper's length."""
    return {label: next(iter(long[label].values())) for label in sorted(long, key=_order) if long[label]}


def _named(label: str) -> str:
    """The method of a choice, and its tail."""
    shape = "straight" if straight(label) else "steep"
    return f"INO-SGD, {shape} {part(label, 'tail'):g} %" if part(label, "tail") else "IDP-SGD"


def _accuracy_of(owner: str) -> Figure:
    return lambda run, moment: _at_moment(run, owner, moment)


def _worst(run: Mapping[str, Any], moment: float) -> float:
    return min(_at_moment(run, owner, moment) for owner in (PRIVATE, OPEN))


def _loss(run: Mapping[str, Any], moment: float) -> float:
    index = _place(run, moment)
    return statistics.mean(float(curve[index]) for curve in run["loss"].values())


def _map(mapped: Runs, lengths: Sequence[float]) -> list[str]:
    lines = [
        "| steps | clip | reach | tail | shape | seeds | 0–4, a quarter in | 0–4, half-way | 0–4, end | all, end "
        "| IDP-SGD 0–4 | all |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for steps in lengths:
        for label in sorted((one for one in mapped if part(one, "steps") == steps), key=_order):
            base = without_tail(label)
            if label == base or base not in mapped:
                continue
            gains = [_said(changes(mapped, label, base, PRIVATE, moment)) for moment in (0.25, 0.5, 1.0)]
            last = [_said(changes(mapped, label, base, ALL)), _mean(mapped, base, PRIVATE), _mean(mapped, base, ALL)]
            lines.append("| " + " | ".join([*_settings(label), str(len(mapped[label])), *gains, *last]) + " |")
    return lines


def _order(label: str) -> tuple[float, ...]:
    return tuple(part(label, key) for key in ("steps", "clip", "reach", "alpha", "beta", "tail"))


def _activity(mapped: Runs, lengths: Sequence[float]) -> list[str]:
    lines = [
        "Means over seeds, on test rows, at the longest straight tail and at steep ones, after the given share of the "
        "run: rows whose gradient is as long as its threshold, share of the clipped gradients that the tail removes "
        "(of digits 0–4, of digits 5–9), share of the tail that has no gradient left, and Cond. (2) of digits 0–4 (at "
        "or below 0 their loss may rise).",
        "",
        "| steps | clip | reach | tail | shape | moment | as long as the threshold | removed of 0–4 | of 5–9 "
        "| tail without gradients | Cond. (2), 0–4 |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for steps in lengths:
        for label in _shown(mapped, steps):
            lines += [_moment(mapped[label], label, moment) for moment in (0.125, 0.5, 1.0)]
    return lines


def _shown(mapped: Runs, steps: float) -> list[str]:
    """Of the map, the longest straight tail and every other shape, at every clip."""
    own = [one for one in mapped if part(one, "steps") == steps and part(one, "tail") > 0]
    longest = max(part(label, "tail") for label in own if straight(label))
    return sorted((one for one in own if part(one, "tail") == longest or not straight(one)), key=_order)


def _moment(by_seed: Mapping[str, Any], label: str, moment: float) -> str:
    seen = []
    for run in by_seed.values():
        index = _place(run, moment)
        one, removed = run["activity"][index], run["activity"][index]["removed_by_owner"]
        seen.append((one["clipped"], removed[PRIVATE], removed[OPEN], one["idle"], run["condition"][PRIVATE][index]))
    means = [statistics.mean(values) for values in zip(*seen, strict=True)]
    shown = [f"{100 * value:.0f} %" for value in means[:4]]
    own = [*_settings(label), f"{100 * moment:g} %"]
    return "| " + " | ".join([*own, *shown, f"{means[4]:+.2f}"]) + " |"


def _long(long: Runs) -> list[str]:
    """The run of the paper's length, one of each method as far as they were made."""
    runs = _long_runs(long)
    if not runs:
        return ["The run of the paper's length was not made."]
    first = next(iter(runs.values()))
    shown = ("digits 0–4", "digits 5–9", "loss of 0–4", "tail without gradients")
    heads = [f"{_named(label)}: {what}" for label in runs for what in (shown if part(label, "tail") else shown[:3])]
    lines = [
        f"## A run of the paper's length: {first['steps'][-1]:,} steps",
        "",
        f"One run each, one seed, not tuned at this length: {'; '.join(runs)}. The reach keeps the distance that noise "
        "moves the weights.",
        "",
        "| step | " + " | ".join(heads) + " |",
        "|--:|" + "--:|" * len(heads),
    ]
    for i, step in enumerate(first["steps"]):
        if i % 3 == 2 or step in (first["steps"][0], first["steps"][-1]):
            cells = [_long_cells(run, i) for run in runs.values()]
            lines.append("| " + " | ".join([str(step), *(cell for own in cells for cell in own)]) + " |")
    for label, run in runs.items():
        figures = ", ".join(f"{what} {100 * run['end'][what]:.1f}" for what in (PRIVATE, OPEN, ALL))
        lines += ["", f"{_named(label)} at the end, all test rows: {figures}; digits 0–4 have {_drop(run)}."]
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
        "| steps | clip | reach | tail | shape | seeds | digits 0–4 | digits 5–9 | mean of both |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for label in sorted(tuning, key=_order):
        own = [*_settings(label), str(len(tuning[label]))]
        figures = [_mean(tuning, label, figure) for figure in (PRIVATE, OPEN)]
        lines.append("| " + " | ".join([*own, *figures, f"{100 * score(tuning[label]):.1f}"]) + " |")
    return lines


def _figure(mapped: Runs, lengths: Sequence[float]) -> str:
    """The gain of the most private owner along the run, a panel per length, a line per clip and kind of tail."""
    panels = []
    for steps in lengths:
        lines = []
        for label in _shown(mapped, steps):
            base = without_tail(label)
            if base not in mapped:
                continue
            at = next(iter(mapped[label].values()))["steps"]
            points = []
            for step in at:
                gains = changes(mapped, label, base, PRIVATE, min(step / at[-1], 0.999999))
                points.append((float(step), statistics.mean(gains), statistics.stdev(gains) if len(gains) > 1 else 0.0))
            shape = "" if straight(label) else f", shape {_settings(label)[-1]}"
            name = (
                f"clip {part(label, 'clip'):g}, reach {part(label, 'reach'):g}, tail {part(label, 'tail'):g} %{shape}"
            )
            lines.append(Line(name, tuple(points)))
        title = f"gain of digits 0–4 in points, {steps:g} steps"
        panels.append(Panel(title, "steps", tuple(lines), ((0.0, "0"), (steps, f"{steps:g}"))))
    return line_chart("INO-SGD minus IDP-SGD along the run", panels)
