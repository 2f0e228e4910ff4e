"""People with several rows: which rows of a person count, and how they take part in a release.

A person counts in one group, that of one of their rows, with at most so many of their rows of that group. Which rows
these are follows from the person alone: from the name and from the order of the person's own rows. Other people change
nothing about it, so a problem of people has the neighbours that a problem of rows has: one entry more or less.

A release takes a person's rows in one of two ways, and neither lets a person move it by more than one row would:

* `Problem.apart`: row by row, each with its share of 1. A sum of bounded rows is moved by a mean of bounded vectors.
* `Problem.together`: as one row, whose loss is the mean over the rows: the person's mean gradient is bounded once.

That is the way "mean". The way "each" makes every row that counts an entry by itself, drawn and bounded alone; the
accountant then counts all rows of a person at once (`veil.accounting.pld.several`), which is sound as all of them stand
in one cell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any, Literal, get_args
from uuid import UUID

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from pandas.util import hash_array
from torch import Generator, Tensor

from veil.errors import InputError, require
from veil.foundation.nested import Nested, mapped
from veil.foundation.randomness import Seed
from veil.problem.inputs import Inputs
from veil.problem.rows import ItemRows, NestedRows, Rows, made_up_like

ROWS_PER_PERSON = 10
# How a person's rows count: by their mean, as one entry; or each as an entry.
Counting = Literal["mean", "each"]
# Shares stay this much below 1 in sum, so that rounding never brings them above.
_INSIDE = 1 - 1e-9
# Rows of a synthetic person.
_MADE_UP = 3
_AT_ONCE = 1 << 20
# Which rows count need not be secret: a fixed rule, drawn once.
_DRAW = Seed.from_int(0)


@dataclass(frozen=True)
class Counted:
    """Row numbers of all people, one after another; those of person i stand from `first[i]` to `first[i + 1]`.

    Of each person the first one is the row that was drawn: it says in which group the person counts.
    """

    rows: NDArray[np.int64]
    first: NDArray[np.int64]
    most: int

    @property
    def drawn(self) -> NDArray[np.int64]:
        """The drawn row of each person."""
        return self.rows[self.first[:-1]]

    @property
    def person_of(self) -> NDArray[np.int64]:
        """The person of each row that counts."""
        return np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))

    def of(self, people: NDArray[np.bool_]) -> Counted:
        """The same for some of the people."""
        sizes = np.diff(self.first)
        return Counted(self.rows[np.repeat(people, sizes)], _offsets(sizes[people]), self.most)


def count_rows(people: Sequence[Any] | NDArray[Any], groups: NDArray[np.int64], most: int) -> Counted:
    """Which rows of each person count: at most so many, all in the group of the one that is drawn.

    People are in the order of their first rows.

    >>> counted = count_rows(["ann", "bob", "ann", "ann"], np.zeros(4, np.int64), 2)
    >>> np.diff(counted.first), counted.rows[2:]
    (array([2, 1]), array([1]))
    """
    codes, names = _codes(people, len(groups))
    return count_known(codes, name_hashes(names), groups, most)


def count_known(codes: NDArray[Any], hashes: NDArray[np.uint64], groups: NDArray[Any], most: int) -> Counted:
    """The same for numbers of people, 0, 1, … in the order of their first rows, and what each name is hashed to.

    Of many millions of rows no more than a few numbers each are in memory at a time.
    """
    require(most >= 1, f"rows_per_person is {most}: at least one row of a person must count")
    by_person = np.argsort(codes, kind="stable")
    own = np.empty(len(codes), dtype=np.int32)
    own[by_person] = _places(codes[by_person])
    del by_person
    ranks = np.empty(len(codes))
    for start in range(0, len(codes), _AT_ONCE):
        some = slice(start, start + _AT_ONCE)
        place = hash_array(hashes[codes[some]] + hash_array(own[some].astype(np.uint64)))
        ranks[some] = _DRAW.uniforms("people", 0, place.view(np.int64))
    del own
    order = np.lexsort((ranks, codes))
    del ranks
    drawn = order[_places(codes[order]) == 0]
    order = order[groups[order] == groups[drawn][codes[order]]]
    order = order[_places(codes[order]) < most]
    return Counted(order, _offsets(np.bincount(codes[order], minlength=len(hashes))), most)


def checked_counting(given: str) -> Counting:
    """One of the ways in which rows count; anything else raises `InputError`."""
    found = next((way for way in get_args(Counting) if way == given), None)
    if found is None:
        raise InputError(f'person_rows is "{given}": it must be mean or each')
    return found  # type: ignore[no-any-return]


def check_owners(people: Sequence[Any] | NDArray[Any], owners: NDArray[Any], named: Sequence[Any] | pd.Index) -> None:
    """Reject a person with rows of several owners: nobody could say whose budget holds. `named` are names of rows."""
    codes, names = _codes(people, len(owners))
    numbers = pd.factorize(owners)[0]
    owner_of = np.zeros(len(names), np.int64)
    owner_of[codes] = numbers
    several = np.flatnonzero(owner_of[codes] != numbers)
    require(
        len(several) == 0,
        f"the person of row {named[several[0]] if len(several) else 0} has rows of several owners: give every person "
        "one owner",
    )


def least_of_person(values: ArrayLike, people: Sequence[Any] | NDArray[Any]) -> NDArray[np.float64]:
    """Of each row the smallest number among all rows of the same person.

    >>> least_of_person([1.0, 2.0, 0.5], ["ann", "bob", "ann"])
    array([0.5, 2. , 0.5])
    """
    given = np.asarray(values, dtype=np.float64)
    codes, names = _codes(people, len(given))
    least = np.full(len(names), np.inf)
    np.minimum.at(least, codes, given)
    return np.asarray(least[codes])


def are_own_owners(people: Any, owners: Any) -> bool:
    """Whether the owner of every row is the person whom it is about."""
    try:
        return bool(np.array_equal(names_of(people), names_of(owners)))
    except InputError:  # owners may be named by anything
        return False


def own_budgets(
    people: NDArray[np.object_], budgets: Mapping[str, float], named: Sequence[Any] | pd.Index
) -> NDArray[np.float64]:
    """The ε of each row where people are their own owners; `named` are names of rows.

    >>> own_budgets(names_of(["ann", "bob", "ann"]), {"ann": 0.5, "bob": 2}, range(3))
    array([0.5, 2. , 0.5])
    """
    known = dict(zip(names_of(list(budgets)).tolist(), budgets.values(), strict=True))
    codes, names = pd.factorize(people)
    of_person = np.array([known.get(name, np.nan) for name in names.tolist()], dtype=np.float64)
    found = np.asarray(of_person[codes])
    missing = np.isnan(found)
    require(not missing.any(), f"the person of row {named[int(missing.argmax())]} has no budget: add a line for it")
    return found


def names_of(people: Any) -> NDArray[np.object_]:
    """Each row's person as a word that does not follow from how other rows were read: 5, 5.0 and " 5" are one person.

    Missing ones are None. What has no value of its own (an object that is known by its place in memory) is rejected.

    >>> names_of([5, "5", 5.0, " Ann", torch.tensor(7), None]).tolist()
    ['5', '5', '5', 'Ann', '7', None]
    """
    given = people.detach().cpu().numpy() if isinstance(people, Tensor) else people
    if isinstance(given, np.ndarray | pd.Series | pd.Index) and given.ndim == 1 and _is_number(given):
        values: Any = given  # several times as fast as objects
    elif isinstance(given, np.ndarray | pd.Series | pd.Index) and given.dtype != object:
        values = np.asarray(given, dtype=object)
    else:
        values = np.empty(len(given), dtype=object)
        values[:] = [one.item() if isinstance(one, Tensor | np.generic) or _is_single(one) else one for one in given]
    require(values.ndim == 1, f"people has {values.ndim} dimensions: give one person per row")
    try:
        codes, distinct = pd.factorize(values)
    except TypeError:
        raise InputError("people must be named by words, numbers or dates: give one name per row") from None
    words = np.array([*map(_word, distinct.tolist()), None], dtype=object)
    return np.asarray(words[codes], dtype=object)


def _is_number(given: Any) -> bool:
    return bool(pd.api.types.is_integer_dtype(given.dtype) or pd.api.types.is_float_dtype(given.dtype))


def _is_single(one: Any) -> bool:
    return isinstance(one, np.ndarray) and one.ndim == 0


def _word(name: Any) -> str | None:
    if isinstance(name, str):
        return name.strip() or None
    if isinstance(name, bytes):
        return name.decode("utf-8", "replace")
    if isinstance(name, float) and name.is_integer():
        return str(int(name))
    if isinstance(name, int | float | date | UUID):
        return str(name)
    raise InputError(f"a person is a {type(name).__name__}: name people by words, numbers or dates")


def name_hashes(names: NDArray[np.object_]) -> NDArray[np.uint64]:
    """A number for each name."""
    return hash_array(np.asarray(names, dtype=object), categorize=len(names) > 1000)


def _codes(people: Any, rows: int) -> tuple[NDArray[np.int64], NDArray[np.object_]]:
    """The number of each row's person, in the order of their first rows, and the people."""
    words = names_of(people)
    require(len(words) == rows, f"there are {rows} rows and {len(words)} people: the numbers must match")
    codes, names = pd.factorize(words)
    if (codes < 0).any():
        raise InputError(f"the person of row {int(np.argmin(codes))} is missing: fill it in or remove the row")
    return codes.astype(np.int64), np.asarray(names, dtype=object)


def _offsets(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])


def _places(listed: NDArray[Any]) -> NDArray[np.int64]:
    """How many equal values stand before each of a sorted list."""
    begins = np.ones(len(listed), dtype=bool)
    np.not_equal(listed[1:], listed[:-1], out=begins[1:])
    starts = np.flatnonzero(begins)
    return np.arange(len(listed)) - np.repeat(starts, np.diff(starts, append=len(listed)))


def _taken(inputs: Tensor, source: Rows | None, rows: NDArray[np.int64]) -> tuple[Tensor, Rows | None]:
    """Some of the inputs of a problem, as it holds them."""
    if source is None:
        return inputs[torch.from_numpy(rows)], None
    if isinstance(source, NestedRows):
        return inputs, NestedRows(source.take(rows))
    if isinstance(source, ItemRows):  # what a data set gives is asked for later
        return inputs, source.only(rows)
    return inputs, Picked(source, rows)


@dataclass(frozen=True)
class Picked:
    """Some rows of others, by their numbers there."""

    source: Any
    numbers: NDArray[np.int64]

    def take(self, rows: NDArray[np.int64]) -> Nested:
        """Some of them."""
        found: Nested = self.source.take(self.numbers[rows])
        return found

    def made_up(self, count: int, generator: Generator) -> Nested:
        """Synthetic rows of the same kind."""
        found: Nested = self.source.made_up(count, generator)
        return found


@dataclass(frozen=True)
class Several:
    """The rows of all people; those of person i stand from `first[i]` to `first[i + 1]`, the drawn one first."""

    inputs: Tensor
    targets: Tensor
    first: NDArray[np.int64]
    source: Rows | None = None

    def __post_init__(self) -> None:
        require(self.targets.ndim == 1, "rows with several targets each count one per person: use rows_per_person=1")

    @property
    def sizes(self) -> NDArray[np.int64]:
        """How many rows each person has."""
        return np.diff(self.first)

    @property
    def person_of(self) -> NDArray[np.int64]:
        """The person of each row."""
        return np.repeat(np.arange(len(self.first) - 1), self.sizes)

    def shares(self) -> NDArray[np.float64]:
        """The share of each row in its person's 1."""
        return np.repeat(np.where(self.sizes > 1, _INSIDE / np.maximum(self.sizes, 1), 1.0), self.sizes)

    def of_items(self, source: ItemRows) -> Several:
        """The same over the items of a data set, where the inputs are their numbers."""
        return replace(self, inputs=torch.empty(0), source=source.only(self.inputs[:, 0].numpy()))

    def replacing(self, person: int, inputs: Tensor, target: Tensor) -> Several:
        """The same with all rows of a person like this one."""
        x, y, own = self.inputs.clone(), self.targets.clone(), slice(*self.first[person : person + 2].tolist())
        x[own], y[own] = inputs, target
        return replace(self, inputs=x, targets=y)

    def take(self, rows: NDArray[np.int64]) -> Nested:
        """The inputs of some rows."""
        return self.inputs.index_select(0, torch.from_numpy(rows)) if self.source is None else self.source.take(rows)

    def made_up(self, count: int, generator: Generator) -> Nested:
        """Synthetic rows of the same kind."""
        if self.source is None:
            return made_up_like(self.inputs[:1], count, generator)
        make: Any = getattr(self.source, "made_up", None)
        require(make is not None, "several rows per person need rows that synthetic ones can be made of")
        found: Nested = make(count, generator)
        return found


def of_people(counted: Counted, x: Inputs, y: Tensor) -> tuple[Several | None, Inputs, Tensor]:
    """All rows that count, where somebody may have several; and one row of each person."""
    several, drawn = None, torch.from_numpy(counted.drawn)
    if counted.most > 1:
        inputs, source = _taken(x.tensor, x.source, counted.rows)
        several = Several(inputs, y[torch.from_numpy(counted.rows)], counted.first, source)
    inputs, source = _taken(x.tensor, x.source, counted.drawn)
    return several, replace(x, tensor=inputs, source=source, rows=len(drawn)), y[drawn]


def of_rows(counted: Counted, x: Inputs, y: Tensor) -> tuple[Inputs, Tensor]:
    """All rows that count, each by itself."""
    inputs, source = _taken(x.tensor, x.source, counted.rows)
    return replace(x, tensor=inputs, source=source, rows=len(counted.rows)), y[torch.from_numpy(counted.rows)]


@dataclass(frozen=True)
class PersonRows:
    """People as rows: the inputs of a person are those of all their rows, side by side, and the share of each."""

    several: Several

    def take(self, people: NDArray[np.int64]) -> Nested:
        """The rows of some people: nested tensors of (person, place, …), and the share of each place."""
        rows, sizes = self._rows(people), self.several.sizes[people]
        real = np.arange(rows.shape[1])[None, :] < sizes[:, None]
        shares = torch.from_numpy(real / np.maximum(sizes, 1)[:, None]).to(torch.get_default_dtype())
        return mapped(self.several.take(rows.ravel()), lambda part: part.reshape(*rows.shape, *part.shape[1:])), shares

    def targets(self, people: NDArray[np.int64]) -> Tensor:
        """The targets of their rows, in the same places."""
        rows = self._rows(people)
        found = self.several.targets[torch.from_numpy(rows)]
        return found if found.is_floating_point() else found.long()

    def made_up(self, count: int, generator: Generator) -> Nested:
        """Synthetic people: every other one has a single row, the others as many as there are places."""
        inputs = self.several.made_up(count * _MADE_UP, generator)
        shares = torch.full((count, _MADE_UP), 1 / _MADE_UP)
        shares[1::2] = torch.eye(_MADE_UP)[0]
        return mapped(inputs, lambda part: part.reshape(count, _MADE_UP, *part.shape[1:])), shares

    def made_up_targets(self, count: int, make: Callable[[int], Tensor]) -> Tensor:
        """Synthetic targets for them."""
        return make(count * _MADE_UP).reshape(count, _MADE_UP)

    def alike(self, people: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Places in the list of people with about as many rows, within a factor of two: few places are then empty."""
        sizes = np.ceil(np.log2(np.maximum(self.several.sizes[people], 1)))
        return [np.flatnonzero(sizes == size) for size in np.unique(sizes)]

    def _rows(self, people: NDArray[np.int64]) -> NDArray[np.int64]:
        """Row numbers, a line per person; those with fewer rows than the most here have their first one again."""
        begin, sizes = self.several.first[people], self.several.sizes[people]
        places = np.arange(int(sizes.max(initial=1)))[None, :]
        return begin[:, None] + np.where(places < sizes[:, None], places, 0)
