"""Digests: what does something else has another digest, what does the same has the same, in every process."""

from __future__ import annotations

import collections
import functools
import logging
import operator
import os
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from pydantic import BaseModel, PrivateAttr
from torch import nn

from veil.request import Settings
from veil.training.digests import Digester


def digest(*values: Any, trained: nn.Module | None = None, key: bytes = b"key") -> str:
    return Digester(key, trained).of(*values)


def with_code(value: float) -> Any:
    """An object whose class differs in every kind of code that a class can have."""

    class Own:
        constant = value

        @staticmethod
        def alone() -> float:
            return value

        @classmethod
        def of_class(cls) -> float:
            return value

        @property
        def shown(self) -> float:
            return value

        @functools.cached_property
        def kept(self) -> float:
            return value

    return Own()


class Slotted:
    __slots__ = ("held",)

    def __init__(self, held: float) -> None:
        self.held = held


class Hiding:
    """Its pickle keeps nothing."""

    def __init__(self, held: float) -> None:
        self.held = held

    def __reduce__(self) -> str:
        return "Hiding"


class Listed(list[int]):
    held = 0.0


def listed(held: float) -> Listed:
    found = Listed([1])
    found.held = held
    return found


def tensor_with(held: float) -> torch.Tensor:
    found = torch.ones(2)
    found.held = held  # type: ignore[attr-defined]
    return found


def decorated(factor: float) -> Callable[..., Any]:
    return torch.no_grad()(lambda rows: rows * factor)


def hooked(factor: float) -> nn.Module:
    layer = nn.Tanh()
    layer.register_forward_hook(lambda module, given, outputs: factor * outputs)
    return layer


def patched(factor: float) -> nn.Module:
    layer = nn.Tanh()
    layer.forward = lambda rows: factor * rows  # type: ignore[method-assign]
    return layer


def of_itself(value: float) -> list[Any]:
    found: list[Any] = [value]
    found.append(found)
    return found


class Validated(BaseModel):
    _held: float = PrivateAttr(0.0)


def with_private(value: float) -> Validated:
    made = Validated()
    made._held = value
    return made


MADE: dict[str, Callable[[float], Any]] = {
    "number": lambda value: value,
    "array": lambda value: np.array([value, 1.0]),
    "array of objects": lambda value: np.array([value, "x"], dtype=object),
    "tensor": lambda value: torch.tensor([value]),
    "number in a tensor": lambda value: torch.tensor(value),
    "half precision": lambda value: torch.tensor([value], dtype=torch.bfloat16),
    "sparse": lambda value: torch.diag(torch.tensor([value, 1.0])).to_sparse(),
    "tensor with an attribute": tensor_with,
    "table": lambda value: pd.DataFrame({"a": ["x", str(value)], "b": [1, 2]}),
    "set": lambda value: {1.5, "x", value},
    "mapping": lambda value: {"a": {"b": value}},
    "read-only mapping": lambda value: types.MappingProxyType({"a": value}),
    "default mapping": lambda value: collections.defaultdict(list, a=value),
    "queue": lambda value: collections.deque([value]),
    "list with an attribute": listed,
    "a list that holds itself": of_itself,
    "closure": lambda value: lambda: value,
    "default": lambda value: lambda x=value: x,
    "keyword default": lambda value: lambda *, x=value: x,
    "partial": lambda value: functools.partial(pow, value),
    "partial by keyword": lambda value: functools.partial(pow, exp=value),
    "getter": lambda value: operator.itemgetter(value),
    "library decorator": decorated,
    "cached function": lambda value: functools.lru_cache(lambda: value),
    "class": lambda value: type(with_code(value)),
    "object": with_code,
    "bound method": lambda value: with_code(value).of_class,
    "slots": Slotted,
    "state that pickling hides": Hiding,
    "settings": lambda value: Settings.checked(epsilon=1.0 + abs(value)),
    "namespace": lambda value: types.SimpleNamespace(held=value),
    "hook": hooked,
    "patched object": patched,
    "layer": lambda value: nn.Dropout(value / 10),
    "loss with weights": lambda value: nn.CrossEntropyLoss(weight=torch.tensor([1.0, value])),
}


@pytest.mark.parametrize("kind", MADE)
def test_a_value_that_does_something_else_has_another_digest(kind: str) -> None:
    make = MADE[kind]
    assert digest(make(1.0)) == digest(make(1.0))
    assert digest(make(1.0)) != digest(make(2.0))
    assert digest(make(1.0)) != digest(make(1.0), key=b"another")


def test_equal_numbers_of_another_type_or_shape_differ() -> None:
    kinds = [1, 1.0, True, "1", b"1", np.float32(1), np.float64(1), torch.tensor(1.0), torch.tensor([1.0]), [1], (1,)]
    assert len({digest(kind) for kind in kinds}) == len(kinds)
    assert digest(0.0) != digest(-0.0)
    assert digest(["ab", "c"]) != digest(["a", "bc"])
    assert digest([1], [2]) != digest([1, 2])


def test_names_and_places_of_code_do_not_matter_but_what_it_reads_does() -> None:
    assert digest(lambda rows: rows.sum()) == digest(lambda rows: rows.sum())
    assert digest(lambda rows: rows.sum()) != digest(lambda rows: rows.mean())
    assert digest(lambda: lambda: 1) != digest(lambda: lambda: 2)


def reads_more() -> float:
    return _more()


def _more() -> float:
    return 1.0


def test_functions_that_are_called_count(monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest(reads_more)
    monkeypatch.setitem(reads_more.__globals__, "_more", lambda: 2.0)
    assert digest(reads_more) != before


def test_what_somebody_puts_into_a_package_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest(nn.Tanh())
    monkeypatch.setattr(nn.Tanh, "forward", lambda self, rows: rows)
    assert digest(nn.Tanh()) != before


def test_a_trained_model_is_known_by_its_structure() -> None:
    def structure(model: nn.Module) -> str:
        return digest(model, trained=model)

    def tied(shared: bool) -> nn.Module:
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        if shared:
            model[1].weight = model[0].weight
        return model

    assert structure(tied(False)) == structure(tied(False)), "weights are in the checkpoint"
    assert digest(tied(False)) != digest(tied(False))
    assert structure(tied(False)) != structure(tied(True))
    for layer in (nn.LSTM, nn.MultiheadAttention):
        assert structure(layer(4, 2)) == structure(layer(4, 2))


def test_the_order_of_parameters_counts() -> None:
    """The optimizer of a checkpoint numbers them."""

    def model(names: str) -> nn.Module:
        found = nn.Module()
        for name in names:
            found.register_parameter(name, nn.Parameter(torch.zeros(2)))
        return found

    first, second = model("ab"), model("ba")
    assert digest(first, trained=first) != digest(second, trained=second)


def test_what_cannot_be_looked_into_is_known_by_its_kind() -> None:
    assert digest(threading.Lock()) == digest(threading.Lock())
    assert digest(logging.getLogger("a")) == digest(logging.getLogger("a"))


ROOT = Path(__file__).parents[2]


def test_another_process_finds_the_same_digests() -> None:
    """Neither the place in memory nor the order of a set gets into them."""
    script = "from tests.training import test_digests as t; print([t.digest(make(1.0)) for make in t.MADE.values()])"
    found = set()
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        words = [sys.executable, "-c", script]
        found.add(subprocess.run(words, cwd=ROOT, env=env, capture_output=True, check=True).stdout)
    assert len(found) == 1
    assert len(found.pop()) > 64 * len(MADE)


def test_a_tensor_in_pieces_is_the_tensor() -> None:
    rows = torch.randn(100, 3, 4, generator=torch.Generator().manual_seed(0))
    digester = Digester(b"key")
    assert digester.of_stream(rows.split(7)) == digester.of_stream([rows])
    assert digester.of_stream([rows.transpose(1, 2)]) != digester.of_stream([rows])
    laid_otherwise = rows.transpose(1, 2).contiguous().transpose(1, 2)
    assert digester.of_stream([laid_otherwise]) == digester.of_stream([rows]), "values count, not their layout"


def test_settings_that_were_typed_are_those_that_have_their_default() -> None:
    assert digest(Settings.checked(epsilon=1.0)) == digest(Settings.checked())


def test_what_a_validated_model_hides_is_seen() -> None:
    assert digest(with_private(1.0)) == digest(with_private(1.0)) != digest(with_private(2.0))


def test_tables_with_lists_and_records_have_a_digest_of_their_values() -> None:
    tables = [
        pd.DataFrame({"parts": [np.array([1.0]), np.array([last])], "who": [{"name": "a"}, {"name": name}]})
        for last, name in ((2.0, "b"), (2.0, "b"), (3.0, "b"), (2.0, "c"))
    ]
    first, same, *others = (digest(table) for table in tables)
    assert first == same
    assert first not in others
    assert len(set(others)) == 2
