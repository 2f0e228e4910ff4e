"""Privacy cost: the accuracy each group loses against a model trained without privacy, and its spread."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from veil.errors import InputError
from veil.metrics.definitions import or_none
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
        return {"gap": or_none(self.gap), "by_group": {name: or_none(cost) for name, cost in self.by_group.items()}}


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


def metrics_from_json(record: Mapping[str, Any]) -> GroupMetrics:
    """Read back what `GroupMetrics.as_json` wrote."""
    scores = {
        str(name): GroupScore(int(score["n"]), math.nan if score["accuracy"] is None else float(score["accuracy"]))
        for name, score in record["by_group"].items()
    }
    return GroupMetrics(scores, math.nan if record["accuracy"] is None else float(record["accuracy"]))
