"""The loop: reserve, sample, gradients, bound, noise, update, controller. Every SGD method runs through here.

Its parts are beside it: `reservations`, `optimizer` (with schedule and average), `side_effects` of forward
passes, `reporting`, `checkpoints` and `process_group`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import InitVar, dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from veil.accounting import AccountingError, Ledger
from veil.errors import require
from veil.foundation.generators import set_seed
from veil.foundation.randomness import Seed, SeedsAhead
from veil.foundation.row_draws import begin_step, end_steps
from veil.gradients import GradientEngine
from veil.models.applying import batches
from veil.models.calling import device_of
from veil.noise import NoiseAhead
from veil.plans import LossFunction, Plan
from veil.plans.controllers import State
from veil.plans.controllers import gate as gates
from veil.problem import Problem
from veil.releases import GradientRelease, Released
from veil.sampling import RowsAhead, Sampler
from veil.sampling.draws import Draw
from veil.training.augmenting import PaddedBy
from veil.training.callbacks import Callback, StopTraining
from veil.training.checkpoints import Checkpointer, Progress
from veil.training.learning_rate import with_learning_rate
from veil.training.optimizer import Optimizer
from veil.training.person_losses import by_person, transformed
from veil.training.process_group import ALONE, ProcessGroup
from veil.training.reading_ahead import read_ahead
from veil.training.reporting import Reporter
from veil.training.reservations import Reservations
from veil.training.side_effects import SideEffects


@dataclass
class Loop:
    """Everything one run needs; `run` goes through the steps."""

    model: nn.Module
    problem: Problem
    plan: Plan
    loss: LossFunction
    seed: Seed
    ledger: InitVar[Ledger | None]
    evaluation: Problem | None = None
    callbacks: Sequence[Callback] = ()
    processes: ProcessGroup = ALONE
    first: int = 0
    stopped: str | None = None

    def __post_init__(self, ledger: Ledger | None) -> None:
        self.plan = with_learning_rate(self.plan, self.model)
        model, plan = self.model, self.plan
        if plan.solver is None:
            self.problem, self.loss = by_person(self.problem, self.loss)
        self.side_effects = SideEffects(model, self.problem, self.loss, private=plan.private)
        loss = transformed(self.loss, plan.transform)
        micro = plan.settings.micro_batch
        self.engine = GradientEngine(model, self.side_effects.undone_before(loss) if micro else loss, micro_batch=micro)
        self.noise = NoiseAhead(self.seed, secure=plan.settings.secure_noise)
        self.optimizer = Optimizer(model, plan)
        self.reservations = Reservations(plan, ledger)
        self.reporter = Reporter(
            model, plan, self.evaluation, self.callbacks, self.reservations, self.side_effects, self.optimizer.average
        )
        self.checkpointer = Checkpointer(model, plan, self.optimizer, self.reservations, self.reporter)
        self._device = device_of(model)
        self.problem = self.problem.on(self._device)
        self._ahead = read_ahead(self.problem, self.seed) if self.processes.alone else None
        self.problem = replace(self.problem, reader=self._ahead)
        self._strata = self.problem.strata()
        self._drawn: tuple[Draw, Sampler] | None = None
        self._rows = RowsAhead(self.seed)
        self._forward = SeedsAhead(self.seed, "forward", self.processes.rank)
        self._state: State = plan.controller.start()
        self._next = self.first

    def run(self) -> None:
        """All steps of the plan, or until a callback stops it."""
        with self.around(), torch.random.fork_rng(devices=[]):
            for step in range(self.first, self.plan.steps):
                release, sampler = self.prepare(step)  # reserve
                self.look_ahead(sampler, step)
                with self.side_effects.undone(), self.optimizer.look_ahead():
                    rows = self._rows.draw(sampler, step)  # sample
                    with PaddedBy(self.problem.padding):
                        # gradients, bound
                        bounded = self.processes.bounded_sum(release, self.engine, self.problem, rows)
                    released = release.complete(bounded, self.problem, rows, sampler, self.seed, step, self.noise)
                self.side_effects.carry_on()
                self.absorb(step, released)  # update, controller

    def prepare(self, step: int) -> tuple[GradientRelease, Sampler]:
        """The coming step's release, its cost reserved, and the sampler that draws its rows."""
        if step < self._next:
            raise AccountingError(f"step {step} was already made: its rows and noise cannot be used again")
        begin_step(self.seed, step)
        # The generators themselves: torch.manual_seed prepares all devices, which takes longer than a small step.
        # Of each process its own: rows at equal places of two processes would share what dropout draws.
        set_seed(self._device, self._forward.of(step))
        controller = self.plan.controller
        release = controller.release(self._state, step)
        self.reservations.reserve("gradient", release, controller.steady(self._state, step), step)
        return release, self._sampler(release.draw)

    def look_ahead(self, sampler: Sampler, step: int) -> None:
        """Have rows of the coming steps read while this one is computed: of those that are reserved, drawn alike."""
        if self._ahead is not None:
            alike = step + self.plan.controller.steady(self._state, step)
            self._ahead.follow(sampler, step, min(alike, self.reservations.until("gradient", step)))

    def absorb(self, step: int, released: Released) -> None:
        """Update the model, tell the controller, make the side release if there is one, report, keep a checkpoint."""
        with PaddedBy(None):  # callbacks may train on rows of their own
            controller = self.plan.controller
            self._next = step + 1
            tested = self._update(released, step)
            state = controller.observe(self._state, step, released.statistics)
            side = controller.side_release(state, step)
            if side is not None:
                self.reservations.charge(side.purpose, step, 1, side.events(self.plan.facts))
                values = side.make(self._losses, self.problem, self.seed, step, self.noise, self._strata)
                state = controller.hear(state, step, values)
            self._state = state
            self.reporter.report(step, state, {**released.statistics, **tested}, released.view)
            self.checkpointer.keep_if_due(step + 1, state)

    def _update(self, released: Released, step: int) -> dict[str, NDArray[np.float64]]:
        """Update; with a gate, test the update on fresh rows and take it back if it fails. Returns what was released.

        A step taken back leaves no trace in weights, average or noise filter; its cost stays spent.
        """
        gate = self.plan.gate
        if gate is None:
            self.optimizer.update(released.total, step, released.divisor)
            return {}
        self.reservations.reserve(gates.PURPOSE, gate, self.plan.steps, step)
        rows = gate.rows(self._strata, self.seed, step)
        take_back, losses = self.optimizer.snapshot(), self._losses(rows)
        self.optimizer.update(released.total, step, released.divisor)
        verdict = gate.judge(losses, self._losses(rows), self.plan.facts, step, self.noise)
        if not verdict.accepted:
            take_back()
        return {"gate_change": np.array([verdict.change]), "accepted": np.array([float(verdict.accepted)])}

    def _sampler(self, draw: Draw) -> Sampler:
        if self._drawn is None or self._drawn[0] != draw:
            self._drawn = (draw, draw.sampler(self._strata))
        return self._drawn[1]

    def _losses(self, rows: NDArray[np.int64]) -> Tensor:
        """The loss of each of some rows; in a process group everyone works on its share."""
        return self.processes.losses(self._own_losses, rows, self.problem)

    def _own_losses(self, rows: NDArray[np.int64]) -> Tensor:
        """The loss of each of some rows of this process, in pieces."""
        if len(rows) == 0:
            return torch.zeros(0, dtype=next(self.model.parameters()).dtype)
        with torch.no_grad(), self.side_effects.undone(), PaddedBy(self.problem.padding):
            return torch.cat([self.loss(self.model, batch) for batch in batches(self.problem, rows)]).cpu()

    @contextmanager
    def around(self) -> Iterator[None]:
        """What happens before the first step and after the last one, also when a callback stops the run."""
        with self.reporter.around():
            try:
                yield
            except StopTraining as reason:
                refuse_public_end(self.plan)
                self.stopped = str(reason)
            finally:
                end_steps()
                if self._ahead is not None:
                    self._ahead.close()
        self.optimizer.average.install()

    def progress(self) -> Progress:
        """The state before the first step."""
        return self.checkpointer.take(self.first, self._state)

    def go_on(self, progress: Progress) -> None:
        """Continue after the steps that were done before."""
        self.checkpointer.put_back(progress)
        self._state, self.first, self._next = progress.state, progress.step, progress.step


def refuse_public_end(plan: Plan) -> None:
    """Reject the end that a callback gives a run whose number of steps was stated to be public."""
    require(
        not plan.settings.public_steps,
        "a callback ended a run that was to end by public facts alone: omit public_steps",
    )
