"""Data sets: problems over the items of a torch Dataset or of a table with named columns, asked for by number."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from veil.errors import InputError, require
from veil.foundation.nested import Nested, tensors
from veil.foundation.row_draws import repeats
from veil.problem.inputs import LOADER, is_loader
from veil.problem.rows import Collate, ItemRows, numbers, sequence_paths

_LOOKED_AT = 8
# What a dict calls its target where nobody says otherwise.
_TARGETS = ("labels", "label", "target", "targets")


@dataclass(frozen=True)
class Chosen:
    """What a model is given of an item: some keys, all but some, or all but the last part of a tuple."""

    keys: tuple[str, ...] | None = None
    without: tuple[str, ...] = ()
    last: bool = False

    def __call__(self, item: Any) -> Any:
        if isinstance(item, tuple | list) and self.last:
            return item[0] if len(item) == 2 else tuple(item[:-1])
        if not _is_mapping(item):
            return tuple(item) if isinstance(item, list) else item
        keys = self.keys if self.keys is not None else [key for key in item.keys() if key not in self.without]  # noqa: SIM118
        return {key: item[key] for key in keys}


@dataclass(frozen=True)
class DataSet:
    """A data set with what of an item is input, and which key holds its target."""

    items: Any
    of_item: Callable[[Any], Any]
    target: str | None

    def __len__(self) -> int:
        return len(self.items)

    @classmethod
    def opened(cls, items: Any, inputs: Any, targets: Any, *others: Any) -> DataSet:
        """Look at the first item to see what an item is made of; `others` are groups, owners and people."""
        require(not is_loader(items), LOADER)
        indexed = hasattr(items, "__len__") and hasattr(items, "__getitem__")
        require(indexed, f"a {type(items).__name__} has no len and no items by number: give a map-style data set")
        require(len(items) > 0, "there are no rows: give at least one row to train on")
        first = items[0]
        target = targets if isinstance(targets, str) else None
        if _is_mapping(first):
            known = [str(key) for key in first.keys()]  # noqa: SIM118
            for key in [k for k in (target, *others) if isinstance(k, str)] + _keys(inputs):
                require(key in known, f'the items have no "{key}": they have {", ".join(known)}')
            target = target or (next((key for key in _TARGETS if key in known), None) if targets is None else None)
            require(
                target is not None or targets is not None,
                f"which of {', '.join(known)} is the target? Name it with targets=",
            )
        else:
            named = [k for k in (target, *others) if isinstance(k, str)] + _keys(inputs)
            require(not named, f'the items have no keys, so there is no "{next(iter(named), "")}": give a function')
            pairs = isinstance(first, tuple | list) and len(first) > 1
            require(pairs or targets is not None, "the items hold no target: give targets=, one per row")
        if callable(inputs):
            return cls(items, inputs, target)
        without = tuple(key for key in (target, *others) if isinstance(key, str))
        return cls(items, Chosen(tuple(inputs) if inputs is not None else None, without, last=True), target)

    def rows(self, collate: Callable[[list[Any]], Nested] | None, pad: bool | int) -> ItemRows:
        """The rows as a source."""
        first = self.of_item(self.items[0])
        if collate is None:
            paths = sequence_paths(numbers(first)) if pad is not False else frozenset()
            collate = Collate(paths, None if isinstance(pad, bool) else int(pad))
        example = collate([first])
        found = list(tensors(example))
        require(
            len(found) > 0 and all(part.ndim and len(part) == 1 for part in found),
            "the collate function must give tensors whose first dimension is the row",
        )
        put_together, made = collate, ItemRows(self.items, self.of_item, collate, example)
        if made.reads_files:
            return made
        # A few items all over the data set: some kinds of rows may draw where others do not.
        looked_at = sorted({int(row) for row in np.linspace(0, len(self.items) - 1, _LOOKED_AT)})
        return replace(made, own_draws=any(self._draws(row, put_together) for row in looked_at))

    def _draws(self, row: int, put_together: Callable[[list[Any]], Nested]) -> bool:
        """Whether making this row takes random numbers from elsewhere. One that cannot be read is named later."""
        try:
            return not repeats(lambda: put_together([self.of_item(self.items[row])]))
        except Exception:
            return False

    def columns(self, **wanted: Any) -> dict[str, Any]:
        """Targets, groups, owners and people of all rows; items are read once, if any of these is in them."""
        found: dict[str, Any] = {}
        readers: dict[str, Callable[[Any], Any]] = {}
        for name, given in wanted.items():
            key = self.target if name == "targets" and given is None else given
            if isinstance(key, str) and key in getattr(self.items, "column_names", ()):
                found[name] = list(self.items[key])
            elif isinstance(key, str):
                readers[name] = _Part(key)
            elif callable(key) and not isinstance(key, Sequence | Mapping | np.ndarray | Tensor):
                readers[name] = key
            elif name == "targets" and key is None:
                readers[name] = _Part(-1)
            else:
                found[name] = key
        read: dict[str, list[Any]] = {name: [] for name in readers}
        for row in range(len(self.items) if readers else 0):
            item = self.items[row]
            for name, reader in readers.items():
                read[name].append(_plain(reader(item)))
        return {**found, **read}


@dataclass(frozen=True)
class _Part:
    """One part of an item, by key or place."""

    key: str | int

    def __call__(self, item: Any) -> Any:
        return item[self.key]


def _keys(inputs: Any) -> list[str]:
    if inputs is None or callable(inputs):
        return []
    if isinstance(inputs, str):
        raise InputError(f'inputs is "{inputs}": give a list of keys, ["{inputs}"]')
    return list(inputs)


def _is_mapping(item: Any) -> bool:
    return isinstance(item, Mapping) or (hasattr(item, "keys") and hasattr(item, "__getitem__"))


def _plain(value: Any) -> Any:
    """A number or text out of whatever holds one; sequences stay sequences."""
    if isinstance(value, Tensor | np.ndarray | np.generic):
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
        return array.item() if array.size == 1 and array.ndim == 0 else array
    return value
