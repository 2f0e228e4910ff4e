"""Tracing: where the rows of a batch stand in every tensor of a pass, read off the autograd graph alone.

The losses have one value per row. From there each operation says where the same rows stand in what it was computed
from: an addition leaves them in place, a transpose moves their axis, a sum over positions keeps them, a convolution has
them first. No value is looked at, so the answer holds for every pass with the same graph. Operations that move or join
rows by value (sorting them, indexing them, a user's own autograd function) and operations that are not known here give
no answer: what lies behind them is probed in every pass instead.

Where rows stand is one number, the *pitch*: element k of a tensor, counted in its logical order, belongs to row
(k // pitch) % rows. A view changes shapes and leaves the pitch alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, TypeAlias

from veil.gradients.graphs import Graph, in_order
from veil.gradients.layouts import Layout

Shape: TypeAlias = tuple[int, ...]
Pitches: TypeAlias = Sequence[int | None]
Edge: TypeAlias = tuple[Any, int]


@dataclass(frozen=True, slots=True)
class Step:
    """One operation, seen from its output: the node, where rows stand in what it gave, and what it was given."""

    node: Any
    number: int
    shape: Shape
    pitch: int
    rows: int
    given: tuple[Shape | None, ...]

    def axis(self) -> tuple[int, int] | None:
        """The axis that holds the rows and how many neighbours on it share a row; None if it is not one axis."""
        return _axis(self.shape, self.pitch, self.rows)

    def constant(self, name: str) -> Any:
        """A constant of the operation."""
        return getattr(self.node, f"_saved_{name}")


Rule: TypeAlias = Callable[[Step], Pitches]
_RULES: dict[str, Rule] = {}


def _for(*names: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        for name in names:
            _RULES[f"{name}Backward0"] = function
            if name in _SEVERAL:
                _RULES[f"{name}Backward1"] = function
                _RULES[f"{name}Backward2"] = function
        return function

    return register


# Operations of which torch has variants (a tensor or a number on one side, all or some axes) that are alike here.
_SEVERAL = {
    *("Add", "Sub", "Mul", "Div", "Pow", "Rsub", "Clamp", "ClampMax", "ClampMin", "MaskedFill", "LeakyRelu", "Elu"),
    *("Celu", "Threshold", "Squeeze", "Unsqueeze", "Transpose", "T", "Lerp", "Fmod", "Remainder", "Xlogy"),
}


def traced(graph: Graph, rows: int) -> dict[Edge, int]:
    """The pitch of every tensor in the graph (by the node that made it and its output's number) where it is sure."""
    places = graph.places
    waiting = [0] * len(graph.nodes)
    for node in graph.nodes:
        for after, _ in node.next_functions:
            if after in places:
                waiting[places[after]] += 1
    found: dict[tuple[int, int], int | None] = {(0, graph.start): 1}
    ready = [0] if graph.nodes else []
    while ready:
        place = ready.pop()
        for (after, number), pitch in _behind(graph, place, rows, found):
            there = places.get(after)
            if there is None:
                continue
            # Two uses that see the rows of one tensor in different places: neither is believed.
            agreed = found.get((there, number), pitch)
            found[there, number] = pitch if agreed == pitch else None
            waiting[there] -= 1
            if waiting[there] == 0:
                ready.append(there)
    return {(graph.nodes[place], number): pitch for (place, number), pitch in found.items() if pitch is not None}


def _behind(
    graph: Graph, place: int, rows: int, found: dict[tuple[int, int], int | None]
) -> list[tuple[Edge, int | None]]:
    """Every edge out of a node with the pitch of the tensor behind it."""
    node, kind = graph.nodes[place], graph.kinds[place]
    edges = node.next_functions
    outputs = [tuple(output.shape) for output in node._input_metadata]
    pitches = [(number, found.get((place, number), -1)) for number in range(len(outputs))]
    used = [(number, pitch) for number, pitch in pitches if pitch != -1]
    rule = _RULES.get(kind.name) if kind.built_in else _OWN.get(type(node))
    if rule is None or not used or any(pitch is None for _, pitch in used):
        return [(edge, None) for edge in edges]
    given = tuple(None if after is None else tuple(after._input_metadata[number].shape) for after, number in edges)
    answers = [
        rule(Step(node, number, outputs[number], pitch, rows, given)) for number, pitch in used if pitch is not None
    ]
    agreed = [column[0] if len(set(column)) == 1 else None for column in zip(*answers, strict=True)]
    return list(zip(edges, agreed, strict=True))


def layout_at(shape: Shape, pitch: int, rows: int, lead: int) -> Layout | None:
    """The layout of a layer's output whose first `lead` axes hold rows and positions; None if no layout says it."""
    found = _axis(shape, pitch, rows)
    if found is None or found[0] >= lead:
        return None
    axis, inner = found
    size = shape[axis]
    if size == rows:
        return Layout("plain", axis)
    if inner * rows == size:
        return Layout("outer", axis)
    return Layout("inner", axis) if inner == 1 else None


def _axis(shape: Shape, pitch: int, rows: int) -> tuple[int, int] | None:
    after = 1
    for axis in range(len(shape) - 1, -1, -1):
        size = shape[axis]
        if pitch % after == 0 and pitch // after < size:
            inner = pitch // after
            return (axis, inner) if size % (inner * rows) == 0 else None
        after *= size
    return None


def _pitch(shape: Shape, axis: int, inner: int) -> int:
    return inner * prod(shape[axis + 1 :])


def _dims(given: Any, ndim: int) -> list[int]:
    """Axes as torch keeps them (negative ones as huge numbers), counted from 0; none given means all."""
    if given is None:
        return list(range(ndim))
    dims = list(given) if isinstance(given, tuple | list) else [given]
    return [(dim - (1 << 64) if dim >= 1 << 63 else dim) % max(ndim, 1) for dim in dims] or list(range(ndim))


@_for(
    *("Add", "Sub", "Mul", "Div", "Pow", "Rsub", "Neg", "Abs", "Exp", "Exp2", "Expm1", "Log", "Log2", "Log10", "Log1P"),
    *("Sqrt", "Rsqrt", "Reciprocal", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Atan2", "Sinh", "Cosh", "Tanh"),
    *("Erf", "Erfc", "Sign", "Floor", "Ceil", "Round", "Frac", "Trunc", "Sigmoid", "LogSigmoid", "Relu", "LeakyRelu"),
    *("Elu", "Celu", "Gelu", "Silu", "Mish", "Softplus", "Hardtanh", "Hardswish", "Hardsigmoid", "Hardshrink"),
    *("Softshrink", "Threshold", "Clamp", "ClampMin", "ClampMax", "Where", "MaskedFill", "Maximum", "Minimum", "Fmax"),
    *("Fmin", "Lerp", "Addcmul", "Addcdiv", "Fmod", "Remainder", "Xlogy", "Logaddexp", "NativeDropout", "NanToNum"),
    *("Clone", "Alias", "ToCopy", "Expand", "Repeat", "MseLoss", "SmoothL1Loss", "HuberLoss", "BinaryCrossEntropy"),
    *("BinaryCrossEntropyWithLogits", "PreluKernel", "Hypot", "Lgamma", "Logit", "SoftMarginLoss"),
)
def _in_place(step: Step) -> Pitches:
    """Element by element, with smaller inputs broadcast or repeated along axes that do not hold the rows."""
    return [_aligned(step, shape) for shape in step.given]


def _aligned(step: Step, shape: Shape | None) -> int | None:
    if shape == step.shape:
        return step.pitch
    found = step.axis()
    if shape is None or found is None or len(shape) > len(step.shape):
        return None
    axis, inner = found
    own = axis - (len(step.shape) - len(shape))
    return _pitch(shape, own, inner) if own >= 0 and shape[own] == step.shape[axis] else None


@_for("View", "UnsafeView", "ReshapeAlias", "Unsqueeze", "Squeeze", "LiftFresh")
def _viewed(step: Step) -> Pitches:
    """The same elements in the same order."""
    return [step.pitch if shape is not None and prod(shape) == prod(step.shape) else None for shape in step.given]


@_for("Permute", "Transpose", "T")
def _permuted(step: Step) -> Pitches:
    """The same elements with their axes in another order."""
    found, ndim = step.axis(), len(step.shape)
    order = list(range(ndim))
    name = step.node.name()
    if name.startswith("Permute"):
        order = _dims(step.constant("dims"), ndim)
    elif ndim >= 2:
        pair = (0, 1) if name.startswith("TB") else (step.constant("dim0"), step.constant("dim1"))
        first, second = _dims(pair, ndim)
        order[first], order[second] = order[second], order[first]
    (shape,) = step.given
    if found is None or shape is None:
        return [None]
    return [_pitch(shape, order[found[0]], found[1])]


def _reduced(step: Step) -> Pitches:
    """Some axes joined into one value; the axis of the rows is not among them."""
    shape, found = step.given[0], step.axis()
    if shape is None or found is None:
        return [None] * len(step.given)
    joined = set(_dims(step.constant("dim"), len(shape)))
    kept = list(range(len(shape))) if step.constant("keepdim") else [a for a in range(len(shape)) if a not in joined]
    if len(kept) != len(step.shape) or kept[found[0]] in joined:
        return [None] * len(step.given)
    return [_pitch(shape, kept[found[0]], found[1]), *([None] * (len(step.given) - 1))]


for _name in ("Sum", "Mean", "Prod"):
    _RULES[f"{_name}Backward1"] = _reduced
for _name in ("Amax", "Amin", "Max", "Min", "Logsumexp", "Var", "Std", "VarMean", "StdMean"):
    _RULES[f"{_name}Backward0"] = _reduced
_RULES["LinalgVectorNormBackward0"] = _reduced


@_for("Softmax", "LogSoftmax", "SafeSoftmax", "Cumsum", "Cumprod", "Flip", "Roll", "Sort", "Topk", "Gather", "Glu")
def _along(step: Step) -> Pitches:
    """Elements moved, joined or left out along some axes; the others stay as they are."""
    shape, found = step.given[0], step.axis()
    named = "dims" if hasattr(step.node, "_saved_dims") else "dim"
    given = step.constant(named)
    if shape is None or found is None or len(shape) != len(step.shape) or (named == "dims" and not given):
        return [None] * len(step.given)
    axis, inner = found
    if axis in _dims(given, len(shape)) or shape[axis] != step.shape[axis]:
        return [None] * len(step.given)
    return [_pitch(shape, axis, inner), *([None] * (len(step.given) - 1))]


for _name in ("Slice", "Split", "SplitWithSizes", "UnsafeSplit", "UnsafeSplitWithSizes", "IndexSelect"):
    _RULES[f"{_name}Backward0"] = _along


@_for("Cat")
def _joined(step: Step) -> Pitches:
    """Several tensors after each other along one axis, which does not hold the rows."""
    found = step.axis()
    if found is None or found[0] in _dims(step.constant("dim"), len(step.shape)):
        return [None] * len(step.given)
    axis, inner = found
    return [
        _pitch(shape, axis, inner) if shape is not None and len(shape) == len(step.shape) else None
        for shape in step.given
    ]


@_for("Select", "Unbind")
def _taken(step: Step) -> Pitches:
    """One place of an axis, which is gone afterwards."""
    shape, found = step.given[0], step.axis()
    if shape is None or found is None:
        return [None]
    (gone,) = _dims(step.constant("dim"), len(shape))
    axis = found[0] + (found[0] >= gone)
    return [_pitch(shape, axis, found[1])]


@_for("Stack")
def _stacked(step: Step) -> Pitches:
    """A new axis, which does not hold the rows."""
    found = step.axis()
    (new,) = _dims(step.constant("dim"), len(step.shape))
    if found is None or found[0] == new:
        return [None] * len(step.given)
    axis = found[0] - (found[0] > new)
    return [None if shape is None else _pitch(shape, axis, found[1]) for shape in step.given]


@_for("ConstantPadNd")
def _padded(step: Step) -> Pitches:
    """Padding of axes that do not hold the rows."""
    shape, found = step.given[0], step.axis()
    if shape is None or found is None:
        return [None]
    pad, place = step.constant("pad"), 2 * (len(step.shape) - 1 - found[0])
    return [None if any(pad[place : place + 2]) else _pitch(shape, found[0], found[1])]


def _product(left: Shape | None, right: Shape | None, step: Step) -> tuple[int | None, int | None]:
    """Two factors of a (batched) matrix product: the rows stand in the batch, on the left or on the right."""
    found, ndim = step.axis(), len(step.shape)
    if found is None:
        return None, None
    axis, inner = found
    in_batch, on_left, on_right = axis < ndim - 2, axis == ndim - 2, axis == ndim - 1
    first = None if left is None or on_right else _pitch(left, axis, inner)
    second = None if right is None or on_left else _pitch(right, axis, inner)
    return first, second if in_batch or on_right else None


@_for("Mm", "Bmm")
def _multiplied(step: Step) -> Pitches:
    """left @ right."""
    return _product(step.given[0], step.given[1], step)


@_for("Addmm", "Baddbmm")
def _added_product(step: Step) -> Pitches:
    """shift + left @ right."""
    return [_aligned(step, step.given[0]), *_product(step.given[1], step.given[2], step)]


@_for("Linear")
def _linear(step: Step) -> Pitches:
    """input @ weightᵀ over any leading axes."""
    return [_within(step, range(len(step.shape) - 1)), *([None] * (len(step.given) - 1))]


def _within(step: Step, allowed: Sequence[int]) -> int | None:
    """The first input's pitch, where rows stand on the same axis as in the output and that is one of the allowed."""
    shape, found = step.given[0], step.axis()
    if shape is None or found is None or found[0] not in allowed or len(shape) != len(step.shape):
        return None
    return _pitch(shape, found[0], found[1]) if shape[found[0]] == step.shape[found[0]] else None


@_for(
    *("Convolution", "NativeGroupNorm", "MaxPool2DWithIndices", "MaxPool3DWithIndices", "AvgPool2D", "AvgPool3D"),
    *("AdaptiveAvgPool2D", "AdaptiveAvgPool3D", "AdaptiveMaxPool2D", "AdaptiveMaxPool3D", "UpsampleNearest1D"),
    *("UpsampleNearest2D", "UpsampleNearest3D", "UpsampleBilinear2D", "UpsampleBicubic2D", "UpsampleLinear1D"),
    *("UpsampleTrilinear3D", "ReflectionPad1D", "ReflectionPad2D", "ReflectionPad3D", "ReplicationPad1D"),
    *("ReplicationPad2D", "ReplicationPad3D"),
)
def _first(step: Step) -> Pitches:
    """Operations on images, rows first."""
    return [_within(step, (0,)) if step.number == 0 else None, *([None] * (len(step.given) - 1))]


@_for("NativeBatchNorm")
def _by_fixed_statistics(step: Step) -> Pitches:
    """BatchNorm in evaluation mode: rows first, each by itself; in training mode rows are mixed."""
    return [None] * len(step.given) if step.constant("training") else _first(step)


@_for("Im2Col", "Col2Im")
def _unfolded(step: Step) -> Pitches:
    """Patches of images, rows first."""
    shape, found = step.given[0], step.axis()
    batched = shape is not None and found is not None and found[0] == 0 and len(shape) + len(step.shape) == 7
    return [_pitch(shape, 0, found[1]) if batched and shape is not None and found is not None else None]


@_for("NativeLayerNorm", "FusedRmsNorm")
def _normalised(step: Step) -> Pitches:
    """Normalised over the last axes; the rows stand before them."""
    trailing = len(step.constant("normalized_shape"))
    own = _within(step, range(len(step.shape) - trailing)) if step.number == 0 else None
    return [own, *([None] * (len(step.given) - 1))]


@_for("ScaledDotProductFlashAttentionForCpu", "ScaledDotProductEfficientAttention", "ScaledDotProductFlashAttention")
def _attended(step: Step) -> Pitches:
    """Queries, keys and values of (rows, heads, time, features): nothing passes from row to row."""
    found = step.axis() if step.number == 0 else None
    if found is None or found[0] > 1 or len(step.shape) != 4:
        return [None] * len(step.given)
    axis, inner = found
    return [
        _pitch(shape, axis, inner)
        if place < 3 and shape is not None and len(shape) == 4 and shape[axis] == step.shape[axis]
        else None
        for place, shape in enumerate(step.given)
    ]


@_for("NllLoss", "NllLoss2D")
def _likelihood(step: Step) -> Pitches:
    """(rows, classes, …) to (rows, …)."""
    shape, found = step.given[0], step.axis()
    if shape is None or found is None or found[0] != 0 or len(shape) != len(step.shape) + 1:
        return [None] * len(step.given)
    return [_pitch(shape, 0, found[1]), *([None] * (len(step.given) - 1))]


@_for("Index")
def _indexed(step: Step) -> Pitches:
    """x[0 … rows − 1, …]: rows first, before and after, as was seen in this very pass."""
    shape, found = step.given[0], step.axis()
    if shape is None or found != (0, 1) or step.shape[0] != step.rows or shape[0] != step.rows:
        return [None]
    return [_pitch(shape, 0, 1) if in_order(step.node, step.rows) else None]


def _time_loop(states: int, step: Step) -> Pitches:
    """A recurrence over (time, rows, features) with some first states (rows, features), or its last state."""
    found, rows = step.axis(), step.rows
    axis = 1 if step.number == 0 else 0
    if found != (axis, 1) or step.shape[axis] != rows:
        return [None] * len(step.given)
    wanted = [1, *([0] * states)]
    return [
        _pitch(shape, wanted[place], 1)
        if shape is not None and place <= states and shape[wanted[place]] == rows
        else None
        for place, shape in enumerate(step.given)
    ]


# Nodes of this package's own autograd functions.
_OWN: dict[type, Rule] = {}


def know_time_loop(function: Any, states: int) -> None:
    """Register an autograd function of this package that goes through time from some first states."""
    _OWN[function._backward_cls] = partial(_time_loop, states)
