"""Results: the stored runs that belong to a spec, by arm, value and seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from experiments.runner.columns import TWIN, value_of
from experiments.runner.spec import Spec, Task, X, tasks, values
from veil.metrics.privacy_cost import accuracies, privacy_cost

Key = tuple[str, X | None]


@dataclass(frozen=True)
class Results:
    """Runs whose fingerprint is that of the spec; all others are left out."""

    spec: Spec
    scale: str
    runs: Mapping[Key, Mapping[int, Mapping[str, Any]]]
    planned: Mapping[Key, Task]

    @classmethod
    def of(cls, spec: Spec, stored: Mapping[str, Any]) -> Results:
        """The runs of a file of stored runs."""
        planned = {(task.arm, task.x): task for task in tasks(spec, stored["scale"], seeds=1)}
        runs: dict[Key, dict[int, Mapping[str, Any]]] = {key: {} for key in planned}
        for run in stored["runs"]:
            key = (run["arm"], run["x"])
            if key in planned and run["fingerprint"] == planned[key].fingerprint:
                runs[key][run["seed"]] = run
        return cls(spec, stored["scale"], runs, planned)

    def at(self, arm: str, x: X | None) -> Mapping[int, Mapping[str, Any]]:
        """Runs by seed; an arm that does not vary has the same ones at every value."""
        return self.runs.get((arm, x), {}) or self.runs.get((arm, None), {})

    def figure(self, arm: str, x: X | None, name: str) -> dict[int, float]:
        """A figure by seed, without the seeds that have none.

        π belongs to all seeds together; by seed it is the difference between the two groups that define it, so that
        the mean over seeds is π.
        """
        runs = self.at(arm, x)
        if name == TWIN:
            return self._cost(arm, x)
        found = {seed: value_of(run, name) for seed, run in sorted(runs.items())}
        return {seed: value for seed, value in found.items() if value is not None}

    def twin_of(self, arm: str) -> str | None:
        """The arm without privacy that has the model of this arm; None where there is none, or it is this arm."""
        if self.spec.twin is None:
            return None
        twin = self.spec.arm(self.spec.twin)
        same = [other for other in (twin, *self.spec.arms) if other.method == twin.method]
        found = next((other.label for other in same if self._model(other.label) == self._model(arm)), None)
        return None if found == arm else found

    def _model(self, arm: str) -> tuple[str, Mapping[str, Any]]:
        own = self.spec.arm(arm).model
        return (self.spec.model, self.spec.model_options) if own is None else (own, {})

    def _cost(self, arm: str, x: X | None) -> dict[int, float]:
        """π of an arm of private runs against the twin of its model."""
        twin = self.twin_of(arm)
        runs, twins = self.at(arm, x), {} if twin is None else self.at(twin, x)
        shared = [seed for seed in sorted(runs) if seed in twins and runs[seed]["epsilon"] is not None]
        if not shared:
            return {}
        before, after = ({seed: accuracies(of[seed]["by_group"]) for seed in shared} for of in (twins, runs))
        return dict(privacy_cost(before, after, self.spec.compared or None).by_seed)

    def values(self, *arms: str) -> list[X | None]:
        """The values at which these arms can be compared: one, None, where none of them varies."""
        varying = self.spec.vary is not None and any(self.spec.arm(label).varies for label in arms)
        known = values(self.spec, self.scale)
        return [x for x in known if x is not None] if varying else [None]

    def all_runs(self) -> list[Mapping[str, Any]]:
        """Every run."""
        return [run for by_seed in self.runs.values() for run in by_seed.values()]
