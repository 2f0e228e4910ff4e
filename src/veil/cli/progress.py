"""Progress on standard error: a bar on a terminal; elsewhere a line every few seconds, whatever a run is doing."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Self

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from veil.cli.console import percent, stderr
from veil.plans import Plan
from veil.training import Callback, StepReport
from veil.training.duration import duration_in_words

MOST_GROUPS = 4
SECONDS_BETWEEN_LINES = 5.0


class ProgressBar(Callback):
    """How far a run is, with the budget that each group has spent and the last public figures.

    On a terminal it is a bar. Into a pipe or a file it is a line at the start of training, one every few seconds, and
    one at the end; as a context manager it also reports while rows are read and the plan is made.
    """

    def __init__(self, quiet: bool = False) -> None:
        self._lines = not quiet and not stderr.is_terminal
        self._bar = Progress(
            TextColumn("{task.description:<10}"),
            BarColumn(bar_width=24),
            TextColumn("step {task.completed:>5}/{task.total}"),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[budget]}", markup=False),
            TextColumn("{task.fields[figures]}"),
            console=stderr,
            disable=quiet or self._lines,
        )
        self._task: TaskID | None = None
        self._doing, self._over = "reading the table and planning", threading.Event()
        self._began = self._said = time.monotonic()
        self._first: tuple[int, float] | None = None

    def __enter__(self) -> Self:
        if self._lines:
            threading.Thread(target=self._report, name="progress lines", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def on_start(self, plan: Plan) -> None:
        """Show the bar, or the first line."""
        if not self._bar.disable:
            self._bar.start()
        self._task = self._bar.add_task(plan.method, total=plan.steps, budget="", figures="")
        self._first = None
        self._doing = f"training: {plan.method}, {plan.steps:,} steps"
        self._say(self._doing)

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
        if self._lines:
            done, of, now = report.step + 1, report.plan.steps, time.monotonic()
            shown = [f"step {done:,} of {of:,}", *(text for text in fields.values() if text)]
            if self._first is None:
                self._first = done, now  # a first step prepares much and says nothing of the others
            else:
                left = (now - self._first[1]) / (done - self._first[0]) * (of - done)
                shown.append(f"{duration_in_words(left)} left")
            self._doing = ", ".join(shown)
            if time.monotonic() - self._said >= SECONDS_BETWEEN_LINES:
                self._say(self._doing)

    def on_end(self) -> None:
        """Leave the last state on the screen."""
        if not self._bar.disable:  # older versions of rich end a bar with a line, shown or not
            self._bar.stop()
        self._doing = "measuring and writing the report"

    def _report(self) -> None:
        """Say every few seconds what is being done, unless somebody else has just said it."""
        while not self._over.wait(SECONDS_BETWEEN_LINES / 4):
            if time.monotonic() - self._said >= SECONDS_BETWEEN_LINES:
                self._say(self._doing)

    def _say(self, what: str) -> None:
        if self._lines:
            self._said = time.monotonic()
            line = f"[{self._said - self._began:.0f} s] {what}"
            stderr.print(line, soft_wrap=True, highlight=False, markup=False)


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
