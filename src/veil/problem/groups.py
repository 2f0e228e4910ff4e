"""Groups: the group of each row, from one attribute, several crossed ones, or groups that overlap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veil.errors import InputError, require

# Between the attributes in the name of a crossed group.
CROSSED = " × "


@dataclass(frozen=True)
class Memberships:
    """Overlapping groups: which of them each row is in, one column per name.

    Args:
        names: Names of the groups.
        table: One line per row, one column per group.
    """

    names: tuple[str, ...]
    table: NDArray[np.bool_]

    @classmethod
    def of(cls, groups: Mapping[str, Sequence[bool] | NDArray[np.bool_]]) -> Memberships:
        """From one truth value per row for each group.

        Args:
            groups: By name of the group: whether each row is a member. All have the same length.

        Returns:
            The memberships.

        >>> Memberships.of({"old": [True, False], "ill": [True, True]}).table.sum(axis=0)
        array([1, 2])
        """
        return cls(tuple(groups), np.stack([np.asarray(rows, dtype=bool) for rows in groups.values()], axis=1))


def cross(
    attributes: Sequence[Any] | NDArray[Any] | Mapping[str, Sequence[Any] | NDArray[Any]],
    rows: int,
    word: str = "group",
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """One id per row from one attribute or several crossed ones; only combinations that occur become groups.

    Args:
        attributes: One label per row, or several columns of them by name.
        rows: How many rows there are.
        word: What the labels are called in errors.

    Returns:
        The id of each row, and the name of each id.

    Raises:
        InputError: A label is missing, or there are not as many as rows.

    >>> ids, names = cross({"sex": ["f", "m", "m"], "race": ["a", "a", "b"]}, 3)
    >>> names
    ('f × a', 'm × a', 'm × b')
    """
    columns = list(attributes.values()) if isinstance(attributes, Mapping) else [attributes]
    require(len(columns) > 0, f"give at least one {word} attribute")
    labels: list[NDArray[np.str_]] = []
    for column in columns:
        values = np.asarray(column, dtype=object).ravel()
        require(len(values) == rows, f"there are {rows} rows and {len(values)} {word} labels: the numbers must match")
        missing = np.array([v is None or v != v for v in values])
        if missing.any():
            first = int(np.flatnonzero(missing)[0])
            raise InputError(f"the {word} of row {first} is missing: fill it in or remove the row")
        labels.append(values.astype(str))
    crossed = labels[0] if len(labels) == 1 else np.array([CROSSED.join(parts) for parts in zip(*labels, strict=True)])
    names, ids = np.unique(crossed, return_inverse=True)
    return ids.astype(np.int64), tuple(str(name) for name in names)


def used_names(names: tuple[str, ...], ids: NDArray[np.int64]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Only the names that occur, and their new numbers."""
    used, numbers = np.unique(ids, return_inverse=True)
    return tuple(names[i] for i in used), numbers.astype(np.int64)


def primary_group(given: Memberships, rows: int) -> tuple[NDArray[np.int64], tuple[str, ...], Memberships]:
    """Each row's smallest group, the groups that are some row's smallest, and all memberships.

    Rows in no group form one of their own.
    """
    names, table = given.names, given.table
    require(len(table) == rows, f"there are {rows} rows and {len(table)} memberships: the numbers must match")
    if not table.any(axis=1).all():
        names, table = (*names, "no group"), np.column_stack([table, ~table.any(axis=1)])
    order = np.argsort(table.sum(axis=0), kind="stable")
    primary = order[np.argmax(table[:, order], axis=1)]
    used, ids = np.unique(primary, return_inverse=True)
    return ids.astype(np.int64), tuple(names[column] for column in used), Memberships(names, table)


def with_declared(
    ids: NDArray[np.int64], names: tuple[str, ...], sizes: Mapping[str, int]
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Groups that were declared have a number also where no row is in them."""
    known = sorted({*names, *sizes})
    return np.array([known.index(name) for name in names], dtype=np.int64)[ids], tuple(known)
