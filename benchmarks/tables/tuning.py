"""`python -m benchmarks tune`: a search at ε = 1 in all, beside its candidates at ε = 1 and the search charged naively.

All arms hold rows out by their own defaults, as `veil train` and `veil tune` do. Accuracy is that on the rows that the
table keeps for measuring, by group. "tune, methods" searches among methods of which some are bad for the worst group.
`--store` keeps the runs in docs/results/tune.json, makes only those that are missing, and writes the table of
docs/tuning.md from them; how many seeds there are is to be fixed before the first run.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.tables.arms import ARMS as COMPARED
from benchmarks.tables.arms import ROOT, version_of
from benchmarks.tables.data import GROUPINGS, Task, load
from veil.accounting import Gaussian, Pld, Rdp, Repeated, Selection
from veil.accounting.calibration import noise_multiplier
from veil.foundation.files import FOR_ALL, write_whole
from veil.foundation.parallel import Workers
from veil.request import Request, TuneRequest
from veil.request.tuning import candidate
from veil.tables.predictor import load_predictor
from veil.tables.table_run import train_table
from veil.tables.tuning import tune
from veil.training.searching import NumberOfTrials

TABLES = ("adult", "bank_marketing")
# For somebody who does not know which method suits groups crossed with the label; the last two do not.
METHODS = ["auto", "dp-sgd model=logistic", "auto aim=overall"]
STORE, PAGE = ROOT / "docs" / "results" / "tune.json", ROOT / "docs" / "tuning.md"
BEGIN, END = "<!-- python -m benchmarks tune --store -->", "<!-- end of tune -->"
KEY = ("table", "groups", "rows", "epsilon", "arm", "seed")
SHOWN = {
    "auto": "`auto`, no search",
    "tune": "`veil tune`",
    "tune, charged naively": "`veil tune --charge composition`",
    "group-gd": "`group-gd` alone, the worst of the candidates",
}


def main(words: list[str]) -> None:
    """Measure, and print one JSON line per run, or one list of them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks tune", description=__doc__)
    parser.add_argument("--table", choices=TABLES, action="append")
    parser.add_argument("--groups", choices=GROUPINGS, default="label")
    parser.add_argument("--rows", choices=("validation", "test"), default="test")
    parser.add_argument("--seeds", type=int, default=3, help="so many seeds")
    parser.add_argument("--first-seed", type=int, default=1, help="from this one on: 1, 2, …")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--arm", choices=tuple(ARMS), action="append")
    parser.add_argument("--store", action="store_true", help="keep runs in docs/results/tune.json, write the table")
    parser.add_argument("--costs", action="store_true", help="only print what a trial gets of ε = 1, for one release")
    parser.add_argument("--json", action="store_true", help="print one JSON list on standard output, at the end")
    asked = parser.parse_args(words)
    rows = costs() if asked.costs else measured_runs(asked)
    if asked.json:
        print(json.dumps(list(rows)))
        return
    for row in rows:
        print(json.dumps(row), flush=True)


def measured_runs(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One record per table, seed and arm; those that are stored of this version are not made again."""
    runs = stored_runs() if asked.store else []
    version = version_of(COMPARED["auto"])
    done = {tuple(run[name] for name in KEY) for run in runs if run["version"] == version}
    for name in asked.table or TABLES:
        for seed in range(asked.first_seed, asked.first_seed + asked.seeds):
            for arm in asked.arm or ARMS:
                cell = dict(zip(KEY, (name, asked.groups, asked.rows, asked.epsilon, arm, seed), strict=True))
                if tuple(cell.values()) in done:
                    continue
                task = load(name).task(asked.groups, asked.rows, 100 + seed)
                with tempfile.TemporaryDirectory() as folder:
                    found = {**cell, **measured(task, arm, asked.epsilon, seed, Path(folder)), "version": version}
                if asked.store:
                    runs = keep([run for run in runs if not same(run, cell)] + [found])
                yield found
    if asked.store:
        write_table(runs)


def same(run: dict[str, Any], cell: dict[str, Any]) -> bool:
    """Whether a stored run is of this cell."""
    return all(run[name] == cell[name] for name in KEY)


def stored_runs(path: Path = STORE) -> list[dict[str, Any]]:
    """The runs that are stored."""
    return json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else []


def keep(runs: list[dict[str, Any]], path: Path = STORE) -> list[dict[str, Any]]:
    """Store runs, one line each, in a fixed order."""
    ordered = sorted(runs, key=lambda run: [str(run[name]) for name in KEY[:-1]] + [f"{run['seed']:06}"])
    lines = ",\n".join("  " + json.dumps(run, ensure_ascii=False) for run in ordered)
    write_whole(path, f'{{"runs": [\n{lines}\n]}}\n'.encode(), FOR_ALL)
    return ordered


def table_of(runs: list[dict[str, Any]]) -> str:
    """The table of the page: means of the worst group over seeds, and differences to `auto` with their errors."""
    used = [run for run in runs if run["rows"] == "test" and run["groups"] == "label" and run["epsilon"] == 1.0]
    worst = {
        (table, arm): {
            r["seed"]: 100 * r["worst_group_accuracy"] for r in used if (r["table"], r["arm"]) == (table, arm)
        }
        for table in TABLES
        for arm in SHOWN
    }
    seeds = sorted({run["seed"] for run in used})
    lines = [f"| seeds {seeds[0]} to {seeds[-1]} | Adult | bank marketing |", "|---|---|---|"]
    for arm, title in SHOWN.items():
        figures = [f"{np.mean(list(worst[table, arm].values())):.1f}" if worst[table, arm] else "–" for table in TABLES]
        lines.append(f"| {title} | {' | '.join(figures)} |")
    for arm in ("tune", "tune, charged naively", "group-gd"):
        figures = [_difference(worst[table, arm], worst[table, "auto"]) for table in TABLES]
        lines.append(f"| {SHOWN[arm]} − `auto`, seed by seed (standard error) | {' | '.join(figures)} |")
    return "\n".join(lines)


def _difference(ours: dict[int, float], others: dict[int, float]) -> str:
    gaps = [ours[seed] - others[seed] for seed in ours if seed in others]
    if len(gaps) < 2:
        return "–"
    return f"{np.mean(gaps):+.1f} ({np.std(gaps, ddof=1) / len(gaps) ** 0.5:.1f})".replace("-", "−")


def write_table(runs: list[dict[str, Any]], page: Path = PAGE) -> None:
    """Put the table between its marks on the page."""
    before, rest = page.read_text(encoding="utf-8").split(BEGIN)
    write_whole(page, f"{before}{BEGIN}\n{table_of(runs)}\n{END}{rest.split(END)[1]}".encode(), FOR_ALL)


def costs(delta: float = 1 / 52_000) -> Iterator[dict[str, Any]]:
    """The ε at δ of a trial that is one Gaussian release, where the whole has ε = 1, by each way to pay."""
    for trials in (1.5, 2, 3, 5, 10, 30):
        number = NumberOfTrials.expecting(trials)

        def selected(kappa: float, number: NumberOfTrials = number) -> list[Repeated]:
            return [Repeated(Selection((Repeated(Gaussian(kappa)),), number.shape, gamma=number.gamma))]

        def composed(kappa: float, trials: float = trials) -> list[Repeated]:
            return [Repeated(Gaussian(kappa), int(trials))]

        noises = (
            noise_multiplier(selected, 1.0, delta, Pld()),
            noise_multiplier(selected, 1.0, delta, Rdp()),
            noise_multiplier(composed, 1.0, delta, Pld()),
        )
        found = [round(Pld().epsilon([Gaussian(kappa)], delta), 2) for kappa in noises]
        chances = {"one_trial": round(float(number.chances(2)[0]), 2), "nine_in_ten": number.quantile(0.9)}
        by: dict[str, Any] = dict(zip(("profiles", "renyi", "composed"), found, strict=True))
        by["added_up"] = round(1 / trials, 2)
        if trials != int(trials):  # so many cannot be made
            by |= {"composed": None, "added_up": None}
        yield {"trials": trials, **by, **chances}


def measured(task: Task, arm: str, epsilon: float, seed: int, folder: Path) -> dict[str, Any]:
    """Train one arm and measure it on the rows kept for that."""
    task.train.to_csv(folder / "train.csv", index=False)
    used = {*task.features, *task.group_columns, task.target}
    asked = {
        "data": folder / "train.csv",
        "target": task.target,
        "group": task.group_columns,
        "ignore": tuple(name for name in task.train if name not in used),
        "settings": {"epsilon": epsilon, "delta": task.delta, "seed": seed},
    }
    chosen = ARMS[arm](asked, folder / "run")
    predicted = load_predictor(folder / "run").predict(_read_back(task.test, folder))
    right = pd.Series(predicted == task.test[task.target].astype(str).to_numpy())
    by_group = right.groupby(task.groups_of(task.test)).mean()
    return {
        "worst_group_accuracy": float(by_group.min()),
        "average_group_accuracy": float(by_group.mean()),
        "accuracy": float(np.mean(right)),
        "chosen": chosen,
    }


def _read_back(frame: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """The rows as they would be read from a file, like the training rows."""
    frame.to_csv(folder / "test.csv", index=False)
    return pd.read_csv(folder / "test.csv")


def _one(text: str) -> Callable[[dict[str, Any], Path], str]:
    def train(asked: dict[str, Any], out: Path) -> str:
        one = candidate(text)
        model = {"model": one.model} if one.model else {}
        train_table(Request.checked(**asked, **model, method=one.method, option=dict(one.options)), out=out)
        return one.label

    return train


def _searched(**how: Any) -> Callable[[dict[str, Any], Path], str]:
    def train(asked: dict[str, Any], out: Path) -> str:
        run = tune(TuneRequest.checked(**asked, **how), out, workers=Workers(1))
        return str(run.findings["Search"]["chosen"])

    return train


ARMS: dict[str, Callable[[dict[str, Any], Path], str]] = {
    "auto": _one("auto"),
    "tune": _searched(),
    "tune, charged naively": _searched(charge="composition"),
    "group-gd": _one("group-gd"),
    "tune, methods": _searched(candidate=METHODS, trials=5),
    METHODS[1]: _one(METHODS[1]),
    METHODS[2]: _one(METHODS[2]),
}
