"""Privacy cost: the accuracy each group loses against models trained without privacy, and its spread. No torch.

π_a = E[acc(twin; a)] − E[acc(private model; a)] and π = max |π_a − π_b|. The expectation is inside, as in the papers:
the mean over seeds of a group's accuracy comes first, the largest difference between groups last. (The mean of every
seed's own largest difference is another figure, and larger: it counts what varies by chance.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from veil.errors import InputError
from veil.metrics.definitions import PRIVACY_COST_GAP, or_none

Accuracies = Mapping[str, float]
"""Accuracy by group, NaN where a group was not measured."""


@dataclass(frozen=True, slots=True)
class PrivacyCost:
    """π_a per group, and the gap π: 0 when privacy costs every group the same.

    `by_seed` is the difference between the same two groups, those that define π, at each seed that private runs and
    twins share: its mean is π, and its spread shows how sure π is.
    """

    by_group: Mapping[str, float]
    by_seed: Mapping[Any, float]

    @property
    def gap(self) -> float:
        """π; groups that were not measured take no part."""
        return float(PRIVACY_COST_GAP.over(np.array(list(self.by_group.values())))) if self.by_group else math.nan

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values; NaN is null."""
        return {"gap": or_none(self.gap), "by_group": {name: or_none(cost) for name, cost in self.by_group.items()}}


def accuracies(by_group: Mapping[str, Mapping[str, Any]], key: str = "accuracy") -> dict[str, float]:
    """The accuracies in a record of groups, as metrics, stored runs and reports keep it.

    >>> accuracies({"a": {"n": 9, "accuracy": 0.5}, "b": {"n": 0, "accuracy": None}})
    {'a': 0.5, 'b': nan}
    """
    return {name: math.nan if score.get(key) is None else float(score[key]) for name, score in by_group.items()}


def privacy_cost(
    twins: Mapping[Any, Accuracies], private: Mapping[Any, Accuracies], groups: Sequence[str] | None = None
) -> PrivacyCost:
    """The privacy cost of a method against models of the same class that were trained without privacy.

    Args:
        twins: The accuracies of the twins, by seed.
        private: Those of the private runs, by seed. The means run over the seeds that both have; where they have none
            in common, over all runs.
        groups: Those that are compared (the papers compare classes 2 and 8 of MNIST); by default all.

    Returns:
        π_a of every group, and π.

    Raises:
        InputError: A group was not measured in every run, or there is no run.

    >>> twin, run = {"a": 0.9, "b": 0.8}, {"a": 0.8, "b": 0.5}
    >>> round(privacy_cost({1: twin}, {1: run}).gap, 3)
    0.2
    """
    shared = [seed for seed in private if seed in twins]
    before = [twins[seed] for seed in shared] or list(twins.values())
    after = [private[seed] for seed in shared] or list(private.values())
    if not before or not after:
        raise InputError("a privacy cost needs a private run and a twin without privacy")
    names = list(before[0]) if groups is None else list(groups)
    for name in names:
        if any(name not in run for run in (*before, *after)):
            raise InputError(f'group "{name}" was not measured in every run: the twin needs the same groups')
    costs = {n: float(np.mean([run[n] for run in before]) - np.mean([run[n] for run in after])) for n in names}
    known = {name: cost for name, cost in costs.items() if not math.isnan(cost)}
    if not known:
        return PrivacyCost(costs, {})
    most, least = max(known, key=lambda name: known[name]), min(known, key=lambda name: known[name])
    own = {s: {n: twins[s][n] - private[s][n] for n in (most, least)} for s in shared}
    return PrivacyCost(costs, {seed: cost[most] - cost[least] for seed, cost in own.items()})
