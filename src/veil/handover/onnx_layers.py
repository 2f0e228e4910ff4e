"""Layers of the built-in models as nodes of an ONNX graph, each beside what its `forward` computes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import nn

from veil.errors import InputError
from veil.handover.onnx_graph import WEIGHT, Graph
from veil.models.crosses import LEVELS, Crosses
from veil.models.knots import Knots
from veil.models.tables import Head, Scale, Shortened, WideAndDeep
from veil.models.text import CharLstm
from veil.models.whitened import Projection, Whitening

Layer = Callable[[Graph, Any, str, str], str]


def layer(graph: Graph, module: nn.Module, rows: str, at: str = "") -> str:
    """The result of a module for rows; `at` is where its weights stand in the model, `2.` for instance."""
    known = LAYERS.get(type(module))
    if known is None:
        raise InputError(
            f"the model has a {type(module).__name__} layer, which Veil cannot write as ONNX: use --to sklearn, or "
            "torch.onnx with your own preprocessing"
        )
    return known(graph, module, rows, at)


def _sequential(graph: Graph, module: nn.Sequential, rows: str, at: str) -> str:
    for name, part in module.named_children():
        rows = layer(graph, part, rows, f"{at}{name}.")
    return rows


def _same(graph: Graph, module: nn.Module, rows: str, at: str) -> str:
    return rows


def _linear(graph: Graph, module: nn.Linear, rows: str, at: str) -> str:
    given = [f"{WEIGHT}{at}weight", *([f"{WEIGHT}{at}bias"] if module.bias is not None else [])]
    return graph.add("Gemm", rows, *given, transB=1)


def _scale(graph: Graph, module: Scale, rows: str, at: str) -> str:
    return graph.add("Mul", rows, graph.constant(module.factor))


def _lengths(graph: Graph, rows: str, constant: float = 0.0) -> str:
    squares = graph.add("ReduceSumSquare", rows, axes=[1], keepdims=1)
    return graph.add("Sqrt", graph.add("Add", squares, graph.constant(constant)) if constant else squares)


def _shortened(graph: Graph, module: Shortened, rows: str, at: str) -> str:
    lengths = _lengths(graph, rows, 0.0 if module.linear.bias is None else 1.0)
    radius = graph.constant(module.radius)
    scores = layer(graph, module.linear, rows, f"{at}linear.")
    return graph.add("Mul", scores, graph.add("Div", radius, graph.add("Max", lengths, radius)))


def _knots(graph: Graph, module: Knots, rows: str, at: str) -> str:
    """Which interval a number lies in, one-hot [rows, numbers, intervals], parted between the interval's ends."""
    if not module.numbers:
        return rows
    numbers, count = module.places.shape
    zero, one = graph.constant(0.0), graph.constant(1.0)
    given = graph.places(rows, module.numbers)
    values = graph.add("Clip", graph.add("Where", graph.add("IsNaN", given), zero, given), graph.constant(-1.0), one)
    values = graph.shaped(values, 0, numbers, 1)
    places = f"{WEIGHT}{at}places"
    passed = graph.cast(graph.add("GreaterOrEqual", values, places), "INT64")
    axis = graph.constant([2], np.int64)
    below = graph.add("Sub", graph.add("ReduceSum", passed, axis, keepdims=1), graph.constant(1, np.int64))
    below = graph.add("Clip", below, graph.constant(0, np.int64), graph.constant(count - 2, np.int64))
    inside = graph.cast(graph.add("Equal", below, graph.constant(np.arange(count - 1), np.int64)), "FLOAT")

    def end(chosen: range) -> str:
        return graph.add("ReduceSum", graph.add("Mul", inside, graph.places(places, chosen)), axis, keepdims=1)

    low, high = end(range(count - 1)), end(range(1, count))
    span = graph.add("Max", graph.add("Sub", high, low), graph.constant(1e-12))
    share = graph.add("Div", graph.add("Sub", values, low), span)
    share = graph.add("Clip", graph.add("Where", graph.add("Greater", high, low), share, one), zero, one)
    lower, upper = graph.add("Mul", inside, graph.add("Sub", one, share)), graph.add("Mul", inside, share)
    nothing = graph.add("Mul", values, zero)
    shares = graph.add("Add", graph.add("Concat", lower, nothing, axis=2), graph.add("Concat", nothing, upper, axis=2))
    return graph.add("Concat", rows, graph.shaped(shares, 0, numbers * count), axis=1)


def _crosses(graph: Graph, module: Crosses, rows: str, at: str) -> str:
    if not module.pairs:
        return rows
    wide = graph.shaped(f"{WEIGHT}{at}levels", 0, module.chosen * LEVELS)
    levels = graph.shaped(graph.add("MatMul", rows, wide), 0, module.chosen, LEVELS)
    left, right = (graph.places(levels, [pair[side] for pair in module.pairs]) for side in (0, 1))
    pairs = len(module.pairs)
    products = graph.add("Mul", graph.shaped(left, 0, pairs, LEVELS, 1), graph.shaped(right, 0, pairs, 1, LEVELS))
    length = graph.constant((len(module.blocks) / pairs) ** 0.5)
    scaled = graph.add("Mul", graph.shaped(products, 0, pairs * LEVELS**2), length)
    return graph.add("Concat", rows, scaled, axis=1)


def _finite(graph: Graph, rows: str) -> str:
    """The rows, all zeros where one value is not finite."""
    wrong = graph.add("Or", graph.add("IsNaN", rows), graph.add("IsInf", rows))
    any_wrong = graph.add("ReduceMax", graph.cast(wrong, "FLOAT"), axes=[1], keepdims=1)
    zero = graph.constant(0.0)
    return graph.add("Where", graph.add("Greater", any_wrong, zero), zero, rows)


def _unit(graph: Graph, rows: str) -> str:
    return graph.add("Div", rows, graph.add("Max", _lengths(graph, rows), graph.constant(1e-6)))


def _projected(graph: Graph, rows: str, matrix: str, empty: bool) -> str:
    finite = _finite(graph, rows)
    return _finite(graph, _unit(graph, finite if empty else graph.add("MatMul", finite, matrix)))


def _projection(graph: Graph, module: Projection, rows: str, at: str) -> str:
    return _projected(graph, rows, f"{WEIGHT}{at}matrix", module.matrix.numel() == 0)


def _whitening(graph: Graph, module: Whitening, rows: str, at: str) -> str:
    rows = _projected(graph, rows, f"{WEIGHT}{at}projection", module.projection.numel() == 0)
    centred = _unit(graph, graph.add("Sub", rows, f"{WEIGHT}{at}mean"))
    white = _unit(graph, graph.add("MatMul", centred, f"{WEIGHT}{at}matrix"))
    first = graph.places(white, [0])
    behind = graph.add("Add", graph.add("Mul", first, graph.constant(0.0)), graph.constant(module.constant))
    return graph.add(
        "Div", graph.add("Concat", white, behind, axis=1), graph.constant(math.hypot(1.0, module.constant))
    )


def _wide_and_deep(graph: Graph, module: WideAndDeep, rows: str, at: str) -> str:
    starts = np.cumsum([0, *module.blocks])
    embedded = [
        layer(graph, part, graph.places(rows, range(start, start + width)), f"{at}embeddings.{place}.")
        for place, (part, start, width) in enumerate(zip(module.embeddings, starts, module.blocks, strict=False))
    ]
    together = graph.add("Concat", *embedded, axis=1) if len(embedded) > 1 else embedded[0]
    deep = layer(graph, module.deep, together, f"{at}deep.")
    return graph.add("Add", layer(graph, module.wide, rows, f"{at}wide."), deep)


def _char_lstm(graph: Graph, module: CharLstm, codes: str, at: str) -> str:
    """torch has its gates in the order in, forget, cell, out; ONNX in the order in, out, forget, cell."""
    hidden = module.lstm.hidden_size
    order = [gate * hidden + unit for gate in (0, 3, 1, 2) for unit in range(hidden)]
    embedded = graph.add("Gather", f"{WEIGHT}{at}embedding.weight", codes, axis=0)
    steps = graph.add("Transpose", embedded, perm=[1, 0, 2])

    def turned(name: str) -> str:
        return graph.places(f"{WEIGHT}{at}lstm.{name}_l0", order, axis=0)

    axis = graph.constant([0], np.int64)
    into, over = (graph.add("Unsqueeze", turned(name), axis) for name in ("weight_ih", "weight_hh"))
    bias = graph.add("Unsqueeze", graph.add("Concat", turned("bias_ih"), turned("bias_hh"), axis=0), axis)
    states = graph.add("LSTM", steps, into, over, bias, hidden_size=hidden)
    last = graph.places(states, [-1], axis=0)
    return layer(graph, module.head, graph.shaped(last, -1, hidden), f"{at}head.")


def _node(kind: str) -> Layer:
    def write(graph: Graph, module: nn.Module, rows: str, at: str) -> str:
        return graph.add(kind, rows)

    return write


# By exact type: a subclass may compute something else.
LAYERS: dict[type[nn.Module], Layer] = {
    nn.Sequential: _sequential,
    nn.Flatten: _same,  # rows of a table are flat
    nn.Identity: _same,
    nn.Linear: _linear,
    Head: _linear,
    nn.Tanh: _node("Tanh"),
    nn.ReLU: _node("Relu"),
    Scale: _scale,
    Shortened: _shortened,
    Knots: _knots,
    Crosses: _crosses,
    Projection: _projection,
    Whitening: _whitening,
    WideAndDeep: _wide_and_deep,
    CharLstm: _char_lstm,
}
