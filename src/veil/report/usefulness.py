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
from numpy.typing import NDArray

from veil.report.wording import some_of

USEFUL, ALL = "useful", "all rows"
# What a model without privacy reaches, among the findings of a run.
FINDING = "Without privacy"
# Below this a model hardly follows the truth, however many rows show it.
_LITTLE = 0.05
# What a few rows show is no verdict.
_UNSURE = 0.1
_ROWS = 5
# Of the measured rows: from here on the largest class alone makes accuracy look good.
_SKEWED = 2 / 3

Floats = NDArray[np.float64]


def usefulness(metrics: Mapping[str, Any]) -> dict[str, Any] | None:
    """The groups for which a run's model is no better than a constant answer, and those too small to tell.

    Where no group can be judged alone, all rows are judged together: groups of one class, more than two classes counted
    with noise, or too few rows of each group. `constant` has the accuracy of the best constant answer.

    None where the figures say nothing about it: there are none, or only how many answers are right.

    >>> good, bad = [[40, 10], [12, 38]], [[1, 49], [1, 49]]
    >>> usefulness({"by_group": {"f": {"confusion": good}, "m": {"confusion": bad}}})["sentence"]
    'No better than a constant answer for m.'
    """
    numbers = "root_mean_squared_error" in metrics
    if numbers:
        by_group = metrics.get("by_group") or {}
        found = {name: _of_errors(score) for name, score in by_group.items()} | {ALL: _of_errors(metrics)}
    else:
        found = {name: _of_counts(*table) for name, table in _tables(metrics).items()}
    judged = {name: value for name, value in found.items() if value is not None and name != ALL}
    whole = found.get(ALL)
    if whole is not None and all(_unsure(*value) for value in judged.values()):
        judged[ALL] = whole
    if not judged:
        return None
    # Nearly nothing, or too little to tell from nothing.
    no_better = [name for name, (gain, sd) in judged.items() if gain < (_UNSURE if gain <= 2 * sd else _LITTLE)]
    unsure = [name for name, (gain, sd) in judged.items() if _unsure(gain, sd) and name not in no_better]
    return {
        USEFUL: not no_better and len(unsure) < len(judged),
        "no_better": no_better,
        "unsure": unsure,
        "constant": {} if numbers else constant_answers(metrics),
        "sentence": _sentence(no_better, unsure, list(judged)),
    }


def constant_answers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The accuracy of the best constant answer, for each group whose classes were counted and for all rows.

    >>> constant_answers({"by_group": {"f": {"confusion": [[80, 10], [5, 5]]}}})
    {'f': 0.9, 'all rows': 0.9}
    """
    partly = {name for name, score in (metrics.get("by_group") or {}).items() if score.get("partly")}
    tables = {name: table for name, (table, _) in _tables(metrics).items() if name not in partly}
    return {name: float(table.sum(axis=1).max() / table.sum()) for name, table in tables.items()}


def beside_no_privacy(findings: Mapping[str, Any]) -> str:
    """What a model without privacy reaches, in a sentence; "" where that was not measured.

    >>> beside_no_privacy({"Without privacy": {"model": "logistic", "worst_group_accuracy": 0.8213, "rows": 900}})
    'Without privacy, a logistic model trained on half of 900 rows has 82.1 % in the worst group.'
    """
    found = findings.get(FINDING) or {}
    worst = found.get("worst_group_accuracy")
    if worst is None:
        return ""
    return (
        f"Without privacy, a {found['model']} model trained on half of {found['rows']:,} rows has {100 * worst:.1f} % "
        "in the worst group."
    )


def skewed(metrics: Mapping[str, Any]) -> bool:
    """Whether one class has so many of the measured rows that accuracy says little.

    >>> skewed({"by_group": {"f": {"confusion": [[80, 10], [5, 5]]}}})
    True
    """
    rows = _tables(metrics).get(ALL)
    return rows is not None and bool(rows[0].sum(axis=1).max() > _SKEWED * rows[0].sum())


def _tables(metrics: Mapping[str, Any]) -> dict[str, tuple[Floats, float]]:
    """Counts [class, answer] of each group that has them and of all rows, with the noise of a count."""
    noise = float(metrics.get("noise") or 0.0)
    scores = (metrics.get("by_group") or {}).items()
    found = {name: (np.array(score["confusion"], float), noise) for name, score in scores if "confusion" in score}
    if metrics.get("confusion"):
        found[ALL] = np.array(metrics["confusion"], float), float(metrics.get("confusion_noise") or 0.0)
    elif found and not metrics.get("released"):
        found[ALL] = np.sum([table for table, _ in found.values()], axis=0), noise * math.sqrt(len(found))
    elif metrics.get("by_class"):  # with noise, more than two classes are counted by class alone
        found[ALL] = _right_and_wrong(metrics["by_class"]), float(metrics.get("class_noise") or 0.0)
    return {name: (table, sd) for name, (table, sd) in found.items() if table.sum() > 0}


def _unsure(gain: float, sd: float) -> bool:
    return gain <= 2 * sd


def _of_counts(table: Floats, noise: float) -> tuple[float, float] | None:
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


def _right_and_wrong(by_class: Mapping[str, Sequence[float]]) -> Floats:
    """A table of counts from the wrong and right answers of each class; which class was answered is not known."""
    wrong, right = np.array(list(by_class.values()), dtype=np.float64).T
    return np.diag(right) + np.roll(np.diag(wrong), 1, axis=1)


def _of_errors(score: Mapping[str, Any]) -> tuple[float, float] | None:
    """The share of the variance that is explained, of predicted numbers."""
    explained = score.get("r2")
    return None if explained is None else (float(explained), float(score.get("r2_noise") or 0.0))


def _sentence(no_better: Sequence[str], unsure: Sequence[str], judged: Sequence[str]) -> str:
    if ALL in no_better or len(no_better) == len(judged):
        return "No better than a constant answer: do not use this model."
    parts = []
    groups = [name for name in unsure if name != ALL]
    if no_better:
        parts.append(f"No better than a constant answer for {some_of(list(no_better))}.")
    elif len(unsure) < len(judged):
        where = " over all rows together." if ALL in judged else " in every measured group." if not unsure else "."
        parts.append(f"Useful: better than a constant answer{where}")
    if unsure:
        told = "Too few rows to tell" + (f" for {some_of(groups)}" if groups else "")
        # After another sentence it is clear what is to be told.
        parts.append(f"{told}." if parts else f"{told} whether it is better than a constant answer.")
    return " ".join(parts)
