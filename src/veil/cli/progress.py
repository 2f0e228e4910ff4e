"""The progress bar: how far a run is, and how much of the budget is spent."""

from __future__ import annotations

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from veil.cli.console import percent, stderr
from veil.plan import Plan
from veil.training import Callback, StepReport


class ProgressBar(Callback):
    """A bar on standard error with the share of the budget that is spent and the last public figures."""

    def __init__(self, quiet: bool = False) -> None:
        self._bar = Progress(
            TextColumn("{task.description:<10}"),
            BarColumn(bar_width=24),
            TextColumn("step {task.completed:>5}/{task.total}"),
            TextColumn("{task.fields[budget]}"),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(compact=True),
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
            fields["budget"] = f"ε spent {max(report.spent.values()):.2f} of {report.plan.settings.epsilon:g}"
        if report.metrics is not None:
            fields["figures"] = f"worst group {percent(report.metrics.worst_group_accuracy)} %"
        self._bar.update(self._task, completed=report.step + 1, **fields)  # type: ignore[arg-type]

    def on_end(self) -> None:
        """Leave the last state on the screen."""
        self._bar.stop()
