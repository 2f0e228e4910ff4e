"""`python -m benchmarks hard-classes`: `auto` on MNIST with one rare digit, beside a group-weighted linear model.

Both take the same scattering features; groups are the digits. A digit is cut to 9 % of its training rows. In the case
"8, mixed" every eight is drawn faintly over a 3, a 5 or a 9, so that the rare class is confused with three others.
Settings are chosen on validation rows, a sixth of the training rows (`--rows validation`).
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import veil
from veil.datasets.mnist import load_mnist, load_unbalanced_mnist
from veil.methods.convex import steered_descent
from veil.models.tables import additive
from veil.noise import GaussianNoise
from veil.problem import Problem

STORE = Path(__file__).parents[2] / ".benchmarks" / "images"
SHARE, FAINT, OTHERS = 0.09, 0.35, (3, 5, 9)
SEEDS = (1, 2, 3)
MIXED = "8, mixed"
PUBLISHED = "8, unbalanced MNIST"
CASES = ("5", "8", "9", MIXED, PUBLISHED)
_AT_ONCE = 1024


@dataclass(frozen=True)
class Rows:
    """Features with their digits."""

    features: Tensor
    digits: NDArray[np.int64]

    def of(self, which: NDArray[np.int64]) -> Rows:
        """Some of them."""
        return Rows(self.features[torch.from_numpy(which)], self.digits[which])


def main(words: Sequence[str]) -> None:
    """Print one line per case: worst digit and average over digits, in percent; or all of it as JSON, as shares."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks hard-classes", description=__doc__)
    parser.add_argument("--cases", default=";".join(CASES), help="separated by semicolons")
    parser.add_argument("--rows", choices=["test", "validation"], default="test")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=NUMBER", help="an option of `auto`")
    parser.add_argument("--without", default="", metavar="RELEASE", help="a release without noise: what holds it back?")
    parser.add_argument("--store", type=Path, default=STORE, help="folder of the features, computed once")
    parser.add_argument("--json", action="store_true", help="print one JSON list on standard output")
    given = parser.parse_args(words)
    options = {name: json.loads(value) for name, value in (pair.split("=") for pair in given.option)}
    rows = _measured(given, options)
    if given.json:
        print(json.dumps(list(rows)))
        return
    print("| rare digit | training rows | of them rare | linear, group-weighted, not private | `auto`, ε = 1 |")
    print("|---|--:|--:|--:|--:|")
    for row in rows:
        worst, average = row["auto_worst"], _percent(statistics.mean(row["auto_average"]))
        shown = f"{_percent(statistics.mean(worst))} ± {_percent(statistics.stdev(worst))}"
        linear = f"{_percent(row['linear_worst'])} / {_percent(row['linear_average'])}"
        line = f"| {row['case']} | {row['rows']:,} | {row['rare']:,} | {linear} | {shown} / {average} |"
        print(line, flush=True)


def _measured(given: argparse.Namespace, options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """One record per case; of `auto` one figure per seed."""
    for case in given.cases.split(";"):
        train, measured = rows_of(case, given.rows, given.store)
        rare = int((train.digits == int(case[0])).sum())
        with _without(given.without):
            fitted = [by_auto(train, measured, seed, case == PUBLISHED, options) for seed in SEEDS]
        found = [_accuracies(predicted, measured) for predicted in fitted]
        plain = _accuracies(by_linear(train, measured), measured)
        yield {
            "case": case,
            "rows": len(train.digits),
            "rare": rare,
            "linear_worst": float(plain.min()),
            "linear_average": float(plain.mean()),
            "auto_worst": [float(accuracies.min()) for accuracies in found],
            "auto_average": [float(accuracies.mean()) for accuracies in found],
        }


def rows_of(case: str, which: str, store: Path) -> tuple[Rows, Rows]:
    """Rows to train on, with few of one digit, and rows to measure."""
    split = load_mnist()
    train, test = (_stored(store, name, part) for name, part in (("train", split.train), ("test", split.test)))
    if case == PUBLISHED:
        published = load_unbalanced_mnist()
        kept = _places(published.train, split.train)
        apart = _places(published.validation, split.train) if published.validation is not None else kept[:0]
        return train.of(kept), test if which == "test" else train.of(apart)
    digit = int(case[0])
    count = int((train.digits == digit).sum())
    if case == MIXED:
        train, test = (
            _with_mixed(store, name, rows, part)
            for name, rows, part in (("train", train, split.train), ("test", test, split.test))
        )
    order = np.random.default_rng(0).permutation(len(train.digits))
    apart, order = (order[:0], order) if which == "test" else np.split(order, [len(order) // 6])
    own = order[train.digits[order] == digit]
    few = own[: round(SHARE * count)]
    kept = np.sort(np.concatenate([order[train.digits[order] != digit], few]))
    return train.of(kept), test if which == "test" else train.of(apart)


def by_linear(train: Rows, measured: Rows) -> NDArray[np.int64]:
    """Logistic regression without privacy in which every digit counts alike."""
    from sklearn.linear_model import LogisticRegression

    weights = 1.0 / np.bincount(train.digits)[train.digits]
    mean, scale = train.features.mean(dim=0), len(train.features[0]) ** 0.5
    rows, asked = (((part.features - mean) * scale).numpy() for part in (train, measured))
    model = LogisticRegression(max_iter=500).fit(rows, train.digits, weights / weights.mean())
    return np.asarray(model.predict(asked))


def by_auto(train: Rows, measured: Rows, seed: int, published: bool, options: dict[str, float]) -> NDArray[np.int64]:
    """`auto` on features in the shape of images, so that it plans as for images."""
    shaped, asked = (part.features[:, None, None] for part in (train, measured))
    problem = Problem.from_arrays(shaped, train.digits, train.digits, classes=list(range(10)))
    model = nn.Sequential(nn.Flatten(), nn.Linear(shaped.shape[-1], 10))
    # The published case has the relation and the δ of the paper.
    stated = {"delta": 1 / (2 * len(train.digits))} if published else {}
    method = veil.method("auto", neighbours="replace-one" if published else "add-remove", **options)
    veil.fit(model, problem, method=method, epsilon=1.0, seed=seed, **stated)
    with torch.no_grad():
        return np.asarray(model(asked).argmax(dim=1).numpy())


@contextmanager
def _without(release: str) -> Iterator[None]:
    """Train without the noise of one release, by its purpose: a diagnosis, not private."""

    class Partly(GaussianNoise):
        def add(
            self, step: int, values: Mapping[str, Tensor], std: float, purpose: str = "gradient"
        ) -> dict[str, Tensor]:
            """Noise as usual, but none for the release in question."""
            return super().add(step, values, 0.0 if purpose == release else std, purpose)

    usual = steered_descent.GaussianNoise
    try:
        steered_descent.GaussianNoise = Partly  # type: ignore[misc]
        yield
    finally:
        steered_descent.GaussianNoise = usual  # type: ignore[misc]


def _accuracies(predicted: NDArray[np.int64], measured: Rows) -> NDArray[np.float64]:
    return np.array([(predicted[measured.digits == digit] == digit).mean() for digit in range(10)])


def _stored(store: Path, name: str, problem: Problem) -> Rows:
    """Features of all rows, from the folder where they are there."""
    path, digits = store / f"{name}.pt", problem.targets.numpy()
    if not path.exists():
        store.mkdir(parents=True, exist_ok=True)
        torch.save(_features(problem.inputs), path)
    return Rows(torch.load(path), digits)


def _with_mixed(store: Path, name: str, rows: Rows, problem: Problem) -> Rows:
    """The same rows with eights that are drawn faintly over another digit; only as many as are needed."""
    rng, path = np.random.default_rng(3), store / f"{name}-mixed.pt"
    eights = np.flatnonzero(rows.digits == 8)[:1500]
    below = rng.choice(np.flatnonzero(np.isin(rows.digits, OTHERS)), len(eights))
    if not path.exists():
        torch.save(_features(FAINT * problem.inputs[eights] + (1 - FAINT) * problem.inputs[below]), path)
    others = np.flatnonzero(rows.digits != 8)
    features = torch.cat([rows.features[torch.from_numpy(others)], torch.load(path)])
    digits = np.concatenate([rows.digits[others], np.full(len(eights), 8)])
    return Rows(features, digits)


def _features(images: Tensor) -> Tensor:
    facts = Problem.from_arrays(images[:10], list(range(10)), ["all"] * 10, classes=list(range(10))).public
    fixed = additive(facts)[:-1]  # type: ignore[index]
    with torch.no_grad():
        return torch.cat([fixed(part) for part in images.split(_AT_ONCE)])


def _places(some: Problem, every: Problem) -> NDArray[np.int64]:
    """Where some rows stand among all, by their pixels."""
    known = {image.numpy().tobytes(): place for place, image in enumerate(every.inputs)}
    return np.array([known[image.numpy().tobytes()] for image in some.inputs], dtype=np.int64)


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"
