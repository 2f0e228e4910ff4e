"""Owner looks: what a run did for every owner at moments along its way, as failing claims of a page explain it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from veil.datasets.owner_scenarios import Owner, disjoint
from veil.models.applying import scored_pieces
from veil.problem import Problem
from veil.training import Run
from veil.training.callbacks import StepReport
from veil.training.owner_curves import OwnerCurves

ACTIVITY_ROWS = 400
DIGITS = 5


class OwnerLooks(OwnerCurves):
    """Owner curves after given steps, and for every class the wrong class that its rows are given most often.

    >>> from veil.problem import Problem
    >>> rows = Problem.from_arrays([[0.0], [1.0]], [0, 1], owners=["a", "b"], budgets={"a": 1.0, "b": 2.0})
    >>> OwnerLooks(rows, at=(1, 10), activity_rows=0).at
    (1, 10)
    """

    def __init__(self, evaluation: Problem, *, at: Sequence[int], activity_rows: int = ACTIVITY_ROWS) -> None:
        super().__init__(evaluation, at=at, activity_rows=activity_rows)
        self.mistaken: dict[str, list[tuple[str, float]]] = {}

    def on_step(self, report: StepReport) -> None:
        """Measure when it is time."""
        looked = len(self.steps)
        super().on_step(report)
        if len(self.steps) > looked:
            for name, most in _mistaken(report.model, self.evaluation).items():
                self.mistaken.setdefault(name, []).append(most)

    def findings(self) -> Mapping[str, Any]:
        """The curves, and what every class is mistaken for."""
        return {**super().findings(), "mistaken": self.mistaken}


def _mistaken(model: torch.nn.Module, rows: Problem) -> dict[str, tuple[str, float]]:
    """For every class the wrong class that is answered most often, and for which share of its rows."""
    names = [str(name) for name in rows.public.classes]
    pieces = [(scores.argmax(dim=-1), targets) for scores, targets in scored_pieces(model, rows)]
    answers, targets = (torch.cat(parts).cpu().numpy() for parts in zip(*pieces, strict=True))
    found = {}
    for index, name in enumerate(names):
        own = np.bincount(answers[targets == index], minlength=len(names)).astype(float)
        if total := own.sum():
            own[index] = 0.0
            found[name] = names[int(own.argmax())], float(own.max() / total)
    return found


def rows_of_owners(test: Problem, train: Problem) -> Problem:
    """Test rows with the owners that training rows of their class have."""
    facts = train.public
    groups, budgets = groups_of(train), facts.budgets or (1.0,) * len(facts.owners)
    return disjoint(
        test, [Owner(name, tuple(groups[name]), budget) for name, budget in zip(facts.owners, budgets, strict=True)]
    )


def groups_of(train: Problem) -> dict[str, list[str]]:
    """The groups of every owner."""
    facts = train.public
    owned: dict[str, list[str]] = {owner: [] for owner in facts.owners}
    for cell in facts.cells:
        owned[facts.owners[cell.owner]].append(facts.groups[cell.group])
    return owned


def step_at(moment: float, steps: int) -> int:
    """The step that ends a share of the run.

    >>> step_at(0.25, 60), step_at(0.1, 15)
    (15, 2)
    """
    return max(1, math.ceil(moment * steps - 1e-9))


def seen_of(run: Run, train: Problem, moments: Sequence[float]) -> dict[str, Any]:
    """What the looks of a run saw at each moment, as JSON values; shares are rounded to five digits."""
    found = run.findings["OwnerLooks"]
    places = [found["steps"].index(step_at(moment, run.plan.steps)) for moment in moments]

    def at(values: Sequence[Any]) -> list[Any]:
        return [_rounded(values[place]) for place in places]

    seen: dict[str, Any] = {"moments": list(moments), "groups": groups_of(train)}
    seen |= {name: {owner: at(own) for owner, own in found[name].items()} for name in ("accuracy", "loss")}
    seen["mistaken"] = {name: at(own) for name, own in found["mistaken"].items()}
    activity: Sequence[Mapping[str, Any]] = found.get("activity", ())
    if activity:
        seen["condition"] = {owner: at(own) for owner, own in found["condition"].items()}
        for name in ("removed_by_owner", "pull_by_owner"):
            seen[name] = {owner: at([one[name][owner] for one in activity]) for owner in activity[0][name]}
        seen |= {name: at([one[name] for one in activity]) for name in ("removed", "clipped", "idle")}
    return seen


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    return [_rounded(part) for part in value] if isinstance(value, list | tuple) else value
