"""Model state: what a model holds besides its trainable parameters, and whether a forward pass wrote to it.

Buffers, tensors and numbers in attributes, modules, and what lies in lists, dicts and objects that a module holds. A
forward pass that writes there stores something of the rows it saw, and no noise covers that. Values are compared by
type and bits: signs of zeros, NaNs and `True` for 1 can tell of a row too.

Not watched, as none of it is part of a `state_dict`: gradients, hooks, the states of random generators, and what
objects written in C hold (`array.array`). Do not pickle a private model whose forward pass writes there.
"""

from __future__ import annotations

import copy
import operator
import struct
from collections import Counter, deque
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from itertools import chain
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Values: TypeAlias = Tensor | NDArray[Any]

# Longer lists and dicts are tables of constants (a vocabulary): looking at each entry would cost more than the pass.
MOST_ENTRIES = 10_000
# Frozen parameters are buffers by another name; larger ones are the weights of a public model, too large to copy.
MOST_FROZEN = 65_536
_MAPPINGS = (dict, MutableMapping)
_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_QUICK = {torch.float32: torch.int32, torch.float64: torch.int64}
_WATCHED = frozenset({"_buffers", "_parameters", "_modules"})  # each is a space of its own
_OWN = frozenset(vars(nn.Module())) - _WATCHED
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_CONTAINERS = (dict, list, set, deque, bytearray)
_OPAQUE = (type, FunctionType, BuiltinFunctionType, MethodType, ModuleType, nn.Module, nn.Parameter)


class _Slots(MutableMapping[str, Any]):
    """The attributes of an object that keeps them in slots, as a mapping."""

    def __init__(self, held: Any) -> None:
        self._held = held
        declared = [vars(kind).get("__slots__", ()) for kind in type(held).__mro__]
        names = [name for given in declared for name in ((given,) if isinstance(given, str) else given)]
        self.names = [name for name in names if name not in ("__dict__", "__weakref__")]

    def __getitem__(self, name: str) -> Any:
        try:
            return getattr(self._held, name)
        except AttributeError:
            raise KeyError(name) from None

    def __setitem__(self, name: str, value: Any) -> None:
        object.__setattr__(self._held, name, value)

    def __delitem__(self, name: str) -> None:
        object.__delattr__(self._held, name)

    def __iter__(self) -> Iterator[str]:
        return (name for name in self.names if hasattr(self._held, name))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class ModelState:
    """A copy of what a model holds; `changed` names what is different now, `put_back` undoes it.

    With `parameters`, trainable and large frozen ones are copied too. Modes (`training`) are not part of the state.

    >>> model = nn.BatchNorm1d(2)
    >>> state = ModelState(model)
    >>> _ = model(torch.ones(3, 2))
    >>> state.changed()
    ['num_batches_tracked', 'running_mean', 'running_var']
    >>> state.put_back()
    >>> state.changed()
    []
    """

    def __init__(self, model: nn.Module, *, parameters: bool = False) -> None:
        self._model, self._with_parameters = model, parameters
        self._spaces: list[tuple[str, Any, Any]] = []
        self._leaves: list[tuple[str, Values, Values]] = []
        self._held: list[tuple[str, nn.Module, dict[str, Any]]] = []  # whose attributes are in which dict
        self._seen: set[int] = set()
        self._trained: dict[int, list[Tensor]] = {}
        for parameter in model.parameters():
            if parameter.requires_grad and _has_memory(parameter) and parameter.numel():
                self._trained.setdefault(parameter.untyped_storage().data_ptr(), []).append(parameter)
        self._modules = set(model.modules())  # each is watched on its own
        for name, module in model.named_modules():
            self._take_module(name, module)
        self._line = _Line([(now, before) for _, now, before in self._spaces])

    def changed(self) -> list[str]:
        """Sorted names of the entries that were changed, added or removed."""
        found = {name for name, now, before in self._leaves if not _equal(now, before)}
        found |= {f"{name}.__dict__".removeprefix(".") for name, module, own in self._held if vars(module) is not own}
        for name, now, before in self._spaces:
            if not _in_place(now, before):
                found.update(_different(name, now, before))
        return sorted(found)

    def put_back(self, *, numbers: bool = True) -> None:
        """Write the old values back; without `numbers`, attributes that were set to a number, a string or None stay."""
        if self._unchanged():
            return
        for _, module, own in self._held:
            if vars(module) is not own:
                object.__setattr__(module, "__dict__", own)
        for _, now, before in self._spaces:
            if not _in_place(now, before):
                _restore(now, before, numbers)
        for _, now, before in self._leaves:
            if not _equal(now, before):
                _write(now, before)

    def renew(self) -> ModelState:
        """This object if nothing changed since, else a copy of the model's current state."""
        if self._unchanged():
            return self
        return ModelState(self._model, parameters=self._with_parameters)

    def _unchanged(self) -> bool:
        """Whether everything is in place: asked before and after every pass."""
        if not all(vars(module) is own for _, module, own in self._held):
            return False
        if not self._line.in_place():
            for _, now, before in self._spaces:
                if not _in_place(now, before):
                    return False
        return all(same_bits(now, before) for _, now, before in self._leaves)

    def _take_module(self, name: str, module: nn.Module) -> None:
        prefix = f"{name}." if name else ""
        own = vars(module)
        self._held.append((name, module, own))
        for space in (own, module._buffers, module._parameters, module._modules):
            self._spaces.append((name, space, dict(space)))
        users = [(key, value) for key, value in _visible(own).items() if key not in _WATCHED]
        for key, value in [*users, *module._buffers.items()]:
            self._take(f"{prefix}{key}", value)
        for key, parameter in module._parameters.items():
            if parameter is None or id(parameter) in self._seen or not _has_memory(parameter):
                continue
            self._take_notes(f"{prefix}{key}", parameter)
            if self._with_parameters or not (parameter.requires_grad or parameter.numel() > MOST_FROZEN):
                self._seen.add(id(parameter))
                self._leaves.append((f"{prefix}{key}", parameter, parameter.detach().clone()))

    def _take(self, name: str, value: Any) -> None:
        if isinstance(value, nn.Module) and value not in self._modules:
            # In a list or an object: torch does not know that it belongs to the model.
            self._modules.update(value.modules())
            for inner, module in value.named_modules(prefix=name):
                self._take_module(inner, module)
        if isinstance(value, _OPAQUE) or id(value) in self._seen:
            return
        if isinstance(value, Tensor):
            self._take_notes(name, value)
            if _has_memory(value) and not self._moves_with_weights(value):
                self._seen.add(id(value))
                self._leaves.append((name, value, value.detach().clone()))
        elif isinstance(value, np.ndarray):
            self._seen.add(id(value))
            self._leaves.append((name, value, value.copy()))
        elif isinstance(value, _CONTAINERS):
            if len(value) <= MOST_ENTRIES:
                self._seen.add(id(value))
                self._spaces.append((name, value, copy.copy(value)))
                for key, entry in _entries(value):
                    self._take(f"{name}[{key!r}]", entry)
        elif isinstance(value, tuple):
            for key, entry in enumerate(value):
                self._take(f"{name}[{key}]", entry)
        elif not isinstance(value, _PLAIN):
            self._take_object(name, value)

    def _moves_with_weights(self, value: Tensor) -> bool:
        """Whether all of a tensor's memory is that of trained weights. Others may lie beside them in one storage."""
        near = self._trained.get(value.untyped_storage().data_ptr(), ()) if value.numel() else ()
        if not near:
            return False
        (first, last), spans = _span(value), [_span(one) for one in near if one.is_contiguous()]
        if any(start <= first and last <= stop for start, stop in spans):
            return True
        covered = torch.zeros(value.untyped_storage().nbytes(), dtype=torch.bool)
        for one in near:
            _bytes_of(one, covered).fill_(True)
        return bool(_bytes_of(value, covered).all())

    def _take_notes(self, name: str, tensor: Tensor) -> None:
        """What someone keeps as attributes of a tensor."""
        notes = vars(tensor)
        if id(notes) not in self._seen:
            self._seen.add(id(notes))
            self._spaces.append((name, notes, dict(notes)))
            for key, entry in self._spaces[-1][2].items():
                self._take(f"{name}.{key}", entry)

    def _take_object(self, name: str, value: Any) -> None:
        slots = _Slots(value)
        spaces = [vars(value)] if hasattr(value, "__dict__") else []
        for space in [*spaces, slots] if slots.names else spaces:
            self._seen.add(id(value))
            self._spaces.append((name, space, dict(space)))
            for key, entry in self._spaces[-1][2].items():
                self._take(f"{name}.{key}", entry)


class _Line:
    """All containers in one line, so that one walk tells whether each holds the very objects in the same order."""

    def __init__(self, spaces: list[tuple[Any, Any]]) -> None:
        walked = [(now, before) for now, before in spaces if type(now) in (dict, list)]
        self._others = [(now, before) for now, before in spaces if type(now) not in (dict, list)]
        self._held = [now for now, _ in walked]
        self._sizes = [len(before) for _, before in walked]
        self._parts = [part for now, _ in walked for part in _parts(now)]
        self._before = list(chain.from_iterable(part for _, before in walked for part in _parts(before)))

    def in_place(self) -> bool:
        """Whether everything is in place; False where that takes a closer look."""
        return (
            list(map(len, self._held)) == self._sizes
            and all(map(operator.is_, chain.from_iterable(self._parts), self._before))
            and all(_in_place(now, before) for now, before in self._others)
        )


def _parts(held: Any) -> list[Any]:
    """Keys and values of a dict, entries of a list: what they are at the time of the walk."""
    return [held, held.values()] if isinstance(held, dict) else [held]


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Leave the model as it is, whatever its forward pass writes, and every module in its mode."""
    state, modes = ModelState(model), [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        state.put_back()
        for module, training in modes:
            module.training = training


def copied(model: nn.Module) -> nn.Module:
    """A deep copy, also of a model that holds results of a computation in its attributes."""
    held = [v for m in model.modules() for v in [*vars(m).values(), *m._buffers.values()] if isinstance(v, Tensor)]
    memo = {id(value): value.detach().clone() for value in held if not value.is_leaf}
    return copy.deepcopy(model, memo)


def _span(tensor: Tensor) -> tuple[int, int]:
    """The first byte of a tensor in its storage, and the one behind its last."""
    first, size = int(tensor.storage_offset()), tensor.element_size()
    reach = sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return size * first, size * (first + reach + 1)


def _bytes_of(tensor: Tensor, storage: Tensor) -> Tensor:
    """The bytes of a tensor in something with one entry for each byte of its storage."""
    size = tensor.element_size()
    strides = [size * stride for stride in tensor.stride()]
    return storage.as_strided((*tensor.shape, size), (*strides, 1), size * tensor.storage_offset())


def _has_memory(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and not tensor.is_meta and type(tensor.data).__name__ != "DTensor"


def _entries(container: Any) -> Iterator[tuple[Any, Any]]:
    yield from container.items() if isinstance(container, dict) else enumerate(container)


def _visible(space: Any) -> Any:
    """What a module's `__dict__` has of the user's, and which dicts hold its parts; any other container unchanged."""
    if isinstance(space, dict) and "_modules" in space:
        return {key: value for key, value in space.items() if key not in _OWN}
    return space


def _in_place(now: Any, before: Any) -> bool:
    """Whether a container holds the very objects in the same order; their contents are looked at elsewhere.

    `==` would take `True` for 1, -0.0 for 0.0 and whatever an object says is equal to it.
    """
    if isinstance(now, bytearray):
        return bool(now == before)
    if len(now) == len(before) and all(map(operator.is_, now, before)):
        if not isinstance(now, _MAPPINGS):
            return True
        if all(map(operator.is_, now.values(), before.values())):
            return True
    return _alike(now, before)


def _alike(now: Any, before: Any) -> bool:
    """The same, where some entries are other objects: new numbers with the old value, or entries of torch's own."""
    now, before = _visible(now), _visible(before)
    if len(now) != len(before):
        return False
    if isinstance(now, set):
        return Counter(map(_mark, now)) == Counter(map(_mark, before))
    same = all(map(_same_entry, now, before))
    if isinstance(now, MutableMapping):
        return same and all(map(_same_entry, now.values(), before.values()))
    return same


def _same_entry(one: Any, other: Any) -> bool:
    """Whether two entries are the same object, or the same number or text."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(_same_entry, one, other))
    return isinstance(one, _PLAIN) and _equal(one, other)


def _mark(entry: Any) -> tuple[type, Any]:
    return type(entry), repr(entry) if isinstance(entry, _PLAIN) else id(entry)


def _different(name: str, now: Any, before: Any) -> Iterator[str]:
    now, before = _visible(now), _visible(before)
    if not isinstance(now, MutableMapping):
        if _differs(now, before):
            yield name
        return
    for key in {**before, **now}:
        if key not in now or key not in before or _differs(now[key], before[key]):
            yield f"{name}.{key}" if name else str(key)


def _differs(one: Any, other: Any) -> bool:
    try:
        return not _equal(one, other)
    except RecursionError:  # new objects that hold each other
        return True


def same_bits(one: Values, other: Values) -> bool:
    """Whether two tensors or arrays are of one kind and hold the same bits: -0.0 is not 0.0.

    >>> same_bits(torch.tensor([0.0, float("nan")]), torch.tensor([0.0, float("nan")]))
    True
    >>> same_bits(torch.tensor(0.0), torch.tensor(-0.0))
    False
    """
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if one.device != other.device or one.layout != other.layout:
            return False
        if one.layout != torch.strided:
            return torch.equal(one.to_dense(), other.to_dense())
        kind = _QUICK.get(one.dtype)
        if kind is None or one.requires_grad or one.is_neg() or other.is_neg():
            return torch.equal(_bits(one), _bits(other))
        return torch.equal(one.view(kind), other.view(kind))
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return False
    if one.dtype.hasobject:
        return all(map(_equal, one.reshape(-1).tolist(), other.reshape(-1).tolist()))
    return one.tobytes() == other.tobytes()


def _bits(tensor: Tensor) -> Tensor:
    """The memory of a tensor as whole numbers."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if not tensor.is_floating_point():
        return tensor
    return tensor.resolve_neg().view(_WHOLE[tensor.element_size()])


def _equal(one: Any, other: Any) -> bool:
    """Whether two values are the same, by type and value; numbers by their bits."""
    if one is other:
        return True
    if isinstance(one, Tensor | np.ndarray) and isinstance(other, Tensor | np.ndarray):
        return same_bits(one, other)
    if type(one) is not type(other):
        return False
    if isinstance(one, float | complex):
        return struct.pack("dd", one.real, one.imag) == struct.pack("dd", other.real, other.imag)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_equal(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple | deque):
        return len(one) == len(other) and all(_equal(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, set):
        texts, others = (Counter(repr(entry) for entry in each if isinstance(entry, _PLAIN)) for each in (one, other))
        return one == other and texts == others
    if isinstance(one, nn.Module):
        return _equal(_visible(vars(one)), _visible(vars(other)))
    if isinstance(one, _OPAQUE) or not hasattr(one, "__dict__"):
        return bool(one == other)
    return _equal(vars(one), vars(other))


def _restore(now: Any, before: Any, numbers: bool) -> None:
    if isinstance(now, MutableMapping):
        _restore_entries(now, before, numbers)
    elif isinstance(now, set):
        now.clear()
        now.update(before)
    else:
        now.clear()
        now.extend(before)


def _restore_entries(now: MutableMapping[Any, Any], before: Mapping[Any, Any], numbers: bool) -> None:
    for key in list(_visible(now)):
        if key not in before and (numbers or not isinstance(now[key], _PLAIN)):
            del now[key]
    for key, value in _visible(before).items():
        if key not in now or (now[key] is not value and (numbers or not isinstance(now[key], _PLAIN))):
            now[key] = value
    known = list(_visible(before))
    if isinstance(now, dict) and not all(map(_same_entry, _visible(now), known)):
        for key in known:  # in the old order, and as the old keys
            value = now.pop(key)
            now[key] = value


def _write(now: Values, before: Values) -> None:
    if isinstance(now, Tensor) and isinstance(before, Tensor):
        with torch.no_grad():
            if now.shape == before.shape and now.dtype == before.dtype:
                now.copy_(before)
            else:
                now.data = before.clone()
    elif isinstance(now, np.ndarray):
        now[...] = before
