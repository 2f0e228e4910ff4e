"""Callbacks: observers of a run. They see public and released values; private rows only if marked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from veil.metrics import GroupMetrics
from veil.plans import Plan
from veil.releases import PrivateView


class StopTraining(Exception):
    """Raised by a callback to end a run early. The guarantee stays that of the whole plan."""


@dataclass(frozen=True)
class StepReport:
    """One finished step. `spent` is read twenty times a run: an upper bound, exact at the end.

    `view` is None unless the callback's `private` is True.

    Args:
        step: Number of the step, from 0.
        plan: The plan of the run.
        model: The model after the step.
        state: The controller's state, from released values.
        statistics: What was released beside the gradient.
        metrics: Figures on public rows, after each evaluation.
        spent: ε by group so far.
        view: What the step read, if the callback is private.
    """

    step: int
    plan: Plan
    model: nn.Module = field(repr=False)
    state: Mapping[str, NDArray[np.float64]]
    statistics: Mapping[str, NDArray[np.float64]]
    metrics: GroupMetrics | None
    spent: Mapping[str, float]
    view: PrivateView | None = field(default=None, repr=False)


class Callback:
    """Override what you need. Set `private = True` to see private rows: the run is then marked as not covered.

    >>> import torch, veil
    >>> from veil.datasets import GroupSpec, generate
    >>> rows = generate([GroupSpec("large", 300), GroupSpec("small", 60)])
    >>> class Steps(Callback):
    ...     seen = 0
    ...
    ...     def on_step(self, report):
    ...         self.seen += 1
    >>> counted = Steps()
    >>> _ = veil.fit(torch.nn.Linear(10, 2), rows, method="dp-sgd", steps=3, batch_size=50, callbacks=[counted])
    >>> counted.seen
    3
    """

    private: bool = False

    def on_start(self, plan: Plan) -> None:
        """Before the first step.

        Args:
            plan: The plan of the run.
        """

    def on_step(self, report: StepReport) -> None:
        """After every step.

        Args:
            report: What this step released; with `private = True`, also what it read.

        Raises:
            StopTraining: Raise it to end the run here.
        """

    def on_end(self) -> None:
        """After the last step, also when the run was interrupted."""

    def findings(self) -> Mapping[str, Any]:
        """Findings to store with the run, as JSON values.

        Returns:
            Values by name.
        """
        return {}

    def state(self) -> Mapping[str, Any]:
        """What a checkpoint keeps of it, as JSON values: public and released values only.

        A callback that steers the run (stops it, changes the model) must override this, even if it has nothing to keep:
        then the run is resumed only with the same callback, known by its class and its public attributes.

        Returns:
            Values by name.
        """
        return {}

    def steers(self) -> bool:
        """Whether the run may depend on it: all that keep a state.

        Returns:
            True if the class overrides `state`.
        """
        return type(self).state is not Callback.state

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up the state of a checkpoint; called before `on_start`.

        Args:
            state: What `state` returned.
        """


class EarlyStopping(Callback):
    """Stop when a figure on public evaluation rows has not improved for `patience` evaluations.

    Args:
        metric: Name of a figure that is better when higher, like "worst_group_accuracy".
        patience: How many evaluations without improvement are allowed, at least 1.

    >>> import torch, veil
    >>> from veil.datasets import GroupSpec, generate
    >>> rows = generate([GroupSpec("large", 300), GroupSpec("small", 60)])
    >>> stop = EarlyStopping("worst_group_accuracy", patience=3)
    >>> asked = {"method": "dp-sgd", "steps": 3, "batch_size": 50, "callbacks": [stop]}
    >>> veil.fit(torch.nn.Linear(10, 2), rows, evaluation=rows, **asked).stopped is None
    True
    """

    def __init__(self, metric: str = "worst_group_accuracy", patience: int = 5) -> None:
        self.metric = metric
        self.patience = patience
        self._best = -np.inf
        self._since = 0

    def on_step(self, report: StepReport) -> None:
        """Look at the figure whenever there is a new one.

        Args:
            report: What this step released, with `metrics` after each evaluation.

        Raises:
            StopTraining: The figure has not improved for `patience` evaluations.
        """
        if report.metrics is None:
            return
        value = float(getattr(report.metrics, self.metric))
        self._best, self._since = (value, 0) if value > self._best else (self._best, self._since + 1)
        if self._since >= self.patience:
            raise StopTraining(f"{self.metric} has not improved for {self.patience} evaluations")

    def state(self) -> Mapping[str, Any]:
        """The best figure so far, and how long ago it was.

        Returns:
            `best` and `since`.
        """
        return {"best": self._best, "since": self._since}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the count.

        Args:
            state: What `state` returned.
        """
        self._best, self._since = float(state["best"]), int(state["since"])
