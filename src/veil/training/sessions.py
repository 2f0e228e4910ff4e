"""`session`: the user's own loop, with Veil drawing the rows, bounding, adding noise and keeping the ledger.

session = veil.session(model, problem, method="asc", epsilon=1.0)
for inputs, targets in session:
    losses = torch.nn.functional.cross_entropy(model(inputs), targets, reduction="none")
    session.step(losses)
run = session.finish()
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from veil import methods
from veil.errors import require
from veil.gradients import GradientEngine
from veil.gradients.open_pass import OpenPass
from veil.plan import LossFunction, Settings
from veil.problem import Problem
from veil.release import GradientRelease
from veil.sampling import Sampler
from veil.training.callbacks import Callback
from veil.training.fitting import Preparation, prepare, row_losses
from veil.training.run import Run


class Session:
    """An iterator over batches. Every batch must be answered by one `step`; `finish` gives the run."""

    def __init__(self, preparation: Preparation) -> None:
        self._preparation = preparation
        self._loop = preparation.loop
        self._waiting: tuple[int, GradientRelease, Sampler, NDArray[np.int64], OpenPass | None] | None = None
        self._done = preparation.loop.first
        self._begun = False

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Draw batch after batch; the cost of each is reserved before its rows are read.

        A second `for` after a `break` goes on with the next batch. Batches are planned and paid for once: when they
        are used up, there are no more.
        """
        loop = self._loop
        require(
            not self._begun or self._done < loop.plan.steps,
            f"all {loop.plan.steps} batches of this session are used: plan more steps or epochs, and iterate once",
        )
        self._begun = True
        require(loop.plan.gate is None, "a method that takes updates back needs the loss as a function: use veil.fit")
        require(loop.team is None, "a session has one process: in a team of processes use veil.fit")
        require(loop.plan.settings.noise_filter == "none", "a noise filter looks ahead of the weights: use veil.fit")
        with loop.around():
            for step in range(self._done, loop.plan.steps):
                release, sampler = loop.prepare(step)
                rows = sampler.draw(loop.seed, step)
                with ExitStack() as stack:
                    watched = stack.enter_context(loop.engine.open(len(rows))) if len(rows) else None
                    self._waiting = (step, release, sampler, rows, watched)
                    yield loop.problem.batch(rows)
                require(self._waiting is None, f"batch {step} was not answered: call session.step(losses) for each")

    def step(self, losses: Tensor | LossFunction) -> None:
        """One update from the losses of the rows of the batch: bounded, noisy, and paid for.

        Losses given as a tensor must come from one pass of the model over this batch. Where the model has layers that
        only the generic path serves, give a function `loss(model, batch)`.
        """
        try:
            self._step(losses)
        except BaseException:
            self.close()
            raise

    def _step(self, losses: Tensor | LossFunction) -> None:
        require(self._waiting is not None, "there is no batch to answer: call step once for each batch")
        assert self._waiting is not None
        step, release, sampler, rows, watched = self._waiting
        loop, weigh = self._loop, release.weigh(self._loop.problem, rows)
        if isinstance(losses, Tensor) and watched is not None:
            result = loop.engine.total(watched.finish(losses), weigh)
        else:
            if watched is not None:
                watched.__exit__(None, None, None)
            given = row_losses if isinstance(losses, Tensor) else losses
            result = GradientEngine(loop.model, given).weighted_sum(loop.problem.batch(rows), weigh, rows=len(rows))
        self._preparation.hold_to_step(step, result)
        released = release.complete(result, loop.problem, rows, sampler, loop.seed, step, loop.noise)
        self._waiting = None
        self._done = step + 1
        with torch.no_grad():
            loop.absorb(step, released)

    def close(self) -> None:
        """Give the run's folder free without finishing; whoever calls `session` with `resume=True` goes on."""
        self._preparation.__exit__()

    def finish(self) -> Run:
        """The run with its certificate. A session that ended early keeps the guarantee of the whole plan."""
        if self._done < self._loop.plan.steps and self._loop.stopped is None:
            self._loop.stopped = f"ended by its user after {self._done} of {self._loop.plan.steps} steps"
        return self._preparation.finish()


def session(
    model: nn.Module,
    problem: Problem,
    *,
    method: str | methods.Method = "asc",
    options: Mapping[str, Any] | None = None,
    evaluation: Problem | None = None,
    loss: LossFunction = row_losses,
    callbacks: Sequence[Callback] = (),
    out: Path | str | None = None,
    resume: bool = False,
    **settings: Any,
) -> Session:
    """Plan a run and hand out its batches. `loss` is used where a method looks at losses on the side (asc, azb).

    With `out`, checkpoints are kept; the same call with `resume=True` goes on with a session that was cut short.
    """
    chosen = methods.create(method, options) if isinstance(method, str) else method
    plan = methods.planned(chosen, problem.public, Settings.checked(**settings))
    return Session(prepare(plan, model, problem, evaluation, loss, callbacks, (), out, {}, resume))
