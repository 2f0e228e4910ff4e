"""Usefulness: whether a model does better than a constant answer, group by group.

A constant answer has a recall of 1 for one class and of 0 for the others, whichever class it is. So the mean recall of
a group, between that of a constant answer (0) and that of a perfect model (1), says how much predictions follow the
truth there. Accuracy does not: where nine rows of ten have one class, a constant answer has 90 %.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from veil.report.wording import some_of

USEFUL, ALL = "useful", "all rows"
# Below this a model hardly follows the truth, however many rows show it.
_LITTLE = 0.05
# What a few rows show is no verdict.
_UNSURE = 0.1
_ROWS = 5


def usefulness(metrics: Mapping[str, Any]) -> dict[str, Any] | None:
    """The groups for which a run's model is no better than a constant answer, and those too small to tell.

    None where the figures say nothing about it: there are none, or only how many answers are right.

    >>> good, bad = [[40, 10], [12, 38]], [[1, 49], [1, 49]]
    >>> usefulness({"by_group": {"f": {"confusion": good}, "m": {"confusion": bad}}})["sentence"]
    'No better than a constant answer for m.'
    """
    by_group, noise = metrics.get("by_group") or {}, float(metrics.get("noise") or 0.0)
    if "root_mean_squared_error" in metrics:
        found = {name: _of_errors(score) for name, score in by_group.items()}
        if all(value is None for value in found.values()):
            found = {ALL: _of_errors(metrics)}
    else:
        tables = {name: np.array(score["confusion"], float) for name, score in by_group.items() if "confusion" in score}
        found = {name: _of_counts(table, noise) for name, table in tables.items()}
        if tables and all(value is None for value in found.values()):  # every group has one class
            whole = np.sum(list(tables.values()), axis=0)
            found = {ALL: _of_counts(whole, noise * math.sqrt(len(tables)))}
        if not tables and metrics.get("by_class"):  # with noise, more than two classes are counted by class alone
            found = {ALL: _of_counts(_right_and_wrong(metrics["by_class"]), float(metrics.get("class_noise") or 0.0))}
    judged = {name: value for name, value in found.items() if value is not None}
    if not judged:
        return None
    # Nearly nothing, or too little to tell from nothing.
    no_better = [name for name, (gain, sd) in judged.items() if gain < (_UNSURE if gain <= 2 * sd else _LITTLE)]
    unsure = [name for name, (gain, sd) in judged.items() if gain <= 2 * sd and name not in no_better]
    return {
        USEFUL: not no_better and len(unsure) < len(judged),
        "no_better": no_better,
        "unsure": unsure,
        "sentence": _sentence(no_better, unsure, list(judged)),
    }


def _of_counts(table: np.ndarray[Any, np.dtype[np.float64]], noise: float) -> tuple[float, float] | None:
    """How far predictions follow the truth, from 0 to 1, and its standard deviation; None for a single class."""
    rows = table.sum(axis=1)
    there = rows >= max(_ROWS, 2 * noise)
    if there.sum() < 2:
        return None
    recall, counts, classes = np.diag(table)[there] / rows[there], rows[there], int(there.sum())
    # Of few rows a recall of 0 or 1 is not certain either.
    spread = np.sqrt((recall * (1 - recall) + 1 / (counts + 4)) / counts + (noise / counts) ** 2)
    scale = 1 - 1 / classes
    return float((recall.mean() - 1 / classes) / scale), float(np.linalg.norm(spread) / classes / scale)


def _right_and_wrong(by_class: Mapping[str, Sequence[float]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """A table of counts from the wrong and right answers of each class; which class was answered is not known."""
    wrong, right = np.array(list(by_class.values()), dtype=np.float64).T
    return np.diag(right) + np.roll(np.diag(wrong), 1, axis=1)


def _of_errors(score: Mapping[str, Any]) -> tuple[float, float] | None:
    """The share of the variance that is explained, of predicted numbers."""
    explained = score.get("r2")
    return None if explained is None else (float(explained), float(score.get("r2_noise") or 0.0))


def _sentence(no_better: Sequence[str], unsure: Sequence[str], judged: Sequence[str]) -> str:
    if len(no_better) == len(judged):
        return "No better than a constant answer: do not use this model."
    parts = []
    if no_better:
        parts.append(f"No better than a constant answer for {some_of(list(no_better))}.")
    elif len(unsure) < len(judged):
        parts.append("Useful: better than a constant answer" + (" in every measured group." if not unsure else "."))
    if unsure:
        parts.append(f"Too few rows to tell for {some_of(list(unsure))}.")
    return " ".join(parts)
