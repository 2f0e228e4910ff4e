"""Problems: wrong input is named, and public facts never hold a private row."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from veil.errors import InputError
from veil.problem import Problem

X, Y = [[0.0], [1.0], [2.0], [3.0]], [0, 1, 0, 1]
GROUPS = ["a", "b", "a", "b"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"inputs": [[0.0], [np.nan], [1.0], [2.0]]}, "feature 0 of row 1 is not a finite number"),
        ({"inputs": [[0.0], [1.0], [np.inf], [2.0]]}, "feature 0 of row 2 is not a finite number"),
        ({"targets": [0, 1, 0]}, "4 rows of features and 3 targets"),
        ({"targets": [0, 0, 0, 0]}, "single value"),
        ({"targets": [0, 1, None, 1]}, "target of row 2 is missing"),
        ({"groups": ["a", "b", "a"]}, "4 rows and 3 group labels"),
        ({"groups": ["a", None, "a", "b"]}, "group of row 1 is missing"),
        ({"group_sizes": {"a": 2}}, 'no size is declared for group "b"'),
        ({"group_sizes": {"a": 2, "b": 0}}, "must be above 0"),
        ({"owners": ["x", "y", "x", "y"], "budgets": {"x": 1.0}}, 'owner "y" has no budget'),
        ({"owners": ["x", "y", "x", "y"], "budgets": {"x": 1.0, "y": 0.0}}, "ε must be above 0"),
        ({"classes": [0, 2]}, "not one of the 2 declared classes"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_wrong_input_is_named(arguments: dict[str, object], sentence: str) -> None:
    given = {"inputs": X, "targets": Y, "groups": GROUPS} | arguments
    with pytest.raises(InputError, match=sentence):
        Problem.from_arrays(given.pop("inputs"), given.pop("targets"), given.pop("groups"), **given)  # type: ignore[arg-type]


def test_no_rows_are_refused() -> None:
    with pytest.raises(InputError, match="there are no rows"):
        Problem.from_arrays(np.zeros((0, 2)), [], [])


def test_a_group_of_one_row_and_a_single_group_are_fine() -> None:
    assert Problem.from_arrays(X, Y, ["a", "b", "b", "b"]).public.group_sizes == (1, 3)
    assert Problem.from_arrays(X, Y).public.group_sizes == (4,)


def test_groups_and_owners_are_different_partitions() -> None:
    problem = Problem.from_arrays(X, Y, GROUPS, owners=["x", "x", "y", "y"], budgets={"x": 0.5, "y": 2.0})
    assert len(problem.public.cells) == 4
    assert problem.public.group_sizes == (2, 2)
    assert problem.public.owner_sizes == (2, 2)
    assert [problem.public.budget_of(cell, 9.0) for cell in range(4)] == [0.5, 2.0, 0.5, 2.0]


def test_a_row_taken_out_leaves_a_hole_and_every_public_fact_alone() -> None:
    problem = Problem.from_arrays(X, Y, GROUPS)
    lacking = problem.without(2)
    assert lacking.public == problem.public
    assert len(lacking) == 3
    assert [rows.tolist() for rows in lacking.strata().members] == [[0, -1], [1, 3]]


def test_a_replaced_row_leaves_the_original_untouched() -> None:
    problem = Problem.from_arrays(X, Y, GROUPS)
    other = problem.replacing(0, torch.tensor([9.0]), torch.tensor(1))
    assert float(problem.inputs[0]) == 0.0
    assert float(other.inputs[0]) == 9.0
    assert other.public == problem.public


def test_attributes_cross_into_one_group_each() -> None:
    problem = Problem.from_arrays(X, Y, {"sex": ["f", "m", "f", "m"], "race": ["p", "p", "q", "q"]})
    assert problem.public.groups == ("f × p", "f × q", "m × p", "m × q")


def test_numbers_are_not_taken_for_classes() -> None:
    numbers = np.random.default_rng(0).normal(size=300)
    with pytest.raises(InputError, match="set task='regression'"):
        Problem.from_arrays(np.zeros((300, 1)), numbers)
    assert Problem.from_arrays(np.zeros((300, 1)), numbers, task="regression").public.task == "regression"
