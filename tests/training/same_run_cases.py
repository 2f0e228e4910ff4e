"""A small run that is cut short, and what must be said when something else is resumed in its place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from tests.methods.method_cases import small_problem
from veil import methods
from veil.errors import InputError
from veil.plans import Settings
from veil.problem import Problem
from veil.training import Callback, Run, StepReport
from veil.training.fitting import Job, execute

BASE: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-4, "steps": 12, "batch_size": 24, "checkpoint_every": 4}


class Crash(Exception):
    """Stands for anything that ends a process."""


class CrashAt(Callback):
    def __init__(self, step: int = 6) -> None:
        self.step = step

    def on_step(self, report: StepReport) -> None:
        if report.step == self.step:
            raise Crash


def small_model(drop: float = 0.1) -> nn.Module:
    """Other weights each time: those of the run are in its checkpoint."""
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Dropout(drop), nn.Linear(5, 2))


def train(out: Path, **given: Any) -> Run:
    model, problem = given.pop("model", None), given.pop("problem", small_problem())
    settings = {name: given.pop(name) for name in list(given) if name in Settings.model_fields}
    plan = methods.plan(problem, given.pop("method", "dp-sgd"), **BASE | settings)
    resume = given.pop("resume", False)
    return execute(Job(small_model() if model is None else model, problem, **given), plan, out, resume)


def cut_short(out: Path, **given: Any) -> None:
    with pytest.raises(Crash):
        train(out, callbacks=[*given.pop("callbacks", ()), CrashAt()], **given)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def refused(folder: Path, named: str, resume: Callable[[], object]) -> None:
    """The sentence names what differs, and nothing in the folder has changed."""
    before = files(folder)
    with pytest.raises(InputError, match=f"^Cannot resume: {named}") as refusal:
        resume()
    assert str(refusal.value).endswith("or a new --out.")
    assert files(folder) == before


def edited(problem: Problem) -> Problem:
    inputs = problem.inputs.clone()
    inputs[3, 1] += 1e-3
    return replace(problem, inputs=inputs)
