"""Rows: where the inputs of a problem come from, when they are more than one tensor in memory.

Whatever the rows are (dicts and tuples of tensors, sequences of different lengths, a memory map, the items of a torch
Dataset), a problem asks for three things: the inputs of some rows, a few synthetic rows of the same kind, and the
inputs of all rows in order for a digest (by taking them piece by piece).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor
from torch.utils.data import Subset, TensorDataset

from veil.errors import InputError, require
from veil.foundation.nested import Nested, joined, mapped, row_of, tensors
from veil.foundation.row_draws import BATCH, drawn_by_row

# The key under which a dict of padded sequences says which of their places are real.
MASK = "attention_mask"
# Targets at padded places: torch's losses leave them out.
IGNORED = -100
# Whole numbers that layers of torch do not take.
UNUSUAL = (torch.uint16, torch.uint32, torch.uint64, torch.int16)
# Kinds of values that are as they are whenever they are read.
_VALUES = frozenset({Tensor, np.ndarray, np.memmap, int, float, bool, str, bytes, type(None)})
# Lengths of synthetic sequences, so that some are padded and some are not.
_MADE_UP_LENGTHS = (4, 7, 5, 7, 6)


class Rows(Protocol):
    """Rows that are taken by number when a batch is drawn; they need not lie in memory."""

    def take(self, rows: NDArray[np.int64]) -> Nested:
        """The inputs of some rows, in this order: nested tensors whose first dimension is the row.

        Args:
            rows: Row numbers.

        Returns:
            The inputs, with one entry per row in the given order.
        """
        ...


@dataclass(frozen=True)
class NestedRows:
    """Dicts and tuples of tensors that lie in memory, each with one entry per row."""

    parts: Nested

    def take(self, rows: NDArray[np.int64]) -> Nested:
        """Some rows of every tensor."""
        index = torch.from_numpy(rows)
        return mapped(self.parts, lambda part: part.index_select(0, index))

    def made_up(self, count: int, generator: Generator) -> Nested:
        """Random rows of the same shapes."""
        return mapped(self.parts, lambda part: made_up_like(part, count, generator))


class ArrayRows:
    """Rows of an array on disk (`np.memmap`) of any kind of number; whole numbers come out as int64."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array

    def take(self, rows: NDArray[np.int64]) -> Tensor:
        """Some rows, read now."""
        return usable(np.asarray(self.array[rows]))

    def made_up(self, count: int, generator: Generator) -> Tensor:
        """Random rows of the same shape and kind."""
        return made_up_like(usable(np.zeros((1, *self.array.shape[1:]), self.array.dtype)), count, generator)


@dataclass(frozen=True)
class ItemRows:
    """Rows that are asked for one by one (a list, a torch Dataset) and put together into a batch by `collate`.

    `of_item` is what the model is given of an item; `example` is a batch that shows the shapes. Random
    generators start again for each item, and once more for a `collate` of the user's (`foundation.row_draws`);
    `own_draws` says that making one takes random numbers from elsewhere.
    """

    items: Any
    of_item: Callable[[Any], Any]
    collate: Callable[[list[Any]], Nested]
    example: Nested = field(repr=False, compare=False)
    own_draws: bool = False

    @property
    def reads_files(self) -> bool:
        """Whether items are files that Veil decodes, one by one and without random numbers."""
        return isinstance(self.collate, Collate) and self._picks() and _decodes(self.items)

    def take(self, rows: NDArray[np.int64]) -> Nested:
        """Some rows, put together."""
        if len(rows) == 0:
            return mapped(self.example, lambda part: part[:0])
        if isinstance(self.collate, Collate) and self._picks() and draws_nothing(self.items):
            items = fetched(self.items, rows)
            if all(map(_is_plain, items)):
                return self.collate([self.of_item(item) for item in items])
        found = []
        with drawn_by_row() as begin:
            for place, row in enumerate(rows.tolist()):
                begin(row, 0)
                item = self.of_item(fetched(self.items, rows[place : place + 1])[0])
                # Reading the numbers of an object may draw too.
                found.append(numbers(item) if isinstance(self.collate, Collate) else item)
            begin(BATCH, 0)
            return self.collate(found)

    def _picks(self) -> bool:
        """Whether parts of an item are picked by Veil: a function of the user's may draw whatever the items are."""
        kind = type(self.of_item)
        return (self.of_item.__module__ if kind is FunctionType else kind.__module__).startswith("veil.problem.")

    def only(self, rows: NDArray[np.int64]) -> ItemRows:
        """Some of the rows, which are asked for later as before."""
        return replace(self, items=Subset(self.items, rows.tolist()))

    def made_up(self, count: int, generator: Generator) -> Nested:
        """Random rows like the example; sequences that are padded have different lengths."""
        if not isinstance(self.collate, Collate) or not self.collate.padded:
            return mapped(self.example, lambda part: made_up_like(part, count, generator))
        return self.collate([self._made_up_item(length, generator) for length in made_up_lengths(count)])

    def length_of(self, inputs: Nested) -> int | None:
        """The length of a padded batch; None if nothing is padded here."""
        padded = isinstance(self.collate, Collate) and self.collate.padded
        return self.collate.length_of(inputs) if padded and isinstance(self.collate, Collate) else None

    @property
    def shape(self) -> tuple[int, ...]:
        """The public shape of a row: it says nothing of how long any row is, nor what a user's collate makes of one."""
        if not isinstance(self.collate, Collate):
            return (1,)
        if isinstance(self.example, Tensor):
            return tuple(self.example.shape[1:])
        return (self.collate.row_size(self.example),)

    def padded_twice(self) -> tuple[tuple[Nested, int], tuple[Nested, int]] | None:
        """A synthetic row alone and beside a longer one, with the lengths of both; None if batches are alike long."""
        if not isinstance(self.collate, Collate) or not self.collate.padded or self.collate.pad_to is not None:
            return None
        short, long = min(_MADE_UP_LENGTHS), max(_MADE_UP_LENGTHS)
        generator = torch.Generator().manual_seed(0)
        items = [self._made_up_item(length, generator) for length in (short, long)]
        return (self.collate(items[:1]), short), (self.collate(items), long)

    def _made_up_item(self, length: int, generator: Generator) -> Any:
        assert isinstance(self.collate, Collate)
        return self.collate.resized(self.collate.single(self.example), length, generator)


def draws_nothing(items: Any) -> bool:
    """Whether items are known to be as they are, so that they may be asked for together; a subclass may do anything.

    >>> draws_nothing([1, 2]), draws_nothing(Subset(TensorDataset(torch.zeros(2)), [1]))
    (True, True)
    """
    if type(items) is Subset:
        return draws_nothing(items.dataset)
    if _decodes(items):
        return True
    if type(items) is TensorDataset:
        return all(type(part) is Tensor for part in items.tensors)
    if type(items) in (list, tuple, np.ndarray, np.memmap, Tensor):
        return True
    # A table of Hugging Face's datasets says what its format is; with a transform that is "custom".
    kind = getattr(items, "format", None) if type(items).__module__.startswith("datasets.") else None
    return hasattr(items, "column_names") and isinstance(kind, dict) and kind.get("type", "custom") != "custom"


def _decodes(items: Any) -> bool:
    """Whether items are files that a class of Veil decodes."""
    if type(items) is Subset:
        return _decodes(items.dataset)
    kind = type(items)
    return kind.__module__.startswith("veil.") and getattr(kind, "decodes_files", False) is True


def _is_plain(item: Any) -> bool:
    """Whether an item holds values alone, no object that makes them up when it is asked."""
    if type(item) is dict:
        return all(map(_is_plain, item.values()))
    if type(item) in (list, tuple):
        return all(map(_is_plain, item))
    return type(item) in _VALUES or isinstance(item, np.generic)


def made_up_lengths(count: int) -> list[int]:
    """Lengths of so many synthetic sequences."""
    return [_MADE_UP_LENGTHS[row % len(_MADE_UP_LENGTHS)] for row in range(count)]


def fetched(items: Any, rows: NDArray[np.int64]) -> list[Any]:
    """Some items; all at once where the data set can do that. One that cannot be read is named by its number alone."""
    try:
        if hasattr(items, "__getitems__"):
            return list(items.__getitems__([int(row) for row in rows]))
        return [items[int(row)] for row in rows]
    except InputError:
        raise
    except Exception:
        number, kind = _unreadable(items, rows)
        raise InputError(
            f"Row {number} of the data set cannot be read ({kind}): repair it or take it out. A run that has read rows "
            "before stays charged; with out= all rows are read once before anything is charged."
        ) from None


def _unreadable(items: Any, rows: NDArray[np.int64]) -> tuple[int, str]:
    """The number of the first item that cannot be read, in the data set itself, and the kind of its error."""
    for row in rows.tolist():
        try:
            items[row]
        except Exception as error:
            return (int(items.indices[row]) if isinstance(items, Subset) else row), type(error).__name__
    return int(rows[0]), "only together with others"


@dataclass(frozen=True)
class Collate:
    """Puts items of the same structure together: tensors are stacked, and padded where `padded` names their place.

    Where something is padded a mask is added: beside a tensor and at the end of a tuple as true values where a place is
    real, in a dict as `attention_mask` unless it has one. `pad_to` is the length of all batches; by default each is as
    long as its longest row.

    >>> rows, real = Collate(padded=frozenset({()}))([torch.tensor([1, 2]), torch.tensor([3])])
    >>> rows.tolist(), real.tolist()
    ([[1, 2], [3, 0]], [[True, True], [True, False]])
    """

    padded: frozenset[tuple[Any, ...]] = frozenset()
    pad_to: int | None = None

    def __call__(self, items: list[Any]) -> Nested:
        plain = [numbers(item) for item in items]
        batch = self._joined(plain, ())
        if not self.padded:
            return batch
        lengths = [len(part) for part in self._sequences(plain)]
        mask = torch.arange(self._length(lengths)) < torch.tensor(lengths)[:, None]
        if isinstance(batch, dict):
            return batch if MASK in batch else {**batch, MASK: mask.long()}
        return (*batch, mask) if isinstance(batch, tuple) else (batch, mask)

    def single(self, batch: Nested) -> Any:
        """The first item of a batch, without the mask that was added.

        Args:
            batch: A collated batch.

        Returns:
            The item as it was before it was padded and stacked, padding included.
        """
        if not self.padded:
            return mapped(batch, lambda part: part[0])
        if isinstance(batch, dict):
            known = {path[0] for path in self.padded}
            return {k: mapped(v, lambda part: part[0]) for k, v in batch.items() if k != MASK or MASK in known}
        inner = batch[0] if () in self.padded else batch[:-1]
        return mapped(inner, lambda part: part[0])

    def resized(self, item: Any, length: int, generator: Generator, path: tuple[Any, ...] = ()) -> Any:
        """A random item of the same kind whose padded parts have another length.

        Args:
            item: The item to imitate.
            length: Length of the padded parts.
            generator: Source of random values.
            path: Where the item stands in the whole; leave it out.

        Returns:
            Random values of the same structure and kinds.
        """
        if isinstance(item, dict):
            return {key: self.resized(part, length, generator, (*path, key)) for key, part in item.items()}
        if isinstance(item, tuple):
            return tuple(self.resized(part, length, generator, (*path, i)) for i, part in enumerate(item))
        shape = (length, *item.shape[1:]) if path in self.padded else tuple(item.shape)
        if path and path[-1] == MASK:
            return torch.ones(shape, dtype=item.dtype)
        return made_up_like(item.new_zeros((1, *shape)), 1, generator)[0]

    def row_size(self, example: Nested) -> int:
        """How many values a row has; of sequences that are padded, at one place or at as many as all batches have.

        Args:
            example: A batch of one row or more.

        Returns:
            The number of values.
        """
        item = self.resized(self.single(example), self.pad_to or 1, torch.Generator()) if self.padded else None
        return row_size(example) if item is None else sum(part.numel() for part in tensors(item))

    def length_of(self, batch: Nested) -> int:
        """The length of a padded batch.

        Args:
            batch: A padded batch.

        Returns:
            The number of places of each row.
        """
        for step in min(self.padded, key=str) or (0,):
            batch = batch[step]
        assert isinstance(batch, Tensor)
        return batch.shape[1]

    def alone(self, batch: Nested) -> list[Nested]:
        """Each row of a padded batch as a batch of one, without what was only padded: it owes nothing to other rows.

        A row is as long as its mask shows, or up to the last value that is not zero; all its padded parts alike.

        Args:
            batch: A padded batch.

        Returns:
            One batch for each row.

        >>> collate = Collate(padded=frozenset({()}))
        >>> [row.tolist() for row, real in collate.alone(collate([torch.tensor([1, 2]), torch.tensor([3])]))]
        [[[1, 2]], [[3]]]
        """
        paths = self._places(batch)
        parts = [part for path, part in leaves(batch, ()) if path in paths and part.ndim > 1]
        ends = torch.stack([_ends(part) for part in parts]).amax(0).tolist()
        return [_resized(row_of(batch, row), dict.fromkeys(paths, int(end))) for row, end in enumerate(ends)]

    def fits(self, batch: Nested) -> bool:
        """Whether a batch has its padded parts and its mask where they belong.

        Args:
            batch: Any batch.

        Returns:
            Whether `alone` can take it apart.
        """
        if not isinstance(batch, dict | tuple):
            return False
        return self._places(batch) <= {path for path, _ in leaves(batch)}

    def together(self, rows: list[Nested], batch: Nested) -> Nested:
        """Batches of one row together, padded as far as a batch is, or further where one of them is longer.

        Args:
            rows: Batches of one row, with the padded parts at the places where `batch` has them.
            batch: A padded batch.

        Returns:
            One batch.

        Raises:
            InputError: They do not fit together.
        """
        paths = self._places(batch)
        lengths: dict[tuple[Any, ...], int] = {}
        for some in (batch, *rows):
            for path, part in leaves(some, ()):
                if path in paths and part.ndim > 1:
                    lengths[path] = max(lengths.get(path, 0), part.shape[1])
        padded = [_resized(row, lengths) for row in rows]
        shapes = {tuple(tuple(part.shape[1:]) for part in tensors(row)) for row in padded}
        require(
            len(shapes) == 1,
            "the transform gives rows of different shapes: leave padded sequences and their mask at their places, so "
            "that they can be padded again",
        )
        return joined(padded)

    def _places(self, batch: Nested) -> frozenset[tuple[Any, ...]]:
        """Where a batch is padded, its mask included."""
        if isinstance(batch, dict):
            return self.padded | {(MASK,)}
        return frozenset({(0,), (1,)}) if () in self.padded else self.padded | {(len(batch) - 1,)}

    def _joined(self, items: list[Any], path: tuple[Any, ...]) -> Nested:
        first = items[0]
        if isinstance(first, dict):
            _same_keys(items)
            return {key: self._joined([item[key] for item in items], (*path, key)) for key in first}
        if isinstance(first, tuple):
            return tuple(self._joined([item[i] for item in items], (*path, i)) for i in range(len(first)))
        if path in self.padded:
            length = self._length([len(item) for item in items])
            batch = first.new_zeros((len(items), length, *first.shape[1:]))
            for row, item in enumerate(items):
                batch[row, : len(item)] = item
            return batch
        shapes = {tuple(item.shape) for item in items}
        where = f'"{path[-1]}"' if path else "the inputs"
        require(
            len(shapes) == 1,
            f"{where} have different shapes from row to row ({', '.join(map(str, sorted(shapes)[:2]))}): pad them "
            "(pad=True), or give a collate function",
        )
        return torch.stack(items)

    def _sequences(self, items: list[Any]) -> list[Tensor]:
        path = min(self.padded, key=str)
        for step in path:
            items = [item[step] for item in items]
        return items

    def _length(self, lengths: list[int]) -> int:
        longest = max(lengths)
        require(
            self.pad_to is None or longest <= self.pad_to,
            f"a row has {longest} places and batches are padded to {self.pad_to}: shorten it or raise the length",
        )
        return longest if self.pad_to is None else self.pad_to


def _same_keys(items: list[Any]) -> None:
    for item in items:
        unknown = set(item) ^ set(items[0])
        require(not unknown, f'"{next(iter(unknown), "")}" is in some rows and not in others: give every row all keys')


def numbers(item: Any, where: str = "") -> Any:
    """One row as nested tensors; what is no number is named."""
    if isinstance(item, Tensor):
        return usable(item)
    if isinstance(item, dict) or (hasattr(item, "keys") and hasattr(item, "__getitem__")):
        return {key: numbers(item[key], str(key)) for key in item.keys()}  # noqa: SIM118 (mappings of packages)
    if isinstance(item, tuple):
        return tuple(numbers(part, where) for part in item)
    array = np.asarray(item)
    if array.dtype.kind not in "biuf":
        named, found = f'"{where}"' if where else "a row", "text" if isinstance(item, str) else type(item).__name__
        raise InputError(
            f"{named} holds {found}, not numbers: name what the model is given with inputs=[…], or give a collate "
            "function that makes numbers of it"
        )
    return usable(array)


def usable(values: Tensor | NDArray[Any]) -> Tensor:
    """As models take it: floats in the default precision, whole numbers of unusual kinds as int64."""
    # A copy of what numpy holds: torch warns of memory that must not be written to.
    found = values.detach() if isinstance(values, Tensor) else torch.tensor(values)
    if found.dtype in UNUSUAL:
        return found.to(torch.int64)
    return found.to(torch.get_default_dtype()) if found.is_floating_point() else found


def made_up_like(part: Tensor, count: int, generator: Generator) -> Tensor:
    """So many random rows of a tensor's shape and kind; whole numbers are 0 and 1, the first of each row 1."""
    shape = (count, *part.shape[1:])
    if part.is_floating_point():
        return torch.randn(shape, generator=generator).to(part.dtype)
    values = torch.randint(0, 2, shape, generator=generator)
    if values.ndim > 1 and values.numel():
        values.flatten(1)[:, 0] = 1  # a mask that hides a whole row would show nothing
    return values.to(part.dtype)


def row_size(example: Nested, count: int = 1) -> int:
    """How many values a row has."""
    return sum(part.numel() // max(1, count) for part in tensors(example))


def ragged_paths(items: Sequence[Any]) -> frozenset[tuple[Any, ...]]:
    """Where the tensors of some items have different lengths."""
    found: set[tuple[Any, ...]] = set()
    lengths: dict[tuple[Any, ...], int] = {}
    for item in items:
        for path, part in leaves(item, ()):
            if part.ndim and lengths.setdefault(path, len(part)) != len(part):
                found.add(path)
    return frozenset(found)


def sequence_paths(item: Any) -> frozenset[tuple[Any, ...]]:
    """Where an item has tensors of one dimension or more."""
    return frozenset(path for path, part in leaves(item, ()) if part.ndim)


def _ends(part: Tensor) -> Tensor:
    """For each row the number of places up to the last that is not zero."""
    real = (part != 0).unsqueeze(-1).flatten(2).any(2)
    places = torch.arange(1, part.shape[1] + 1, device=part.device)
    return torch.nn.functional.pad(real * places, (1, 0)).amax(1)


def _long(part: Tensor, length: int) -> Tensor:
    """Rows of so many places: cut, or filled up with zeros."""
    missing = part.new_zeros((len(part), max(0, length - part.shape[1]), *part.shape[2:]))
    return torch.cat([part[:, :length], missing], 1)


def _resized(nested: Nested, lengths: dict[tuple[Any, ...], int], path: tuple[Any, ...] = ()) -> Nested:
    """The same with so many places of the tensors at these paths."""
    if isinstance(nested, dict):
        return {key: _resized(part, lengths, (*path, key)) for key, part in nested.items()}
    if isinstance(nested, tuple | list):
        return tuple(_resized(part, lengths, (*path, i)) for i, part in enumerate(nested))
    fits = path in lengths and isinstance(nested, Tensor) and nested.ndim > 1
    return _long(nested, lengths[path]) if fits else nested


def leaves(item: Any, path: tuple[Any, ...] = ()) -> list[tuple[tuple[Any, ...], Tensor]]:
    """Every tensor with the keys and places that lead to it."""
    if isinstance(item, dict):
        return [found for key, part in item.items() for found in leaves(part, (*path, key))]
    if isinstance(item, tuple | list):
        return [found for i, part in enumerate(item) for found in leaves(part, (*path, i))]
    return [(path, item)]
