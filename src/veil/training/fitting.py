"""`fit`: plan, ledger, loop, certificate, in this order."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from operator import or_
from pathlib import Path
from typing import Any

import pandas as pd
from torch import nn
from torch.nn.parameter import is_lazy

from veil import methods
from veil.accounting import Ledger
from veil.accounting.certificate import Certificate, certify, check_budgets, no_certificate
from veil.errors import InputError, require
from veil.foundation.randomness import Seed
from veil.gradients import GradientSum
from veil.methods.convex.steered_descent import trains_as_a_whole
from veil.metrics import GroupMetrics, evaluate
from veil.models.calling import put_on
from veil.plans import LossFunction, Plan
from veil.plans.controllers import first_release
from veil.plans.plan import METRICS, OWN_COLLATE, OWN_DRAWS, OWN_DRAWS_AGAIN, TRAINED, TUNING
from veil.problem import Problem
from veil.problem.inputs import LOADER, is_loader
from veil.problem.problem import ELSEWHERE
from veil.request import default_method
from veil.training.callbacks import Callback
from veil.training.carrying import continues
from veil.training.checkpoints import packed, save_checkpoint, sealing_key, unpacked
from veil.training.identity import Identity, agree, digester, run_identity, settings_of, who_is_who
from veil.training.learning_rate import with_learning_rate
from veil.training.loop import Loop
from veil.training.losses import as_row_losses, check_loss, label_losses, row_losses
from veil.training.owner_curves import owner_curves
from veil.training.person_losses import by_person, transformed
from veil.training.process_group import ProcessGroup
from veil.training.run import Run, note_trained, trained_before, weights_check
from veil.training.run_folder import CHECKPOINT, LEDGER, RunFolder
from veil.training.trials import (
    check_evaluation,
    check_outputs,
    check_precision,
    check_reaches,
    check_rows_apart,
    check_savable,
)


def fit(
    model: nn.Module,
    problem: Problem,
    *,
    method: str | methods.Method | None = None,
    evaluation: Problem | None = None,
    loss: LossFunction = row_losses,
    callbacks: Sequence[Callback] = (),
    out: Path | str | None = None,
    resume: bool = False,
    **settings: Any,
) -> Run:
    """Train `model` in place on the rows of `problem` and return the finished run.

    `method` is a name, or a method with options: `veil.method("dp-sgd", clip=0.5)`. Without one it is `auto` for one
    linear layer over fixed features of a table, if no setting of a loop (`epochs`, `steps`, `batch_size`, …) and no
    loss is given; otherwise `asc` where there are several groups and `dp-sgd` where there is one. `settings` are the
    fields of `veil.plans.Settings` (epsilon, delta, epochs, batch_size, …). `evaluation` holds rows that were declared
    public. With `out`, the ledger is on disk before any row is read, and checkpoints are kept: the same call with
    `resume=True` resumes a run that was interrupted, bit by bit. A run on a data set whose transforms draw
    from a generator of their own cannot be resumed.

    Args:
        model: Any module whose rows do not see each other; it is trained in place.
        problem: The private rows with their groups (`veil.Problem`).
        method: A name (`veil methods` lists them), or a method with options. By default `auto`, `asc` or `dp-sgd`, as
            above; `fit_preset` trains the model of a preset.
        evaluation: Rows that were declared public; exact figures are computed on them.
        loss: `loss(outputs, targets)` or `loss(model, batch)`, with one value per row.
        callbacks: Told about every step; what they see is public or released.
        out: Folder of the run; without one nothing is written.
        resume: Continue the interrupted run in `out`.
        settings: Fields of `veil.plans.Settings`: `epsilon` (1.0), `delta` (1/(2n)), `epochs`, `batch_size`, `seed`, …

    Returns:
        The run: trained model, certificate, metrics, history.

    Raises:
        InputError: Something is wrong with rows, model, loss or settings; found before anything is charged.
        BudgetExceeded: A reservation would exceed a budget; found before a row is read.

    >>> import veil, torch
    >>> problem = veil.Problem.from_arrays([[0.0], [1.0]] * 50, [0, 1] * 50, ["a", "b"] * 50)
    >>> run = veil.fit(torch.nn.Linear(1, 2), problem, method="dp-sgd", epsilon=1.0, steps=5, batch_size=10, seed=1)
    >>> round(run.certificate.epsilon, 2)
    1.0
    """
    require_problem(problem)
    require_model(model)
    chosen = _default(model, problem, loss, settings) if method is None else method
    job = Job(model, problem, evaluation, loss, callbacks)
    return execute(job, methods.plan(problem, chosen, **settings), out, resume)


def _default(model: nn.Module, problem: Problem, loss: LossFunction, settings: Mapping[str, Any]) -> str:
    """The method where none is named; a linear model is trained as a whole only on rows and a loss that this takes."""
    table = problem.is_one_tensor and problem.targets.ndim == 1 and loss is row_losses
    linear = table and trains_as_a_whole(model) and ProcessGroup.joined().alone
    return default_method(linear=linear, given=settings, groups=len(problem.public.groups) > 1)


def require_model(given: Any) -> None:
    """Reject what is no model, and one that does not know its sizes yet."""
    called = f"{given.__name__}(…)" if isinstance(given, type) else "an nn.Module"
    kind = "class" if isinstance(given, type) else type(given).__name__
    require(isinstance(given, nn.Module), f"the model is a {kind}, not a module: give {called}")
    waiting = next((name for name, parameter in given.named_parameters() if is_lazy(parameter)), None)
    require(
        waiting is None,
        f'the model does not know the size of "{waiting}" yet: call it once on synthetic rows, model(torch.zeros(…))',
    )


def require_problem(given: Any) -> None:
    """Reject rows that nobody put into groups yet."""
    if isinstance(given, Problem):
        return
    require(not is_loader(given), LOADER)
    raise InputError(
        f"the rows are a {type(given).__name__}: make a veil.Problem of them, with Problem.from_arrays or "
        "Problem.from_dataset"
    )


@dataclass(frozen=True)
class Measured:
    """What a measurement adds to a run: figures, findings, effects of columns, and sentences for its certificate.

    `held_out` has the ledger of what it cost rows that took no part in training, by the ledger's name.
    """

    metrics: GroupMetrics | None = None
    findings: Mapping[str, Any] = field(default_factory=dict)
    effects: Mapping[str, Any] | None = None
    assumptions: tuple[str, ...] = ()
    not_covered: tuple[str, ...] = ()
    held_out: Mapping[str, Ledger] = field(default_factory=dict)


Measure = Callable[[nn.Module, Plan], Measured]


@dataclass(frozen=True)
class Job:
    """What a run needs besides its plan: the model, the rows, the loss and the callbacks.

    `evaluation` holds rows that were declared public; `not_covered` are sentences for the certificate; `config` is what
    was asked for, as the run's folder keeps it; `measures` are taken of the trained model before it is certified.
    `columns` says what became of each column of a table (column, role, how), `remarks` what is worth knowing about it,
    `preprocessing` how its columns become numbers.
    """

    model: nn.Module
    problem: Problem
    evaluation: Problem | None = None
    loss: LossFunction = row_losses
    callbacks: Sequence[Callback] = ()
    not_covered: Sequence[str] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    measures: Sequence[Measure] = ()
    columns: Sequence[Mapping[str, str]] = ()
    remarks: Sequence[str] = ()
    preprocessing: Mapping[str, Any] | None = None


def execute(job: Job, plan: Plan, out: Path | str | RunFolder | None = None, resume: bool = False) -> Run:
    """Carry out a plan: check and set up, train, measure, certify, save."""
    require(
        not plan.settings.public_steps,
        "public_steps is for a loop of your own (veil.session): here only a callback could end the run early, and what "
        "callbacks see are releases; omit it",
    )
    with prepare(job, plan, out, resume) as preparation:
        carry_out(preparation.loop)
        return preparation.finish()


def tested(job: Job, plan: Plan) -> list[str]:
    """Test on synthetic rows, before anything is charged, what executing the plan would need; sentences to be said."""
    ready = _made_ready(job, plan)
    return _tried(ready, with_learning_rate(plan, ready.model))


def carry_out(loop: Loop) -> None:
    """Go through the steps, or let the plan's solver train the model as a whole."""
    solver = loop.plan.solver
    ledger = loop.reservations.ledger
    if solver is None or ledger is None:
        loop.run()
        return
    with loop.around():
        solver.solve(loop.model, loop.problem, loop.seed, ledger, loop.reporter.hear_of)


def prepare(job: Job, plan: Plan, out: Path | str | RunFolder | None = None, resume: bool = False) -> Preparation:
    """Check the model, open the ledger and set up the loop; no row is read yet."""
    require(
        not plan.settings.public_steps or not any(callback.steers() for callback in job.callbacks),
        "public_steps states that the run ends by public facts alone, but a callback steers it by what is released: "
        "omit one of them",
    )
    resumed = out.resumed if isinstance(out, RunFolder) else resume
    require(not (resumed and job.problem.own_draws), OWN_DRAWS_AGAIN)
    job = _made_ready(job, plan)
    asked, plan = plan.settings, with_learning_rate(plan, job.model)
    job = replace(job, not_covered=(*job.not_covered, *_tried(job, plan)))
    job = replace(job, callbacks=(*job.callbacks, *owner_curves(job.callbacks, job.evaluation, job.loss, plan)))
    given = {"method": plan.method, **job.config, "settings": plan.settings.model_dump(exclude_none=True)}
    folder = out if isinstance(out, RunFolder) or out is None else RunFolder.open(out, plan.settings, resume, given)
    own = folder is not None and folder is not out
    try:
        if own and folder is not None:
            # What follows from the rest, as a learning rate may, is not what somebody changed.
            folder.hold_to("request", Identity(settings_of(given | {"settings": asked.model_dump(exclude_none=True)})))
        began = weights_check(job.model)
        # A resumed run begins with the weights of its checkpoint, a continued one pays for those that it begins with.
        fresh = folder is None or not folder.resumed
        if plan.private and fresh and trained_before(job.model) and not continues(plan):
            job = replace(job, not_covered=(*job.not_covered, TRAINED))
        loop = _set_up(job, plan, folder)
    except BaseException:
        if own and folder is not None:
            folder.abandon()
            folder.close()
        raise
    return Preparation(loop, folder, own, job, time.perf_counter(), began)


def _made_ready(job: Job, plan: Plan) -> Job:
    """Rows go where the model lives, and the loss is one value per row."""
    if job.evaluation is not None and not isinstance(job.evaluation, Problem):
        raise InputError("evaluation must be a veil.Problem of rows that were declared public: see Problem.from_arrays")
    device = put_on(job.model, plan.settings.device)
    check_precision(job.model, private=plan.private)
    problem, evaluation = job.problem.on(device), None if job.evaluation is None else job.evaluation.on(device)
    return replace(job, problem=problem, evaluation=evaluation, loss=as_row_losses(job.loss, job.model, problem))


def _tried(job: Job, plan: Plan) -> list[str]:
    """Test on synthetic rows everything the run will need; what cannot be tested is not covered."""
    model, problem, evaluation = job.model, job.problem, job.evaluation
    if plan.solver is not None:
        table = problem.is_one_tensor and problem.targets.ndim == 1
        require(table, f"{plan.method} trains a linear model of a table of numbers: use dp-sgd for other rows")
    require(problem.elsewhere is None or getattr(plan.solver, "sums_rows", False), ELSEWHERE)
    if problem.weights is not None:
        _check_weights(plan)
    if job.loss in (row_losses, label_losses):
        require(not problem.public.heads, "these rows are for several heads: give loss=heads, the Heads that made them")
        check_outputs(model, problem, "pass your own loss")
    check_loss(job.loss, model, problem)
    check_reaches(model, problem, job.loss)
    if evaluation is not None:
        check_evaluation(model, evaluation, plan.facts.groups)
    check_savable(model)
    if not plan.private:
        return []
    said = check_rows_apart(model, problem, transformed(job.loss, plan.transform))
    if plan.solver is None and problem.several is not None:
        people, loss = by_person(problem, job.loss)
        said = list(dict.fromkeys([*said, *check_rows_apart(model, people, transformed(loss, plan.transform))]))
    if problem.collated_by_user:
        said.append(OWN_COLLATE)
    if problem.own_draws:
        said.append(OWN_DRAWS)
    if plan.solver is not None:
        plan.solver.check(model)
    first = plan.controller.release(plan.controller.start(), 0)
    first.check_rows(len(plan.facts.cells))
    if not plan.over_budget:
        check_budgets(Ledger(plan.terms()), plan.settings.accountant_for(plan.facts))
    return said


def _check_weights(plan: Plan) -> None:
    """Reject weights of rows where they would be ignored, or where rows are bounded together."""
    whole = plan.solver is not None and not getattr(plan.solver, "weighs_rows", False)
    together = plan.solver is None and not first_release(plan.controller).bound.row_local
    require(not (whole or together), f"{plan.method} does not take weights of rows: use auto or dp-sgd, or omit them")


def _set_up(job: Job, plan: Plan, folder: RunFolder | None) -> Loop:
    """The loop with its ledger and, in a resumed run, its earlier state."""
    processes = ProcessGroup.joined()
    require(processes.alone or plan.solver is None, f"{plan.method} trains in one process: start it without torchrun")
    seed = _seed(plan, processes) if folder is None else folder.seed
    loop = Loop(job.model, job.problem, plan, job.loss, seed, None, job.evaluation, job.callbacks, processes=processes)
    _take_up(loop, folder)
    # In a process group the first one keeps the ledger: no release is whole without it, so none is made unreserved.
    if not plan.private or not processes.leads:
        return loop
    ledger = loop.reservations.ledger = Ledger(plan.terms()) if folder is None else folder.ledger(plan.terms())
    require(
        len(ledger.entries) >= loop.reservations.entries,
        "the ledger of this run is behind its checkpoint: lines are missing, so the run cannot be resumed",
    )
    for earlier in plan.earlier:
        ledger.reserve(earlier.purpose, earlier.first, earlier.count, earlier.events)
    return loop


def _seed(plan: Plan, processes: ProcessGroup) -> Seed:
    if plan.settings.seed is not None:
        return Seed.from_int(plan.settings.seed)
    return Seed(bytes.fromhex(processes.told_json(Seed.from_system().secret.hex())), given=False)


def _take_up(loop: Loop, folder: RunFolder | None) -> None:
    """Resume from the folder's checkpoint; the first one is on disk before the ledger is started.

    In a process group all take up what the first one has, at the start too: all begin with the same weights. Before
    that, whatever the releases follow from is compared with what the run began with, in every process.
    """
    processes, content = loop.processes, None
    if folder is None and processes.alone:
        return
    now = run_identity(loop.plan, loop.model, loop.loss, loop.problem, loop.evaluation, loop.callbacks, loop.seed)
    if folder is None:
        agree(now, None)
    else:
        folder.hold_to("run", now, before=LEDGER)
    key = sealing_key(loop.seed, now)
    if folder is not None and folder.leads:
        path = folder.path / CHECKPOINT
        loop.checkpointer.keep = partial(save_checkpoint, path, key=key)
        if folder.resumed and path.exists():
            content = path.read_bytes()
        else:
            require(not (folder.path / LEDGER).exists(), f"Cannot resume: {path} is missing. The run stays charged.")
            loop.checkpointer.keep(loop.progress())
    if not processes.alone:
        content = processes.told(content or packed(loop.progress(), key) if processes.leads else None)
    if content is not None:
        loop.go_on(unpacked(content, key))


@dataclass(frozen=True)
class Preparation:
    """A loop that is ready to run, and what its finished run needs besides."""

    loop: Loop
    folder: RunFolder | None
    own: bool
    job: Job
    started: float
    began: str

    def __enter__(self) -> Preparation:
        return self

    def __exit__(self, *_: object) -> None:
        """Release the folder so that the run can be resumed; interrupted weights count as trained."""
        if weights_check(self.loop.model) != self.began:
            note_trained(self.loop.model)
        if self.own and self.folder is not None:
            self.folder.close()

    def hold_to_step(self, step: int, total: GradientSum) -> None:
        """In a user's own loop, whose loss nobody can compare: the first step after a checkpoint gives what it gave."""
        if self.folder is not None and self.loop.checkpointer.due(step):
            self.folder.hold_to_step(step, digester(self.loop.seed).of(total.sums, total.per_row))

    def finish(self) -> Run:
        """The run of what the loop has done: figures on public rows, certificate, and its folder if it has one."""
        loop, plan = self.loop, self.loop.plan
        seconds = time.perf_counter() - self.started
        metrics = None
        with loop.side_effects.undone():
            if loop.evaluation is not None:
                metrics = evaluate(loop.model, loop.evaluation, plan.facts.groups)
            measured = [measure(loop.model, plan) for measure in self.job.measures]
        findings = {type(c).__name__: dict(c.findings()) for c in loop.callbacks if c.findings()}
        run = Run(
            model=loop.model,
            plan=plan,
            history=pd.DataFrame(loop.reporter.history),
            metrics=next((found.metrics for found in measured if found.metrics is not None), metrics),
            certificate=self._certificate(measured),
            findings=reduce(or_, (dict(found.findings) for found in measured), findings),
            seconds=seconds,
            stopped=loop.stopped,
            config=dict(self.job.config),
            folder=self.folder.path if self.folder is not None and self.folder.leads else None,
            effects=next((found.effects for found in measured if found.effects is not None), None),
            columns=tuple(map(dict, self.job.columns)),
            remarks=tuple(self.job.remarks),
            who=who_is_who(self.job.problem) if plan.private else "",
            held_out=_held_out(measured),
            preprocessing=self.job.preprocessing,
        )
        if self.folder is not None and self.folder.leads:
            run.save(self.folder.path)
            if self.own:
                self.folder.complete()
        return run

    def _certificate(self, measured: Sequence[Measured]) -> Certificate:
        loop = self.loop
        made = _certificate(loop, self.job.not_covered, measured) if loop.processes.leads else None
        if made is not None:
            made = replace(made, columns={use["column"]: f"{use['role']}: {use['how']}" for use in self.job.columns})
        said = loop.processes.told_json(None if made is None else made.as_json())
        return made or Certificate.from_json(said)


def _certificate(loop: Loop, not_covered: Sequence[str], measured: Sequence[Measured]) -> Certificate:
    plan, shown = loop.plan, [sentence for found in measured for sentence in found.not_covered]
    if loop.reservations.ledger is None:
        made = no_certificate(plan.method, {"method": plan.method, "steps": plan.steps})
        return replace(made, not_covered=(*made.not_covered, *shown))
    missing = [TUNING, *not_covered]
    if loop.evaluation is not None:
        missing.append(METRICS)
    if any(callback.private for callback in loop.callbacks):
        missing.append("Diagnostics computed from private rows: their figures are marked and not covered.")
    more = [sentence for found in measured for sentence in found.assumptions]
    return certify(
        loop.reservations.ledger,
        plan.settings.accountant_for(plan.facts),
        assumptions=(*plan.all_assumptions(loop.seed.given), *more),
        not_covered=tuple(dict.fromkeys([*missing, *shown])),
        held_out=_held_out(measured),
    )


def _held_out(measured: Sequence[Measured]) -> dict[str, Ledger]:
    return {name: ledger for found in measured for name, ledger in found.held_out.items()}
