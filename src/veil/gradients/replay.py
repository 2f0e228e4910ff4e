"""Replay: a fast path for models of plain linear layers whose structure was recorded before.

Models for tables are small: watching their forward pass costs more than the pass itself. Once a recorded pass has
shown that every trainable parameter sits in a linear map of (rows, features), the next passes run the model as it is
and read inputs and output gradients off the autograd graph. The graph is read in full in every pass, must be made of
the very same linear maps, and must say where the rows stand: anything else is recorded again.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from veil.gradients.contributions import Contribution, Rowwise, Single, product_squares, squared_norms
from veil.gradients.graphs import Graph, backward, read_graph
from veil.gradients.layouts import FIRST
from veil.gradients.recording import Use
from veil.gradients.tracing import traced

Maps: TypeAlias = tuple[tuple[str, str | None, int], ...]
"""Names of weight and bias of every linear map and the width of what it gives, sorted."""
Place: TypeAlias = tuple[dict[str, Any], str, Any]
"""The dict of a module, a key, and the submodule or parameter that it holds there."""


@dataclass(slots=True)
class Plain:
    """A model of nothing but linear maps: its maps, its parameters' names by identity, graphs that were traced.

    `places` is where the model holds its parameters: while each of them is held there, the names are right.
    """

    maps: Maps
    names: dict[int, str]
    places: list[Place]
    traced: set[Hashable] = field(default_factory=set)
    pairs: list[tuple[str, str | None]] = field(init=False)

    def __post_init__(self) -> None:
        self.pairs = [(weight, bias) for weight, bias, _ in self.maps]

    def holds(self) -> bool:
        """Whether every parameter still has the name that it had when the model was recorded."""
        return all(holder.get(name) is held for holder, name, held in self.places)


def places_of(model: nn.Module, parameters: dict[str, Tensor]) -> list[Place] | None:
    """What the model holds on the way to each parameter, and the parameter; None if its names are no such ways."""
    places: dict[str, Place] = {}
    for name, parameter in parameters.items():
        *path, last = name.split(".")
        module = model
        for depth, part in enumerate(path):
            inner = module._modules.get(part)
            if inner is None:
                return None
            places[".".join(path[: depth + 1])] = (module._modules, part, inner)
            module = inner
        places[name] = (module._parameters, last, parameter)
    return list(places.values())


def plain_maps(uses: list[Use], names: dict[int, str], rows: int) -> Maps | None:
    """The linear maps that the uses consist of, if they are nothing else and hold all parameters once."""
    maps: list[tuple[str, str | None, int]] = []
    for use in uses:
        if use.label != "linear" or use.layout != FIRST or use.shape[: use.lead] != (rows,):
            return None
        found = [names.get(id(given.tensor)) for given in use.parameters]
        if use.parameters[0].tensor.ndim != 2 or len(found) > 2 or found[0] is None or found[-1] is None:
            return None
        maps.append((found[0], found[1] if len(found) == 2 else None, use.shape[-1]))
    used = [name for weight, bias, _ in maps for name in (weight, bias) if name is not None]
    return tuple(sorted(maps, key=lambda linear: linear[0])) if len(set(used)) == len(used) == len(names) else None


def read(losses: Tensor, plain: Plain, rows: int) -> list[Any] | None:
    """The node of every linear map, in the order of the maps; None if the graph is not made of them, rows first."""
    graph = read_graph(losses, rows, past_products=False)
    if graph.leaves:
        return None
    maps: list[tuple[str, str | None]] = []
    nodes: list[Any] = []
    for node, kind in zip(graph.nodes, graph.kinds, strict=True):
        if kind.product:
            pair = _map_of(kind.name, node.next_functions, plain.names)
            if pair is None:
                return None
            maps.append(pair)
            nodes.append(node)
    if len(maps) > 1:
        order = sorted(range(len(maps)), key=lambda place: maps[place][0])
        maps, nodes = [maps[place] for place in order], [nodes[place] for place in order]
    if maps != plain.pairs:
        return None
    key = _for_any_rows(graph)
    if key not in plain.traced:
        pitches = traced(graph, rows)
        shapes = [node._input_metadata[0].shape for node in nodes]
        if any(
            shape[0] != rows or pitches.get((node, 0)) != shape[1] for node, shape in zip(nodes, shapes, strict=True)
        ):
            return None
        plain.traced.add(key)
    return nodes


def _for_any_rows(graph: Graph) -> Hashable:
    """A key of the graph, the same for other numbers of rows where the answer is.

    Between linear maps of (rows, width) and the losses, operations that are alike keep these shapes, so rows stand
    first in all of them or in none. Other operations (a view) may answer otherwise for another number of rows.
    """
    return ("any", *graph.key[1:]) if all(kind.straight for kind in graph.kinds) else graph.key


def _map_of(kind: str, following: Any, names: dict[int, str]) -> tuple[str, str | None] | None:
    turned = following[-1][0]
    if turned is None or turned.name() != "TBackward0":
        return None
    weight = getattr(turned.next_functions[0][0], "variable", None)
    name = names.get(id(weight))
    if weight is None or name is None:
        return None
    if kind == "MmBackward0":
        return name, None
    bias = getattr(following[0][0], "variable", None)
    shift = names.get(id(bias))
    # A bias of another shape is broadcast: its gradient is then a sum over features.
    return None if bias is None or shift is None or bias.shape != weight.shape[:1] else (name, shift)


def replay(
    losses: Tensor, maps: Maps, nodes: list[Any], keep: bool
) -> tuple[dict[str, Tensor], dict[str, Contribution]] | None:
    """Squared norms and contributions of a graph that `read` understood.

    None if the inputs of its maps were not kept, or if a map has another shape than it had when it was recorded.
    """
    inputs = [_input_of(node) for node in nodes]
    rows = losses.shape[0]
    if any(input is None or input.shape[0] != rows for input in inputs):
        return None
    gradients = backward(losses, [GradientEdge(node, 0) for node in nodes])
    squares: dict[str, Tensor] = {}
    parts: dict[str, Contribution] = {}
    for (weight, bias, width), gradient, input in zip(maps, gradients, inputs, strict=True):
        if gradient is None:
            continue
        if gradient.shape != (rows, width):
            return None
        input = input.detach() if input.requires_grad else input
        own = squared_norms(gradient)
        squares[weight] = product_squares(gradient, input, own)
        if bias is not None:
            squares[bias] = own
        if keep:
            parts[weight] = Single(gradient, input)
            if bias is not None:
                parts[bias] = Rowwise(gradient)
    return squares, parts


def _input_of(node: Any) -> Any:
    """What a linear map was applied to; None if the node did not keep it, or scales its terms."""
    if node.name() == "MmBackward0":
        return getattr(node, "_saved_self", None)
    scaled = getattr(node, "_saved_alpha", 1) != 1 or getattr(node, "_saved_beta", 1) != 1
    return None if scaled else getattr(node, "_saved_mat1", None)
