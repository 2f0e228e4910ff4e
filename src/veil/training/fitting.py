"""`fit`: plan, ledger, loop, certificate, in this order."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from torch import Tensor, nn

from veil import gradients, methods
from veil.accounting import Ledger
from veil.accounting.certificate import Certificate, certify, check_budgets, no_certificate
from veil.bounding import check_row_local
from veil.errors import require
from veil.metrics import evaluate
from veil.plan import METRICS, TUNING, LossFunction, Plan, Settings
from veil.problem import Problem
from veil.randomness import Seed
from veil.training.callbacks import Callback
from veil.training.loop import Loop
from veil.training.run import Run


def row_losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Cross-entropy of each row for classes, squared error for numbers."""
    inputs, targets = batch
    outputs: Tensor = model(inputs)
    if targets.is_floating_point():
        return (outputs.squeeze(-1) - targets) ** 2
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def fit(
    model: nn.Module,
    problem: Problem,
    *,
    method: str | methods.Method = "dp-sgd",
    options: Mapping[str, Any] | None = None,
    evaluation: Problem | None = None,
    loss: LossFunction = row_losses,
    callbacks: Sequence[Callback] = (),
    not_covered: Sequence[str] = (),
    out: Path | str | None = None,
    config: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Run:
    """Train `model` in place on the rows of `problem` and return the finished run.

    `settings` are the fields of `veil.plan.Settings` (epsilon, delta, epochs, batch_size, …), `options` those of the
    method. `evaluation` holds rows that were declared public. With `out`, the ledger is on disk before any row is read.

    >>> import veil, torch
    >>> problem = veil.Problem.from_arrays([[0.0], [1.0]] * 50, [0, 1] * 50, ["a", "b"] * 50)
    >>> run = veil.fit(torch.nn.Linear(1, 2), problem, method="dp-sgd", epsilon=1.0, steps=5, batch_size=10, seed=1)
    >>> round(run.certificate.epsilon, 2)
    1.0
    """
    chosen = methods.create(method, options) if isinstance(method, str) else method
    given = Settings.checked(**settings)
    plan = chosen.plan(problem.public, given)
    return execute(plan, model, problem, evaluation, loss, callbacks, not_covered, out, config or {})


def execute(
    plan: Plan,
    model: nn.Module,
    problem: Problem,
    evaluation: Problem | None,
    loss: LossFunction,
    callbacks: Sequence[Callback],
    not_covered: Sequence[str],
    out: Path | str | None,
    config: Mapping[str, Any],
) -> Run:
    """Carry out a plan."""
    preparation = prepare(plan, model, problem, evaluation, loss, callbacks, not_covered, out, config)
    preparation.loop.run()
    return preparation.finish()


def prepare(
    plan: Plan,
    model: nn.Module,
    problem: Problem,
    evaluation: Problem | None,
    loss: LossFunction,
    callbacks: Sequence[Callback],
    not_covered: Sequence[str],
    out: Path | str | None,
    config: Mapping[str, Any],
) -> Preparation:
    """Check the model, open the ledger and set up the loop; no row is read yet."""
    seed = Seed.from_system() if plan.settings.seed is None else Seed.from_int(plan.settings.seed)
    if plan.private:
        gradients.check(model)
        first = plan.controller.release(plan.controller.start(), 0)
        check_row_local(first.bound, len(plan.facts.cells))
    folder = None if out is None else _new_folder(Path(out))
    if plan.private and not plan.over_budget:
        check_budgets(Ledger(plan.terms()), plan.settings.accountant_for())
    ledger = Ledger(plan.terms(), folder / "ledger.jsonl" if folder else None) if plan.private else None
    loop = Loop(model, problem, plan, loss, seed, ledger, evaluation, callbacks)
    return Preparation(loop, folder, tuple(not_covered), dict(config), time.perf_counter())


@dataclass(frozen=True)
class Preparation:
    """A loop that is ready to run, and what its finished run needs besides."""

    loop: Loop
    folder: Path | None
    not_covered: tuple[str, ...]
    config: Mapping[str, Any]
    started: float

    def finish(self) -> Run:
        """The run of what the loop has done: figures on public rows, certificate, and its folder if it has one."""
        loop, plan = self.loop, self.loop.plan
        seconds = time.perf_counter() - self.started
        evaluated = loop.evaluation is not None
        metrics = evaluate(loop.model, loop.evaluation, plan.facts.groups) if loop.evaluation is not None else None
        views = any(callback.private for callback in loop.callbacks)
        run = Run(
            model=loop.model,
            plan=plan,
            history=pd.DataFrame(loop.history),
            metrics=metrics,
            certificate=_certificate(plan, loop.ledger, loop.seed, evaluated, views, self.not_covered),
            findings={type(c).__name__: dict(c.findings()) for c in loop.callbacks if c.findings()},
            seconds=seconds,
            stopped=loop.stopped,
            config=dict(self.config),
            folder=self.folder,
        )
        if self.folder is not None:
            run.save(self.folder)
        return run


def _new_folder(folder: Path) -> Path:
    require(
        not (folder / "ledger.jsonl").exists() and not (folder / "metrics.json").exists(),
        f"{folder} holds a run already: choose another folder",
    )
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _certificate(
    plan: Plan, ledger: Ledger | None, seed: Seed, evaluated: bool, private_views: bool, not_covered: Sequence[str]
) -> Certificate:
    if ledger is None:
        return no_certificate(plan.method, {"method": plan.method, "steps": plan.steps})
    missing = [TUNING, *not_covered]
    if evaluated:
        missing.append(METRICS)
    if private_views:
        missing.append("Diagnostics that looked at private rows: their figures are marked and are not covered.")
    return certify(
        ledger,
        plan.settings.accountant_for(),
        assumptions=plan.all_assumptions(seed.given),
        not_covered=tuple(missing),
    )
