"""`python -m benchmarks tuned`: dp-sgd's learning rate, batch and epochs for each table, chosen on validation rows.

Every candidate is trained at ε = 1 on the same rows; `tuned.json` keeps what each reached on validation rows, and the
one with the highest overall accuracy counts. Choosing is not charged: the arm `dp-sgd-tuned` is better than a person
with one budget for choice and training could do.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.tables.arms import veil_train
from benchmarks.tables.data import Task, load
from benchmarks.tables.scoring import score
from benchmarks.tables.splits import VALIDATION_SEEDS
from veil.errors import InputError
from veil.foundation.files import FOR_ALL, write_whole

FILE = Path(__file__).with_name("tuned.json")
EPSILON, SEED = 1.0, VALIDATION_SEEDS[0]
TABLES = ("adult", "bank_marketing", "credit_default", "dutch")
# Learning rate ("auto": what public constants say, the default), batch, epochs.
RATES, BATCHES, EPOCHS = ("auto", "0.3", "1"), (512, 2048), (10, 30)
Settings = tuple[str, int, int]
CANDIDATES: Sequence[Settings] = tuple(product(RATES, BATCHES, EPOCHS))
TUNED = (
    f"`dp-sgd`, tuned: of learning rates {', '.join(RATES)}, batches of {' and '.join(map(str, BATCHES))} rows and "
    f"{' and '.join(map(str, EPOCHS))} epochs, the one with the highest overall accuracy at ε = {EPSILON:g} on "
    "validation rows of the table; choosing is not charged. No other arm was tuned for a table."
)


def dp_sgd_with(task: Task, epsilon: float, seed: int, settings: Settings) -> NDArray[np.float64]:
    """Probabilities of dp-sgd with these settings."""
    rate, batch, epochs = settings
    words = ("--learning-rate", rate, "--batch-size", str(batch), "--epochs", str(epochs))
    return veil_train(task, epsilon, seed, options=("--method", "dp-sgd", *words))


def tuned_dp_sgd(task: Task, epsilon: float, seed: int) -> NDArray[np.float64]:
    """Probabilities of dp-sgd with what was chosen for the table."""
    return dp_sgd_with(task, epsilon, seed, chosen(task.table))


def chosen(table: str, file: Path = FILE) -> Settings:
    """The settings with the highest accuracy on validation rows; of equal ones the first."""
    tried = _known(file).get(table)
    if not tried:
        raise InputError(f'dp-sgd is not tuned for table "{table}": run `python -m benchmarks tuned --tables {table}`')
    best = max(tried, key=lambda one: one["accuracy"])
    return best["learning_rate"], best["batch_size"], best["epochs"]


def main(words: Sequence[str]) -> None:
    """Try what is missing, table by table, and keep every figure as soon as it is known."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks tuned", description=__doc__)
    parser.add_argument("--tables", default=",".join(TABLES), help="comma-separated")
    for table in parser.parse_args(words).tables.split(","):
        task = load(table).task("protected", "validation", SEED)
        for settings in CANDIDATES:
            tried(task, settings)
        print(f"{table}: {', '.join(map(str, chosen(table)))}")


def tried(task: Task, settings: Settings, file: Path = FILE) -> dict[str, Any]:
    """The figures of one candidate, measured unless they are known."""
    known = _known(file)
    found = {"learning_rate": settings[0], "batch_size": settings[1], "epochs": settings[2]}
    for record in known.get(task.table, []):
        if found.items() <= record.items():
            return dict(record)
    labels, groups = task.test[task.target].to_numpy(dtype=str), task.groups_of(task.test)
    scores = score(dp_sgd_with(task, EPSILON, SEED, settings), task.classes, labels, groups)
    record = {**found, "accuracy": round(scores.accuracy, 5), "auc": round(scores.auc, 5)}
    known.setdefault(task.table, []).append(record)
    write_whole(file, (json.dumps(known, indent=1) + "\n").encode(), FOR_ALL)
    print(f"{task.table}: {record}", file=sys.stderr, flush=True)
    return record


def _known(file: Path) -> dict[str, list[dict[str, Any]]]:
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}
