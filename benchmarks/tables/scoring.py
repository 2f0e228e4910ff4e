"""Scores of predicted probabilities: by group, overall, and what is lost against the best model without privacy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

LEAST = 50
"""Groups of fewer test rows are left out: one row would move their accuracy by more than two points."""
METRICS = ("worst_group_accuracy", "average_group_accuracy", "accuracy", "auc")


@dataclass(frozen=True)
class Scores:
    """One model on the measured rows. NaN where no group is large enough, or one class has no row."""

    worst_group_accuracy: float
    average_group_accuracy: float
    accuracy: float
    auc: float
    worst_group: str
    groups_scored: int
    by_group: Mapping[str, tuple[int, float]]

    def said(self) -> str:
        """The figures to watch while it runs."""
        return f"worst group {100 * self.worst_group_accuracy:.1f}, AUC {100 * self.auc:.1f}"


def score(
    probabilities: NDArray[np.float64],
    classes: Sequence[str],
    labels: NDArray[np.str_],
    groups: NDArray[np.str_],
    least: int = LEAST,
) -> Scores:
    """Worst group and average of the groups that have at least `least` rows, overall accuracy and AUC."""
    if probabilities.shape != (len(labels), len(classes)) or not np.isfinite(probabilities).all():
        raise ValueError(f"probabilities are {probabilities.shape}: one finite number per row and class is needed")
    right = np.asarray(classes)[probabilities.argmax(axis=1)] == labels
    names = [str(name) for name in np.unique(groups)]
    every = {name: (int((groups == name).sum()), float(right[groups == name].mean())) for name in names}
    large = {name: accuracy for name, (count, accuracy) in every.items() if count >= least}
    worst = min(large, key=lambda name: large[name], default="")
    return Scores(
        worst_group_accuracy=large.get(worst, math.nan),
        average_group_accuracy=sum(large.values()) / len(large) if large else math.nan,
        accuracy=float(right.mean()),
        auc=area(probabilities, classes, labels),
        worst_group=worst,
        groups_scored=len(large),
        by_group=every,
    )


def area(probabilities: NDArray[np.float64], classes: Sequence[str], labels: NDArray[np.str_]) -> float:
    """AUC of the last class against the first; for several classes the mean of each against the rest."""
    columns = range(len(classes)) if len(classes) > 2 else [1]
    truths = [(labels == classes[column], probabilities[:, column]) for column in columns]
    if any(truth.all() or not truth.any() for truth, _ in truths):
        return math.nan
    return float(np.mean([roc_auc_score(truth, chance) for truth, chance in truths]))


def regret(found: float, best: float) -> float:
    """How many points (percent) a figure is below the best one; negative where it is above."""
    return 100.0 * (best - found)
