"""Graphs: the autograd graph of one pass, read once: which leaves it reaches, and a key that fixes its structure.

Two passes with the same key are made of the same operations on tensors of the same shapes, with the same constants
(axes, slices, sizes), joined in the same way. What a graph's structure says about rows (`tracing`) therefore holds for
every pass with that key, whatever the values are. Where an operation's values matter, the key holds what was checked
of them in this very pass.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, _engine_run_backward, get_gradient_edge

from veil.gradients.records import GradientError

_LEAF = "torch::autograd::AccumulateGrad"


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """What all nodes of one type share: a name, and the constants that decide where rows go.

    `checked` is what is checked again in every pass, for nodes whose values decide where rows go; `alike` is True for
    operations whose one output has the shape of their one input, which the key then holds already; `straight` for those
    that leave rows first however many there are.
    """

    name: str
    built_in: bool
    constants: tuple[str, ...]
    checked: Callable[[Any, int], bool] | None
    leaf: bool
    product: bool
    alike: bool
    straight: bool


@dataclass(slots=True)
class Graph:
    """The nodes of one pass in the order they were found, from the one that made the losses (its output `start`) on."""

    nodes: list[Any]
    kinds: list[Kind]
    places: dict[Any, int]
    leaves: list[Tensor]
    start: int
    key: tuple[Hashable, ...]


# Constants of torch's own nodes that say which elements of the input an element of the output depends on.
_CONSTANTS = (
    *("_saved_dim", "_saved_dims", "_saved_dim0", "_saved_dim1", "_saved_keepdim", "_saved_shifts", "_saved_repeats"),
    *("_saved_split_size", "_saved_split_sizes", "_saved_pad", "_saved_normalized_shape", "_saved_transposed"),
)
# Constants whose names stand for tensors in other nodes.
_CONSTANTS_OF = {
    "NativeBatchNormBackward0": ("_saved_training",),
    "SelectBackward0": ("_saved_index",),
    "SliceBackward0": ("_saved_start", "_saved_end", "_saved_step"),
}
_ALIKE = {
    f"{name}Backward0"
    for name in ("Relu", "Tanh", "Sigmoid", "Gelu", "Silu", "LogSoftmax", "Softmax", "Exp", "Log", "Neg")
}
_KINDS: dict[type, Kind] = {}


def in_order(node: Any, rows: int) -> bool:
    """Whether an indexing node takes the rows as they stand: its first index is 0, 1, 2, … in this very pass."""
    first, *others = node._saved_indices or (None,)
    if not isinstance(first, Tensor) or first.dtype != torch.int64 or first.shape != (rows,):
        return False
    # An index of another shape would be broadcast against the first, and take every row for every row.
    if any(other.shape != (rows,) for other in others if other is not None):
        return False
    return bool(torch.equal(first, torch.arange(rows, device=first.device)))


_CHECKED = {"IndexBackward0": in_order}


def kind_of(node: Any) -> Kind:
    """The kind of a node; a user's own autograd function is never taken for one of torch's."""
    kind = _KINDS.get(type(node))
    if kind is None:
        name, built_in = node.name(), not isinstance(node, BackwardCFunction)
        constants = tuple(c for c in _CONSTANTS if hasattr(type(node), c)) + _CONSTANTS_OF.get(name, ())
        product = built_in and name in ("AddmmBackward0", "MmBackward0")
        alike = built_in and name in _ALIKE
        kind = Kind(
            name=name,
            built_in=built_in,
            constants=constants if built_in else (),
            checked=_CHECKED.get(name) if built_in else None,
            leaf=name == _LEAF,
            product=product,
            alike=alike,
            straight=product or alike or (built_in and name == "NllLossBackward0"),
        )
        _KINDS[type(node)] = kind
    return kind


def _start(losses: Tensor) -> Any:
    """The node that made the losses; the tensor's own node for a leaf, None if there is no dependency."""
    if losses.grad_fn is None and losses.requires_grad:
        return get_gradient_edge(losses).node
    return losses.grad_fn


def read_graph(losses: Tensor, rows: int, past_products: bool = True) -> Graph:
    """Every node that the losses depend on.

    If not `past_products`, of a matrix product only what comes from the left is followed, and its key leaves out the
    shape of what it gives: the caller compares it.
    """
    start = _start(losses)
    nodes: list[Any] = [start] if start is not None else []
    kinds: list[Kind] = []
    leaves: list[Tensor] = []
    places: dict[Any, int] = dict.fromkeys(nodes, 0)
    code: list[Any] = [rows, losses.output_nr]
    known = _KINDS
    for node in nodes:  # grows on the way
        kind = known.get(type(node)) or kind_of(node)
        kinds.append(kind)
        code.append(kind)
        short = kind.product and not past_products
        # The losses have one value per row; what is behind an operation that is alike comes next.
        if not kind.alike and not short and node is not start:
            code.append(tuple([tuple(output.shape) for output in node._input_metadata]))
        if kind.leaf:
            leaves.append(node.variable)
            continue
        if kind.constants:
            code += [getattr(node, name) for name in kind.constants]
        if kind.checked is not None:
            code.append(kind.checked(node, rows))
        for after, number in node.next_functions[-2:-1] if short else node.next_functions:
            if after is None:
                code.append(None)
                continue
            place = places.get(after)
            if place is None:
                places[after] = place = len(nodes)
                nodes.append(after)
            code.append((place, number))
    return Graph(nodes, kinds, places, leaves, losses.output_nr, tuple(code))


def backward(losses: Tensor, inputs: Sequence[Tensor | GradientEdge]) -> tuple[Tensor | None, ...]:
    """The gradient of the sum of the losses at some tensors or edges of their graph; None where it does not reach.

    As `torch.autograd.grad`, whose checks of its arguments take a tenth of a small model's step.
    """
    return _engine_run_backward((losses,), (torch.ones_like(losses),), False, False, tuple(inputs), True, False)


def reject_checkpoints(kinds: Collection[Kind]) -> None:
    """Reject reentrant checkpointing, which keeps its parameters out of the graph."""
    if any(kind.name.endswith("CheckpointFunctionBackward") for kind in kinds):
        raise GradientError(
            "the model recomputes activations by reentrant checkpointing, which hides its parameters: "
            "remove torch.utils.checkpoint and limit memory with micro_batch or max_memory instead"
        )


def leaves_before(losses: Tensor, stops: Collection[Any]) -> list[Tensor]:
    """The leaves that the losses reach without passing one of some nodes."""
    leaves: list[Tensor] = []
    start = _start(losses)
    nodes = [start] if start is not None else []
    seen = set(nodes)
    for node in nodes:  # grows on the way
        if node in stops:
            continue
        variable = getattr(node, "variable", None)
        if variable is not None:
            leaves.append(variable)
        for after, _ in node.next_functions:
            if after is not None and after not in seen:
                seen.add(after)
                nodes.append(after)
    return leaves
