"""The progress bar: how far a run is, how much of the budget each group has spent, and how much time is left."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from veil.cli.console import percent, stderr
from veil.plans import Plan
from veil.training import Callback, StepReport

MOST_GROUPS = 4


class ProgressBar(Callback):
    """A bar on standard error with the budget that each group has spent and the last public figures."""

    def __init__(self, quiet: bool = False) -> None:
        self._bar = Progress(
            TextColumn("{task.description:<10}"),
            BarColumn(bar_width=24),
            TextColumn("step {task.completed:>5}/{task.total}"),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[budget]}", markup=False),
            TextColumn("{task.fields[figures]}"),
            console=stderr,
            disable=quiet,
        )
        self._task: TaskID | None = None

    def on_start(self, plan: Plan) -> None:
        """Show the bar."""
        self._bar.start()
        self._task = self._bar.add_task(plan.method, total=plan.steps, budget="", figures="")

    def on_step(self, report: StepReport) -> None:
        """Move on; ε spent is a reading of the ledger."""
        assert self._task is not None
        fields: dict[str, str] = {}
        if report.spent:
            fields["budget"] = spent_text(report.spent, report.plan.facts.budgets or (report.plan.settings.epsilon,))
        if report.metrics is not None:
            worst = report.metrics.worst_group_accuracy
            fields["figures"] = "" if math.isnan(worst) else f"worst group {percent(worst)} %"
        self._bar.update(self._task, completed=report.step + 1, **fields)  # type: ignore[arg-type]

    def on_end(self) -> None:
        """Leave the last state on the screen."""
        self._bar.stop()


def spent_text(spent: Mapping[str, float], budgets: Sequence[float]) -> str:
    """What each group has spent: once where all have spent the same, by name for a few groups, else the range.

    Where owners have budgets of their own, a group's figure is that of the owner who allows most.

    >>> spent_text({"a": 0.5, "b": 0.5}, [1.0]), spent_text({"a": 0.5, "b": 0.25}, [1.0])
    ('ε 0.50 of 1 in every group', 'ε of 1: a 0.50, b 0.25')
    >>> spent_text({"a": 2.0, "b": 2.0}, [0.5, 2.0])
    'ε up to 2.00 of 2, less for other owners'
    """
    shown = {name: f"{value:.2f}" for name, value in spent.items()}
    values, budget = sorted(set(shown.values()), key=float), max(budgets)
    if min(budgets) < budget:
        return f"ε up to {values[-1]} of {budget:g}, less for other owners"
    if len(values) == 1:
        return f"ε {values[0]} of {budget:g} in every group"
    if len(shown) <= MOST_GROUPS:
        return f"ε of {budget:g}: " + ", ".join(f"{name} {value}" for name, value in shown.items())
    return f"ε {values[0]} to {values[-1]} of {budget:g}, by group"
