"""`python -m benchmarks tune`: a search at ε = 1 in all, beside its candidates at ε = 1 and the search charged naively.

All arms hold rows out by their own defaults, as `veil train` and `veil tune` do. Accuracy is that on the rows that the
table keeps for measuring, by group. "tune, methods" searches among methods of which some are bad for the worst group.
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

from benchmarks.tables.data import GROUPINGS, Task, load
from veil.accounting import Gaussian, Pld, Rdp, Repeated, Selection
from veil.accounting.calibration import noise_multiplier
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
    parser.add_argument("--costs", action="store_true", help="only print what a trial gets of ε = 1, for one release")
    parser.add_argument("--json", action="store_true", help="print one JSON list on standard output, at the end")
    asked = parser.parse_args(words)
    rows = costs() if asked.costs else runs(asked)
    if asked.json:
        print(json.dumps(list(rows)))
        return
    for row in rows:
        print(json.dumps(row), flush=True)


def runs(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One record per table, seed and arm."""
    for name in asked.table or TABLES:
        for seed in range(asked.first_seed, asked.first_seed + asked.seeds):
            task = load(name).task(asked.groups, asked.rows, 100 + seed)
            for arm in asked.arm or ARMS:
                with tempfile.TemporaryDirectory() as folder:
                    found = measured(task, arm, asked.epsilon, seed, Path(folder))
                yield {"table": name, "groups": asked.groups, "arm": arm, "seed": seed, **found}


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
