"""`session`: the user's own loop, with Veil drawing the rows, bounding, adding noise and keeping the ledger.

session = veil.session(model, problem, method="asc", epsilon=1.0)
for inputs, targets in session:
    losses = torch.nn.functional.cross_entropy(model(inputs), targets, reduction="none")
    session.step(losses)
run = session.finish()
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import CellType
from typing import Any
from weakref import ref

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from veil import methods
from veil.errors import require
from veil.foundation.row_draws import begin_step
from veil.gradients import GradientEngine, GradientSum
from veil.gradients.engine import added
from veil.gradients.loss_trace import LossTrace
from veil.gradients.open_pass import OpenPass
from veil.plans import LossFunction
from veil.plans.plan import OWN_LOOP
from veil.problem import Problem
from veil.releases import GradientRelease
from veil.request import default_method
from veil.sampling import Sampler
from veil.training.augmenting import begin_padding
from veil.training.callbacks import Callback, StopTraining
from veil.training.fitting import Job, Preparation, prepare, require_model, require_problem
from veil.training.loop import refuse_public_end
from veil.training.losses import Form, as_it_is, form_of, row_losses
from veil.training.run import Run
from veil.training.side_effects import refuse_written
from veil.training.trials import UNREACHED, check_rows_apart, learn

CLOSED = (
    "this session is closed, by a step that failed or by close(): resume the run from its folder (resume=True), or "
    "begin a new session"
)
FINISHED = "this session is finished, and its certificate covers the steps made so far: begin a new session to go on"


@dataclass(frozen=True)
class _Drawn:
    """The rows of a step, and what was summed up of those of its parts that are done."""

    step: int
    release: GradientRelease
    sampler: Sampler
    rows: NDArray[np.int64]
    sums: list[GradientSum] = field(default_factory=list)


@dataclass(frozen=True)
class _Waiting:
    """A part of the rows of a step that is waiting for `step`, and the recorder of its pass (None if it is empty)."""

    drawn: _Drawn
    rows: NDArray[np.int64]
    last: bool
    watched: OpenPass | None
    trace: LossTrace | None


class Session:
    """An iterator over batches. Call `step` once for every batch; `finish` returns the run.

    What a forward pass writes into the model (buffers, tensors in attributes) is undone by `step`. Make changes of your
    own to the model after `step` and before the next batch.

    With `micro_batch`, batches come in parts of at most so many rows, which limits memory. `step` is called for each
    part and updates the weights after the last one of a batch; then `updated` is True.

    Args:
        preparation: What `veil.session` made; use that function.

    >>> import torch, veil
    >>> from veil.datasets import GroupSpec, generate
    >>> rows = generate([GroupSpec("large", 300), GroupSpec("small", 60)])
    >>> model = torch.nn.Linear(10, 2)
    >>> session = veil.session(model, rows, method="dp-sgd", steps=3, batch_size=50)
    >>> for inputs, targets in session:
    ...     session.step(torch.nn.functional.cross_entropy(model(inputs), targets, reduction="none"))
    >>> session.finish().certificate.epsilon <= 1.0
    True
    """

    updated: bool = False

    def __init__(self, preparation: Preparation) -> None:
        self._preparation = preparation
        self._loop = preparation.loop
        self._waiting: _Waiting | None = None
        self._done = preparation.loop.first
        self._begun = self._closed = False
        self._run: Run | None = None
        self._running: Callable[[], Any] = lambda: None
        self._end_padding: Callable[[], None] = lambda: None
        self._forms: dict[Any, Form] = {_mark(preparation.loop.loss): as_it_is}
        loop = preparation.loop
        # A pass of one's own cannot be repeated: what the engine learns of a model by a second pass, it learns here.
        learn(loop.engine, loop.problem)

    def use(self, optimizer: torch.optim.Optimizer) -> None:
        """Update the weights by an optimizer of your own in place of the one that the settings name.

        What it sees are released gradients, so its choice costs no ε. Its learning rates are yours: a scheduler of
        torch works as usual, called after `step`. Call this before the first batch.

        Args:
            optimizer: Any that takes one gradient per update, over parameters of this session's model.

        Raises:
            InputError: If it is over other parameters, or if the session keeps a folder: the state of your optimizer is
                not in its checkpoints, so a resumed run would be another run.
        """
        require(not self._begun, "the session has begun: call use before the first batch")
        require(
            self._preparation.folder is None,
            "a session with an optimizer of your own cannot be resumed: omit out, and save the run with run.save(…)",
        )
        self._loop.optimizer.use(optimizer)

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
        self._end_batches()
        batches = self._batches()
        self._running = ref(batches)
        return batches

    def _batches(self) -> Generator[tuple[Any, Tensor], None, None]:
        loop = self._loop
        require(self._run is None, FINISHED)
        require(not self._closed, CLOSED)
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
                require(not self._closed, CLOSED)
                self._undo_writes()
                release, sampler = loop.prepare(step)
                if loop.plan.settings.micro_batch is None:  # parts of a batch are read when they are handed out
                    loop.look_ahead(sampler, step)
                drawn = _Drawn(step, release, sampler, sampler.draw(loop.seed, step))
                for start in range(0, max(1, len(drawn.rows)), size := self._part_size(drawn)):
                    yield from self._part(drawn, slice(start, start + size))

    def _part_size(self, drawn: _Drawn) -> int:
        """How many rows of a batch are handed out at once."""
        size, rows = self._loop.plan.settings.micro_batch, max(1, len(drawn.rows))
        if size is None or size >= rows:
            return rows
        local = drawn.release.bound.row_local or not drawn.release.bound.needs_norms
        require(
            local,
            "this method weighs a row by the others of its batch, so batches cannot come in parts: omit micro_batch or "
            "use veil.fit",
        )
        return size

    def _part(self, drawn: _Drawn, which: slice) -> Iterator[tuple[Any, Tensor]]:
        """Hand out some rows of a batch and watch what is made of them."""
        loop, rows = self._loop, drawn.rows[which]
        begin_step(loop.seed, drawn.step)  # another run may have been in between
        batch = loop.problem.batch(rows)
        if which.start == 0:
            loop.side_effects.note()
        else:
            # Between two parts nothing is released: what was made of the losses of one must not reach the next.
            require(
                not loop.side_effects.undo_weights(),
                "the weights were changed between the parts of a batch: change them when session.updated is True",
            )
        with ExitStack() as stack:
            watched = stack.enter_context(loop.engine.open(len(rows))) if len(rows) else None
            shown = len(rows) > 0 and loop.plan.private
            trace = LossTrace(loop.model, batch, drawn.step - loop.first) if shown else None
            self._waiting = _Waiting(drawn, rows, which.stop >= len(drawn.rows), watched, trace)
            stack.callback(self._undo_writes)
            if trace is not None:
                stack.enter_context(trace)
            self._end_padding = begin_padding(loop.problem.padding)
            stack.callback(self._end_padding)
            yield batch
        require(not self._closed, CLOSED)
        require(self._waiting is None, f"Batch {drawn.step} has no matching `session.step()`: call it for each batch.")

    def step(self, losses: Tensor | LossFunction) -> None:
        """One update from the losses of the rows of the batch: bounded, noisy, and paid for.

        Losses given as a tensor must come from one pass of the model over this batch, each from its own row, in the
        batch's order: no mixup, no weights by what other rows are. Where the model has layers that only the generic
        path serves, give a function `loss(model, batch)`; it is tried on synthetic rows first. Losses of another shape
        (a mean) are rejected at the first step, when its cost is reserved already: no session sees your loop earlier.

        Whatever is raised during a step, an interrupt too, closes the session. Going on might release the same step
        twice: once here, and once where the run is resumed from its folder.

        Args:
            losses: One loss for each row of the batch as a tensor, or a function `loss(model, batch)` that returns
                them.

        Raises:
            InputError: No batch is waiting for a step, the losses mix rows, or the session is closed.
            GradientError: The gradients of single rows cannot be computed.
        """
        require(not self._closed, CLOSED)
        require(self._waiting is not None, "no batch is waiting for a step: call step once for each batch")
        try:
            self._step(losses)
        except BaseException:
            self._shut()  # what hands out batches says so, should the loop go on
            raise
        finally:
            self._end_padding()

    def _step(self, losses: Tensor | LossFunction) -> None:
        assert self._waiting is not None
        now, loop, drawn = self._waiting, self._loop, self._waiting.drawn
        weigh = drawn.release.weigh(loop.problem, now.rows)
        if now.trace is not None:
            now.trace.__exit__(None, None, None)
        if isinstance(losses, Tensor) and now.watched is not None:
            if now.trace is not None:
                now.trace.check(losses)
                require(losses.requires_grad, UNREACHED)
                self._say_not_covered([OWN_LOOP])
            result = loop.engine.total(now.watched.finish(losses), weigh)
        else:
            if now.watched is not None:
                now.watched.__exit__(None, None, None)
            given = loop.loss if isinstance(losses, Tensor) else self._try(losses)
            batch = loop.problem.batch(now.rows)
            result = GradientEngine(loop.model, given).weighted_sum(batch, weigh, rows=len(now.rows))
        refuse_written(loop.side_effects.undo_weights())
        drawn.sums.append(result)
        self.updated = now.last
        if now.last:
            self._update(drawn)
        else:
            self._undo_writes()
            self._waiting = None

    def _update(self, drawn: _Drawn) -> None:
        """Noise on the sum of all parts, once, and the update by it."""
        loop, result, step = self._loop, added(drawn.sums), drawn.step
        self._preparation.hold_to_step(step, result)
        released = drawn.release.complete(result, loop.problem, drawn.rows, drawn.sampler, loop.seed, step, loop.noise)
        self._undo_writes()
        loop.side_effects.carry_on()
        self._waiting = None
        self._done = step + 1
        try:
            with torch.no_grad():
                loop.absorb(step, released)
        except StopTraining:
            refuse_public_end(loop.plan)
            raise

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
        """Release the run's folder without finishing; `session` with `resume=True` continues, this one does not."""
        self._end_batches()
        self._shut()

    def _shut(self) -> None:
        self._closed = True
        self._preparation.__exit__()

    def _end_batches(self) -> None:
        """End what hands out batches, also where its iterator is still held."""
        batches = self._running()
        if batches is not None and not batches.gi_running:
            batches.close()

    def finish(self) -> Run:
        """The run with its certificate; after it there are no more batches.

        A session that ended early keeps the guarantee of the whole plan; with `public_steps`, that of the steps made.

        Returns:
            The run: trained model, certificate, metrics and history. The same one if it is called again.

        Raises:
            InputError: The session was closed before, and its folder is there to resume the run from.
        """
        if self._run is None:
            # Somebody else may have resumed the run by now: its folder is theirs.
            require(not self._closed or self._preparation.folder is None, CLOSED)
            self._end_batches()
            self._undo_writes()
            if self._done < self._loop.plan.steps and self._loop.stopped is None:
                self._loop.stopped = f"ended by the user after {self._done} of {self._loop.plan.steps} steps"
            self._run = self._preparation.finish()
            self._closed = True
        return self._run


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
    method: str | methods.Method | None = None,
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

    Args:
        model: Any module whose rows do not mix; its parameters are trained in place.
        problem: Rows with groups, owners and people.
        method: A name, or a method with options. By default `asc` where there are several groups,
            `dp-sgd` where there is one.
        evaluation: Public rows to measure on.
        loss: Losses by row, where a method looks at losses on the side (asc, azb).
        callbacks: Told after every step.
        out: Folder for ledger, checkpoints and the finished run; none is written without it.
        resume: Continue the session that was interrupted in `out`.
        settings: Fields of `veil.plans.Settings`.

    Returns:
        The batches to iterate over; `step` takes the losses of each, `finish` gives the run.

    Raises:
        InputError: A setting is impossible, or `out` holds a run that this call may not continue.

    >>> import torch
    >>> from veil.datasets import GroupSpec, generate
    >>> problem, model = generate([GroupSpec("a", 90), GroupSpec("b", 30)]), torch.nn.Linear(10, 2)
    >>> steps = session(model, problem, method="dp-sgd", epsilon=1.0, steps=2, batch_size=20, seed=1)
    >>> for inputs, targets in steps:
    ...     steps.step(torch.nn.functional.cross_entropy(model(inputs), targets, reduction="none"))
    >>> steps.finish().certificate.private
    True
    """
    require_problem(problem)
    require_model(model)
    chosen = method or default_method(linear=False, groups=len(problem.public.groups) > 1)
    plan = methods.plan(problem, chosen, **settings)
    return Session(prepare(Job(model, problem.drawn(), evaluation, loss, callbacks), plan, out, resume))
