"""The page docs/results/convex.md from the stored figures of `experiments.convex`."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

THEORY = {
    "K": {"phased-erm": "−1 … −1/2", "dp-oco": "−1/2", "noisy-sgd-mgr": "−1", "noisy-sgd-ags": "−1 … −1/2"},
    "epsilon": {"phased-erm": "−1 … 0", "dp-oco": "−1 … −1/2", "noisy-sgd-mgr": "−1", "noisy-sgd-ags": "−1 … −1/2"},
    "d": {"phased-erm": "0 … 1/2", "dp-oco": "0 … 1/4", "noisy-sgd-mgr": "1/2", "noisy-sgd-ags": "0 … 1/2"},
    "p": {"phased-erm": "1/2 … 1", "dp-oco": "0 … 1/2", "noisy-sgd-mgr": "1", "noisy-sgd-ags": "1/2 … 1"},
}
METHODS = ("phased-erm", "dp-oco", "noisy-sgd-mgr", "noisy-sgd-ags")
RATES = """\
Rows are sign vectors over √d; groups agree on half of the coordinates and lean apart on the rest. Within the ball the
loss is a straight line and the optimum has a closed form. Every figure is the largest over three strengths of signal
(0.05, 0.2, 0.8) of the mean over {seeds}: a rate that holds for the hardest of them. Base: p = 4, d = 20,
K = 4,000, ε = 0.25, δ = 1e-5, replace-one; noisy SGD has 400 steps. Slopes: log excess against the log of an axis,
with a 95 % interval of the fit. The theory's exponents are those of upper bounds; a flatter slope means that another
term rules there (optimisation in few steps; or nothing is learned: w = 0 has an excess of 0.28). Theorems 10 and 14
bound the risk on the training rows; here it is the population's."""
TABLES = """\
Replace-one (add-remove where it is said), δ = 1/(2n); figures on test rows in percent, mean ± standard deviation over
seeds. Adult: groups sex × income, n_min = 1,179. Dutch: groups by sex. The last three columns are about the excess
worst-group risk: the plan's upper bound, which holds in expectation (on new rows for phased-erm and dp-oco, else on the
training rows); what the finished run proves of the training rows with probability 0.95 from what was released; and what
w = 0, which needs no rows, has at least. The largest, the largest and the smallest over seeds. Bold: below what w = 0
has at every seed. A bound is about the loss that was trained (logistic, or hinge). `asc` and `erm` have none; `erm` is
not private and knows no groups. Radius, loss and 400 steps of arms with a radius were chosen on a fifth of the
training rows, with seeds 101 to 103: the hinge for Adult, the logistic loss for Dutch. Seconds were measured on a busy
machine: compare them with each other only."""
WORDS = {1: "one seed", 2: "two seeds", 3: "three seeds"}
NAMES = {"K": "K (rows)", "epsilon": "ε", "d": "d (weights)", "p": "p (groups)"}


def write(parts: Mapping[str, Any], made_by: str, folder: Path) -> None:
    """Write the page from what is there; parts that have not run are left out."""
    lines = ["# The convex solvers, measured", ""]
    for part, section in SECTIONS.items():
        if part in parts:
            lines += section(parts[part]["found"], parts[part]["settings"])
    (folder / "convex.md").write_text("\n".join([*lines, made_by, ""]), encoding="utf-8")


def tables(found: dict[str, Any], settings: dict[str, Any]) -> list[str]:
    """All four beside asc and erm on real tables."""
    lines = ["## Adult and Dutch beside `asc`, logistic model, ε = 1", "", TABLES, ""]
    for data in settings["data"]:
        arms = list(dict.fromkeys(name.split("/")[1] for name in found if name.startswith(data + "/")))
        lines += [f"### {data.capitalize()}", ""]
        lines += ["| method | worst group | average | overall | steps | seeds | s per run | plan | run | w = 0 |"]
        lines += ["|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"]
        for arm in arms:
            runs = [run for name, run in found.items() if name.split("/")[:2] == [data, arm]]
            cells = [arm, *(_spread([run[key] for run in runs]) for key in ("worst", "average", "accuracy"))]
            cells += _made(runs) if "steps" in runs[0] else ["–"] * 6
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return lines


def _made(runs: list[dict[str, Any]]) -> list[str]:
    """Steps, seeds, seconds and the three bounds of an arm; the weakest over seeds where they differ."""
    seconds = statistics.mean(run["seconds"] for run in runs)
    bounds = [run["bound"] for run in runs if run["bound"] is not None]
    proved = [run["realised"] for run in runs if run["realised"]]
    cells = [f"{runs[0]['steps']:,}", str(len(runs)), f"{seconds:.0f}", f"{max(bounds):.3g}" if bounds else "–"]
    if not proved:
        return [*cells, "–", "–"]
    says = all(bound < nothing for bound, nothing in proved)
    own = f"{max(bound for bound, _ in proved):.3f}"
    return [*cells, f"**{own}**" if says else own, f"{min(nothing for _, nothing in proved):.3f}"]


def solver(found: dict[str, Any], settings: dict[str, Any]) -> list[str]:
    """Gap against iterations."""
    lines = ["## Inner solver: certificates", ""]
    lines += [
        "Four groups of 100 rows, logistic, μ_w = μ_λ = 0.05. `away` is the true distance to the saddle point, which is"
    ]
    lines += ["known to 1e-9; `certified distance` is what the solver proves (never below it).", ""]
    lines += ["| solver | iterations | certified gap | certified distance | away |", "|---|--:|--:|--:|--:|"]
    for kind, name in (("paper", "algorithm 4"), ("late", "algorithm 4, late weights")):
        rows = {int(key.split()[1]): value for key, value in found.items() if key.startswith(kind)}
        for iterations, value in rows.items():
            lines.append(
                f"| {name} | {iterations:,} | {value['gap']:.2e} | {value['distance']:.2e} | {value['away']:.2e} |"
            )
    for key, value in found.items():
        if key.startswith("fast"):
            lines.append(f"| accelerated | {value['iterations']} | – | {value['distance']:.2e} | – |")
    slopes = []
    for kind in ("paper", "late"):
        rows = {int(key.split()[1]): value["gap"] for key, value in found.items() if key.startswith(kind)}
        slopes.append(np.polyfit(np.log(list(rows)), np.log(list(rows.values())), 1)[0])
    text = f"The gap falls like N^{slopes[0]:.2f} (stated: log N/N) and, with late weights, like N^{slopes[1]:.2f}"
    return [*lines, "", text + " (stated: 1/N; the loss is smooth here, which is faster).", ""]


def sensitivity(found: dict[str, Any], settings: dict[str, Any]) -> list[str]:
    """The largest move over the bound."""
    lines = ["## Sensitivity: how close neighbours come to the bound", ""]
    lines += ["Random saddle problems (1–4 groups, 1–5 weights, 1–11 rows each), one row replaced.", ""]
    lines += ["| loss | pairs | largest move / bound | 99 % quantile | largest move / the paper's bound |"]
    lines += ["|---|--:|--:|--:|--:|"]
    for loss, value in found.items():
        lines.append(
            f"| {loss} | {value['pairs']:,} | {value['largest']:.3f} | {value['q99']:.3f} "
            f"| {value['largest_of_paper']:.3f} |"
        )
    return [*lines, ""]


def tree(found: dict[str, Any], settings: dict[str, Any]) -> list[str]:
    """A million steps."""
    value = found["prefixes"]
    text = f"The noise of {value['steps']:,} prefixes of a tree takes {value['seconds']:.2f} seconds."
    return ["## Tree aggregation", "", text, ""]


def rates(found: dict[str, Any], settings: dict[str, Any]) -> list[str]:
    """Slopes with intervals beside the theory's, and the figures they come from."""
    lines = [
        "## Rates: excess worst-group risk on problems with a known optimum",
        "",
        RATES.format(seeds=_seeds(settings)),
        "",
    ]
    lines += ["| axis | method | slope (95 %) | theory | excess along the axis | upper bound at the last point |"]
    lines += ["|---|---|--:|--:|---|--:|"]
    for axis, theory in THEORY.items():
        for method in METHODS:
            points = [
                (float(name.split()[0].split("=")[1]), value)
                for name, value in found.items()
                if name.startswith(axis + "=") and name.endswith(" " + method)
            ]
            if len(points) < 3:
                continue
            slope, half = _slope([x for x, _ in points], [value["excess"] for _, value in points])
            along = ", ".join(f"{x:g}: {value['excess']:.3f}" for x, value in points)
            lines.append(
                f"| {NAMES[axis]} | {method} | {slope:.2f} ± {half:.2f} | {theory[method]} | {along} "
                f"| {points[-1][1]['bound']:.2f} |"
            )
    below = all(value["excess"] <= value["bound"] for value in found.values())
    lines += ["", f"Every measured excess lies below its plan's upper bound: {'yes' if below else 'NO'}.", ""]
    return lines


def over_map(found: dict[str, Any], settings: dict[str, Any]) -> list[str]:
    """Which method has the smallest excess where."""
    lines = ["## Which wins where", ""]
    lines += [
        f"The same problems, largest over the signals, mean of {_seeds(settings)}; the smallest excess of a line is in",
        "bold.",
        "",
    ]
    lines += ["| p | d | K | ε | " + " | ".join(METHODS) + " |", "|--:|--:|--:|--:|" + "--:|" * len(METHODS)]
    wins = dict.fromkeys(METHODS, 0)
    for point in dict.fromkeys(name.rsplit(" ", 1)[0] for name in found):
        values = [found.get(f"{point} {method}", {}).get("excess") for method in METHODS]
        if any(value is None for value in values):
            continue
        best = min(values)
        wins[METHODS[values.index(best)]] += 1
        cells = [f"**{value:.4f}**" if value == best else f"{value:.4f}" for value in values]
        axes = [part.split("=")[1] for part in point.split()]
        lines.append(f"| {' | '.join(axes)} | {' | '.join(cells)} |")
    text = ", ".join(f"{method} {count}" for method, count in wins.items())
    return [*lines, "", f"Wins: {text}.", ""]


SECTIONS = {
    "tables": tables,
    "rates": rates,
    "map": over_map,
    "sensitivity": sensitivity,
    "solver": solver,
    "tree": tree,
}


def _slope(x: list[float], y: list[float]) -> tuple[float, float]:
    """Slope of log y against log x and half the width of its 95 % interval."""
    logs, values = np.log(x), np.log(y)
    slope, start = np.polyfit(logs, values, 1)
    residuals = values - slope * logs - start
    error = np.sqrt((residuals**2).sum() / (len(x) - 2) / ((logs - logs.mean()) ** 2).sum())
    return float(slope), float(student.ppf(0.975, len(x) - 2) * error)


def _spread(values: list[float]) -> str:
    mean = 100 * statistics.mean(values)
    return f"{mean:.1f} ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else f"{mean:.1f}"


def _seeds(settings: Mapping[str, Any]) -> str:
    return WORDS.get(settings["seeds"], f"{settings['seeds']} seeds")
