"""Trackers: callbacks that send a run's public and released values to TensorBoard or MLflow.

Neither package is needed by Veil: each is imported when its callback starts (`pip install veil-dp[tensorboard]` or
`veil-dp[mlflow]`). What they are sent is what the history holds: nothing exact about private rows.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from veil.errors import InputError
from veil.plans import Plan
from veil.training.callbacks import Callback, StepReport


class TensorBoard(Callback):
    """Write event files into a folder; `tensorboard --logdir FOLDER` shows them.

    Args:
        folder: Where event files go.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self._writer: Any = None

    def on_start(self, plan: Plan) -> None:
        """Open the folder and note the plan."""
        module = _imported("torch.utils.tensorboard", "tensorboard")
        self._writer = module.SummaryWriter(log_dir=str(self.folder))
        self._writer.add_text("plan", "\n\n".join(f"{name}: {value}" for name, value in _constants(plan).items()))

    def on_step(self, report: StepReport) -> None:
        """One point on every curve that has a new value."""
        for name, value in values_of(report):
            self._writer.add_scalar(name, value, report.step)

    def on_end(self) -> None:
        """Flush what is not on disk yet."""
        if self._writer is not None:
            self._writer.close()


class MLflow(Callback):
    """Log a run to MLflow, to the tracking server that MLflow is set up for.

    Args:
        experiment: Name of the experiment, or None for MLflow's own choice.
        run_name: Name of the run; by default that of the method.
    """

    def __init__(self, experiment: str | None = None, run_name: str | None = None) -> None:
        self.experiment = experiment
        self.run_name = run_name
        self._mlflow: Any = None

    def on_start(self, plan: Plan) -> None:
        """Start the MLflow run and log the plan's constants."""
        self._mlflow = _imported("mlflow", "mlflow")
        if self.experiment is not None:
            self._mlflow.set_experiment(self.experiment)
        self._mlflow.start_run(run_name=self.run_name or plan.method)
        self._mlflow.log_params(_constants(plan))

    def on_step(self, report: StepReport) -> None:
        """One point on every curve that has a new value."""
        self._mlflow.log_metrics({_allowed(name): value for name, value in values_of(report)}, step=report.step)

    def on_end(self) -> None:
        """End the MLflow run."""
        if self._mlflow is not None:
            self._mlflow.end_run()


def values_of(report: StepReport) -> Iterator[tuple[str, float]]:
    """Every public or released number of a step: ε per group, figures on public rows, the controller's state."""
    for group, spent in report.spent.items():
        yield f"epsilon/{group}", float(spent)
    if report.metrics is not None:
        for name in ("worst_group_accuracy", "average_group_accuracy", "accuracy", "disparity"):
            yield name, float(getattr(report.metrics, name))
        for group, score in report.metrics.by_group.items():
            yield f"group_accuracy/{group}", score.accuracy
    for name, values in {**report.state, **report.statistics}.items():
        parts = np.atleast_1d(np.asarray(values, dtype=np.float64)).ravel()
        groups = report.plan.facts.groups
        for index, value in enumerate(parts):
            part = groups[index] if len(parts) == len(groups) else str(index)
            yield (name if len(parts) == 1 else f"{name}/{part}"), float(value)


def _constants(plan: Plan) -> dict[str, Any]:
    settings = plan.settings.model_dump(exclude={"seed"}, exclude_none=True)
    return {"method": plan.method, "steps": plan.steps, **settings}


def _allowed(name: str) -> str:
    """MLflow takes letters, digits, spaces and a few signs in a name."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "_-./ ") else "_" for c in name)


def _imported(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(f"{package} is not installed: pip install 'veil-dp[{package}]'") from error
