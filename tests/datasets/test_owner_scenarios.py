"""Owner scenarios: who owns which rows, with which budgets; everything random follows from a public seed."""

from __future__ import annotations

import numpy as np
import pytest

from veil.datasets.owner_scenarios import (
    Owner,
    dealt,
    disjoint,
    even_owners,
    flipped,
    normal_spread,
    one_row_each,
    overlapping,
    uniform_spread,
)
from veil.errors import InputError
from veil.problem import Problem

LETTERS = ("a", "b", "c")
OWNERS = (Owner("first", ("a",), 0.5), Owner("second", ("b", "c"), 2.0))


def rows(count: int = 300) -> Problem:
    """Rows of three classes in turn; every row knows its own number."""
    labels = [LETTERS[index % 3] for index in range(count)]
    return Problem.from_arrays(np.arange(count, dtype=np.float32)[:, None], labels, labels, classes=list(LETTERS))


def test_every_class_goes_to_its_owner_and_rows_stay_as_they_are() -> None:
    problem = rows()
    owned = disjoint(problem, OWNERS)
    names = np.array(owned.public.owners)[owned.owner_of]
    assert set(names[problem.targets.numpy() == 0]) == {"first"}
    assert set(names[problem.targets.numpy() > 0]) == {"second"}
    assert owned.inputs.equal(problem.inputs)
    assert owned.targets.equal(problem.targets)
    assert dict(zip(owned.public.owners, owned.public.budgets or (), strict=True)) == {"first": 0.5, "second": 2.0}
    assert owned.public.groups == problem.public.groups


def test_dealt_classes_change_hands_and_budgets_do_not() -> None:
    owners = even_owners(rows(), 1.0, 3.0)
    hands = {tuple(owner.classes[0] for owner in dealt(owners, seed)) for seed in range(40)}
    assert len(hands) == 6  # every order of three classes turns up
    assert all([owner.epsilon for owner in dealt(owners, seed)] == [1.0, 2.0, 3.0] for seed in range(40))


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 1.0])
def test_so_many_rows_of_every_owner_go_to_others(share: float) -> None:
    problem = rows()
    before, after = disjoint(problem, OWNERS).owner_of, overlapping(problem, OWNERS, share, seed=1).owner_of
    for owner in (0, 1):
        mine = before == owner
        assert (after[mine] != owner).sum() == round(share * mine.sum())


@pytest.mark.parametrize("spread", [uniform_spread(0.25), normal_spread(0.1)])
def test_budgets_of_single_rows_lie_around_those_of_their_class_and_are_never_exceeded(spread) -> None:  # type: ignore[no-untyped-def]
    problem = rows(600)
    each = one_row_each(problem, OWNERS, spread, seed=3)
    levels = np.array(each.public.budgets)[each.owner_of]
    first = problem.targets.numpy() == 0
    assert levels[first].mean() == pytest.approx(0.5, abs=0.06)
    assert levels[~first].mean() == pytest.approx(2.0, abs=0.06)
    # The same generator draws what was asked for: a level is never above it.
    drawn: list[np.ndarray] = []

    def remembered(generator: np.random.Generator, means: np.ndarray) -> np.ndarray:
        drawn.append(spread(generator, means))
        return drawn[-1]

    one_row_each(problem, OWNERS, remembered, seed=3)
    assert (levels <= np.maximum(drawn[0], 1e-3) * (1 + 1e-12)).all()


def test_flipped_labels_are_other_classes_and_as_many_as_asked_for() -> None:
    problem = disjoint(rows(), OWNERS)
    noisy = flipped(problem, 0.1, seed=2)
    assert int((noisy.targets != problem.targets).sum()) == 30
    assert set(noisy.targets.tolist()) == {0, 1, 2}
    assert (noisy.owner_of == problem.owner_of).all()  # who owns a row does not change with its label


def test_the_seed_alone_decides() -> None:
    one, same, other = (overlapping(rows(), OWNERS, 0.3, seed).owner_of for seed in (1, 1, 2))
    assert (one == same).all()
    assert (one != other).any()


@pytest.mark.parametrize(
    ("owners", "message"),
    [
        ((Owner("x", ("a", "b"), 1.0),), 'class "c" belongs to nobody'),
        ((Owner("x", ("a", "b"), 1.0), Owner("y", ("b", "c"), 1.0)), "to one of them"),
        ((Owner("x", ("q",), 1.0),), "known are a, b, c"),
        ((Owner("x", ("a", "b"), 1.0), Owner("x", ("c",), 1.0)), "the same name"),
    ],
)
def test_classes_without_an_owner_or_with_two_are_rejected(owners: tuple[Owner, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        disjoint(rows(), owners)
