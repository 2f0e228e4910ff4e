"""`python -m benchmarks regression`: numbers to predict, beside peers and models without privacy; writes the page."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.tables import exchange, number_page
from benchmarks.tables.arms import ROOT, Arm, arms_named, veil_train
from benchmarks.tables.data import GROUPING_WORDS, Task
from benchmarks.tables.measuring import Asked, measure
from benchmarks.tables.number_scoring import METRICS
from benchmarks.tables.numbers import GROUPINGS, NUMBERS, load
from benchmarks.tables.rows import group_weights, one_hot
from benchmarks.tables.scoring import LEAST
from benchmarks.tables.splits import SHARE, fixed_sizes
from benchmarks.tables.store import all_stored, collect, columns_of, with_published
from veil.errors import InputError, require

STORE = ROOT / ".benchmarks" / "regression"
RESULTS = ROOT / "docs" / "results"
EPSILONS = (0.3, 1.0, 3.0, 8.0)
SEEDS = (1, 2, 3)


def constant(task: Task, epsilon: float, seed: int) -> NDArray[np.float64]:
    """The same answer for everybody: the mean of the training rows."""
    return np.full(len(task.test), task.train[task.target].mean())


def ridge(task: Task, epsilon: float, seed: int, *, weighted: bool = False) -> NDArray[np.float64]:
    """Standardised numbers and one column per word; scikit-learn's defaults."""
    from sklearn.linear_model import Ridge
    from sklearn.preprocessing import StandardScaler

    numbers = list(task.numeric)
    scaler = StandardScaler().fit(task.train[numbers].to_numpy(dtype=np.float64))
    rows, measured = (
        np.hstack([scaler.transform(frame[numbers].to_numpy(dtype=np.float64)), one_hot(frame, task.categories)])
        for frame in (task.train, task.test)
    )
    weights = group_weights(task.train, task.group_columns) if weighted else None
    model = Ridge().fit(rows, task.train[task.target].to_numpy(dtype=np.float64), weights)
    return np.asarray(model.predict(measured))


def _veil(name: str, by_group: bool) -> Arm:
    fit = partial(veil_train, options=("--task", "regression", "--method", name))
    return Arm(name, f"Veil `{name}`", "veil", fit, by_group=by_group)


_ARMS = (
    Arm("constant", "constant answer", "not private", constant, random=False),
    Arm("ridge", "ridge", "not private", ridge, random=False),
    Arm("ridge-weighted", "ridge, group-weighted", "not private", partial(ridge, weighted=True), True, False),
    Arm("lightgbm", "LightGBM", "not private", random=False),
    Arm("lightgbm-weighted", "LightGBM, group-weighted", "not private", by_group=True, random=False),
    Arm("dp-ebm", "DP-EBM", "peer"),
    Arm("diffprivlib", "diffprivlib linear", "peer"),
    _veil("auto", by_group=True),
    # It does nothing with groups: one fit is measured with both definitions.
    _veil("dp-sgd", by_group=False),
)
ARMS: Mapping[str, Arm] = {arm.name: arm for arm in _ARMS}


def main(words: Sequence[str]) -> None:
    """Run the command; wrong input is one sentence and exit code 2."""
    given = _parser().parse_args(words)
    try:
        if not given.page_only:
            asked = _asked(given)
            for name in asked.tables:
                measure(asked, name)
        _publish(given.store, given.results)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    if given.json:
        print(json.dumps({"rows": list(all_stored(given.store, "test"))}, ensure_ascii=False))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks regression", description=__doc__)
    parser.add_argument("--tables", type=_names, default=tuple(NUMBERS), help=", ".join(NUMBERS))
    parser.add_argument("--epsilons", type=_names, default=tuple(map(str, EPSILONS)), help="budgets, comma-separated")
    parser.add_argument("--arms", type=_names, default=(), help=", ".join(ARMS))
    parser.add_argument("--seeds", type=_names, default=tuple(map(str, SEEDS)), help="comma-separated")
    parser.add_argument("--any-version", action="store_true", help="keep figures of Veil that other code made")
    parser.add_argument("--page-only", action="store_true", help="measure nothing: collect and write the page")
    parser.add_argument("--json", action="store_true", help="print the stored cells as one JSON object")
    parser.add_argument("--store", type=Path, default=STORE, help="folder of the stored cells")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of regression.json and regression.md")
    return parser


def _asked(given: argparse.Namespace) -> Asked:
    """What was typed, checked before anything is measured."""
    unknown = [name for name in given.tables if name not in NUMBERS]
    require(not unknown, f'unknown table "{"".join(unknown[:1])}": known are {", ".join(NUMBERS)}')
    arms = tuple(arms_named(given.arms, ARMS))
    if any(arm.fit is None for arm in arms):
        exchange.check_peers()
    try:
        epsilons, seeds = tuple(map(float, given.epsilons)), tuple(map(int, given.seeds))
    except ValueError as error:
        raise InputError(f"--epsilons and --seeds take numbers: {error}") from error
    return Asked(given.tables, GROUPINGS, epsilons, arms, seeds, "test", given.store, given.any_version, load)


def _publish(store: Path, results: Path) -> None:
    """Collect the cells beside those that were published before, and write the page from them alone."""
    records = with_published(all_stored(store, "test"), results / "regression.json")
    require(len(records) > 0, f"Nothing is stored in {store}: measure first, without --page-only.")
    collect(records, _about(), results / "regression.json", columns_of(METRICS))
    number_page.write(results / "regression.json", results / "regression.md")


def _about() -> dict[str, Any]:
    """What the page says besides figures: it is written from the JSON alone."""
    return {
        "test_share": SHARE,
        "least_rows": LEAST,
        "groupings": {name: GROUPING_WORDS[name] for name in GROUPINGS},
        "tables": {
            name: {**fixed_sizes(name), "target": spec.target, "bounds": spec.target_bounds, "groups": spec.groups}
            for name, spec in NUMBERS.items()
        },
        "arms": {arm.name: {"title": arm.title, "family": arm.family} for arm in ARMS.values()},
    }


def _names(words: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in words.split(",") if word.strip())
