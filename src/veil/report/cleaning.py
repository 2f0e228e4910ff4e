"""Cleaning: records of runs as strict JSON values (NaN becomes null), histories thinned to what a page can show."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

# What `Run.as_json` gives, or a part of it.
Record = Mapping[str, Any]
MOST_POINTS = 120
FEWEST_POINTS = 20
POINTS_OF_ALL_RUNS = 1200
# What the page reads of a run; a run that does not say it is shown without it.
UNSAID: Record = {
    **dict.fromkeys(
        ("run", "method", "metrics", "privacy", "about", "certificate", "task", "classes", "groups", "owners")
    ),
    **dict.fromkeys(
        ("settings", "details", "findings", "effects", "config", "versions", "parameters", "seed_given", "sizes")
    ),
    **dict.fromkeys(("steps", "seconds", "stopped", "columns", "remarks")),
}


def clean(value: Any) -> Any:
    """The same value in strict JSON types; what is not a finite number becomes None.

    >>> clean({"a": (1.0, float("nan"))})
    {'a': [1.0, None]}
    """
    if value is None or isinstance(value, (bool, str, int)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): clean(part) for key, part in value.items()}
    if hasattr(value, "tolist"):
        return clean(value.tolist())
    if isinstance(value, (Sequence, set, frozenset)):
        return [clean(part) for part in value]
    return str(value)


def clean_runs(runs: Sequence[Record]) -> list[dict[str, Any]]:
    """Every run cleaned; the more runs, the fewer points of each history are kept."""
    points = max(FEWEST_POINTS, min(MOST_POINTS, POINTS_OF_ALL_RUNS // max(1, len(runs))))
    cleaned = []
    for run in runs:
        record = {**UNSAID, **clean({name: value for name, value in run.items() if name != "history"})}
        cleaned.append({**record, "history": clean(thin(run.get("history") or {}, points))})
    return cleaned


def thin(history: Mapping[str, Any], points: int) -> dict[str, list[Any]]:
    """At most `points` evenly spaced steps, and as many evaluations, always with the first and the last.

    A history with no more than twice as many steps stays whole, so that thinning again changes nothing.

    >>> thin({"step": list(range(10)), "accuracy": [None] * 4 + [0.5] + [None] * 5}, 3)
    {'step': [0, 4, 9], 'accuracy': [None, 0.5, None]}
    """
    columns = {str(name): list(values) for name, values in history.items() if isinstance(values, (list, tuple))}
    length = min((len(values) for values in columns.values()), default=0)
    if length <= 2 * points:
        return {name: values[:length] for name, values in columns.items()}
    evaluated = [
        index
        for index in range(length)
        if any(_known(columns[name][index]) for name in ("accuracy", "group_accuracy") if name in columns)
    ]
    kept = sorted({*_even(list(range(length)), points), *_even(evaluated, points)})
    return {name: [values[index] for index in kept] for name, values in columns.items()}


def _known(value: Any) -> bool:
    return value is not None and not (isinstance(value, float) and math.isnan(value))


def _even(indices: list[int], points: int) -> list[int]:
    if len(indices) <= points:
        return indices
    return sorted({indices[round(k * (len(indices) - 1) / (points - 1))] for k in range(points)})
