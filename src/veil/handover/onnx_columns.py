"""Columns of a table as inputs of an ONNX graph, and as the numbers that the model takes.

A number is an input of doubles, NaN where it is missing; a date the number of days since 1970-01-01; a category its
word. What ONNX cannot compute comes ready: the hash of a word, the codes or the bag of a text. `score.py`, which
travels with the file, makes all of these from raw values.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from veil.errors import require
from veil.handover.onnx_graph import ML, Graph
from veil.tables.encoding import Category, Codes, Column, Date, Encoding, HashedCategory, Numeric, Text


def encoded(graph: Graph, encoding: Encoding) -> str:
    """The numbers of a row, as `Encoding.encode` gives them."""
    only = encoding.columns[0]
    if isinstance(only, Codes):
        require(not only.tokenizer, "a tokenizer of another package cannot be exported: use --to sklearn")
        return graph.input(only.name, "INT64", only.length)
    numbers = [column for column in encoding.columns if isinstance(column, Numeric | Date)]
    parts, where = list[str](), dict[str, list[int]]()
    if numbers:
        parts += _numbers(graph, numbers)
        count = len(numbers)
        where = {column.name: [place, count + place][: column.width()] for place, column in enumerate(numbers)}
    start = 2 * len(numbers)
    for column in encoding.columns:
        if isinstance(column, Numeric | Date):
            continue
        parts.append(_one(graph, column))
        where[column.name] = list(range(start, start + column.width()))
        start += column.width()
    order = [place for column in encoding.columns for place in where[column.name]]
    together = graph.add("Concat", *parts, axis=1) if len(parts) > 1 else parts[0]
    return together if order == list(range(start)) else graph.places(together, order)


def _numbers(graph: Graph, columns: Sequence[Numeric | Date]) -> list[str]:
    """All numbers at once: in [−1, 1], and whether each is missing."""
    given = [graph.input(column.name, "DOUBLE", 1) for column in columns]
    values = graph.add("Concat", *given, axis=1) if len(given) > 1 else given[0]
    absent = graph.add("IsNaN", values)
    lenient = [[isinstance(column, Numeric) and column.lenient for column in columns]]
    if any(lenient[0]):  # what is not finite counts as missing there
        infinite = graph.add("Equal", graph.add("Abs", values), graph.constant(np.inf, np.float64))
        absent = graph.add("Or", absent, graph.add("And", infinite, graph.constant(lenient, np.bool_)))
    low = graph.constant([[column.low for column in columns]], np.float64)
    span = graph.constant([[(column.high - column.low) or 1.0 for column in columns]], np.float64)
    above = graph.add("Mul", graph.constant(2.0, np.float64), graph.add("Sub", values, low))
    one = graph.constant(1.0, np.float64)
    scaled = graph.add("Sub", graph.add("Div", above, span), one)
    clamped = graph.add("Clip", scaled, graph.constant(-1.0, np.float64), one)
    filled = graph.add("Where", absent, graph.constant(0.0, np.float64), clamped)
    return [graph.cast(filled, "FLOAT"), graph.cast(absent, "FLOAT")]


def _one(graph: Graph, column: Column) -> str:
    if isinstance(column, Category):
        word = graph.input(column.name, "STRING", 1)
        places = list(range(len(column.values)))
        code = graph.add(
            "LabelEncoder", word, domain=ML, keys_strings=column.values, values_int64s=places, default_int64=-1
        )
        return graph.one_hot(code, len(places))
    if isinstance(column, HashedCategory):
        return _hashed(graph, column)
    assert isinstance(column, Text)
    return graph.input(column.name, "FLOAT", column.buckets)


def _hashed(graph: Graph, column: HashedCategory) -> str:
    found = graph.input(column.name, "INT64", 1)
    kept = graph.cast(graph.add("Equal", found, graph.constant([column.kept], np.int64)), "FLOAT")
    if not column.pools:
        return kept
    known = graph.add("ReduceMax", kept, axes=[1], keepdims=1) if column.kept else graph.constant([[0.0]])
    own = graph.add("Greater", known, graph.constant(0.0))
    missing = graph.add("Less", found, graph.constant(0, np.int64))
    pool = graph.add("Mod", found, graph.constant(column.pools, np.int64))
    place = graph.add("Where", graph.add("Or", own, missing), graph.constant(-1, np.int64), pool)
    pools = graph.one_hot(place, column.pools)
    return graph.add("Concat", kept, pools, axis=1) if column.kept else pools
