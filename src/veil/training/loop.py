"""The loop: reserve, draw, gradients, bound, noise, update, controller. Every SGD method runs through here."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from veil.accounting import AccountingError, Event, Ledger
from veil.foundation.randomness import Seed
from veil.gradients import GradientEngine, GradientError
from veil.gradients.model_state import ModelState
from veil.metrics import GroupMetrics, evaluate
from veil.models.applying import batches
from veil.noise import GaussianNoise
from veil.noise.filters import Weights
from veil.plans import LossFunction, Plan, Settings
from veil.plans.controllers import State
from veil.plans.controllers import gate as gates
from veil.problem import Problem, PublicFacts
from veil.releases import GradientRelease, Released
from veil.releases.process_group import Team
from veil.sampling import Sampler
from veil.sampling.draws import Draw
from veil.training.callbacks import Callback, StepReport, StopTraining
from veil.training.checkpoints import Progress
from veil.training.trials import carried

RESERVED_AT_ONCE = 100


@dataclass(frozen=True)
class _Snapshot:
    """What one update changes and a refusal puts back."""

    weights: Mapping[str, Tensor]
    average: tuple[int, Mapping[str, Tensor]]
    noise_filter: tuple[Weights, Weights] | None


@dataclass
class Loop:
    """Everything one run needs; `run` goes through the steps."""

    model: nn.Module
    problem: Problem
    plan: Plan
    loss: LossFunction
    seed: Seed
    ledger: Ledger | None
    evaluation: Problem | None = None
    callbacks: Sequence[Callback] = ()
    history: list[dict[str, Any]] = field(default_factory=list)
    stopped: str | None = None
    team: Team | None = None
    first: int = 0
    keep: Callable[[Progress], None] | None = None

    def __post_init__(self) -> None:
        self._held = ModelState(self.model) if self.plan.private else None
        self._weights: dict[str, Tensor] = {}
        self._carried = carried(self.model, self.problem, self.loss) if self.plan.private else None
        self.engine = GradientEngine(self.model, self._trained_loss(), micro_batch=self.plan.settings.micro_batch)
        self.noise = GaussianNoise(self.seed, secure=self.plan.settings.secure_noise)
        self._strata = self.problem.strata()
        self._parameters = dict(self.model.named_parameters())
        self._optimizer = make_optimizer(self.model, self.plan.settings)
        self._average = _Average(self.model, self.plan.settings.ema)
        self._filter = self.plan.noise_filter()
        self._state: State = self.plan.controller.start()
        self._drawn: tuple[Draw, Sampler] | None = None
        self._reserved: dict[str, tuple[int, Mapping[int, Event]]] = {}
        self.entries = 0
        self._next = self.first
        self._read: int | None = None
        self._readings: dict[int, dict[str, float]] = {}

    def run(self) -> None:
        """All steps of the plan, or until a callback stops it."""
        with self.around(), torch.random.fork_rng(devices=[]):
            for step in range(self.first, self.plan.steps):
                release, sampler = self.prepare(step)
                with self.untouched(), self._filter.ahead(self.model) if self._filter else nullcontext():
                    released = release.make(self.engine, self.problem, sampler, self.seed, step, self.noise, self.team)
                self.carry_on()
                self.absorb(step, released)

    def _trained_loss(self) -> LossFunction:
        """The loss that gradients are taken of; no micro-batch sees what another one wrote into the model."""
        loss = self.plan.transform(self.loss) if self.plan.transform else self.loss
        if self.plan.settings.micro_batch is None:
            return loss

        def afresh(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
            self.undo_writes()
            return loss(model, batch)

        return afresh

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """Undo whatever forward passes write into the model besides its weights: no noise covers that."""
        self.note_state()
        try:
            yield
        finally:
            self.undo_writes()
            written = self.undo_weights()
        refuse_written(written)

    def carry_on(self) -> None:
        """Let one pass over made-up rows change what passes change by themselves: it then depends on no row."""
        if self._carried is not None and self._held is not None:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                self.loss(self.model, self._carried)
            self._carried = self._carried if self._held.changed() else None

    def note_state(self) -> None:
        """Remember what the model holds."""
        if self._held is not None:
            self._held = self._held.renew()
            self._weights = {name: parameter.detach().clone() for name, parameter in self._trained()}

    def undo_weights(self) -> list[str]:
        """Put back the weights that passes changed since they were noted; returns their names."""
        written = [] if self._held is None else [n for n, p in self._trained() if not _same(p, self._weights.get(n))]
        with torch.no_grad():
            for name in written:
                self._parameters[name].copy_(self._weights[name])
        return written

    def _trained(self) -> list[tuple[str, Tensor]]:
        return [(name, parameter) for name, parameter in self._parameters.items() if parameter.requires_grad]

    def undo_writes(self, numbers: bool = True) -> None:
        """Put back what was noted; without `numbers`, attributes that were set to plain numbers stay."""
        if self._held is not None:
            self._held.put_back(numbers=numbers)

    @contextmanager
    def around(self) -> Iterator[None]:
        """What happens before the first step and after the last one, also when a callback stops the run."""
        for callback in self.callbacks:
            callback.on_start(self.plan)
        try:
            yield
        except StopTraining as reason:
            self.stopped = str(reason)
        finally:
            for callback in self.callbacks:
                callback.on_end()
        self._average.install(self.model)

    def prepare(self, step: int) -> tuple[GradientRelease, Sampler]:
        """The coming step's release, its cost reserved, and the sampler that draws its rows."""
        if step < self._next:
            raise AccountingError(f"step {step} was made before: its rows and its noise cannot be used again")
        # The generator itself: torch.manual_seed also prepares other devices, which takes longer than a small step.
        torch.default_generator.manual_seed(int(self.seed.generator("forward", step).integers(2**62)))
        release = self.plan.controller.release(self._state, step)
        self._reserve("gradient", release.events, self.plan.controller.steady(self._state, step), step)
        return release, self._sampler(release.draw)

    def absorb(self, step: int, released: Released) -> None:
        """Update the model, tell the controller, make the side release if there is one, and report."""
        controller = self.plan.controller
        self._next = step + 1
        seen = self._gated_update(released.gradient, step)
        state = controller.observe(self._state, step, released.statistics)
        side = controller.side_release(state, step)
        if side is not None:
            self._charge(side.purpose, step, 1, side.events(self.plan.facts))
            values = side.make(self._losses, self.problem, self.seed, step, self.noise)
            state = controller.hear(state, step, values)
        self._state = state
        self._report(step, state, {**released.statistics, **seen}, released.view)
        if self.keep is not None and self.kept_after(step + 1):
            self.keep(self.progress(step + 1))

    def kept_after(self, done: int) -> bool:
        """Whether a checkpoint is kept after so many whole steps; the last one is, as the model is measured then."""
        every = self.plan.settings.checkpoint_every or max(1, self.plan.steps // 20)
        return done % every == 0 or done == self.plan.steps

    def hear_of(self, step: int, state: Mapping[str, Any]) -> None:
        """A step of a solver, which reserves by itself."""
        if self.ledger is not None:
            self.entries = len(self.ledger.entries)
        self._report(step, state, {}, None)

    def progress(self, step: int) -> Progress:
        """Where the run stands after `step` whole steps: what a checkpoint keeps."""
        kept = self._optimizer.state_dict()["state"]
        return Progress(
            step=step,
            weights=self.model.state_dict(),
            optimizer=kept,
            average=self._average.state(),
            filter=self._filter.state() if self._filter else None,
            state=self._state,
            reserved=self._reserved,
            entries=self.entries,
            read=self._read,
            history=self.history,
            callbacks=[callback.state() for callback in self.callbacks if callback.steers()],
        )

    def go_on(self, progress: Progress) -> None:
        """Continue after the steps that were done before."""
        self.model.load_state_dict(dict(progress.weights))
        whole = self._optimizer.state_dict()
        self._optimizer.load_state_dict({**whole, "state": {i: dict(s) for i, s in progress.optimizer.items()}})
        for parameter, slots in self._optimizer.state.items():
            for name, value in slots.items():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    slots[name] = _laid_out_like(parameter, value)
        self._average.restore(progress.average)
        if self._filter and progress.filter:
            self._filter.restore((dict(progress.filter[0]), dict(progress.filter[1])))
        self._state, self._reserved, self.entries = progress.state, dict(progress.reserved), progress.entries
        self.history.extend(dict(record) for record in progress.history)
        steering = [callback for callback in self.callbacks if callback.steers()]
        for callback, state in zip(steering, progress.callbacks, strict=True):
            callback.restore(state)
        self.first = self._next = progress.step
        self._read = progress.read

    def _reserve(
        self, purpose: str, charge: Callable[[PublicFacts], Mapping[int, Event]], steady: int, step: int
    ) -> None:
        """Put the cost of the coming steps on disk before any row is drawn."""
        if self.ledger is None:
            return
        covered_until, covered = self._reserved.get(purpose, (0, {}))
        events = charge(self.plan.facts)
        if step < covered_until and events == covered:
            return
        count = max(1, min(steady, RESERVED_AT_ONCE, self.plan.steps - step))
        self._charge(purpose, step, count, events)
        self._reserved[purpose] = (step + count, events)

    def _charge(self, purpose: str, first: int, count: int, events: Mapping[int, Event]) -> None:
        if self.ledger is not None:
            self.entries = self.ledger.reserve(purpose, first, count, events)

    def _sampler(self, draw: Draw) -> Sampler:
        if self._drawn is None or self._drawn[0] != draw:
            self._drawn = (draw, draw.sampler(self._strata))
        return self._drawn[1]

    def _gated_update(self, gradient: Mapping[str, Tensor], step: int) -> dict[str, NDArray[np.float64]]:
        """Update; with a gate, test the update on fresh rows and take it back if it fails. Returns what was released.

        A step taken back leaves no trace in weights, average or noise filter; its cost stays spent. The optimizer
        forgets: with the momentum of before, the next try would go the same way, and no try would ever pass.
        """
        gate = self.plan.gate
        if gate is None:
            self._update(gradient, step)
            return {}
        self._reserve(gates.PURPOSE, gate.events, self.plan.steps, step)
        rows = gate.rows(self._strata, self.seed, step)
        before, losses = self._snapshot(), self._losses(rows)
        self._update(gradient, step)
        verdict = gate.judge(losses, self._losses(rows), self.plan.facts, step, self.noise)
        if not verdict.accepted:
            self._restore(before)
        return {"gate_change": np.array([verdict.change]), "accepted": np.array([float(verdict.accepted)])}

    def _snapshot(self) -> _Snapshot:
        return _Snapshot(
            {name: p.detach().clone() for name, p in self.model.named_parameters()},
            self._average.state(),
            self._filter.state() if self._filter else None,
        )

    def _restore(self, snapshot: _Snapshot) -> None:
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(snapshot.weights[name])
        self._optimizer.state.clear()
        self._average.restore(snapshot.average)
        if self._filter and snapshot.noise_filter:
            self._filter.restore(snapshot.noise_filter)

    def _update(self, gradient: Mapping[str, Tensor], step: int) -> None:
        rate = self.plan.settings.learning_rate * schedule(self.plan.settings.schedule, step, self.plan.steps)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        smooth = self._filter.smooth(gradient) if self._filter else gradient
        for name, parameter in self._parameters.items():
            parameter.grad = _laid_out_like(parameter, smooth.get(name))
        self._optimizer.step()
        for parameter in self._parameters.values():
            parameter.grad = None
        self._average.update(self.model)

    def _losses(self, rows: NDArray[np.int64]) -> Tensor:
        """The loss of each of some rows."""
        return self._own_losses(rows) if self.team is None else self.team.losses(self._own_losses, rows, self.problem)

    def _own_losses(self, rows: NDArray[np.int64]) -> Tensor:
        """The loss of each of some rows of this process, in pieces."""
        with torch.no_grad(), self.untouched():
            return torch.cat([self.loss(self.model, batch) for batch in batches(self.problem, rows)])

    def _report(self, step: int, state: Mapping[str, Any], statistics: Mapping[str, Any], view: Any) -> None:
        metrics = self._evaluate(step)
        spent = self._spent(step)
        record: dict[str, Any] = {"step": step, "epsilon": max(spent.values(), default=None)}
        for name, values in {**state, **statistics}.items():
            record[name] = np.atleast_1d(values).astype(float).tolist()
        if metrics is not None:
            record["worst_group_accuracy"] = metrics.worst_group_accuracy
            record["average_group_accuracy"] = metrics.average_group_accuracy
            record["accuracy"] = metrics.accuracy
            record["group_accuracy"] = [score.accuracy for score in metrics.by_group.values()]
        self.history.append(record)
        for callback in self.callbacks:
            seen = view if callback.private else None
            callback.on_step(StepReport(step, self.plan, self.model, state, statistics, metrics, spent, seen))

    def _evaluate(self, step: int) -> GroupMetrics | None:
        every = self.plan.settings.evaluate_every or max(1, self.plan.steps // 20)
        if self.evaluation is None or ((step + 1) % every and step + 1 != self.plan.steps):
            return None
        with self.untouched(), self._average.installed(self.model):
            return evaluate(self.model, self.evaluation, self.plan.facts.groups)

    def _spent(self, step: int) -> dict[str, float]:
        """The odometer by group, read at the first step and twenty times a run: a reading can cost more than a step."""
        if self.ledger is None:
            return {}
        due = (step + 1) % max(1, self.plan.steps // 20) == 0 or step + 1 == self.plan.steps
        if due or self._read is None:
            self._read = self.entries
        if self._read not in self._readings:
            # After a crash the ledger may be ahead of the run: the history shows what this step had cost.
            self._readings = {self._read: spent_by_group(self.ledger.upto(self._read), self.plan)}
        return self._readings[self._read]


def spent_by_group(ledger: Ledger, plan: Plan) -> dict[str, float]:
    """ε of what has been reserved so far, by group: a reading, not a guarantee."""
    accountant = plan.settings.accountant_for()
    known: dict[Any, float] = {}
    largest: dict[str, float] = {}
    for cell, account in enumerate(ledger.terms.accounts):
        key = (account.rule, frozenset(ledger.spent(cell)))
        if key not in known:
            known[key] = account.rule.reading(ledger.spent(cell), ledger.terms.delta, accountant)
        largest[account.group] = max(largest.get(account.group, 0.0), known[key])
    return largest


def refuse_written(weights: Sequence[str]) -> None:
    """Refuse what passes over rows gave that changed weights: rows would leave in them, and in it, without noise."""
    if weights:
        raise GradientError(
            f"the forward pass changes the parameter {weights[0]}, so it would hold private rows without noise: use a "
            "changed copy of it in forward"
        )


def _same(one: Tensor, other: Tensor | None) -> bool:
    """Whether two tensors hold the same values; NaN is the same as NaN."""
    if other is None or torch.equal(one, other):
        return True
    return bool(torch.isclose(one, other, 0.0, 0.0, equal_nan=True).all())


def make_optimizer(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """The optimizer of the settings over the trainable parameters."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if settings.optimizer == "sgd":
        return torch.optim.SGD(
            parameters,
            lr=settings.learning_rate,
            momentum=settings.momentum,
            weight_decay=settings.l2,
            fused=all(p.is_floating_point() for p in parameters),
        )
    kind = torch.optim.Adam if settings.optimizer == "adam" else torch.optim.AdamW
    return kind(parameters, lr=settings.learning_rate, weight_decay=settings.l2)


def _laid_out_like(parameter: Tensor, gradient: Tensor | None) -> Tensor | None:
    """The gradient in the parameter's order of memory: fused optimizers walk through both side by side."""
    if gradient is None or gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter, dtype=gradient.dtype).copy_(gradient)


def schedule(kind: str, step: int, steps: int) -> float:
    """The factor on the learning rate: a pure function of the step.

    >>> schedule("linear", 5, 10), schedule("cosine", 0, 10), schedule("constant", 9, 10)
    (0.5, 1.0, 1.0)
    """
    progress = step / max(steps, 1)
    if kind == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * progress))
    return 1.0 - progress if kind == "linear" else 1.0


class _Average:
    """An exponential moving average of the weights; it is post-processing and costs nothing."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._decay = decay
        self._count = 0
        self._weights = {n: p.detach().clone() for n, p in model.named_parameters()} if decay > 0 else {}

    def update(self, model: nn.Module) -> None:
        if not self._weights:
            return
        self._count += 1
        # Early on the average follows the weights closely, so that it does not remember the random start.
        decay = min(self._decay, (1 + self._count) / (10 + self._count))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                self._weights[name].lerp_(parameter, 1.0 - decay)

    def state(self) -> tuple[int, dict[str, Tensor]]:
        return self._count, {name: value.clone() for name, value in self._weights.items()}

    def restore(self, state: tuple[int, Mapping[str, Tensor]]) -> None:
        self._count, self._weights = state[0], {name: value.clone() for name, value in state[1].items()}

    def install(self, model: nn.Module) -> None:
        if self._weights:
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    parameter.copy_(self._weights[name])

    @contextmanager
    def installed(self, model: nn.Module) -> Iterator[None]:
        own = {n: p.detach().clone() for n, p in model.named_parameters()} if self._weights else {}
        self.install(model)
        try:
            yield
        finally:
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    if name in own:
                        parameter.copy_(own[name])
