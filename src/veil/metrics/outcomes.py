"""Outcomes: a model's predictions for each row, and every figure that follows, by MetricFrame."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veil.metrics.bootstrap import intervals
from veil.metrics.definitions import (
    BINS,
    BY_COUNTS,
    BY_ROWS,
    LEAST_ROWS,
    OVERALL,
    Floats,
    all_across,
    or_none,
    parity_apart,
)

MOST_CLASSES = 12
CURVE_POINTS = 41


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Classes, probabilities `[row, class]`, losses and groups `[row, group]` of rows; a row may be in several groups.

    Groups with fewer than `least` rows get no figures, only their number of rows.
    """

    targets: NDArray[np.int64] = field(repr=False)
    probabilities: Floats = field(repr=False)
    losses: Floats = field(repr=False)
    memberships: NDArray[np.bool_] = field(repr=False)
    names: tuple[str, ...] = ()
    least: int = LEAST_ROWS

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return int(self.probabilities.shape[1])

    @cached_property
    def predicted(self) -> NDArray[np.int64]:
        """The class that each row is given."""
        chosen: NDArray[np.int64] = self.probabilities.argmax(axis=1)
        return chosen

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Rows of each group."""
        return tuple(int(n) for n in self.memberships.sum(axis=0))

    @cached_property
    def counts(self) -> Floats:
        """Confusion counts `[group, true class, predicted class]`."""
        return np.stack([confusion(self.targets[rows], self.predicted[rows], self.classes) for rows in self._columns])

    @property
    def _columns(self) -> list[NDArray[np.int64]]:
        return [np.flatnonzero(column) for column in self.memberships.T]

    @cached_property
    def figures(self) -> dict[str, Any]:
        """Every figure as JSON values: overall, across groups with intervals, parity, and of each group."""
        overall, by_group = self._frames()
        values = {name: np.array([group[name] for group in by_group]) for name in by_group[0]} if by_group else {}
        found, parity = parity_apart({name: or_none(float(value)) for name, value in all_across(values).items()})
        spans = intervals(self._enough(self.counts))
        whole = intervals(confusion(self.targets, self.predicted, self.classes)[None])
        groups = {
            name: {
                "n": self.sizes[index],
                **{key: or_none(value) for key, value in by_group[index].items()},
                "accuracy_interval": spans.by_group[index],
                **self._curves(index),
            }
            for index, name in enumerate(self.names)
        }
        return {
            **found,
            **{name: or_none(overall[name]) for name in OVERALL if name in overall},
            "parity": parity,
            "intervals": {**spans.across, "accuracy": whole.by_group[0]},
            "tiny_groups": {n: size for n, size in zip(self.names, self.sizes, strict=True) if size < self.least},
            "by_group": groups,
        }

    def _enough(self, counts: Floats) -> Floats:
        """The counts, without groups that are too small."""
        small = np.array([size < self.least for size in self.sizes], dtype=bool)
        return np.where(small[:, None, None], 0.0, counts)

    def _frames(self) -> tuple[dict[str, float], list[dict[str, float]]]:
        """Each figure overall, and of each group (NaN where it has fewer than `least` rows), by MetricFrame."""
        from fairlearn.metrics import MetricFrame

        metrics, values = self._metrics()
        nothing = dict.fromkeys(metrics, math.nan)
        if not len(self.targets):
            return nothing, [nothing for _ in self.names]
        overall = {
            name: float(of(self.targets, self.predicted, **values.get(name, {}))) for name, of in metrics.items()
        }
        rows, groups = np.nonzero(self.memberships)
        kept = np.isin(groups, [index for index, size in enumerate(self.sizes) if size >= self.least])
        rows, groups = rows[kept], groups[kept]
        if not len(rows):
            return overall, [nothing for _ in self.names]
        table = MetricFrame(
            metrics=metrics,
            y_true=self.targets[rows],
            y_pred=self.predicted[rows],
            sensitive_features=groups,
            sample_params={name: {"values": given["values"][rows]} for name, given in values.items()},
        ).by_group
        return overall, [
            {str(key): float(value) for key, value in table.loc[index].items()} if index in table.index else nothing
            for index in range(len(self.names))
        ]

    def _metrics(self) -> tuple[dict[str, Callable[..., float]], dict[str, dict[str, Floats]]]:
        """The figures that these classes allow, as MetricFrame calls them, and what each reads of a row."""
        two = self.classes == 2
        sources = {"losses": self.losses, "confidence": self.probabilities.max(axis=1)}
        if two:
            sources["positive"] = self.probabilities[:, 1]
        by_rows = [figure for figure in BY_ROWS if two or not figure.two_classes]
        metrics: dict[str, Callable[..., float]] = {
            f.name: partial(_by_counts, f.of, self.classes) for f in BY_COUNTS if two or not f.two_classes
        }
        metrics |= {f.name: partial(_by_rows, f.of, f.reads == "confidence") for f in by_rows}
        return metrics, {f.name: {"values": sources[f.reads]} for f in by_rows}

    def _curves(self, index: int) -> dict[str, Any]:
        """Confusion, calibration and ROC of one group, where it has rows enough."""
        rows = np.flatnonzero(self.memberships[:, index])
        if len(rows) < self.least or self.classes > MOST_CLASSES:
            return {}
        found: dict[str, Any] = {
            "confusion": self.counts[index].astype(np.int64).tolist(),
            "calibration": calibration(
                self.predicted[rows] == self.targets[rows], self.probabilities[rows].max(axis=1)
            ),
        }
        if self.classes == 2 and (curve := roc(self.targets[rows], self.probabilities[rows, 1])) is not None:
            found["roc"] = curve
        return found


def confusion(targets: NDArray[np.int64], predicted: NDArray[np.int64], classes: int) -> Floats:
    """Counts, true class down and predicted class across.

    >>> confusion(np.array([0, 1, 1]), np.array([0, 0, 1]), 2).tolist()
    [[1.0, 0.0], [1.0, 1.0]]
    """
    flat = np.bincount(targets * classes + predicted, minlength=classes * classes)
    return flat.reshape(classes, classes).astype(np.float64)


def calibration(right: NDArray[np.bool_], confidence: Floats) -> dict[str, list[Any]]:
    """Mean confidence, share that was right and rows in each bin that has any."""
    bins = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    rows = np.bincount(bins, minlength=BINS)
    used = rows > 0
    return {
        "confidence": (np.bincount(bins, confidence, BINS)[used] / rows[used]).tolist(),
        "accuracy": (np.bincount(bins, right, BINS)[used] / rows[used]).tolist(),
        "rows": rows[used].tolist(),
    }


def roc(targets: NDArray[np.int64], scores: Floats) -> dict[str, list[float]] | None:
    """The ROC curve at evenly spaced false positive rates; None where a class is absent."""
    from sklearn.metrics import roc_curve

    if not 0 < int((targets == 1).sum()) < len(targets):
        return None
    fpr, tpr, _ = roc_curve(targets == 1, scores)
    grid = np.linspace(0.0, 1.0, CURVE_POINTS)
    return {"fpr": [0.0, *grid.tolist()], "tpr": [0.0, *np.interp(grid, fpr, tpr).tolist()]}


def _by_counts(of: Any, classes: int, y_true: Any, y_pred: Any) -> float:
    return float(of(confusion(np.asarray(y_true), np.asarray(y_pred), classes)))


def _by_rows(of: Any, right: bool, y_true: Any, y_pred: Any, values: Any) -> float:
    targets = np.asarray(y_true)
    return float(of((targets == np.asarray(y_pred)).astype(np.int64) if right else targets, np.asarray(values)))
