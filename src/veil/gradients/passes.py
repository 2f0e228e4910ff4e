"""Passes: one forward and one backward pass over a micro-batch, and its result."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointError
from torch.utils.hooks import RemovableHandle

from veil.foundation.generators import random_state, set_random_state
from veil.gradients.batches import detached
from veil.gradients.contributions import Contribution, Rowwise, Space, merged
from veil.gradients.fallback import per_row_gradients
from veil.gradients.graphs import backward, leaves_before, read_graph, reject_checkpoints
from veil.gradients.local import Watch, draws_random_numbers, owners, per_row_of_module
from veil.gradients.recording import Recorder, Structures
from veil.gradients.records import Batch, FallbackWarning, GradientError, LossFn, PerRow
from veil.gradients.replay import Plain, places_of, plain_maps, read, replay

# Memory kept from pass to pass, as a share of the activations that the recorded calls hold anyway.
HELD_SHARE = 0.35
# In anything coarser a sum over a batch is rounded by more than one row may move it.
PRECISE = (torch.float32, torch.float64)
_TRUE = torch.ones(1, dtype=torch.bool)


@dataclass(slots=True)
class Memory:
    """What an engine remembers from pass to pass.

    Where rows stand by the structure of a pass; whom it has warned about; what it knows of a model that consists of
    nothing but linear maps; the modules without a rule (None before the first pass); the bytes that one row takes by
    the shapes of a row; and memory for gradients that are written out.
    """

    structures: Structures = field(default_factory=Structures)
    warned: set[str] = field(default_factory=set)
    plain: Plain | None = None
    watched: tuple[str, ...] | None = None
    row_bytes: dict[tuple[Any, ...], int] = field(default_factory=dict)
    space: Space = field(default_factory=Space)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Norms and losses of one pass, and each parameter's contribution ready to be summed (rows not finite: zero)."""

    per_row: PerRow
    parts: dict[str, Contribution]


class _Gathering:
    """Collects contributions as the backward pass delivers them and turns them into norms as soon as it can."""

    def __init__(self, parameters: dict[str, Tensor], names: dict[int, str], keep: bool, space: Space) -> None:
        self.parameters, self.names, self.keep, self.space = parameters, names, keep, space
        self.expected: dict[str, int] = {}
        self.pending: dict[str, list[Contribution]] = {}
        self.squares: dict[str, Tensor] = {}
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
        squares, kept = contribution.settle(partial(self.space.take, name))
        self.squares[name] = squares
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
    """One forward and one backward pass over `rows` rows; with `keep` False only the norms and losses are left."""
    batch = detached(batch)
    names = {id(parameter): name for name, parameter in parameters.items()}
    device = next(iter(parameters.values())).device
    state = random_state(device) if memory.watched is None else None
    outcome = _recorded(model, loss, batch, rows, parameters, names, memory, keep)
    if outcome is None and state is not None:
        # Some modules have no rule and will be watched: once more, from the same random numbers, as all later passes.
        set_random_state(device, state)
        outcome = _recorded(model, loss, batch, rows, parameters, names, memory, keep)
    assert outcome is not None
    return outcome


def run_again(
    model: nn.Module, loss: LossFn, batch: Batch, rows: int, memory: Memory, keep: bool = True
) -> Outcome | None:
    """The pass by the short way, if there is one and the graph is the one that was recorded; else None."""
    plain = memory.plain
    if plain is None or rows < 2 or not plain.holds():
        return None
    if not torch.is_grad_enabled():
        with torch.enable_grad():
            return run_again(model, loss, batch, rows, memory, keep)
    hooks = RemovableHandle.next_id
    losses = loss(model, detached(batch))
    check_losses(losses, rows)
    # Every hook that is set, on a tensor or on a node, takes the next number. The graph does not show them.
    nodes = read(losses, plain, rows) if RemovableHandle.next_id == hooks else None
    if nodes is None:
        return None
    result = replay(losses, plain.maps, nodes, keep)
    return None if result is None else _outcome(losses.detach(), *result, plain.names.values())


def begin(model: nn.Module, rows: int, parameters: dict[str, Tensor], memory: Memory) -> tuple[_Gathering, Recorder]:
    """The recorder for a pass that the caller runs."""
    names = {id(parameter): name for name, parameter in parameters.items()}
    gathering = _Gathering(parameters, names, True, memory.space)
    return gathering, Recorder(parameters, model.buffers(), rows, memory.structures, gathering.arrived)


def conclude(losses: Tensor, rows: int, recorder: Recorder, gathering: _Gathering) -> tuple[Outcome, list[str]]:
    """The backward pass of such a pass, and the names of the parameters that only the fallback could serve."""
    check_losses(losses, rows)
    left = _backward(losses, recorder, gathering)
    return _outcome(losses.detach(), gathering.squares, gathering.parts, gathering.parameters), left


def _recorded(
    model: nn.Module,
    loss: LossFn,
    batch: Batch,
    rows: int,
    parameters: dict[str, Tensor],
    names: dict[int, str],
    memory: Memory,
    keep: bool,
) -> Outcome | None:
    """The pass under the recorder; None if modules without a rule were found for the first time."""
    gathering = _Gathering(parameters, names, keep, memory.space)
    recorder = Recorder(parameters, model.buffers(), rows, memory.structures, gathering.arrived)
    watch = Watch(model, memory.watched or (), recorder)
    try:
        with torch.enable_grad():
            with recorder:
                losses = loss(model, batch)
            watch.stop()
            check_losses(losses, rows)
            left = _backward(losses, recorder, gathering)
        first, memory.watched = memory.watched is None, memory.watched or ()
        maps = None if left else plain_maps(recorder.uses, names, rows)
        places = None if maps is None else places_of(model, parameters)
        memory.plain = None if maps is None or places is None else Plain(maps, names, places)
        if left and first:
            memory.watched = tuple(dict.fromkeys(name for around in owners(left).values() for name in around))
            if memory.watched:
                return None
        if left:
            _warn(left, memory)
            # A use with a rule is not in the graph: a parameter that has one acts outside of what a module shows.
            used = {name for use in recorder.uses if use.place is not None for name in recorder.trained(use)}
            alone = [name for name in left if name not in used]
            found = _by_modules(model, losses, watch, rows, parameters, alone)
            chosen = {name: parameters[name] for name in left if name not in found}
            if chosen:
                found |= per_row_gradients(model, loss, batch, rows, chosen, memory.warned)
            for name, values in found.items():
                gathering.settle(name, Rowwise(values))
        return _outcome(losses.detach(), gathering.squares, gathering.parts, parameters)
    finally:
        watch.close()
        recorder.close()


def _by_modules(
    model: nn.Module,
    losses: Tensor,
    watch: Watch,
    rows: int,
    parameters: dict[str, Tensor],
    left: list[str],
) -> dict[str, Tensor]:
    """Per-row gradients of those parameters that act only within one call of a watched module."""
    found: dict[str, Tensor] = {}
    waiting: dict[str, list[str]] = {}
    for name, around in owners(left).items():
        for inner in around:
            waiting.setdefault(inner, []).append(name)
    for inner in sorted(waiting, key=len, reverse=True):
        names, calls, module = waiting[inner], watch.calls.get(inner, []), model.get_submodule(inner)
        if len(calls) != 1 or draws_random_numbers(module):
            continue
        reached = {id(leaf) for leaf in leaves_before(losses, calls[0].nodes)}
        inside = [name for name in names if name not in found and id(parameters[name]) not in reached]
        own = {name[len(inner) + 1 :]: parameters[name] for name in inside}
        result = per_row_of_module(module, calls[0], rows, own) if own else None
        for name, values in (result or {}).items():
            found[f"{inner}.{name}"] = values
    return found


def _backward(losses: Tensor, recorder: Recorder, gathering: _Gathering) -> list[str]:
    """Send every recorded call its gradient; returns the names of the parameters that need the fallback."""
    graph = read_graph(losses, recorder.rows)
    reject_checkpoints(graph.kinds)
    leaves = [leaf for leaf in graph.leaves if id(leaf) in recorder.names]
    inputs: list[Any] = [*recorder.roots, *leaves]
    if not inputs or not losses.requires_grad:
        return []
    recorder.settle_layouts(losses, graph, inputs)
    # Let go of the nodes: what they hold is free again as soon as the backward pass is done with them.
    del graph
    for use in recorder.uses:
        use.edge = (None, 0)
    left = _without_rule(recorder, leaves, gathering.parameters)
    expected = gathering.expected
    gathering.space.limit = int(HELD_SHARE * sum(use.size for use in recorder.uses))
    for use in recorder.uses:
        for name in recorder.trained(use):
            if name not in left:
                expected[name] = expected.get(name, 0) + 1
    backward(losses, inputs)
    gathering.finish()
    return left


def in_words(error: Exception) -> GradientError | None:
    """A torch error as a sentence with the fix; None for other errors."""
    if "index out of range in self" in str(error):
        return GradientError(
            "a row holds a whole number that the model has no entry for (an embedding with too few): "
            "give the embedding more entries, or check the rows"
        )
    if isinstance(error, CheckpointError):
        return GradientError(
            "the model recomputes activations (gradient checkpointing), which is not supported: turn it off, and "
            "limit memory with micro_batch or max_memory"
        )
    if "compiled with non-empty donated buffers" in str(error):
        return GradientError(
            "the model calls a function of torch.compile, which hides the layers inside of it: call the function as it "
            "was before"
        )
    if "modified by an inplace operation" in str(error):
        return GradientError(
            "the model modifies in place a tensor that its backward pass needs: modify a copy (x = x.clone())"
        )
    return None


def check_losses(losses: Any, rows: int) -> None:
    """Reject a loss that is not one value per row."""
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
        if any(given.tensor is not given.behind[0] and given.changed for given in use.parameters):
            use.layout = None  # a computed weight that was changed after its use: its graph is that of the new one
        if use.layout is None and use.place is not None:
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


def _outcome(losses: Tensor, found: dict[str, Tensor], parts: dict[str, Contribution], order: Iterable[str]) -> Outcome:
    squares: Tensor | None = None
    # Always added in the model's order, so that every way to them gives the same bits.
    for name in order:
        if name in found:
            if found[name].dtype not in PRECISE:
                kind = str(found[name].dtype).removeprefix("torch.")
                raise GradientError(
                    f"the gradients of {name} are in {kind}, too imprecise to bound single rows: train in float32, "
                    "without autocast"
                )
            squares = found[name] if squares is None else squares + found[name]
    squares = torch.zeros_like(losses) if squares is None else squares
    # A finite inner product means that every factor is finite; anything else is looked at row by row.
    if squares.dtype == losses.dtype and math.isfinite(torch.dot(squares, losses).item()):
        finite = (_TRUE if losses.is_cpu else _TRUE.to(losses.device)).expand(losses.shape)
        return Outcome(PerRow(losses, squares.sqrt(), finite), parts)
    finite = torch.isfinite(squares) & torch.isfinite(losses)
    losses, squares = losses.where(finite, losses.new_zeros(())), squares.where(finite, squares.new_zeros(()))
    parts = {name: part.kept(finite) for name, part in parts.items()}
    return Outcome(PerRow(losses, squares.sqrt(), finite), parts)
