"""Problem: rows with their groups, owners and budgets, and the public facts that a plan may use.

A `Problem` holds the private rows. `PublicFacts` holds what everybody may know before a row is read: the names and
declared sizes of groups, the owners and their budgets, the shape of a row. Methods plan from `PublicFacts` alone, so
a plan cannot depend on a private row even by mistake.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from veil.errors import require
from veil.foundation.nested import Nested, mapped
from veil.problem.budgets import Levels, quantise
from veil.problem.groups import Memberships, cross, primary_group, used_names, with_declared
from veil.problem.inputs import as_inputs
from veil.problem.people import (
    ROWS_PER_PERSON,
    Counting,
    PersonRows,
    Several,
    are_own_owners,
    check_owners,
    checked_counting,
    count_rows,
    least_of_person,
    names_of,
    of_people,
    of_rows,
    own_budgets,
)
from veil.problem.rows import IGNORED, Collate, ItemRows, NestedRows, Rows, row_size
from veil.problem.strata import Strata
from veil.problem.sums import RowsElsewhere
from veil.problem.targets import Task, as_targets

# Where group sizes come from: the rows themselves, a person who states them, or a noisy release that ε pays for.
Sizes = Literal["counted", "declared", "released"]
# What is protected as a whole: a row, or all rows of a person.
Unit = Literal["row", "person"]
EVERYBODY = "everybody"
ELSEWHERE = "rows of a table in partitions are not here, only sums over them: use auto or group-gd, or omit --workers"


@dataclass(frozen=True, slots=True)
class Cell:
    """Rows that share a group and an owner: they are drawn, bounded and charged alike.

    Args:
        group: Number of the group.
        owner: Number of the owner.
        rows: Public number of rows.

    >>> Cell(group=0, owner=0, rows=900).rows
    900
    """

    group: int
    owner: int
    rows: int


@dataclass(frozen=True, slots=True)
class PublicFacts:
    """What is known before any row is read. Sizes are declared constants, not counts taken later.

    Args:
        groups: Names of the groups.
        owners: Names of the owners.
        cells: Each combination of group and owner that occurs, with its number of rows.
        input_shape: Shape of the inputs of one row.
        task: "classification", "regression" or "multi-label".
        classes: Names of the classes in their order.
        budgets: ε of each owner, or None if the budget of the run is everybody's.
        sizes: Where the sizes come from: "counted", "declared" or "released".
        classes_declared: Whether the classes were given; otherwise they were read off the rows.
        target_range: What −1 and 1 stand for where numbers to predict were scaled.
        unit: "row" or "person".
        rows_per_unit: The most rows of a person that count.
        person_rows: "mean" or "each": how several rows of a person count.
        heads: The questions of a model with several heads, each with its classes (None for a number).

    >>> facts = PublicFacts(("large", "small"), ("everybody",), (Cell(0, 0, 900), Cell(1, 0, 100)), (10,))
    >>> facts.rows, facts.group_sizes
    (1000, (900, 100))
    """

    groups: tuple[str, ...]
    owners: tuple[str, ...]
    cells: tuple[Cell, ...]
    input_shape: tuple[int, ...]
    task: Task = "classification"
    classes: tuple[str, ...] = ()
    budgets: tuple[float, ...] | None = None
    sizes: Sizes = "counted"
    classes_declared: bool = False
    # Numbers to predict lie between −1 and 1 where this says what they were before; None: they are as they were.
    target_range: tuple[float, float] | None = None
    # Where it is a person, all sizes count people, each with at most so many rows; or rows, if each counts by itself.
    unit: Unit = "row"
    rows_per_unit: int = 1
    person_rows: Counting = "mean"
    # Targets are then one column for each of them.
    heads: tuple[tuple[str, tuple[str, ...] | None], ...] = ()

    @property
    def rows(self) -> int:
        """The declared number of rows."""
        return sum(cell.rows for cell in self.cells)

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """Declared rows per group."""
        return tuple(sum(c.rows for c in self.cells if c.group == g) for g in range(len(self.groups)))

    @property
    def owner_sizes(self) -> tuple[int, ...]:
        """Declared rows per owner."""
        return tuple(sum(c.rows for c in self.cells if c.owner == o) for o in range(len(self.owners)))

    @property
    def rows_together(self) -> int:
        """How many entries one unit of privacy may be: more than one where a person's rows count each by itself."""
        return self.rows_per_unit if self.person_rows == "each" else 1

    @property
    def outputs(self) -> int:
        """How many outputs per row a model of this problem has."""
        return 1 if self.task == "regression" else len(self.classes)

    def cell_name(self, cell: int) -> str:
        """A cell in words: its group, and its owner where there is more than one.

        Args:
            cell: Number of the cell.

        Returns:
            Like "Female" or "Female / alice".
        """
        group = self.groups[self.cells[cell].group]
        return group if len(self.owners) == 1 else f"{group} / {self.owners[self.cells[cell].owner]}"

    def budget_of(self, cell: int, default: float) -> float:
        """The ε that a cell's owner allows.

        Args:
            cell: Number of the cell.
            default: What to return where owners set no budgets.

        Returns:
            ε, above 0.
        """
        return default if self.budgets is None else self.budgets[self.cells[cell].owner]


@dataclass(frozen=True)
class Problem:
    """Private rows with the cell of each. `present` is False only for a row taken out by `without`.

    Where `source` is given, rows come from there and `inputs` is empty: for rows that are not one tensor in memory.
    `device` is where batches are put; None leaves them where they are. Of people with several rows this holds one row
    each, and `several` has all that count; where each counts by itself, it holds all of them, and `person_of` says
    whose each is. `weights` in [0, 1] scale what each row adds to a sum, after it is bounded. With `elsewhere` no row
    is here: methods that need only sums over all rows get them from there.

    Args:
        inputs: Inputs of all rows; the first dimension is the row.
        targets: Class or number of each row.
        cell_of: Number of the cell of each row.
        public: What is public about the rows.
        present: Which rows are there.
        memberships: The groups of each row, where groups overlap.
        source: Where rows come from that are not one tensor.
        device: Where batches are put.
        several: All rows of people with several.
        person_of: Number of the person of each row, where each counts by itself.
        weights: What each row adds, between 0 and 1.
        elsewhere: Rows on other machines.
        reader: What takes rows from the source; by default the source itself.
    """

    inputs: Tensor
    targets: Tensor
    cell_of: NDArray[np.int64]
    public: PublicFacts
    present: NDArray[np.bool_] = field(repr=False)
    memberships: Memberships | None = field(default=None, repr=False)
    source: Rows | None = field(default=None, repr=False)
    device: torch.device | None = field(default=None, repr=False, compare=False)
    several: Several | None = field(default=None, repr=False)
    person_of: NDArray[np.int64] | None = field(default=None, repr=False)
    weights: NDArray[np.float64] | None = field(default=None, repr=False)
    elsewhere: RowsElsewhere | None = field(default=None, repr=False)
    reader: Rows | None = field(default=None, repr=False, compare=False)

    def __len__(self) -> int:
        return int(self.present.sum())

    @classmethod
    def from_arrays(
        cls,
        inputs: ArrayLike | Tensor | Nested,
        targets: ArrayLike | Tensor,
        groups: Sequence[Any] | NDArray[Any] | Mapping[str, Sequence[Any] | NDArray[Any]] | Memberships | None = None,
        *,
        owners: Sequence[Any] | NDArray[Any] | None = None,
        budgets: Mapping[str, float] | ArrayLike | Levels | None = None,
        group_sizes: Mapping[str, int] | None = None,
        classes: Sequence[Any] | None = None,
        task: Task = "classification",
        people: Sequence[Any] | NDArray[Any] | None = None,
        rows_per_person: int = ROWS_PER_PERSON,
        person_rows: Counting = "mean",
    ) -> Problem:
        """Validate the data and build a problem.

        `inputs` is an array or a tensor whose first dimension is the row; a dict or a tuple of these, for models with
        several inputs; or a list of rows of different lengths, which are padded batch by batch (`veil.problem.Collate`
        says how). Memory maps of two dimensions or more stay on disk, as inputs and as one class per place. `targets`
        has one class or number per row, one class per place of a row (−100: does not count), or with
        `task="multi-label"` 0 or 1 for each label.

        `groups` is one label per row, or a mapping of attributes that are crossed. With `Memberships` groups overlap: a
        row is then drawn and bounded with the smallest group it is in, and counts towards every group it is in when a
        model is measured. `budgets` is the ε of each owner, or one ε per row instead of owners: up to 512 different
        ones stay as they are, more are cut down to levels that keep 98 % of them, never above a row's own (`quantise`
        makes more or fewer); a level is an owner.
        `group_sizes` declares the groups and their public sizes; without it the counts are taken as public knowledge,
        and the certificate says so. `classes` fixes their order and admits some that no row has.

        `people` says whom each row is about: then all rows of a person are protected together. A person counts in one
        group, with at most `rows_per_person` rows (`veil.problem.people`); group sizes are numbers of people. With
        `person_rows="each"` every such row counts by itself, ε is that of all rows of a person, and group sizes are
        numbers of rows.

        Args:
            inputs: Array or tensor with one row per row of data, a dict or tuple of these, or a list of rows.
            targets: A class or number for each row, or 0 and 1 for each label.
            groups: One label per row, a mapping of attributes that are crossed, or `Memberships`. By default all rows
                are one group.
            owners: Who set the budget of each row. By default one owner for all.
            budgets: ε by name of the owner, or one ε for each row instead of `owners`. Each is above 0.
            group_sizes: Public number of rows of each group. By default the rows are counted, and the certificate says
                so.
            classes: All classes in their order. By default those that occur, sorted, and the certificate says so.
            task: "classification", "regression" or "multi-label".
            people: Whom each row is about. By default the unit of privacy is a row.
            rows_per_person: The most rows of a person that count, at least 1 (10 by default).
            person_rows: "mean": a person counts as the mean of their rows. "each": each row counts by itself.

        Returns:
            The problem.

        Raises:
            InputError: There are no rows, lengths differ, a value is missing, or options contradict each other.

        >>> problem = Problem.from_arrays([[0.0], [1.0], [2.0]], [0, 1, 1], {"sex": ["f", "m", "m"]})
        >>> problem.public.groups, problem.public.group_sizes
        (('f', 'm'), (1, 2))
        """
        x = as_inputs(inputs, targets)
        rows = x.rows
        require(rows > 0, "there are no rows: give at least one row to train on")
        y, class_names = as_targets(targets, task, classes)
        require(len(y) == rows, f"there are {rows} rows of features and {len(y)} targets: the numbers must match")
        overlap: Memberships | None = None
        if isinstance(groups, Memberships):
            require(people is None, "a person counts in one group: give groups that do not overlap")
            group_ids, names, overlap = primary_group(groups, rows)
        else:
            group_ids, names = cross(groups, rows) if groups is not None else (np.zeros(rows, np.int64), (EVERYBODY,))
            if group_sizes is not None:
                group_ids, names = with_declared(group_ids, names, group_sizes)
        if (
            people is not None
            and isinstance(budgets, Mapping)
            and owners is not None
            and are_own_owners(people, owners)
        ):
            owners, budgets = None, own_budgets(names_of(people), budgets, range(rows))  # levels are planned for
        if budgets is not None and not isinstance(budgets, Mapping):
            require(owners is None, "per-row budgets define the owners: omit owners, or give each owner's ε")
            if people is not None and not isinstance(budgets, Levels):
                budgets = least_of_person(budgets, people)
            levels = budgets if isinstance(budgets, Levels) else quantise(budgets)
            require(
                len(levels.of_row) == rows,
                f"there are {rows} rows and {len(levels.of_row)} per-row budgets, which must match",
            )
            owners, budgets = levels.of_row, levels.budgets
        owner_ids, owner_names = (
            cross(owners, rows, "owner") if owners is not None else (np.zeros(rows, np.int64), (EVERYBODY,))
        )
        counted = None if people is None else count_rows(people, group_ids, rows_per_person)
        several = None
        by_row = checked_counting(person_rows) == "each"
        if counted is not None and people is not None:
            check_owners(people, owner_ids, range(rows))
            entries = counted.rows if by_row else counted.drawn
            group_ids, owner_ids = group_ids[entries], owner_ids[entries]
            if group_sizes is None:  # a group may have rows and nobody who counts in it
                names, group_ids = used_names(names, group_ids)
            several, x, y = (None, *of_rows(counted, x, y)) if by_row else of_people(counted, x, y)
        cells, cell_of = _cells(group_ids, owner_ids, names, owner_names, group_sizes)
        public = PublicFacts(
            groups=names,
            owners=owner_names,
            cells=cells,
            input_shape=x.shape,
            task=task,
            classes=class_names,
            budgets=_budgets(budgets, owner_names),
            sizes="counted" if group_sizes is None else "declared",
            classes_declared=classes is not None,
        )
        present = np.ones(len(cell_of), dtype=bool)
        made = cls(x.tensor, y, cell_of, public, present, overlap, x.source)
        if counted is None:
            return made
        return (
            made.with_each_row(counted.person_of, counted.most) if by_row else made.with_people(several, counted.most)
        )

    @classmethod
    def from_dataset(
        cls,
        dataset: Any,
        groups: Any = None,
        *,
        targets: Any = None,
        inputs: Sequence[str] | Callable[[Any], Any] | None = None,
        collate: Callable[[list[Any]], Nested] | None = None,
        pad: bool | int = False,
        owners: Any = None,
        people: Any = None,
        **facts: Any,
    ) -> Problem:
        """A problem over the items of a data set; their inputs are asked for when they are drawn.

        Items are pairs (inputs, target), tuples (inputs, …, target), or dicts.

        Args:
            dataset: Anything with `len` and items by number: a torch Dataset, a Hugging Face `datasets.Dataset`.
            groups: One label per row, the key (column) that holds it, or a function of an item.
            targets: Likewise; by default the last part of a tuple, or what a dict has as `labels` or `label`.
            inputs: The keys that the model is given, or a function of an item. By default everything else in it.
            collate: Puts a list of inputs together into a batch of tensors. By default tensors are stacked.
            pad: Whether rows have different lengths and are padded, with a mask; a number is the length of all batches.
            owners: Likewise as groups.
            people: Likewise.
            facts: `budgets`, `group_sizes`, `classes`, `task`, `rows_per_person` and `person_rows`, as for
                `from_arrays`.

        Returns:
            The problem.

        Raises:
            InputError: There are no items, or targets, groups or inputs are not found in them.

        >>> from torch.utils.data import TensorDataset
        >>> items = TensorDataset(torch.zeros(4, 3), torch.tensor([0, 1, 0, 1]))
        >>> Problem.from_dataset(items, ["a", "a", "b", "b"]).public.input_shape
        (3,)
        """
        from veil.problem.data_sets import DataSet

        opened = DataSet.opened(dataset, inputs, targets, groups, owners, people)
        source = opened.rows(collate, pad)
        given = opened.columns(targets=targets, groups=groups, owners=owners, people=people)
        numbers = np.arange(len(opened))[:, None]
        made = cls.from_arrays(numbers, given.pop("targets"), **given, **facts)
        public, several = replace(made.public, input_shape=source.shape), made.several
        if public.unit == "person":  # what is left of the numbers says which items count
            several = None if several is None else several.of_items(source)
            source = source.only(made.inputs[:, 0].numpy())
        return replace(made, inputs=torch.empty(0), source=source, public=public, several=several)

    @classmethod
    def from_tokens(
        cls, tokens: NDArray[Any], window: int, groups: Any = None, *, vocabulary: int | None = None, **facts: Any
    ) -> Problem:
        """A problem of predicting each next token, over windows of one long sequence.

        A row is a window of `window` + 1 tokens: all but the last are its inputs, all but the first its targets. No
        token is in two rows; those that do not fill the last row are left out. The unit of privacy is a window, unless
        `people` says whose text each of them is. A memory map stays on disk.

        Args:
            tokens: Numbers of the tokens in one dimension, such as `np.memmap("train.bin", np.uint16, "r")`.
            window: How many tokens the model sees, at least 1.
            groups: One label per window, or a mapping of attributes that are crossed.
            vocabulary: How many tokens there are. By default one more than the largest that occurs, and the certificate
                says that this was read off the rows.
            facts: `owners`, `budgets`, `group_sizes`, `people` and others, as for `from_arrays`.

        Returns:
            The problem.

        Raises:
            InputError: The tokens are not whole numbers in one dimension, or fill no window.

        >>> Problem.from_tokens(np.arange(10), window=4).batch(np.array([1]))
        (tensor([[5, 6, 7, 8]]), tensor([[6, 7, 8, 9]]))
        """
        flat = getattr(tokens, "ndim", 0) == 1 and tokens.dtype.kind in "iu"
        require(flat, "tokens must be an array of whole numbers in one dimension, such as np.memmap(file, np.uint16)")
        require(window >= 1, f"window is {window}: it must be at least 1 token")
        rows = len(tokens) // (window + 1)
        require(rows > 0, f"there are {len(tokens)} tokens: a window of {window} takes {window + 1}")
        windows = tokens[: rows * (window + 1)].reshape(rows, window + 1)
        classes = None if vocabulary is None else range(vocabulary)
        return cls.from_arrays(windows[:, :-1], windows[:, 1:], groups, classes=classes, **facts)

    def with_classes_read(self) -> Problem:
        """The same, for classes that were given but had been read off rows before: the certificate says so.

        Returns:
            A copy that shares the rows.
        """
        return replace(self, public=replace(self.public, classes_declared=False))

    def with_sizes_released(self) -> Problem:
        """The same, for sizes that were given but come from a noisy release: the certificate says so.

        Returns:
            A copy that shares the rows.
        """
        return replace(self, public=replace(self.public, sizes="released"))

    def with_target_range(self, low: float, high: float) -> Problem:
        """The same, for targets between −1 and 1 that stand for numbers between `low` and `high`.

        Args:
            low: The number that −1 stands for.
            high: The number that 1 stands for.

        Returns:
            A copy that shares the rows.
        """
        return replace(self, public=replace(self.public, target_range=(low, high)))

    @property
    def group_of(self) -> NDArray[np.int64]:
        """The group of each row."""
        return np.array([cell.group for cell in self.public.cells], dtype=np.int64)[self.cell_of]

    @property
    def owner_of(self) -> NDArray[np.int64]:
        """The owner of each row."""
        return np.array([cell.owner for cell in self.public.cells], dtype=np.int64)[self.cell_of]

    @property
    def is_one_tensor(self) -> bool:
        """Whether the inputs of a batch are one tensor, not several."""
        return self.source is None or isinstance(self.made_up(1)[0], Tensor)

    @property
    def values_per_row(self) -> int:
        """How many numbers a row has, about: for pieces that fit into memory. It may follow from a row."""
        return (
            row_size(self.source.example) if isinstance(self.source, ItemRows) else math.prod(self.public.input_shape)
        )

    @property
    def collated_by_user(self) -> bool:
        """Whether a function that Veil does not know puts rows together into batches."""
        return isinstance(self.source, ItemRows) and not isinstance(self.source.collate, Collate)

    @property
    def padding(self) -> Collate | None:
        """What pads batches as far as their longest row; None where the rows of all batches are alike long."""
        collate = self.source.collate if isinstance(self.source, ItemRows) else None
        return collate if isinstance(collate, Collate) and collate.padded and collate.pad_to is None else None

    @property
    def own_draws(self) -> bool:
        """Whether reading a row takes random numbers from a generator that Veil cannot seed."""
        return isinstance(self.source, ItemRows) and self.source.own_draws

    def strata(self) -> Strata:
        """Row ids by cell; a row that was taken out leaves a hole, so nobody else is drawn differently.

        Returns:
            One stratum for each cell, with its declared size.
        """
        if self.present.all():  # no hole: at many rows the table of ids below would double the memory
            members = tuple(np.flatnonzero(self.cell_of == cell) for cell in range(len(self.public.cells)))
        else:
            ids = np.where(self.present, np.arange(len(self.cell_of)), -1)
            members = tuple(ids[self.cell_of == cell] for cell in range(len(self.public.cells)))
        return Strata(members, declared=tuple(cell.rows for cell in self.public.cells))

    def batch(self, rows: NDArray[np.int64]) -> tuple[Nested, Tensor]:
        """Inputs and targets of some rows.

        Args:
            rows: Row numbers.

        Returns:
            Inputs and targets, with one entry per row in the given order.

        Raises:
            InputError: The rows lie on other machines.
        """
        require(self.elsewhere is None, ELSEWHERE)
        if isinstance(self.source, PersonRows):
            return self._placed(self.source.take(rows), self.source.targets(rows))
        index = torch.from_numpy(rows)
        targets = self.targets.index_select(0, index)  # several times as fast as brackets
        inputs = self.inputs.index_select(0, index) if self.source is None else (self.reader or self.source).take(rows)
        return self._placed(inputs, targets if targets.is_floating_point() else targets.long())

    def alike(self, rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Places of those rows that make a batch of little waste: people by how many rows they have.

        Args:
            rows: Row numbers.

        Returns:
            Positions in `rows`, in pieces; none where all rows make one batch.
        """
        return self.source.alike(rows) if isinstance(self.source, PersonRows) else []

    def made_up(self, count: int) -> tuple[Nested, Tensor]:
        """A few rows and targets of the same shapes and kinds, drawn without looking at any row.

        Args:
            count: How many rows, at least 1.

        Returns:
            Inputs and targets; the same at each call.
        """
        facts, generator = self.public, torch.Generator().manual_seed(0)
        make = getattr(self.source, "made_up", None)
        if make is not None:
            inputs = make(count, generator)
        else:
            kind = self.inputs.dtype if self.source is None else torch.float32
            if kind.is_floating_point:
                inputs = torch.randn(count, *facts.input_shape, generator=generator).to(kind)
            else:
                inputs = torch.randint(0, 2, (count, *facts.input_shape), generator=generator).to(kind)
        shape = (count, *self.targets.shape[1:])
        if self.targets.ndim > 1 and isinstance(self.source, ItemRows):
            shape = (count, self.source.length_of(inputs) or shape[1], *shape[2:])
        if isinstance(self.source, PersonRows):
            return self._placed(inputs, self.source.made_up_targets(count, lambda n: self._targets((n,), generator)))
        return self._placed(inputs, self._targets(shape, generator))

    def _targets(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Synthetic targets."""
        if self.public.task == "multi-label":
            return torch.randint(0, 2, shape, generator=generator).to(self.targets.dtype)
        if self.targets.is_floating_point():
            return torch.randn(shape, generator=generator).to(self.targets.dtype)
        # With several targets the first two classes: one of them may have fewer than all together.
        classes = self.public.outputs if len(shape) == 1 else min(2, self.public.outputs)
        return torch.randint(0, max(1, classes), shape, generator=generator)

    def padded_twice(self) -> tuple[tuple[Nested, Tensor], tuple[Nested, Tensor]] | None:
        """A synthetic row alone, and the same row first in a batch that is padded further; None if none is padded.

        Returns:
            Inputs and targets of both batches, or None.
        """
        pair = self.source.padded_twice() if isinstance(self.source, ItemRows) else None
        if pair is None:
            return None
        (alone, short), (together, long) = pair
        targets = self.made_up(2)[1]
        if self.targets.ndim < 2:
            return self._placed(alone, targets[:1]), self._placed(together, targets)
        wide = targets.new_zeros((2, long, *targets.shape[2:]))
        if not wide.is_floating_point():
            wide[0, short:] = IGNORED
        return self._placed(alone, wide[:1, :short]), self._placed(together, wide)

    def with_rows(self, inputs: Nested, targets: Tensor, cell_of: NDArray[np.int64]) -> Problem:
        """The same public facts over other rows, all of them in memory.

        Args:
            inputs: The new inputs, on any device.
            targets: One target per row.
            cell_of: Number of the cell of each row.

        Returns:
            A new problem.
        """
        everybody, overlap = np.ones(len(cell_of), dtype=bool), self.memberships
        if overlap is not None:
            overlap = Memberships(overlap.names, np.ones((len(cell_of), len(overlap.names)), dtype=bool))
        plain, inputs = isinstance(inputs, Tensor), mapped(inputs, lambda part: part.cpu())
        return replace(
            self,
            inputs=inputs if plain else torch.empty(0),
            source=None if plain else NestedRows(inputs),
            targets=targets.cpu(),
            cell_of=cell_of,
            present=everybody,
            memberships=overlap,
            person_of=None,
            weights=None,
        )

    def with_weights(self, weights: NDArray[np.float64], largest: float) -> Problem:
        """The same where each row counts by its weight, as a share of the largest that a row may have.

        A weight never raises what a row may add to a sum, so it changes no cost.

        Args:
            weights: One weight per row, at least 0.
            largest: The public limit of a weight, above 0; larger ones are cut.

        Returns:
            A copy that shares the rows.

        Raises:
            InputError: There is not one weight for each row, or people have several rows.

        >>> problem = Problem.from_arrays([[0.0], [1.0]], [0, 1]).with_weights(np.array([1.0, 9.0]), largest=2.0)
        >>> problem.weights
        array([0.5, 1. ])
        """
        require(len(weights) == len(self.cell_of), "there must be one weight for each row")
        require(self.several is None, "weights are for rows, not for people with several rows")
        return replace(self, weights=np.clip(np.asarray(weights, dtype=np.float64) / largest, 0.0, 1.0))

    def on(self, device: torch.device) -> Problem:
        """The same problem with batches put on a device, where a model lives.

        Args:
            device: Where the model is.

        Returns:
            A copy that shares the rows, or this problem if nothing changes.
        """
        if device == (self.device or torch.device("cpu")):
            return self
        return replace(self, device=device)

    def _placed(self, inputs: Nested, targets: Tensor) -> tuple[Nested, Tensor]:
        if self.targets.ndim > 1 and isinstance(self.source, ItemRows):
            targets = targets[:, : self.source.length_of(inputs)]
        if self.device is None:
            return inputs, targets
        device = self.device
        # Only from pinned memory is a copy made beside other work.
        return mapped(inputs, lambda part: part.to(device, non_blocking=device.type == "cuda")), targets.to(device)

    def in_order(self, rows_at_once: int) -> Iterator[Nested]:
        """The inputs of all rows, piece by piece: a table that is larger than memory can pass through.

        Args:
            rows_at_once: Most rows in a piece, at least 1.

        Yields:
            Inputs of the next rows.
        """
        for start in range(0, len(self.cell_of), rows_at_once):
            stop = min(start + rows_at_once, len(self.cell_of))
            yield self.inputs[start:stop] if self.source is None else self.source.take(np.arange(start, stop))

    def with_people(self, several: Several | None, most: int) -> Problem:
        """The same, where each row stands for a person whose rows that count are `several`, at most so many each.

        Args:
            several: The rows of each person, or None if nobody has more than one.
            most: The most rows of a person that count.

        Returns:
            A copy whose unit of privacy is a person.
        """
        return replace(self, public=replace(self.public, unit="person", rows_per_unit=most), several=several)

    def with_each_row(self, person_of: NDArray[np.int64], most: int) -> Problem:
        """The same, where each row counts by itself and is about the person of this number, at most so many each.

        Args:
            person_of: Number of the person of each row.
            most: The most rows of a person that count.

        Returns:
            A copy whose unit of privacy is a person.
        """
        public = replace(self.public, unit="person", rows_per_unit=most, person_rows="each")
        return replace(self, public=public, person_of=person_of)

    def apart(self) -> tuple[Problem, NDArray[np.float64]]:
        """All rows one by one, and the share of each in what it adds to a sum; those of a person add up to 1.

        Returns:
            A problem with one entry per row, and the share of each.
        """
        several = self.several
        if several is None:
            return self, np.ones(len(self.cell_of))
        person_of = several.person_of
        rows = replace(
            self,
            inputs=several.inputs,
            targets=several.targets,
            cell_of=self.cell_of[person_of],
            present=self.present[person_of],
            source=several.source,
            several=None,
        )
        return rows, several.shares()

    def together(self) -> Problem:
        """Each person as one row, which holds all rows of theirs; the same if nobody has several.

        Returns:
            A problem with one entry per person.
        """
        if self.several is None:
            return self
        return replace(self, inputs=torch.empty(0), source=PersonRows(self.several), several=None)

    def drawn(self) -> Problem:
        """One row of each person alone.

        Returns:
            A problem with one entry per person.
        """
        return replace(self, several=None)

    def without(self, row: int) -> Problem:
        """The neighbouring problem that lacks one row, or the person of this row; every public fact is the same.

        Args:
            row: Row number.

        Returns:
            A copy in which the place of the row is empty.
        """
        present = self.present.copy()
        present[self._of_same_person(row)] = False
        return replace(self, present=present)

    def by_unit(self) -> NDArray[np.int64]:
        """For each row the first row of the same unit of privacy: of its person where rows count each by themselves.

        Returns:
            One row number for each row.
        """
        if self.person_of is None:
            return np.arange(len(self.cell_of))
        _, first, person = np.unique(self.person_of, return_index=True, return_inverse=True)
        return np.asarray(first[person], dtype=np.int64)

    def _of_same_person(self, row: int) -> NDArray[np.int64]:
        return np.array([row]) if self.person_of is None else np.flatnonzero(self.person_of == self.person_of[row])

    def replacing(self, row: int, inputs: Tensor, target: Tensor) -> Problem:
        """The neighbouring problem in which one row of a cell, or all rows of a person, are another one.

        Args:
            row: Row number.
            inputs: Inputs of the other row, of the same shape.
            target: Its target.

        Returns:
            A copy with other rows.

        Raises:
            InputError: Rows are not one tensor in memory.
        """
        require(self.source is None, "this works on rows that are one tensor in memory: use Problem.from_arrays")
        x, y, rows = self.inputs.clone(), self.targets.clone(), torch.from_numpy(self._of_same_person(row))
        x[rows], y[rows] = inputs, target
        several = None if self.several is None else self.several.replacing(row, inputs, target)
        return replace(self, inputs=x, targets=y, several=several)


def _cells(
    group_ids: NDArray[np.int64],
    owner_ids: NDArray[np.int64],
    groups: tuple[str, ...],
    owners: tuple[str, ...],
    group_sizes: Mapping[str, int] | None,
) -> tuple[tuple[Cell, ...], NDArray[np.int64]]:
    """Number the pairs of group and owner that occur; sizes are declared per group, or counted."""
    keys = group_ids * len(owners) + owner_ids
    if group_sizes is not None:
        return _declared_cells(groups, owners, group_sizes), group_ids
    pairs, cell_of, counts = np.unique(keys, return_inverse=True, return_counts=True)
    cells = tuple(
        Cell(int(pair) // len(owners), int(pair) % len(owners), int(count))
        for pair, count in zip(pairs, counts, strict=True)
    )
    return cells, cell_of.astype(np.int64)


def _declared_cells(groups: tuple[str, ...], owners: tuple[str, ...], sizes: Mapping[str, int]) -> tuple[Cell, ...]:
    """One cell per group, at its declared size. A group may have no row here: no exact count decides anything."""
    require(len(owners) == 1, "group sizes can be declared only with a single owner")
    missing = [name for name in groups if name not in sizes]
    require(not missing, f'no size is declared for group "{missing[0] if missing else ""}"')
    require(all(int(sizes[name]) > 0 for name in groups), "a declared group size must be above 0")
    return tuple(Cell(group, 0, int(sizes[name])) for group, name in enumerate(groups))


def _budgets(budgets: Mapping[str, float] | None, owners: tuple[str, ...]) -> tuple[float, ...] | None:
    if budgets is None:
        return None
    named = {str(name): float(value) for name, value in budgets.items()}
    missing = [name for name in owners if name not in named]
    require(not missing, f'owner "{missing[0] if missing else ""}" has no budget: add a line for it')
    for name, value in named.items():
        require(value > 0 and math.isfinite(value), f'the budget of owner "{name}" is {value}: ε must be above 0')
    return tuple(named[name] for name in owners)
