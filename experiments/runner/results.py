"""Results: the stored runs that belong to a spec, by arm, value and seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from experiments.runner.columns import value_of
from experiments.runner.spec import Spec, Task, X, tasks, values

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
        """A figure by seed, without the seeds that have none."""
        found = {}
        twins = {} if self.spec.twin is None else self.at(self.spec.twin, x)
        for seed, run in sorted(self.at(arm, x).items()):
            value = value_of(run, name, twins.get(seed), self.spec.compared)
            if value is not None:
                found[seed] = value
        return found

    def values(self, *arms: str) -> list[X | None]:
        """The values at which these arms can be compared: one, None, where none of them varies."""
        varying = self.spec.vary is not None and any(self.spec.arm(label).varies for label in arms)
        known = values(self.spec, self.scale)
        return [x for x in known if x is not None] if varying else [None]

    def all_runs(self) -> list[Mapping[str, Any]]:
        """Every run."""
        return [run for by_seed in self.runs.values() for run in by_seed.values()]
