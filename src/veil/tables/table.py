"""Tables into problems: targets, groups and owners from columns, with errors that name the column and the row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from veil.errors import InputError, require
from veil.problem import Problem, PublicFacts, cross
from veil.problem.groups import CROSSED
from veil.tables.encoding import Encoding, Numeric, words
from veil.tables.reading import ROW_AS_NAMES, looks_like_row
from veil.tables.schema import Schema

MAX_CLASSES = 1000
MAX_GROUPS = 1000
MOST_NAMES = 20


def require_columns(table: pd.DataFrame, names: Sequence[str]) -> None:
    """Every named column is there."""
    for name in names:
        if name not in table.columns:
            raise InputError(f'column "{name}" is missing: {nearest_name(name, table)}')


def nearest_name(name: str, table: pd.DataFrame) -> str:
    """A name that somebody who typed this one may have meant, else all names; not where they may be a private row."""
    names = [str(known) for known in table.columns]
    if looks_like_row(names, table):
        return ROW_AS_NAMES
    lower = {known.lower(): known for known in names}
    near = get_close_matches(name.lower(), lower, 1, 0.7)
    return f'did you mean "{lower[near[0]]}"?' if near else names_shown(table)


def names_shown(table: pd.DataFrame) -> str:
    """The names of a table's columns, for a message; not where they may be a private row."""
    if looks_like_row(table.columns, table):
        return ROW_AS_NAMES
    names = [str(name) for name in table.columns]
    more = f" and {len(names) - MOST_NAMES:,} more" if len(names) > MOST_NAMES else ""
    return f"the table has {', '.join(names[:MOST_NAMES])}{more}"


def labels_of(
    table: pd.DataFrame, name: str, role: str, known: Sequence[str] | None = None, instead: str | None = None
) -> NDArray[np.object_]:
    """A column as words. A missing word, or one that is not among the known ones, is an error that names the row.

    Where `instead` is given, it takes the place of missing words.
    """
    listed = [word or instead or "" for word in words(table[name])]
    missing = [row for row, word in zip(table.index, listed, strict=True) if word == ""]
    if missing:
        raise InputError(
            f'the {role} of row {missing[0]} is missing (column "{name}"): {_WAYS_OUT.get(role, _WAY_OUT)}'
        )
    if known is not None:
        allowed = set(known)
        unknown = [row for row, word in zip(table.index, listed, strict=True) if word not in allowed]
        require(
            not unknown,
            f'column "{name}" has in row {unknown[0] if unknown else 0} a value that is not one of the '
            f"{len(allowed)} known ones: correct it, or add the value to the schema",
        )
    return np.array(listed, dtype=object)


_WAY_OUT = "fill it in or remove the row"
_WAYS_OUT = {"group": "fill it in, remove the row, or name a group for such rows with --missing-group"}


@dataclass(frozen=True)
class Columns:
    """Which column is what.

    Args:
        target: The column to predict.
        groups: The group columns, which are crossed.
        owner: The column of owners, or None.
        schema: What is public about the columns, or None.
        person: The column of people, or None.
        number: The target as a number within its bounds.
        kept: The groups that are not merged.
        missing_group: Group of rows that have none.

    >>> Columns("income", ("sex", "race")).groups
    ('sex', 'race')
    """

    target: str
    groups: tuple[str, ...]
    owner: str | None = None
    schema: Schema | None = None
    person: str | None = None
    number: Numeric | None = None
    """The target as a number within its bounds; None where it is a class."""
    kept: frozenset[str] | None = None
    """The groups that stay on their own, where the others are merged into one."""
    missing_group: str | None = None
    """The label of rows without one in a group column; None where that is an error."""

    def left_out(self) -> set[str]:
        """Columns that the model does not see when there is no schema: the target, the owner and the person.

        Returns:
            Names of columns.
        """
        return {self.target, *(name for name in (self.owner, self.person) if name is not None)}

    def known(self, name: str) -> Sequence[str] | None:
        """The values that the schema gives a column.

        Args:
            name: Name of a column.

        Returns:
            The values, or None if there is no schema or it states none.
        """
        return None if self.schema is None else self.schema.values_of(name)

    def group_sizes(self) -> Mapping[str, int] | None:
        """The sizes that the schema declares, of merged groups together; None where it declares none.

        Returns:
            Rows by name of the group, or None.
        """
        declared = None if self.schema is None else self.schema.group_sizes
        if not declared or self.kept is None:
            return declared or None
        sizes = {name: size for name, size in declared.items() if name in self.kept}
        return sizes | {OTHER_GROUPS: sum(declared.values()) - sum(sizes.values())}


OTHER_GROUPS = "other groups"


def labels_of_group(table: pd.DataFrame, name: str, columns: Columns) -> NDArray[np.object_]:
    """One column of groups as words."""
    return labels_of(table, name, "group", columns.known(name), columns.missing_group)


def group_labels(table: pd.DataFrame, columns: Columns) -> dict[str, NDArray[np.object_]]:
    """The columns that are crossed to groups, as words; where groups are merged, the crossed groups themselves."""
    own = {name: labels_of_group(table, name, columns) for name in columns.groups}
    if columns.kept is None or not own:
        return own
    ids, names = cross(own, len(table))
    merged = np.array([name if name in columns.kept else OTHER_GROUPS for name in names], dtype=object)
    return {CROSSED.join(columns.groups): merged[ids]}


def table_problem(
    table: pd.DataFrame,
    encoding: Encoding,
    columns: Columns,
    like: PublicFacts | None = None,
    *,
    budgets: Mapping[str, float] | None = None,
    group_sizes: Mapping[str, int] | None = None,
    classes: Sequence[str] | None = None,
    owners: bool = False,
) -> Problem:
    """Rows of a table as a problem; `like` gives the classes of an earlier one: for rows to measure on, of no owner.

    `classes` are those of the whole table, where some of its rows are set apart: a class may have no row here. With
    `owners`, rows to measure on keep their owners where the earlier problem has all of them.

    Args:
        table: The rows.
        encoding: How columns become numbers.
        columns: Which columns are target, groups and owner.
        like: Facts of the problem that was trained on, for rows to measure on.
        budgets: ε of each owner.
        group_sizes: Public sizes of the groups, where they are not those of the rows.
        classes: The classes of the whole table.
        owners: Keep the owners of rows to measure on.

    Returns:
        The problem.

    Raises:
        InputError: A column is missing, or a value of target, group or owner is missing or unknown.

    >>> from veil.tables import Columns, fit_encoding
    >>> table = pd.DataFrame({"age": [20, 40] * 10, "sex": ["f", "m"] * 10, "rich": ["no", "yes"] * 10})
    >>> columns = Columns("rich", ("sex",))
    >>> table_problem(table, fit_encoding(table, {"sex", "rich"}), columns).public.groups
    ('f', 'm')
    """
    target, groups, owner = columns.target, columns.groups, columns.owner if like is None else None
    if owners and like is not None and columns.owner in table:
        known_owners = set(table[columns.owner].astype(str)) <= set(like.owners)
        owner = columns.owner if known_owners else None
    require_columns(table, (target, *groups, *([owner] if owner else [])))
    make = partial(
        Problem.from_arrays,
        encoding.encode(table),
        groups=group_labels(table, columns) or None,
        owners=labels_of(table, owner, "owner") if owner else None,
        budgets=budgets,
        group_sizes=group_sizes,
    )
    declared, number = columns.known(target), columns.number
    if number is not None:
        values = number.encode(table[target])[:, 0]
        problem = make(targets=values, task="regression").with_target_range(number.low, number.high)
    else:
        known = like.classes if like else declared or classes
        labels = labels_of(table, target, "target", known)
        if like is None:
            check_classes(labels, target)
        problem = make(targets=labels, classes=known)
    if like is not None:
        return problem
    check_groups(len(problem.public.groups), len(table), groups)
    public = declared is not None and columns.schema is not None and not columns.schema.from_rows
    return problem if public or number is not None else problem.with_classes_read()


def check_classes(labels: NDArray[np.object_], target: str) -> None:
    """Reject a target that is a quantity rather than a class."""
    distinct = len(set(labels.tolist()))
    many = distinct > MAX_CLASSES or (distinct > 50 and distinct > 0.2 * len(labels))
    require(
        not many,
        f'target "{target}" has {distinct:,} different values in {len(labels):,} rows: choose a column of classes, '
        "or learn a number with --task regression",
    )


def check_groups(groups: int, rows: int, columns: Sequence[str]) -> None:
    """Reject groups that are quantities or identifiers: almost every row would be its own group."""
    many = groups > MAX_GROUPS or (groups > 50 and rows < 5 * groups)
    require(
        not many,
        f'group "{" × ".join(columns)}" has {groups:,} different values in {rows:,} rows: choose a column of few '
        "values, or bin its numbers first",
    )


def check_trained(trained: Sequence[str], measured: Sequence[str]) -> None:
    """Reject a group whose rows are all held out: nothing would be learned for it, unnoticed."""
    alone = sorted(set(measured) - set(trained))
    require(
        not alone,
        f'group "{alone[0] if alone else ""}" has no row to train on, because all its rows are held out: merge it with '
        "another group, remove its rows, or do not hold out rows (holdout 0)",
    )
