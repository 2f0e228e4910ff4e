"""People with several rows: which rows count follows from the person alone, and a person is one row in every sum."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import veil
from tests.problem.people_cases import in_people
from veil.errors import InputError
from veil.gradients import GradientEngine
from veil.problem import Problem
from veil.problem.people import count_rows, least_of_person
from veil.training.losses import row_losses
from veil.training.person_losses import by_person


def visits(people: int = 60, rows: int = 400) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    return {
        "people": np.array([f"p{i}" for i in generator.integers(0, people, rows)], dtype=object),
        "inputs": generator.normal(size=(rows, 4)).astype(np.float32),
        "targets": generator.integers(0, 2, rows),
        "groups": generator.integers(0, 3, rows),
    }


def rows_of(table: dict[str, np.ndarray], most: int) -> dict[str, list[list[float]]]:
    """The inputs that count, by person."""
    counted = count_rows(table["people"], table["groups"], most)
    named = table["people"][counted.drawn]
    return {
        str(name): table["inputs"][counted.rows[counted.first[i] : counted.first[i + 1]]].tolist()
        for i, name in enumerate(named)
    }


@pytest.mark.parametrize("most", [1, 3, 100])
def test_what_counts_of_a_person_does_not_follow_from_anybody_else(most: int) -> None:
    table = visits()
    whole = rows_of(table, most)
    for gone in ("p0", "p7", "p31"):
        kept = table["people"] != gone
        left = rows_of({name: column[kept] for name, column in table.items()}, most)
        assert left == {name: rows for name, rows in whole.items() if name != gone}
    # Nor from where others stand: a person's own order is all that matters.
    order = np.argsort(table["people"].astype(str), kind="stable")
    assert rows_of({name: column[order] for name, column in table.items()}, most) == whole


def test_a_person_counts_in_one_group_with_at_most_so_many_rows() -> None:
    table = visits()
    for most in (1, 2, 5):
        counted = count_rows(table["people"], table["groups"], most)
        assert len(counted.drawn) == len(set(table["people"]))
        for i in range(len(counted.drawn)):
            rows = counted.rows[counted.first[i] : counted.first[i + 1]]
            assert 1 <= len(rows) <= most
            assert len(set(table["people"][rows])) == 1
            assert len(set(table["groups"][rows])) == 1
            of_group = (table["people"] == table["people"][rows[0]]) & (table["groups"] == table["groups"][rows[0]])
            assert len(rows) == min(most, of_group.sum())


def test_rows_are_drawn_evenly() -> None:
    people = np.repeat(np.arange(9000), 3)
    counted = count_rows(people, np.zeros(27_000, np.int64), 1)
    share = np.bincount(counted.drawn % 3) / 9000
    assert np.abs(share - 1 / 3).max() < 0.02


@pytest.mark.parametrize("most", [1, 4])
def test_a_problem_of_people_has_their_sizes_and_is_certified_for_them(most: int) -> None:
    table = visits()
    problem = Problem.from_arrays(
        table["inputs"], table["targets"], table["groups"], people=table["people"], rows_per_person=most
    )
    assert problem.public.unit == "person"
    assert problem.public.rows == len(set(table["people"]))
    assert (problem.several is None) == (most == 1)
    run = veil.fit(nn.Linear(4, 2), problem, method="dp-sgd", epsilon=2.0, steps=5, batch_size=10, seed=1)
    assert run.certificate.unit == "one person"
    assert run.certificate.by_rows == {}
    assert "any one person was in the data" in run.certificate.statement
    assert any("all rows that name the same person" in sentence for sentence in run.certificate.assumptions)


def test_the_gradient_of_a_person_is_the_mean_over_their_rows() -> None:
    table = visits()
    problem = Problem.from_arrays(
        table["inputs"], table["targets"], table["groups"], people=table["people"], rows_per_person=5
    )
    assert problem.several is not None
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    rows, loss = by_person(problem, row_losses)
    found = GradientEngine(model, loss).weighted_sum(rows.batch(np.arange(20)), lambda per_row: torch.ones(20))
    for person in range(20):
        own = problem.several.person_of == person
        mean = nn.functional.cross_entropy(model(problem.several.inputs[own]), problem.several.targets[own])
        norm = torch.cat([part.flatten() for part in torch.autograd.grad(mean, list(model.parameters()))]).norm()
        torch.testing.assert_close(found.per_row.norms[person], norm)


def test_a_data_set_can_be_of_people() -> None:
    table = visits()
    items = TensorDataset(torch.from_numpy(table["inputs"]), torch.from_numpy(table["targets"]))
    ours = Problem.from_dataset(items, table["groups"], people=table["people"], rows_per_person=3)
    theirs = Problem.from_arrays(
        table["inputs"], table["targets"], table["groups"], people=table["people"], rows_per_person=3
    )
    assert ours.public == theirs.public
    (inputs, shares), targets = ours.together().batch(np.arange(12))
    (expected, of_shares), of_targets = theirs.together().batch(np.arange(12))
    torch.testing.assert_close(inputs, expected)
    torch.testing.assert_close(shares, of_shares)
    torch.testing.assert_close(targets, of_targets)
    run = veil.fit(nn.Linear(4, 2), ours, method="dp-sgd", epsilon=2.0, steps=3, batch_size=10, seed=1)
    assert run.certificate.unit == "one person"


def test_a_session_has_one_row_of_each_person() -> None:
    table = visits()
    problem = Problem.from_arrays(table["inputs"], table["targets"], table["groups"], people=table["people"])
    model = nn.Linear(4, 2)
    session = veil.session(model, problem, method="dp-sgd", epsilon=2.0, steps=3, batch_size=20, seed=1)
    for inputs, targets in session:
        assert inputs.shape[1:] == (4,)
        session.step(nn.functional.cross_entropy(model(inputs), targets, reduction="none"))
    assert session.finish().certificate.unit == "one person"


def test_wrong_people_are_one_sentence() -> None:
    table = visits()
    given = (table["inputs"], table["targets"], table["groups"])
    missing = table["people"].copy()
    missing[17] = None
    with pytest.raises(InputError, match="the person of row 17 is missing"):
        Problem.from_arrays(*given, people=missing)
    with pytest.raises(InputError, match="400 rows and 399 people"):
        Problem.from_arrays(*given, people=table["people"][1:])
    with pytest.raises(InputError, match="rows_per_person is 0"):
        Problem.from_arrays(*given, people=table["people"], rows_per_person=0)
    owners = ["a", "b"] * 200
    with pytest.raises(InputError, match="has rows of several owners: give every person one owner"):
        Problem.from_arrays(*given, people=table["people"], owners=owners, budgets={"a": 1.0, "b": 2.0})


def test_the_budget_of_a_person_is_the_smallest_of_their_rows() -> None:
    table = visits()
    budgets = np.where(np.arange(400) % 7 == 0, 0.5, 3.0)
    problem = Problem.from_arrays(
        table["inputs"], table["targets"], table["groups"], people=table["people"], budgets=budgets
    )
    careful = {name for name, budget in zip(table["people"], budgets, strict=True) if budget == 0.5}
    counted = count_rows(table["people"], table["groups"], 10)
    assert problem.public.budgets is not None
    for person, row in enumerate(counted.drawn):
        own = problem.public.budgets[problem.owner_of[person]]
        assert own <= (0.5 if table["people"][row] in careful else 3.0)
    assert least_of_person([3.0, 0.5, 2.0], ["a", "a", "b"]).tolist() == [0.5, 0.5, 2.0]


@pytest.mark.parametrize("odd", ["X1", 1.5, 2**60 + 1])
@pytest.mark.parametrize("kind", [int, float, str])
def test_how_one_name_is_read_changes_nobody_else(kind: type, odd: object) -> None:
    names = np.random.default_rng(0).integers(0, 60, 400).tolist()
    table = visits()
    alone = rows_of(table | {"people": np.array(list(map(kind, names)), dtype=object)}, 1)
    beside = np.array([*map(kind, names), odd], dtype=object)
    longer = {name: np.concatenate([column, column[:1]]) for name, column in table.items()} | {"people": beside}
    found = {str(name).removesuffix(".0"): rows for name, rows in rows_of(longer, 1).items()}
    assert {name.removesuffix(".0"): found[name.removesuffix(".0")] for name in alone} == {
        name.removesuffix(".0"): rows for name, rows in alone.items()
    }


def test_names_are_values_and_nothing_else() -> None:
    tensors = [torch.tensor(i // 5) for i in range(20)]
    for given in (tensors, np.repeat(np.arange(4), 5), torch.arange(20) // 5, [str(i // 5) for i in range(20)]):
        assert len(count_rows(given, np.zeros(20, np.int64), 1).drawn) == 4
    with pytest.raises(InputError, match="name people by words, numbers or dates"):
        count_rows([object() for _ in range(4)], np.zeros(4, np.int64), 1)
    with pytest.raises(InputError, match="must be named by words"):
        count_rows([[1], [2]], np.zeros(2, np.int64), 1)


def test_shares_of_a_person_never_add_up_to_more_than_one() -> None:
    problem = in_people(Problem.from_arrays(np.zeros((300, 1)), [0, 1] * 150))
    _, shares = problem.apart()
    assert problem.several is not None
    sums = np.bincount(problem.several.person_of, weights=shares)
    assert sums.max() <= 1.0
    assert sums.min() > 1 - 1e-8
