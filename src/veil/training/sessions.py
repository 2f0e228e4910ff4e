"""`session`: the user's own loop, with Veil drawing the rows, bounding, adding noise and keeping the ledger.

session = veil.session(model, problem, method="asc", epsilon=1.0)
for inputs, targets in session:
    losses = torch.nn.functional.cross_entropy(model(inputs), targets, reduction="none")
    session.step(losses)
run = session.finish()
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import CellType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from veil import methods
from veil.errors import require
from veil.gradients import GradientEngine
from veil.gradients.loss_trace import LossTrace
from veil.gradients.open_pass import OpenPass
from veil.plans import LossFunction
from veil.plans.plan import OWN_LOOP
from veil.problem import Problem
from veil.releases import GradientRelease
from veil.sampling import Sampler
from veil.training.callbacks import Callback
from veil.training.fitting import Job, Preparation, prepare, require_problem
from veil.training.losses import Form, as_it_is, form_of, row_losses
from veil.training.run import Run
from veil.training.side_effects import refuse_written
from veil.training.trials import check_rows_apart, learn


@dataclass(frozen=True)
class _Waiting:
    """A batch that is waiting for `step`, and the recorder of its pass (None if it is empty)."""

    step: int
    release: GradientRelease
    sampler: Sampler
    rows: NDArray[np.int64]
    watched: OpenPass | None
    trace: LossTrace | None


class Session:
    """An iterator over batches. Call `step` once for every batch; `finish` returns the run.

    What a forward pass writes into the model (buffers, tensors in attributes) is undone by `step`. Make changes of your
    own to the model after `step` and before the next batch.
    """

    def __init__(self, preparation: Preparation) -> None:
        self._preparation = preparation
        self._loop = preparation.loop
        self._waiting: _Waiting | None = None
        self._done = preparation.loop.first
        self._begun = False
        self._forms: dict[Any, Form] = {_mark(preparation.loop.loss): as_it_is}
        loop = preparation.loop
        # A pass of one's own cannot be repeated: what the engine learns of a model by a second pass, it learns here.
        learn(loop.engine, loop.problem)

    def __len__(self) -> int:
        """How many batches are left; an expected epoch has rows / batch_size of them."""
        return self._loop.plan.steps - self._done

    def __bool__(self) -> bool:
        """A session is there, also when its batches are used up."""
        return True

    def __iter__(self) -> Iterator[tuple[Any, Tensor]]:
        """Draw batch after batch; the cost of each is reserved before its rows are read.

        A second `for` after a `break` continues with the next batch. Batches are planned and paid for once: when they
        are used up, there are no more.
        """
        loop = self._loop
        require(
            not self._begun or self._done < loop.plan.steps,
            f"all {loop.plan.steps} batches of this session are used: plan more steps or epochs, and iterate once",
        )
        self._begun = True
        require(loop.plan.gate is None, "a method that can undo updates needs the loss as a function: use veil.fit")
        require(loop.processes.alone, "a session runs in one process: in a process group use veil.fit")
        require(loop.plan.settings.noise_filter == "none", "a session does not support a noise filter: use veil.fit")
        with loop.around():
            for step in range(self._done, loop.plan.steps):
                self._undo_writes()
                release, sampler = loop.prepare(step)
                rows = sampler.draw(loop.seed, step)
                batch = loop.problem.batch(rows)
                loop.side_effects.note()
                with ExitStack() as stack:
                    watched = stack.enter_context(loop.engine.open(len(rows))) if len(rows) else None
                    trace = LossTrace(loop.model, batch, step - loop.first) if len(rows) and loop.plan.private else None
                    self._waiting = _Waiting(step, release, sampler, rows, watched, trace)
                    stack.callback(self._undo_writes)
                    if trace is not None:
                        stack.enter_context(trace)
                    yield batch
                require(
                    self._waiting is None, f"Batch {step} has no matching `session.step()`: call it for each batch."
                )

    def step(self, losses: Tensor | LossFunction) -> None:
        """One update from the losses of the rows of the batch: bounded, noisy, and paid for.

        Losses given as a tensor must come from one pass of the model over this batch, each from its own row, in the
        batch's order: no mixup, no weights by what other rows are. Where the model has layers that only the generic
        path serves, give a function `loss(model, batch)`; it is tried on synthetic rows first.
        """
        try:
            self._step(losses)
        except BaseException:
            self.close()
            raise

    def _step(self, losses: Tensor | LossFunction) -> None:
        require(self._waiting is not None, "no batch is waiting for a step: call step once for each batch")
        assert self._waiting is not None
        now, loop = self._waiting, self._loop
        weigh = now.release.weigh(loop.problem, now.rows)
        if now.trace is not None:
            now.trace.__exit__(None, None, None)
        if isinstance(losses, Tensor) and now.watched is not None:
            if now.trace is not None:
                now.trace.check(losses)
                self._say_not_covered([OWN_LOOP])
            result = loop.engine.total(now.watched.finish(losses), weigh)
        else:
            if now.watched is not None:
                now.watched.__exit__(None, None, None)
            given = loop.loss if isinstance(losses, Tensor) else self._try(losses)
            batch = loop.problem.batch(now.rows)
            result = GradientEngine(loop.model, given).weighted_sum(batch, weigh, rows=len(now.rows))
        refuse_written(loop.side_effects.undo_weights())
        self._preparation.hold_to_step(now.step, result)
        released = now.release.complete(result, loop.problem, now.rows, now.sampler, loop.seed, now.step, loop.noise)
        self._undo_writes()
        loop.side_effects.carry_on()
        self._waiting = None
        self._done = now.step + 1
        with torch.no_grad():
            loop.absorb(now.step, released)

    def _try(self, loss: LossFunction) -> LossFunction:
        """The loss of each row; one that was not seen before is tested on synthetic rows."""
        loop, mark = self._loop, _mark(loss)
        form = self._forms.get(mark)
        if form is None:
            form = form_of(loss, loop.model, loop.problem)
            if loop.plan.private:
                self._say_not_covered(check_rows_apart(loop.model, loop.problem, form(loss)))
            self._forms[mark] = form
        return form(loss)

    def _say_not_covered(self, sentences: Sequence[str]) -> None:
        known = self._preparation.job.not_covered
        fresh = tuple(sentence for sentence in sentences if sentence not in known)
        if fresh:
            job = replace(self._preparation.job, not_covered=(*known, *fresh))
            self._preparation = replace(self._preparation, job=job)

    def _undo_writes(self) -> None:
        """Undo what passes over a batch that is still waiting wrote into the model."""
        if self._waiting is not None:
            self._loop.side_effects.undo(numbers=False)

    def close(self) -> None:
        """Release the run's folder without finishing; `session` with `resume=True` continues."""
        self._preparation.__exit__()

    def finish(self) -> Run:
        """The run with its certificate. A session that ended early keeps the guarantee of the whole plan."""
        self._undo_writes()
        if self._done < self._loop.plan.steps and self._loop.stopped is None:
            self._loop.stopped = f"ended by the user after {self._done} of {self._loop.plan.steps} steps"
        return self._preparation.finish()


def _mark(loss: Any) -> Any:
    """An identity for a loss: a lambda in a loop is a new object with the same code at every step."""
    if isinstance(loss, partial):
        return _mark(loss.func)
    if not hasattr(loss, "__code__"):
        return loss
    held = [cell.cell_contents for cell in loss.__closure__ or () if cell != CellType()]
    return (loss.__code__, id(getattr(loss, "__self__", None)), *(id(value) for value in held if callable(value)))


def session(
    model: nn.Module,
    problem: Problem,
    *,
    method: str | methods.Method = "asc",
    evaluation: Problem | None = None,
    loss: LossFunction = row_losses,
    callbacks: Sequence[Callback] = (),
    out: Path | str | None = None,
    resume: bool = False,
    **settings: Any,
) -> Session:
    """Plan a run and iterate over its batches; the arguments are those of `fit`.

    `loss` is used where a method looks at losses on the side (asc, azb). Of people with several rows, batches have one
    row each. With `out`, checkpoints are kept; the same
    call with `resume=True` resumes a session that was interrupted.
    """
    require_problem(problem)
    plan = methods.plan(problem, method, **settings)
    return Session(prepare(Job(model, problem.drawn(), evaluation, loss, callbacks), plan, out, resume))
