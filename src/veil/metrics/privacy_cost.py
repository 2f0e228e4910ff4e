"""Privacy cost: what each group's accuracy loses against a twin trained without privacy, and how unequal that is."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from veil.errors import InputError
from veil.metrics.groups import GroupMetrics, GroupScore


@dataclass(frozen=True, slots=True)
class PrivacyCost:
    """π_a per group, and the gap π = max |π_a − π_b|: 0 when privacy costs every group the same."""

    by_group: dict[str, float]

    @property
    def gap(self) -> float:
        """π; groups without rows take no part."""
        costs = [cost for cost in self.by_group.values() if not math.isnan(cost)]
        return max(costs) - min(costs) if costs else math.nan

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values; NaN is null."""
        clean = {name: None if math.isnan(cost) else cost for name, cost in self.by_group.items()}
        return {"gap": None if math.isnan(self.gap) else self.gap, "by_group": clean}


def privacy_cost(
    twin: GroupMetrics, private: GroupMetrics | Sequence[GroupMetrics], groups: Sequence[str] | None = None
) -> PrivacyCost:
    """π_a = accuracy of the twin on group a − mean accuracy of the private runs on it.

    `groups` names those that are compared (the papers compare classes 2 and 8 of MNIST); by default all.

    >>> twin = GroupMetrics({"a": GroupScore(10, 0.9), "b": GroupScore(10, 0.8)}, 0.85)
    >>> run = GroupMetrics({"a": GroupScore(10, 0.8), "b": GroupScore(10, 0.5)}, 0.65)
    >>> round(privacy_cost(twin, run).gap, 3)
    0.2
    """
    runs = [private] if isinstance(private, GroupMetrics) else list(private)
    names = list(twin.by_group) if groups is None else list(groups)
    for name in names:
        for run in (twin, *runs):
            if name not in run.by_group:
                raise InputError(f'group "{name}" was not measured in every run: the twin needs the same groups')
    return PrivacyCost(
        {n: twin.by_group[n].accuracy - float(np.mean([run.by_group[n].accuracy for run in runs])) for n in names}
    )


def twin_metrics(folder: Path, train: Callable[[Path], object]) -> GroupMetrics:
    """The twin's figures: read from its run folder, or trained into it first (`train` gets the folder).

    The twin is not private. Its figures are shown beside the certificate and are not covered by it.
    """
    if not (folder / "metrics.json").exists():
        train(folder)
    return read_metrics(folder)


def read_metrics(folder: Path) -> GroupMetrics:
    """Group figures from a run folder."""
    try:
        record = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
        return metrics_from_json(record["metrics"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder} holds no metrics of a run: {error}") from error


def metrics_from_json(record: Mapping[str, Any]) -> GroupMetrics:
    """Read back what `GroupMetrics.as_json` wrote."""
    scores = {
        str(name): GroupScore(int(score["n"]), math.nan if score["accuracy"] is None else float(score["accuracy"]))
        for name, score in record["by_group"].items()
    }
    return GroupMetrics(scores, math.nan if record["accuracy"] is None else float(record["accuracy"]))
