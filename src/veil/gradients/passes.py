"""Passes: one forward and one backward pass over a micro-batch, and what it leaves behind."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from veil.gradients.batches import detached
from veil.gradients.contributions import Contribution, Rowwise, merged
from veil.gradients.fallback import per_row_gradients
from veil.gradients.layouts import Layout
from veil.gradients.recording import Recorder, unruled
from veil.gradients.records import Batch, FallbackWarning, GradientError, LossFn, RowFacts
from veil.gradients.replay import Maps, plain_maps, read, replay


@dataclass(slots=True)
class Memory:
    """What an engine remembers from pass to pass.

    Row layouts by structure, whom it has warned about, and the linear maps of a model that consists of nothing else.
    """

    layouts: dict[tuple[Any, ...], Layout | None] = field(default_factory=dict)
    warned: set[str] = field(default_factory=set)
    maps: Maps | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """Facts of the rows of one pass, and each parameter's contribution ready to be summed (rows not finite: zero)."""

    facts: RowFacts
    parts: dict[str, Contribution]


class _Gathering:
    """Collects contributions as the backward pass delivers them and turns them into norms as soon as it can."""

    def __init__(self, parameters: dict[str, Tensor], names: dict[int, str], keep: bool) -> None:
        self.parameters, self.names, self.keep = parameters, names, keep
        self.expected: dict[str, int] = {}
        self.pending: dict[str, list[Contribution]] = {}
        self.squares: list[Tensor] = []
        self.parts: dict[str, Contribution] = {}

    def arrived(self, parameter: Tensor, contribution: Contribution) -> None:
        """Take one use's contribution; once all uses of the parameter are in, settle it."""
        name = self.names[id(parameter)]
        expected = self.expected.get(name, 0)
        if expected == 1:
            self.settle(name, contribution)
        elif expected > 1:
            waiting = self.pending.setdefault(name, [])
            waiting.append(contribution)
            if len(waiting) == expected:
                self.settle(name, merged(self.pending.pop(name), self.parameters[name].shape))

    def settle(self, name: str, contribution: Contribution) -> None:
        """Compute the squared norms; keep the rest only if a sum will be asked for."""
        squares, kept = contribution.settle()
        self.squares.append(squares)
        if self.keep:
            self.parts[name] = kept

    def finish(self) -> None:
        """Settle the parameters some of whose uses the loss did not depend on."""
        for name, waiting in list(self.pending.items()):
            self.settle(name, merged(waiting, self.parameters[name].shape))
        self.pending.clear()


def run(
    model: nn.Module,
    loss: LossFn,
    batch: Batch,
    rows: int,
    parameters: dict[str, Tensor],
    memory: Memory,
    keep: bool = True,
) -> Outcome:
    """One forward and one backward pass over `rows` rows; with `keep` False only the facts are left."""
    batch = detached(batch)
    names = {id(parameter): name for name, parameter in parameters.items()}
    if memory.maps is not None and rows > 1:
        outcome = _replayed(model, loss, batch, rows, names, memory.maps, keep)
        if outcome is not None:
            return outcome
    gathering = _Gathering(parameters, names, keep)
    recorder = Recorder(names, rows, memory.layouts, gathering.arrived)
    try:
        with torch.enable_grad():
            with recorder:
                losses = loss(model, batch)
            check_losses(losses, rows)
            left = _backward(losses, recorder, gathering)
        memory.maps = None if left else plain_maps(recorder.uses, names, rows)
        if left:
            _warn(left, memory)
            chosen = {name: parameters[name] for name in left}
            for name, values in per_row_gradients(model, loss, batch, rows, chosen, memory.warned).items():
                gathering.settle(name, Rowwise(values))
        return _outcome(losses.detach(), gathering.squares, gathering.parts)
    finally:
        recorder.close()


def _replayed(
    model: nn.Module, loss: LossFn, batch: Batch, rows: int, names: dict[int, str], maps: Maps, keep: bool
) -> Outcome | None:
    """The pass by the short way; None if the graph is not the one that was recorded."""
    with torch.enable_grad():
        losses = loss(model, batch)
        check_losses(losses, rows)
        found = read(losses, names)
        if found is None or found[0] != maps:
            return None
        result = replay(losses, *found, keep)
    return None if result is None else _outcome(losses.detach(), *result)


def _backward(losses: Tensor, recorder: Recorder, gathering: _Gathering) -> list[str]:
    """Send every recorded call its gradient; returns the names of the parameters that need the fallback."""
    leaves = unruled(losses, recorder)
    inputs: list[Any] = [*recorder.roots, *leaves]
    if not inputs:
        return []
    recorder.settle_layouts(losses, inputs)
    left = _without_rule(recorder, leaves, gathering.parameters)
    expected = gathering.expected
    for use in recorder.uses:
        for name in recorder.trained(use):
            if name not in left:
                expected[name] = expected.get(name, 0) + 1
    torch.autograd.grad(losses, inputs, torch.ones_like(losses), allow_unused=True)
    gathering.finish()
    return left


def check_losses(losses: Any, rows: int) -> None:
    """Refuse a loss that is not one value per row."""
    if not isinstance(losses, Tensor) or losses.shape != (rows,):
        shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise GradientError(
            f"the loss returned {shape} for {rows} rows: it must return one value per row, shape ({rows},) "
            "(with torch losses: reduction='none')"
        )


def _without_rule(recorder: Recorder, leaves: list[Tensor], parameters: dict[str, Tensor]) -> list[str]:
    """Names of the parameters that some use leaves to the fallback, in the model's order."""
    found = {recorder.names[id(leaf)] for leaf in leaves if id(leaf) in recorder.names}
    for use in recorder.uses:
        if use.layout is None:
            found.update(recorder.trained(use))
    return [name for name in parameters if name in found]


def _warn(left: list[str], memory: Memory) -> None:
    fresh = [name for name in left if name not in memory.warned]
    if fresh:
        memory.warned.update(fresh)
        warnings.warn(
            f"no layer rule covers how the model uses {', '.join(fresh)}: their per-row gradients come from the "
            "slower generic path (torch.func)",
            FallbackWarning,
            stacklevel=4,
        )


def _outcome(losses: Tensor, found: list[Tensor], parts: dict[str, Contribution]) -> Outcome:
    squares = found[0] if found else torch.zeros_like(losses)
    for more in found[1:]:
        squares = squares + more
    # A finite inner product means that every factor is finite; anything else is looked at row by row.
    if squares.dtype == losses.dtype and math.isfinite(torch.dot(squares, losses).item()):
        finite = torch.ones(losses.shape, dtype=torch.bool, device=losses.device)
        return Outcome(RowFacts(losses, squares.sqrt(), finite), parts)
    finite = torch.isfinite(squares) & torch.isfinite(losses)
    losses, squares = losses.where(finite, losses.new_zeros(())), squares.where(finite, squares.new_zeros(()))
    parts = {name: part.kept(finite) for name, part in parts.items()}
    return Outcome(RowFacts(losses, squares.sqrt(), finite), parts)
