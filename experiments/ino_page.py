"""The page and the curves of the INO-SGD experiments, made from their JSON file alone."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

from scipy import stats

from veil.metrics.owners import initial_drop, pareto_front, trade_off

COLOURS = {
    "idp-sgd": "#333333",
    "ino-sgd, tail 30 %": "#0b6bcb",
    "ino-sgd, tail 60 %": "#c2410c",
    "ino-sgd, steep tail 60 %": "#7c3aed",
}
BASE, TWIN = "idp-sgd", "without privacy"


def write_page(known: dict[str, Any], made_by: str, out: Path) -> None:
    """Write ino.md and one SVG per setting."""
    lines = [
        "# INO-SGD beside IDP-SGD",
        "",
        "Every owner has its own budget (δ = 1e-5, add-remove, PLD, variant `sample`). INO-SGD draws the same rows",
        "with the same noise as IDP-SGD at the same cost; rows with a low loss weigh less. Figures are mean ± standard",
        "deviation over seeds, in percent, on rows that took no part in training. Changes are paired by seed, with a",
        "95 % interval (Student). Balanced accuracy is the mean recall over classes. Curves show every seed (thin) and",
        "the mean.",
        "",
        "All settings here have clip 1, and the learning rate that is best for IDP-SGD where one was chosen. The",
        "steep tail has α = 4, β = ½; the others are straight. All are fixed. What bound and tail did in these runs",
        "stands below each setting. Where INO-SGD gains ten points and more is on [ino-regimes](ino-regimes.md).",
        "Without privacy: the same model, batch and steps at learning rate 0.05, momentum 0.9, as Veil takes where",
        "nothing bounds the gradients.",
        "",
        *_verdicts(known),
    ]
    for name, found in known.items():
        lines += ["", *_section(name, found)]
        (out / f"ino_{name}.svg").write_text(_curves(found), encoding="utf-8")
    (out / "ino.md").write_text("\n".join([*lines, "", made_by]) + "\n", encoding="utf-8")


def _last(found: dict[str, Any], label: str, figure: str) -> dict[str, float]:
    """The final value of a figure by seed: "balanced", "accuracy" or an owner's name."""
    return {
        seed: 100 * (run[figure] if figure in ("balanced", "accuracy") else run["owners"][figure])[-1]
        for seed, run in found["runs"].get(label, {}).items()
    }


def _differences(found: dict[str, Any], label: str, figure: str) -> list[float]:
    base, other = _last(found, BASE, figure), _last(found, label, figure)
    return [other[seed] - base[seed] for seed in sorted(set(base) & set(other))]


def _along(found: dict[str, Any], label: str, owner: str) -> list[float]:
    """Changes of an owner's accuracy averaged over the whole run, the paper's "learning dynamics"."""
    base, other = found["runs"].get(BASE, {}), found["runs"].get(label, {})
    seeds = sorted(set(base) & set(other))
    means = [[statistics.mean(runs[seed]["owners"][owner]) for runs in (base, other)] for seed in seeds]
    return [100 * (after - before) for before, after in means]


def _spread(values: list[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:.1f}" if values else "–"
    return f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}"


def _interval(values: list[float]) -> tuple[float, float, float]:
    """Mean and 95 % interval of paired changes (Student); with one seed the interval is the whole line."""
    mean = statistics.mean(values)
    if len(values) < 2:
        return mean, -math.inf, math.inf
    reach = float(stats.t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - reach, mean + reach


def _verdicts(known: dict[str, Any]) -> list[str]:
    lines = [
        "| setting | tail | seeds | most private owner: change at the end | … averaged over the run "
        "| balanced accuracy: change at the end | does INO-SGD help at the end? |",
        "|---|--:|--:|--:|--:|--:|---|",
    ]
    for found in known.values():
        for label in found["runs"]:
            owner = _differences(found, label, found["most_private"])
            if label in (BASE, TWIN) or not owner:
                continue
            balanced = _differences(found, label, "balanced")
            along = _along(found, label, found["most_private"])
            cells = [
                found["title"],
                label.removeprefix("ino-sgd, ").removeprefix("tail "),
                str(len(owner)),
                *map(_in_words, (owner, along, balanced)),
            ]
            lines.append("| " + " | ".join([*cells, _verdict(owner, balanced)]) + " |")
    return lines


def _in_words(changes: list[float]) -> str:
    mean, low, high = _interval(changes)
    return f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]" if math.isfinite(low) else f"{mean:+.1f} (one seed)"


def _verdict(owner: list[float], balanced: list[float]) -> str:
    """Yes and no only where the whole interval says so."""
    _, low, high = _interval(owner)
    if statistics.mean(balanced) < -0.5:
        return "no: balanced accuracy falls by more than half a point"
    if low > 0:
        return "yes"
    if high < 0:
        return "no"
    word = "up" if statistics.mean(owner) > 0 else "down"
    return f"not shown: {word} on average, but the interval has 0 in it"


def _section(name: str, found: dict[str, Any]) -> list[str]:
    runs = found["runs"]
    first = next(iter(next(iter(runs.values())).values()))
    owners = list(first["owners"])
    header = [
        "method",
        "seeds",
        *(f"{owner} (ε {first['budgets'][owner]:g})" for owner in owners),
        "balanced",
        "accuracy",
        "spent ε",
        "drop of the most private",
    ]
    lines = [
        f"## {found['title']}",
        "",
        f"{found['notes']}. {found['tried']}.",
        "",
        "| " + " | ".join(header) + " |",
        "|---|" + "--:|" * (len(header) - 1),
    ]
    for label, by_seed in runs.items():
        cells = [_spread(list(_last(found, label, figure).values())) for figure in (*owners, "balanced", "accuracy")]
        epsilon = next(iter(by_seed.values()))["epsilon"]
        spent = "none" if label == TWIN else ", ".join(f"{epsilon[owner]:.4g}" for owner in owners)
        lines.append(
            "| " + " | ".join([label, str(len(by_seed)), *cells, spent, _drops(by_seed, found["most_private"])]) + " |"
        )
    lines += _constant(runs, owners)
    settings = ", ".join(f"{key} {value}" for key, value in found["settings"].items())
    seconds = sum(run["seconds"] for by_seed in runs.values() for run in by_seed.values())
    seeds = sorted({int(seed) for by_seed in runs.values() for seed in by_seed})
    lines += [
        "",
        f"![Learning curves of every owner](ino_{name}.svg)",
        "",
        f"Not beaten in both balanced accuracy and spread (standard deviation) across owners: {_front(found, owners)}.",
        "",
        *_found_by_the_tail(runs, found["most_private"]),
        "",
        f"Settings: {settings}, momentum 0, plain SGD. Seeds {seeds[0]}–{seeds[-1]}; {seconds / 60:.0f} minutes of",
        "training in all, on one thread.",
    ]
    return lines


def _constant(runs: dict[str, Any], owners: list[str]) -> list[str]:
    """The line of a constant answer, where runs know its figures."""
    known = {seed: run["constant"] for by_seed in runs.values() for seed, run in by_seed.items() if "constant" in run}
    if not known:
        return []
    figures = [[100 * one["owners"][owner] for one in known.values()] for owner in owners]
    figures += [[100 * one[name] for one in known.values()] for name in ("balanced", "accuracy")]
    return ["| " + " | ".join(["constant answer", "–", *map(_spread, figures), "–", "–"]) + " |"]


def _found_by_the_tail(runs: dict[str, Any], owner: str) -> list[str]:
    """What bound and tail did at moments of the run, means over seeds; a line for every method that was looked at."""
    if not any("seen" in run for by_seed in runs.values() for run in by_seed.values()):
        return ["What bound and tail did was not measured in these runs, which are of an earlier version."]
    lines = [
        "What bound and tail did on evaluation rows, means over seeds: rows whose gradient is as long as its limit,",
        "the share of the clipped gradients that the tail removes, of all and of the most private owner, the share of",
        "the tail that has no gradient left, that owner's part of what is left, and its Cond. (2) (at or below 0 its",
        "loss may rise while the others learn).",
        "",
        "| method | of the run | as long as the threshold | removed | removed of its own | tail without gradients "
        "| its part of a step | Cond. (2) |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for label, by_seed in runs.items():
        seen = [run["seen"] for run in by_seed.values() if "removed" in run.get("seen", {})]
        for place, moment in enumerate(seen[0]["moments"] if seen else ()):
            columns = [[one[name][place] for one in seen] for name in ("clipped", "removed", "idle")]
            own = ("removed_by_owner", "pull_by_owner", "condition")
            columns += [[one[name][owner][place] for one in seen] for name in own]
            known = ([value for value in column if value is not None] for column in columns)
            clipped, removed, idle, removed_own, part, condition = map(statistics.mean, known)
            means = (clipped, removed, removed_own, idle, part)
            shown = [f"{100 * mean:.0f} %" for mean in means]
            if label == BASE:
                shown[1:4] = ["–"] * 3
            lines.append("| " + " | ".join([label, f"{100 * moment:g} %", *shown, f"{condition:+.2f}"]) + " |")
    return lines


def _drops(by_seed: dict[str, Any], owner: str) -> str:
    """The minority initial drop of the mean curve: how deep, and when it is made up for."""
    runs = list(by_seed.values())
    mean = [statistics.mean(values) for values in zip(*(run["owners"][owner] for run in runs), strict=True)]
    found = initial_drop(runs[0]["steps"], mean)
    if not found.happened:
        return f"none at these steps; above half by step {_first_above(runs[0]['steps'], mean)}"
    until = "the end" if found.end is None else f"step {found.end}"
    return f"{100 * found.depth:.1f} points from step {found.start} to {until}"


def _first_above(steps: list[int], curve: list[float], level: float = 0.5) -> str:
    return next((str(step) for step, value in zip(steps, curve, strict=True) if value >= level), "–")


def _front(found: dict[str, Any], owners: list[str]) -> str:
    points = []
    for label in (one for one in found["runs"] if one != TWIN):
        figures = [statistics.mean(_last(found, label, owner).values()) for owner in owners]
        points.append(trade_off(label, statistics.mean(_last(found, label, "balanced").values()), figures))
    return "; ".join(f"{p.label} ({p.utility:.1f}, spread {p.spread:.1f})" for p in pareto_front(points))


def _curves(found: dict[str, Any], width: int = 340, height: int = 230) -> str:
    """One panel per owner and one for the balanced accuracy; every seed thin, the mean thick."""
    runs = found["runs"]
    first = next(iter(next(iter(runs.values())).values()))
    panels = [*first["owners"], "balanced"]
    total = width * len(panels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total}" height="{height + 34}" '
        f'viewBox="0 0 {total} {height + 34}" font-family="sans-serif" font-size="11">',
        f'<rect width="{total}" height="{height + 34}" fill="white"/>',
    ]
    for index, panel in enumerate(panels):
        parts += _panel(runs, panel, first["steps"][-1], index * width, width, height)
    for index, label in enumerate(runs):
        x = 44 + 170 * index
        parts.append(f'<path d="M{x} {height + 20}h22" stroke="{_colour(label)}" stroke-width="2.5"/>')
        parts.append(f'<text x="{x + 28}" y="{height + 24}">{label}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(runs: dict[str, Any], panel: str, last: int, left: int, width: int, height: int) -> list[str]:
    x0, y0, w, h = left + 44, 26, width - 60, height - 56

    def path(steps: list[int], values: list[float]) -> str:
        points = (f"{x0 + w * s / last:.1f} {y0 + h * (1 - v):.1f}" for s, v in zip(steps, values, strict=True))
        return "M" + "L".join(points)

    title = "balanced accuracy" if panel == "balanced" else f"owner {panel}"
    parts = [f'<text x="{x0}" y="16" font-weight="bold">{title}</text>']
    for tick in (0.0, 0.5, 1.0):
        y = y0 + h * (1 - tick)
        parts.append(f'<path d="M{x0} {y:.1f}h{w}" stroke="#dddddd"/>')
        parts.append(f'<text x="{x0 - 6}" y="{y + 4:.1f}" text-anchor="end">{100 * tick:.0f}</text>')
    parts.append(f'<text x="{x0 + w}" y="{y0 + h + 16}" text-anchor="end">step {last}</text>')
    means = []
    for label, by_seed in runs.items():
        curves = [run["balanced"] if panel == "balanced" else run["owners"][panel] for run in by_seed.values()]
        steps = next(iter(by_seed.values()))["steps"]
        thin = f'fill="none" stroke="{_colour(label)}" opacity="0.2"'
        parts += [f'<path d="{path(steps, curve)}" {thin}/>' for curve in curves]
        mean = [statistics.mean(values) for values in zip(*curves, strict=True)]
        means.append(f'<path d="{path(steps, mean)}" fill="none" stroke="{_colour(label)}" stroke-width="2"/>')
    # The first method last, so that it lies on top where the others hide it.
    return parts + means[::-1]


def _colour(label: str) -> str:
    return COLOURS.get(label, "#15803d")
