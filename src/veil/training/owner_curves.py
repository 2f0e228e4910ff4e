"""Owner curves: what a run with budgets by owner does for every owner, on rows that were declared public."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from veil.errors import require
from veil.metrics.ordered_objective import owner_conditions
from veil.metrics.owners import OwnerPull, initial_drop, owner_cosines, owner_recalls
from veil.metrics.tail_activity import TailActivity, owner_pulls, tail_activity
from veil.models.applying import scored_pieces
from veil.plans import LossFunction, Plan
from veil.problem import Problem
from veil.releases import GradientRelease
from veil.training.callbacks import Callback, StepReport
from veil.training.losses import row_losses

MOST_OWNERS = 20  # above it, angles between owners take longer than the training
ACTIVITY_ROWS = 1_000  # gradients are taken of so many rows at most, in equal shares of the owners
EARLY, ALONG = 10, 20


def looks(steps: int) -> tuple[int, ...]:
    """The steps after which a run is measured: densely in its first quarter, then every twentieth of it.

    >>> looks(60)
    (1, 2, 3, 5, 6, 8, 9, 11, 12, 15, 18, 21, 24, 27, 30, 33, 36, 39, 42, 45, 48, 51, 54, 57, 60)
    """
    early = np.geomspace(1, max(1.0, steps / 4), EARLY).round().astype(int)
    along = np.linspace(0, steps, ALONG + 1)[1:].round().astype(int)
    return tuple(sorted({int(step) for step in (*early, *along) if 1 <= step <= steps}))


class OwnerCurves(Callback):
    """Loss, accuracy and recall of every owner along a run, the pull between owners and the activity of the tail.

    `every` measures at equal distances (after the first and the last step too), `at` after given steps; otherwise
    `looks` says when. `evaluation` has public rows that name their owners; `loss` is that of the run. Recall is
    measured where an owner has rows of several classes. Gradients are taken of at most `activity_rows` of the rows; 0
    leaves them out. A resumed run has curves from where it was resumed.

    >>> from veil.problem import Problem
    >>> rows = Problem.from_arrays([[0.0], [1.0]], [0, 1], owners=["a", "b"], budgets={"a": 1.0, "b": 2.0})
    >>> OwnerCurves(rows, at=(1, 10)).at
    (1, 10)
    """

    def __init__(
        self,
        evaluation: Problem,
        every: int | None = None,
        *,
        at: Sequence[int] | None = None,
        loss: LossFunction = row_losses,
        activity_rows: int = ACTIVITY_ROWS,
    ) -> None:
        require(every is None or every >= 1, f"every is {every}: it must be at least 1")
        require(every is None or at is None, "give either every or at")
        self.evaluation, self.every, self.at, self.loss = evaluation, every, None if at is None else tuple(at), loss
        self.steps: list[int] = []
        owners = evaluation.public.owners
        self.curves: dict[str, list[float]] = {owner: [] for owner in owners}
        self.losses: dict[str, list[float]] = {owner: [] for owner in owners}
        self.recalls: dict[str, list[float]] = {owner: [] for owner in owners}
        self.conditions: dict[str, list[float | None]] = {owner: [] for owner in owners}
        self.activity: list[TailActivity] = []
        self._few = _few(evaluation, activity_rows) if activity_rows and len(owners) <= MOST_OWNERS else None
        self._looks: frozenset[int] = frozenset()
        self._ordered = False

    def on_start(self, plan: Plan) -> None:
        """Decide when to look; a plan without rates by owner has curves only."""
        if self.every is not None:
            chosen = [1, *range(self.every, plan.steps + 1, self.every), plan.steps]
        else:
            chosen = list(looks(plan.steps) if self.at is None else self.at)
        self._looks = frozenset(chosen)
        self._ordered = bool(plan.details.get("tail_length"))

    def on_step(self, report: StepReport) -> None:
        """Measure when it is time."""
        if report.step + 1 not in self._looks:
            return
        self.steps.append(report.step + 1)
        losses, correct = _scored(report.model, self.evaluation)
        for index, owner in enumerate(self.evaluation.public.owners):
            own = self.evaluation.owner_of == index
            self.losses[owner].append(float(losses[own].mean()))
            self.curves[owner].append(float(correct[own].mean()))
        if _of_several_classes(self.evaluation):
            for owner, recall in owner_recalls(correct, self.evaluation).items():
                self.recalls[owner].append(recall)
        if self._few is not None and report.plan.details.get("owner_rates"):
            release = report.plan.controller.release(dict(report.state), report.step)
            self._look_at_gradients(report.model, report.plan, release, self._few)

    def findings(self) -> Mapping[str, Any]:
        """The curves by owner, as JSON values."""
        found: dict[str, Any] = {"steps": self.steps, "accuracy": self.curves, "loss": self.losses}
        if any(self.recalls.values()):
            found["recall"] = self.recalls
        if self.steps:
            found["drop"] = {owner: initial_drop(self.steps, curve).as_json() for owner, curve in self.curves.items()}
        if self.activity:
            found["condition"] = self.conditions
            found["activity"] = [asdict(one) for one in self.activity]
            if self._ordered:
                found["sentence"] = self.activity[-1].sentence
        return found

    def _look_at_gradients(self, model: nn.Module, plan: Plan, release: GradientRelease, rows: Problem) -> None:
        self.activity.append(tail_activity(model, rows, self.loss, plan, release))
        pulls = owner_pulls(plan, release)
        ordered: list[OwnerPull] = [pulls[owner] for owner in rows.public.owners]
        conditions = owner_conditions(owner_cosines(model, rows, self.loss), ordered)
        for owner, value in zip(rows.public.owners, conditions, strict=True):
            self.conditions[owner].append(None if np.isnan(value) else float(value))


def owner_curves(
    callbacks: Sequence[Callback], evaluation: Problem | None, loss: LossFunction, plan: Plan
) -> tuple[Callback, ...]:
    """The curves that a run keeps unasked: of a plan with rates by owner, where public rows name the plan's owners."""
    if evaluation is None or not plan.details.get("owner_rates") or any(isinstance(c, OwnerCurves) for c in callbacks):
        return ()
    named, classes = evaluation.public.owners, evaluation.targets.ndim == 1 and bool(evaluation.public.classes)
    known = 1 < len(named) <= MOST_OWNERS and set(named) <= set(plan.facts.owners)
    return (OwnerCurves(evaluation, loss=loss),) if classes and known else ()


def _of_several_classes(rows: Problem) -> bool:
    """Whether an owner has rows of more than one class."""
    classes = rows.targets.numpy()
    return any(len(np.unique(classes[rows.owner_of == owner])) > 1 for owner in range(len(rows.public.owners)))


def _few(rows: Problem, most: int) -> Problem:
    """At most so many rows, as many of each owner where it has them, the first of each."""
    share = max(1, most // len(rows.public.owners))
    kept = np.zeros(len(rows.cell_of), dtype=bool)
    for owner in range(len(rows.public.owners)):
        kept[np.flatnonzero((rows.owner_of == owner) & rows.present)[:share]] = True
    return replace(rows, present=kept)


def _scored(model: nn.Module, rows: Problem) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The cross-entropy of every row, and whether its class was found."""
    pieces = list(scored_pieces(model, rows))
    losses = [nn.functional.cross_entropy(found, targets, reduction="none").double() for found, targets in pieces]
    correct = [found.argmax(dim=-1) == targets for found, targets in pieces]
    return torch.cat(losses).numpy(), torch.cat(correct).numpy()
