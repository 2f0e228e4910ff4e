"""Digests: 32 bytes that identify a value. They are keyed, so without the key they reveal nothing about it.

Two values have the same digest if they behave the same: numbers by type, shape and bytes; functions by code, constants,
defaults, closure and the globals that they read; objects by class and state; classes by name and, outside installed
packages, by code. Of an installed package the name and the version stand for its code.
"""

from __future__ import annotations

import dis
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache, cached_property
from hashlib import blake2b
from pathlib import Path, PurePath
from types import BuiltinFunctionType, CodeType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from veil.foundation.nested import Nested, mapped, tensors
from veil.request import Settings

_ORDERED = ("_modules", "_parameters", "_buffers")  # the optimizer numbers parameters by their order
# What a class says about itself and not about what it does.
_ABOUT = {"__dict__", "__weakref__", "__module__", "__qualname__", "__doc__", "__firstlineno__", "__slotnames__"}
_ABOUT |= {"__static_attributes__", "__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__"}
_AT_ONCE = 2**24


class Digester:
    """Digests under one key. Tensors of `trained` are known by place, type and shape: a checkpoint has their values.

    >>> digester = Digester(b"secret")
    >>> digester.of(lambda x: x + 1) == digester.of(lambda x: x + 1)
    True
    >>> digester.of(lambda x: x + 1) == digester.of(lambda x: x + 2)
    False
    """

    def __init__(self, key: bytes, trained: nn.Module | None = None) -> None:
        self.key = key
        self._known: dict[int, tuple[Any, bytes]] = {}  # the value beside its digest keeps its id from being used again
        self._open: dict[int, int] = {}
        if trained is not None:
            for name, value in trained.state_dict(keep_vars=True).items():
                if isinstance(value, Tensor):
                    self._known.setdefault(id(value), (value, self._trained(name, value)))

    def of(self, *values: Any) -> str:
        """One digest of some values, in hexadecimal digits."""
        return self._joined("of", *map(self._of, values)).hex()

    def of_stream(self, pieces: Iterable[Tensor]) -> str:
        """The digest of a tensor that comes in pieces along its first dimension."""
        found = blake2b(key=self.key, digest_size=32)
        first = True
        for piece in pieces:
            if first:
                found.update(f"{piece.dtype} {tuple(piece.shape[1:])}\0".encode())
                first = False
            found.update(_bytes_of(piece))
        return found.hexdigest()

    def of_nested(self, pieces: Iterable[Nested]) -> str:
        """The digest of nested tensors that come in pieces: all keys, kinds, shapes and values count."""
        found = blake2b(key=self.key, digest_size=32)
        for piece in pieces:
            found.update(repr(mapped(piece, lambda part: (str(part.dtype), tuple(part.shape)))).encode() + b"\0")
            for part in tensors(piece):
                found.update(_bytes_of(part))
        return found.hexdigest()

    def _trained(self, name: str, value: Tensor) -> bytes:
        return self._joined("trained", f"{name} {value.dtype} {tuple(value.shape)} {value.requires_grad}".encode())

    def _joined(self, kind: str, *parts: bytes | memoryview) -> bytes:
        found = blake2b(key=self.key, digest_size=32)
        for part in (kind.encode(), *parts):
            found.update(len(part).to_bytes(8, "little"))
            found.update(part)
        return found.digest()

    def _of(self, value: Any) -> bytes:
        if value is None or value is Ellipsis or type(value) in (bool, int, float, complex, str, bytes):
            return self._plain(value)
        if id(value) in self._known:
            return self._known[id(value)][1]
        if id(value) in self._open:  # a value that holds itself
            return self._joined("again", str(self._open[id(value)]).encode())
        self._open[id(value)] = len(self._open)
        try:
            found = self._compound(value)
        finally:
            self._open.pop(id(value))
        self._known[id(value)] = (value, found)
        return found

    def _plain(self, value: Any) -> bytes:
        text = hex(value) if type(value) is int else value if isinstance(value, str) else repr(value)
        return self._joined(
            type(value).__name__, value if isinstance(value, bytes) else text.encode("utf-8", "replace")
        )

    def _compound(self, value: Any) -> bytes:
        """Dispatch by kind; what is of no known kind is an object."""
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, np.ndarray | np.generic):
            return self._array(np.asarray(value))
        if isinstance(value, pd.DataFrame | pd.Series | pd.Index):
            return self._table(value)
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, CodeType):
            return self._code(value)
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, MethodType):
            return self._joined("method", self._of(value.__self__), self._of(value.__func__))
        if isinstance(value, ModuleType):
            return self._named("module", value.__name__, "")
        if isinstance(value, nn.Module):
            return self._module(value)
        if isinstance(value, Enum):
            return self._joined("enum", self._of(type(value)), value.name.encode())
        if isinstance(value, PurePath | torch.dtype | torch.device | torch.memory_format | torch.layout):
            return self._joined(type(value).__name__, str(value).encode())
        return self._container(value) if _is_container(value) else self._object(value)

    def _container(self, value: Any) -> bytes:
        derived = type(value).__module__ != "builtins"
        kind = (self._of(type(value)), self._attributes(value)) if derived else ()
        if isinstance(value, dict | MappingProxyType):
            return self._joined("mapping", *kind, *self._pairs(value))
        if isinstance(value, set | frozenset):
            return self._joined("set", *kind, *sorted(map(self._of, value)))
        return self._joined(type(value).__name__, *kind, *map(self._of, value))

    def _pairs(self, value: Mapping[Any, Any]) -> list[bytes]:
        """Names with values, in an order that does not depend on how the mapping was filled."""
        return sorted(self._of(name) + self._of(part) for name, part in list(value.items()))

    def _attributes(self, value: Any) -> bytes:
        return self._joined("attributes", *self._pairs(getattr(value, "__dict__", {})))

    def _tensor(self, value: Tensor) -> bytes:
        whole = value.detach()
        if whole.layout is not torch.strided or whole.is_quantized:
            whole = whole.dequantize() if whole.is_quantized else whole.to_dense()
        shape = f"{value.dtype} {value.layout} {tuple(value.shape)}"
        content = self.of_stream(split(whole if whole.ndim else whole[None]))
        return self._joined("tensor", shape.encode(), content.encode(), self._attributes(value))

    def _array(self, value: NDArray[Any]) -> bytes:
        if value.dtype.hasobject:
            return self._joined("array", str(value.shape).encode(), *map(self._of, value.ravel().tolist()))
        flat = np.ascontiguousarray(value).reshape(-1)
        content = flat.view(np.uint8).data if value.itemsize else b""
        return self._joined("array", f"{value.dtype.str} {value.shape}".encode(), content)

    def _table(self, value: pd.DataFrame | pd.Series | pd.Index) -> bytes:
        """Columns by name, type and values; words are hashed under a key, row by row."""
        key = blake2b(key=self.key, digest_size=8).hexdigest()
        frame = value if isinstance(value, pd.DataFrame) else pd.DataFrame({"": value})
        parts = []
        for position in range(frame.shape[1]):
            column = frame.iloc[:, position]
            try:
                hashes = pd.util.hash_pandas_object(column, index=False, hash_key=key).to_numpy()
            except TypeError:  # lists and records, which pandas cannot hash
                hashes = column.to_numpy(dtype=object)
            parts.append(self._joined(str(frame.columns[position]), str(column.dtype).encode(), self._array(hashes)))
        return self._joined("table", *parts)

    def _named(self, kind: str, module: str, name: str) -> bytes:
        """What is known by its name; the version of its package stands for its content."""
        top = module.partition(".")[0]
        version = getattr(sys.modules.get(top), "__version__", "") if top != "veil" else ""
        return self._joined(kind, module.encode(), name.encode(), str(version).encode())

    def _class(self, value: type) -> bytes:
        name = self._named("class", str(value.__module__), value.__qualname__)
        own = {key: part for key, part in vars(value).items() if key not in _ABOUT and not _is_slot(part)}
        if _is_installed(value.__module__):  # what somebody put into a class of a package counts all the same
            own = {key: part for key, part in own.items() if isinstance(part, FunctionType) and _is_own(part)}
        return self._joined("class", name, *map(self._of, value.__bases__), *self._pairs(own))

    def _code(self, code: CodeType) -> bytes:
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        parts = (code.co_code, code.co_exceptiontable, repr((counts, code.co_names, code.co_freevars)).encode())
        return self._joined("code", *parts, *map(self._of, code.co_consts))

    def _function(self, value: FunctionType) -> bytes:
        bound = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        closure = {name: _content(cell) for name, cell in bound}
        held = (value.__defaults__, value.__kwdefaults__, closure, value.__dict__)
        parts = [self._of(part) for part in held]
        if _is_own(value):
            return self._joined("function", self._of(value.__code__), *parts, *self._pairs(_globals_of(value)))
        return self._joined("function", self._named("", str(value.__module__), value.__qualname__), *parts)

    def _module(self, module: nn.Module) -> bytes:
        """A module by class and attributes; hooks count, the numbers they are filed under do not."""
        parts = []
        for name, part in sorted(vars(module).items()):
            if name in _ORDERED:
                part = list(part.items())
            elif name.endswith(("_hooks", "_hooks_with_kwargs", "_hooks_always_called")) and isinstance(part, dict):
                part = list(part.values())
            parts.append(self._of(name) + self._of(part))
        if isinstance(module, torch.jit.ScriptModule) and hasattr(module, "forward"):
            code, constants = module.code_with_constants
            parts += [self._of(code), self._of(constants.const_mapping)]
        return self._joined("nn.Module", self._of(type(module)), *parts)

    def _object(self, value: Any) -> bytes:
        """An object by its class, its attributes and what pickling would keep of it, as far as there are any."""
        kind = self._of(type(value))
        if isinstance(value, BuiltinFunctionType):
            owner = value.__self__
            held = b"" if owner is None or isinstance(owner, ModuleType) else self._of(owner)
            return self._joined("builtin", self._named("", str(value.__module__), value.__qualname__), held)
        if isinstance(value, property | staticmethod | classmethod | cached_property):
            names = ("fget", "fset", "fdel", "__func__", "func")
            return self._joined("descriptor", kind, *(self._of(getattr(value, name, None)) for name in names))
        if is_dataclass(value) and _is_installed(type(value).__module__):
            # What Veil itself leaves out of comparisons are caches.
            kept = {field.name: getattr(value, field.name) for field in fields(value) if field.compare}
            return self._joined("dataclass", kind, *self._pairs(kept))
        if type(value) is Settings:
            # Which of them were typed and which have their default makes no difference.
            return self._joined("settings", kind, *self._pairs(dict(value)))
        try:
            reduced = value.__reduce_ex__(4)
        except Exception:  # a lock, an open file, whatever a package wraps
            return self._joined("opaque", kind, self._attributes(value))
        # A package knows what of its objects lasts: its caches need not be the same.
        held = b"" if _is_installed(type(value).__module__) else self._attributes(value)
        if isinstance(reduced, str):
            wrapped = self._of(getattr(value, "__wrapped__", None))
            return self._joined("global", kind, held, reduced.encode(), wrapped)
        made, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
        parts = (made, arguments, state, list(items or ()), dict(pairs or ()))
        return self._joined("object", kind, held, *map(self._of, parts))


def split(rows: Tensor) -> Iterator[Tensor]:
    """A tensor in pieces of some megabytes along its first dimension."""
    size = rows[:1].numel() * rows.element_size()
    count = rows_at_once(size)
    for start in range(0, max(len(rows), 1), count):
        yield rows[start : start + count]


def rows_at_once(row_bytes: int) -> int:
    """How many rows make a piece of some megabytes."""
    return max(1, _AT_ONCE // max(row_bytes, 1))


_PLACES = (Path(sysconfig.get_path("stdlib")), Path(__file__).parents[1])
_PACKAGES = {"site-packages", "dist-packages"}


def _is_installed(module: str | None) -> bool:
    """Whether a module belongs to Python, to an installed package or to Veil: a version stands for its code."""
    name = str(module)
    if name.partition(".")[0] in sys.builtin_module_names:
        return name != "__main__"
    file = getattr(sys.modules.get(name), "__file__", None)
    return file is not None and _lies_in_a_package(file)


def _is_own(function: FunctionType) -> bool:
    """Whether a function is the user's. Its file says so: decorators give it other names."""
    return not _lies_in_a_package(function.__code__.co_filename)


@cache
def _lies_in_a_package(file: str) -> bool:
    path = Path(file)
    return (
        file.startswith("<frozen ")
        or not _PACKAGES.isdisjoint(path.parts)
        or any(path.is_relative_to(place) for place in _PLACES)
    )


def _is_container(value: Any) -> bool:
    return isinstance(value, list | tuple | dict | set | frozenset | MappingProxyType | bytearray | range)


def _is_slot(value: Any) -> bool:
    return type(value).__name__ in ("member_descriptor", "getset_descriptor")


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return Ellipsis


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _globals_of(function: FunctionType) -> dict[str, Any]:
    """The globals that a function reads, and what it reads of modules."""
    found: dict[str, Any] = {}
    for code in _codes(function.__code__):
        read = {str(i.argval) for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
        for name in read & function.__globals__.keys():
            value = found[name] = function.__globals__[name]
            if isinstance(value, ModuleType):
                inside = {part: vars(value)[part] for part in set(code.co_names) & vars(value).keys()}
                if _is_installed(value.__name__):
                    inside = {part: held for part, held in inside.items() if isinstance(held, FunctionType | type)}
                found |= {f"{name}.{part}": held for part, held in inside.items()}
    return found


def _bytes_of(piece: Tensor) -> memoryview:
    plain = piece.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().data
