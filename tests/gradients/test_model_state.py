"""Whatever a forward pass can write into a model that could reach what is saved is seen, by its bits, and undone."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from veil.gradients.model_state import ModelState, same_bits


@dataclass
class Box:
    key: int = 0
    hidden: Any = field(default=None, compare=False)


class Rows(nn.Module):
    """A module that holds rows in a buffer."""

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        self.register_buffer("rows", rows)


class Everything(nn.Module):
    """A model with each kind of place that a pass can write to."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("zeros", torch.zeros(8))
        self.register_buffer("none", torch.full((4,), float("nan")))
        self.register_buffer("halves", torch.zeros(3, dtype=torch.bfloat16))
        self.register_buffer("waves", torch.zeros(3, dtype=torch.complex128))
        self.flag, self.number, self.pair = 1, 0.0, (0.0, 1)
        self.by_name, self.list, self.set, self.box = {"a": 1, "b": 2}, [0.0, 1.0], {1, 2}, Box()
        self.queue, self.array, self.tensor = deque([0.0]), np.zeros(4), torch.zeros(1)
        self.objects = np.array([0.0, "x"], dtype=object)
        self.listed, self.named = nn.ModuleList([Rows(torch.zeros(1))]), nn.ModuleDict({"a": Rows(torch.zeros(1))})
        self.deep = nn.Sequential(nn.Sequential(nn.Linear(2, 2)))
        self.unregistered = [nn.Sequential(Rows(torch.zeros(1)))]


def bits(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().view(torch.uint8).numpy().tobytes()


def nan_payload(model: Any) -> None:
    model.none.view(torch.int32).add_(torch.arange(4, dtype=torch.int32))


def swap(model: Any) -> None:
    model.by_name["a"] = model.by_name.pop("a")


def note(model: Any) -> None:
    model.layer.weight.note = torch.ones(3)


def set_rows(modules: Any, key: Any) -> None:
    modules[key] = Rows(torch.ones(1))


Case = tuple[Callable[[Any], object], Callable[[Any], object]]
CASES: dict[str, Case] = {
    "signs of zeros": (lambda m: m.zeros.neg_(), lambda m: bits(m.zeros)),
    "signs of half precision": (lambda m: m.halves.neg_(), lambda m: bits(m.halves)),
    "signs of complex numbers": (lambda m: m.waves.neg_(), lambda m: bits(m.waves)),
    "bits of a NaN": (nan_payload, lambda m: bits(m.none)),
    "True for 1": (lambda m: setattr(m, "flag", True), lambda m: repr(m.flag)),
    "-0.0 for 0.0": (lambda m: setattr(m, "number", -0.0), lambda m: repr(m.number)),
    "in a tuple": (lambda m: setattr(m, "pair", (-0.0, 1)), lambda m: repr(m.pair)),
    "in a list": (lambda m: m.list.__setitem__(0, -0.0), lambda m: repr(m.list)),
    "in a queue": (lambda m: m.queue.__setitem__(0, -0.0), lambda m: repr(m.queue)),
    "in a set": (lambda m: (m.set.remove(1), m.set.add(True)), lambda m: sorted(map(repr, m.set))),
    "in a dict": (lambda m: m.by_name.update(a=True), lambda m: repr(m.by_name)),
    "in an array": (lambda m: m.array.__setitem__(1, -0.0), lambda m: m.array.tobytes()),
    "in an array of objects": (lambda m: m.objects.__setitem__(0, -0.0), lambda m: repr(m.objects)),
    "an object equal to the old one": (lambda m: setattr(m, "box", Box(0, "row")), lambda m: repr(m.box)),
    "a tensor equal to the old one": (lambda m: setattr(m, "tensor", -torch.zeros(1)), lambda m: bits(m.tensor)),
    "an attribute of a tensor": (lambda m: setattr(m.tensor, "note", "row"), lambda m: vars(m.tensor)),
    "an attribute of a buffer": (lambda m: setattr(m.zeros, "note", "row"), lambda m: vars(m.zeros)),
    "an attribute of a weight": (note, lambda m: vars(m.layer.weight)),
    "a new module": (lambda m: setattr(m, "new", Rows(torch.ones(1))), lambda m: list(m.state_dict())),
    "a replaced module": (lambda m: setattr(m, "layer", nn.Linear(2, 2)), lambda m: bits(m.layer.weight)),
    "a removed module": (lambda m: delattr(m, "layer"), lambda m: list(m.state_dict())),
    "a module set to None": (lambda m: setattr(m, "layer", None), lambda m: list(m.state_dict())),
    "a module in a list": (lambda m: set_rows(m.listed, 0), lambda m: float(m.listed[0].rows)),
    "a module more in a list": (lambda m: m.listed.append(Rows(torch.ones(1))), lambda m: len(m.listed)),
    "a module in a dict": (lambda m: set_rows(m.named, "a"), lambda m: float(m.named["a"].rows)),
    "a module further down": (
        lambda m: m.deep[0].add_module("mem", Rows(torch.ones(1))),
        lambda m: list(m.state_dict()),
    ),
    "a module below one that is not registered": (
        lambda m: set_rows(m.unregistered[0], 0),
        lambda m: float(m.unregistered[0][0].rows),
    ),
}


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_whatever_a_pass_writes_is_seen_and_undone(case: str) -> None:
    write, look = CASES[case]
    model = Everything()
    state, before = ModelState(model), str(look(model))
    assert state.changed() == []
    assert state.renew() is state
    write(model)
    assert str(look(model)) != before, "the case writes nothing"
    assert state.changed() != []
    assert state.renew() is not state
    state.put_back()
    assert str(look(model)) == before
    assert state.changed() == []
    assert state.renew() is state


def test_the_order_of_entries_is_undone() -> None:
    model: Any = Everything()
    model.recent = OrderedDict(a=1, b=2, c=3)
    state, names = ModelState(model), list(model.state_dict())
    swap(model)
    model.recent.move_to_end("a")
    layer = model.layer
    del model.layer
    model.layer = layer
    assert list(model.state_dict()) != names
    state.put_back()
    assert (list(model.by_name), list(model.recent)) == (["a", "b"], ["a", "b", "c"])
    assert list(model.state_dict()) == names


def test_the_same_values_in_new_objects_are_no_change() -> None:
    model: Any = Everything()
    model.register_buffer("view", torch.arange(6.0).view(2, 3).t())
    state = ModelState(model)
    model.number, model.pair, model.list, model.box = float("0"), (0.0, 1), [0.0, 1.0], Box()
    model.view = model.view.contiguous()
    model.listed[0] = Rows(torch.zeros(1))
    model.none = model.none.clone()
    model.eval()
    assert state.changed() == []


def test_numbers_alone_may_stay() -> None:
    model: Any = Everything()
    state = ModelState(model)
    model.flag, model.listed[0] = 7, Rows(torch.ones(1))
    model.deep[0].add_module("mem", Rows(torch.ones(1)))
    state.put_back(numbers=False)
    assert model.flag == 7
    assert float(model.listed[0].rows) == 0.0
    assert not hasattr(model.deep[0], "mem")


@pytest.mark.parametrize("kind", [torch.float64, torch.float16, torch.int64, torch.bool, torch.complex64, torch.uint8])
def test_bits_are_compared_whatever_the_kind(kind: torch.dtype) -> None:
    ones = torch.ones(2, 3, dtype=kind)
    assert same_bits(ones, ones.t().contiguous().t())
    assert not same_bits(ones, torch.zeros(2, 3, dtype=kind))
    assert not same_bits(ones, ones.t())
    assert not same_bits(ones, torch.ones(2, 3, dtype=torch.bfloat16))


def test_conjugate_and_negative_views_are_compared_by_what_they_hold() -> None:
    waves = torch.tensor([1.0 + 2.0j, 3.0 - 0.0j])
    assert same_bits(waves.conj(), waves.conj().resolve_conj())
    assert same_bits(waves.conj().imag, waves.conj().imag.resolve_neg())
    assert not same_bits(waves.conj(), waves)


def test_new_objects_that_hold_each_other_are_a_change() -> None:
    def ring() -> nn.Module:
        one, other = nn.Sequential(nn.ReLU()), nn.ReLU()
        one[0].other, other.ones = [other], [one]
        return one

    model: Any = nn.Sequential(ring())
    state, before = ModelState(model), model[0]
    model[0] = ring()
    assert state.changed() == ["0"]
    state.put_back()
    assert model[0] is before


def test_sparse_tensors_are_compared_by_their_values() -> None:
    model: Any = nn.Linear(1, 1)
    model.table = torch.eye(2).to_sparse()
    state = ModelState(model)
    model.table = torch.eye(2).to_sparse()
    assert state.changed() == []
    model.table = (2 * torch.eye(2)).to_sparse()
    assert state.changed() == ["table"]


def test_memory_beside_a_weight_is_watched() -> None:
    flat = torch.zeros(30)
    model: Any = nn.Module()
    model.weight, model.column = nn.Parameter(flat[:6].view(2, 3)), nn.Parameter(flat[10:20].view(5, 2)[:, 0])
    model.register_buffer("turned", model.weight.detach().t())
    model.register_buffer("behind", flat[6:8])
    model.register_buffer("between", flat[10:20].view(5, 2)[:, 1])
    model.register_buffer("both", flat[4:8])
    state = ModelState(model)
    with torch.no_grad():
        model.weight[0, 0], model.column[1] = 1.0, 1.0
    assert state.changed() == []
    with torch.no_grad():
        model.behind[1], model.between[2] = 2.0, 2.0
    assert state.changed() == ["behind", "between", "both"]
    state.put_back()
    assert flat.nonzero().flatten().tolist() == [0, 12]


@pytest.mark.parametrize("kind", [list, dict])
def test_an_entry_that_moves_from_one_container_to_the_next_is_put_back(kind: type) -> None:
    """Both lie side by side in the line that is walked: one after the other, they still hold the same objects."""

    class Holds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            entries = {key: object() for key in "abc"}
            self.first = dict(entries) if kind is dict else list(entries.values())
            self.second = {} if kind is dict else []

    model = Holds()
    before = list(model.first)
    state = ModelState(model)
    assert state.renew() is state
    if kind is dict:
        model.second["c"] = model.first.pop("c")  # type: ignore[call-overload]
    else:
        model.second.append(model.first.pop())  # type: ignore[attr-defined]
    assert state.renew() is not state
    assert state.changed()
    state.put_back()
    assert state.changed() == []
    assert list(model.first) == before
    assert len(model.second) == 0
    assert state.renew() is state


@pytest.mark.parametrize("part", ["_buffers", "_parameters", "_modules"])
def test_a_dict_of_a_modules_parts_that_another_takes_the_place_of_is_put_back(part: str) -> None:
    """What lies in the new dict is what a `state_dict` would have: the old one alone would be looked at."""
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))
    module, state = (model if part == "_modules" else model[0]), ModelState(model)
    held = {name: value.clone() for name, value in model.state_dict().items()}
    extra = {"_buffers": torch.ones(2), "_parameters": nn.Parameter(torch.ones(2)), "_modules": nn.Linear(1, 1)}[part]
    setattr(module, part, {**getattr(module, part), "seen": extra})
    assert state.changed() == [part if part == "_modules" else f"0.{part}"]
    assert state.renew() is not state
    state.put_back()
    assert state.changed() == []
    assert state.renew() is state
    assert {name: value.tolist() for name, value in model.state_dict().items()} == {
        name: value.tolist() for name, value in held.items()
    }


def test_attributes_that_another_dict_takes_the_place_of_are_put_back() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))
    state, held = ModelState(model), vars(model[0])
    model[0].__dict__ = {**held, "_buffers": {name: torch.ones(2) for name in model[0]._buffers}}
    assert state.changed() == ["0.__dict__"]
    assert state.renew() is not state
    state.put_back()
    assert vars(model[0]) is held
    assert state.changed() == []
    assert state.renew() is state
