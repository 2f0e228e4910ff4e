"""Strata: the partition of rows into cells that are sampled alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from veil.errors import require

Rows = npt.NDArray[np.int64]
HOLE = -1


@dataclass(frozen=True, eq=False)
class Strata:
    """Row ids of each stratum in ascending order; a row belongs to one stratum.

    A stratum is a list of *slots*. A slot may be a hole (−1): the place of a row that a neighbouring table lacks.
    Samplers draw slots and drop holes afterwards, so that taking one row away never changes which others are drawn.
    `declared` are the sizes that a plan was made for, where they may be others.

    Args:
        members: Row numbers of each stratum; −1 is a hole.
        names: A name for each stratum.
        declared: The sizes that a plan was made for.

    >>> strata = Strata.from_labels(["b", "a", "b"])
    >>> strata.names, [list(map(int, rows)) for rows in strata.members]
    (('a', 'b'), [[1], [0, 2]])
    """

    members: tuple[Rows, ...]
    names: tuple[str, ...] = ()
    declared: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        members = tuple(_read_only(rows) for rows in self.members)
        names = tuple(self.names) or tuple(str(index) for index in range(len(members)))
        object.__setattr__(self, "members", members)
        object.__setattr__(self, "names", names)
        if not members:
            raise ValueError("there must be at least one stratum")
        if len(names) != len(members) or len(set(names)) != len(names):
            raise ValueError(f"{len(members)} strata need that many different names, not {names}")
        for name, rows in zip(names, members, strict=True):
            _check_rows(name, rows)
        if len(members) > 1:
            present = np.sort(np.concatenate(members))
            present = present[present != HOLE]
            twice = present[1:][present[1:] == present[:-1]]
            if twice.size:
                raise ValueError(f"row {twice[0]} is in more than one stratum: a row belongs to exactly one")

    @classmethod
    def from_labels(cls, labels: Sequence[object] | npt.NDArray[np.generic]) -> Strata:
        """Strata of the rows 0, 1, … by their label, in the order of the labels.

        Args:
            labels: One label per row.

        Returns:
            One stratum for each label.
        """
        values, codes = np.unique(np.asarray(labels), return_inverse=True)
        order = np.argsort(codes, kind="stable").astype(np.int64)
        cuts = np.cumsum(np.bincount(codes, minlength=len(values)))[:-1]
        return cls(tuple(np.split(order, cuts)), tuple(str(value) for value in values))

    @classmethod
    def of_size(cls, rows: int) -> Strata:
        """One stratum that holds the rows 0 … rows − 1.

        Args:
            rows: How many rows.

        Returns:
            The stratum, with the name "all".
        """
        return cls((np.arange(rows, dtype=np.int64),), ("all",))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Slots of each stratum (public): holes count, so neighbours agree."""
        return tuple(len(rows) for rows in self.members)

    @cached_property
    def line(self) -> Rows:
        """The slots of all strata, one stratum after the other; made once, however often rates change."""
        return _read_only(np.concatenate(self.members))

    def without_row(self, row: int) -> Strata:
        """The neighbouring strata in which `row` is a hole.

        Args:
            row: Row number.

        Returns:
            A copy in which nobody else has moved.

        Raises:
            ValueError: No stratum has the row.
        """
        if not any(np.any(rows == row) for rows in self.members) or row == HOLE:
            raise ValueError(f"row {row} is not in any stratum")
        changed = tuple(np.where(rows == row, HOLE, rows) for rows in self.members)
        return Strata(changed, self.names, self.declared)

    def check_declared(self) -> None:
        """Reject strata with fewer slots than declared: a subset would be a larger share than was charged.

        Raises:
            InputError: A stratum has fewer rows than were declared.
        """
        for size, said in zip(self.sizes, self.declared or self.sizes, strict=True):
            require(
                size >= said,
                f"a group has {size} rows and {said} are declared: sampling without replacement (wor) needs the true "
                "sizes; declare them, or use poisson",
            )

    def rows_of(self, slots: Iterable[Rows], strata: Iterable[int] | None = None) -> Rows:
        """The rows that stand in the drawn slots, ascending, without holes.

        `slots` has one array for each stratum, or for each of those named by index in `strata`.

        Args:
            slots: Drawn positions in each stratum.
            strata: Numbers of the strata that `slots` speaks of. By default all.

        Returns:
            Row numbers.
        """
        members = self.members if strata is None else tuple(self.members[index] for index in strata)
        drawn = [rows[places] for rows, places in zip(members, slots, strict=True)]
        rows = np.sort(np.concatenate(drawn)) if len(drawn) > 1 or HOLE in drawn[0] else drawn[0]
        return rows[np.searchsorted(rows, 0) :]


def _read_only(rows: npt.ArrayLike) -> Rows:
    array = np.asarray(rows)
    if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
        raise ValueError("a stratum must be a one-dimensional array of integer row ids")
    view = np.ascontiguousarray(array, dtype=np.int64).view()
    view.flags.writeable = False
    return view


def _check_rows(name: str, rows: Rows) -> None:
    if rows.size and rows.min() < HOLE:
        raise ValueError(f"stratum {name!r} has row id {rows.min()}: ids start at 0 (−1 is a hole)")
    present = rows[rows != HOLE]
    if np.any(present[1:] <= present[:-1]):
        raise ValueError(f"the row ids of stratum {name!r} must be ascending and distinct")
