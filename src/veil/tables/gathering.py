"""Gathering: a table of people, from a table in which a column names whom each row is about.

Everything that is decided on rows (what is held out, groups, budgets, private preprocessing) is decided on one row of
each person; training may take more of them (`veil.problem.people`). So nobody is cut in two, and no release reads two
rows of a person as if they were two people's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from veil.errors import InputError, about, require
from veil.problem import Problem, cross
from veil.problem.budgets import read_budgets
from veil.problem.people import (
    ROWS_PER_PERSON,
    Counted,
    Counting,
    Several,
    check_owners,
    count_rows,
    least_of_person,
    names_of,
    own_budgets,
)
from veil.request import Request
from veil.tables.encoding import Encoding
from veil.tables.preparing import budget_levels
from veil.tables.table import Columns, group_labels, labels_of, require_columns, table_problem


@dataclass(frozen=True)
class Gathered:
    """A table, and which of its rows count for each person."""

    whole: pd.DataFrame
    counted: Counted
    person_rows: Counting = "mean"

    @property
    def people(self) -> pd.DataFrame:
        """One row of each person."""
        return self.whole.iloc[self.counted.drawn]

    @property
    def by_row(self) -> bool:
        """Whether every row that counts is an entry by itself."""
        return self.person_rows == "each"

    def entries(self, which: NDArray[np.bool_]) -> pd.DataFrame:
        """What is trained on of these people: one row of each, or all that count."""
        counted = self.counted.of(which)
        return self.whole.iloc[counted.rows if self.by_row else counted.drawn]

    def added_to(self, problem: Problem, which: NDArray[np.bool_], encoding: Encoding, columns: Columns) -> Problem:
        """A problem of the entries of these people, with all rows of theirs that count."""
        several, counted = None, self.counted.of(which)
        if self.by_row:
            return problem.with_each_row(counted.person_of, counted.most)
        if counted.most > 1:
            rows = table_problem(self.whole.iloc[counted.rows], encoding, columns, problem.public)
            several = Several(rows.inputs, rows.targets, counted.first)
        return problem.with_people(several, counted.most)


def gather(request: Request, columns: Columns, table: pd.DataFrame, public: pd.DataFrame | None) -> Gathered:
    """Find the rows of each person that count. Nobody may be in the training table and among the public rows."""
    person = columns.person
    assert person is not None, "asked for"
    people = names_of(labels_of(table, person, "person"))
    require_other_people(public, person, people)
    if columns.owner is not None and request.row_budgets is None:
        check_owners(people, labels_of(table, columns.owner, "owner"), table.index)
    if request.row_budgets is not None:
        budget_levels(request.row_budgets, table)  # every row's is checked, also where the row does not count
        least = least_of_person(table[request.row_budgets].to_numpy(dtype=np.float64), people)
        table = table.assign(**{request.row_budgets: least})
    groups, _ = cross(group_labels(table, columns), len(table))
    return Gathered(table, count_rows(people, groups, most_rows(request)), request.person_rows or "mean")


def most_rows(request: Request) -> int:
    """How many rows of a person count at most."""
    return ROWS_PER_PERSON if request.rows_per_person is None else request.rows_per_person


# Stands for a column of the table that nobody can have given.
OWN_BUDGET = "\0ε of the person"


def with_own_budgets(request: Request, columns: Columns, table: pd.DataFrame) -> tuple[Request, Columns, pd.DataFrame]:
    """Where people are their own owners, the ε of each as per-row budgets: levels of these are planned for, not names.

    So a plan for a million people has as many owners as levels, and no certificate lists people.
    """
    if columns.person is None or columns.owner != columns.person:
        return request, columns, table
    if request.budgets is None:
        return request.model_copy(update={"owner": None}), replace(columns, owner=None), table
    names = names_of(labels_of(table, columns.person, "person"))
    table = table.assign(**{OWN_BUDGET: own_budgets(names, read_budgets(request.budgets), table.index)})
    asked = {"owner": None, "budgets": None, "row_budgets": OWN_BUDGET}
    return request.model_copy(update=asked), replace(columns, owner=OWN_BUDGET), table


def check_person(request: Request, columns: Columns, table: pd.DataFrame) -> None:
    """The column of people is there and has no other role."""
    if columns.person is None:
        for option, given in (("--rows-per-person", request.rows_per_person), ("--person-rows", request.person_rows)):
            require(given is None, f"{option} needs --person, the column that names people")
        return
    require(
        columns.person in table.columns or "," not in columns.person,
        f"--person is {columns.person}: rows about several people at once are not supported, so give one column, and a "
        "table whose rows are about one person each",
    )
    require_columns(table, (columns.person,))
    roles = {"target": (columns.target,), "group": columns.groups}
    for role, names in roles.items():
        if columns.person in names:
            raise InputError(f'column "{columns.person}" is the {role} and cannot name people: give another --person')


def require_other_people(public: pd.DataFrame | None, person: str, training: NDArray[np.object_]) -> None:
    """Nobody may be in the training table and among the public rows."""
    if public is None or person not in public.columns:
        return
    with about("--test"):
        others = names_of(labels_of(public, person, "person"))
        both = public.index[np.isin(others, np.unique(training))]
        require(
            len(both) == 0,
            f'the "{person}" of row {both[0] if len(both) else 0} is in the training table too: public rows must be of '
            "other people",
        )
