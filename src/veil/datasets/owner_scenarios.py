"""Owner scenarios: who owns which rows of a data set, and with which budgets, as the experiments of INO-SGD have them.

    disjoint      every class, or every set of classes, has an owner of its own
    dealt         as disjoint, but a seed deals the sets of classes to the owners, whose budgets stay
    overlapping   as disjoint, but a share of every owner's rows goes to the other owners, at random
    one row each  every row has its own budget, drawn from a distribution around that of its class

Labels can be flipped in all of them. Everything random depends on a public seed alone, never on what rows say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from veil.errors import InputError, require
from veil.foundation.randomness import Seed
from veil.problem import Problem

Spread = Callable[[np.random.Generator, NDArray[np.float64]], NDArray[np.float64]]
_SMALLEST = 1e-3  # of a budget that is drawn: noise below it would have to be without bounds


@dataclass(frozen=True)
class Owner:
    """An owner by name: the classes whose rows are theirs, and their budget.

    Args:
        name: Name of the owner.
        classes: The classes whose rows are theirs, at least one.
        epsilon: ε that they allow for each of their rows, above 0.

    >>> Owner("clinic", ("healthy", "ill"), 0.5).epsilon
    0.5
    """

    name: str
    classes: tuple[str, ...]
    epsilon: float

    def __post_init__(self) -> None:
        require(bool(self.classes), f'owner "{self.name}" has no classes: name at least one')
        require(self.epsilon > 0, f'owner "{self.name}" has ε = {self.epsilon:g}: a budget must be above 0')


def even_owners(problem: Problem, low: float, high: float) -> tuple[Owner, ...]:
    """One owner per class, in the order of the classes, with budgets in even steps from `low` to `high`.

    Args:
        problem: Rows with classes.
        low: Budget of the owner of the first class.
        high: Budget of the owner of the last class.

    Returns:
        One owner per class.

    >>> rows = Problem.from_arrays([[0.0], [1.0], [2.0]], ["a", "b", "c"])
    >>> [owner.epsilon for owner in even_owners(rows, 1.0, 3.0)]
    [1.0, 2.0, 3.0]
    """
    classes = _classes(problem)
    budgets = np.linspace(low, high, len(classes)).tolist()
    return tuple(Owner(name, (name,), float(budget)) for name, budget in zip(classes, budgets, strict=True))


def dealt(owners: Sequence[Owner], seed: int) -> tuple[Owner, ...]:
    """The same owners and budgets; the seed deals their sets of classes anew.

    Args:
        owners: The owners.
        seed: A public seed.

    Returns:
        The owners with other sets of classes.

    >>> before = (Owner("1", ("a",), 0.5), Owner("2", ("b",), 5.0))
    >>> sorted(owner.classes for owner in dealt(before, 3)) == [("a",), ("b",)]
    True
    """
    order = Seed.from_int(seed).generator("owners/dealt", 0).permutation(len(owners))
    return tuple(replace(owner, classes=owners[int(other)].classes) for owner, other in zip(owners, order, strict=True))


def disjoint(problem: Problem, owners: Sequence[Owner]) -> Problem:
    """The same rows, each owned by whom its class belongs to.

    Args:
        problem: Rows with classes.
        owners: Who owns which classes.

    Returns:
        The rows with owners and budgets.

    Raises:
        InputError: A class of the rows belongs to nobody or to two owners.

    >>> rows = Problem.from_arrays([[0.0], [1.0], [2.0]], ["a", "b", "b"])
    >>> disjoint(rows, [Owner("1", ("a",), 0.1), Owner("2", ("b",), 1.0)]).public.owner_sizes
    (1, 2)
    """
    return _owned(problem, owners, _owner_of(problem, owners))


def overlapping(problem: Problem, owners: Sequence[Owner], share: float, seed: int) -> Problem:
    """As `disjoint`, then `share` of every owner's rows, chosen at random, go to the other owners at random.

    Args:
        problem: Rows with classes.
        owners: Who owns which classes at first, at least two.
        share: Share of each owner's rows that go to others, between 0 and 1.
        seed: A public seed.

    Returns:
        The rows with owners and budgets.

    Raises:
        InputError: There are fewer than two owners, the share is no share, or a class belongs to nobody or to two.

    >>> rows = Problem.from_arrays([[0.0]] * 100, ["a", "b"] * 50)
    >>> mixed = overlapping(rows, [Owner("1", ("a",), 0.1), Owner("2", ("b",), 1.0)], 0.3, seed=0)
    >>> int((mixed.owner_of != np.tile([0, 1], 50)).sum())
    30
    """
    require(0 <= share <= 1, f"share is {share}: it must be between 0 and 1")
    require(len(owners) > 1, "rows can only overlap between two owners or more")
    generator = Seed.from_int(seed).generator("owners/overlapping", 0)
    first = _owner_of(problem, owners)
    owner = first.copy()
    for index in range(len(owners)):
        mine = np.flatnonzero(first == index)
        moved = generator.permutation(mine)[: round(share * len(mine))]
        others = np.delete(np.arange(len(owners)), index)
        owner[moved] = others[generator.integers(len(others), size=len(moved))]
    return _owned(problem, owners, owner)


def one_row_each(problem: Problem, owners: Sequence[Owner], spread: Spread, seed: int) -> Problem:
    """Every row is an owner; its budget is drawn by `spread` around that of the owner of its class.

    Args:
        problem: The rows.
        owners: Who would own the classes, with the mean budget of each.
        spread: A function of a random generator and the mean of every row, which returns the budget of every row:
            `uniform_spread`, `normal_spread` or any other distribution. Budgets below 0.001 are raised to it.
        seed: A public seed.

    Returns:
        The rows, each with a budget of its own.

    Raises:
        InputError: `spread` does not return one finite budget for every row.

    >>> rows = Problem.from_arrays([[0.0]] * 4, ["a", "b"] * 2)
    >>> each = one_row_each(rows, [Owner("1", ("a",), 1.0), Owner("2", ("b",), 5.0)], uniform_spread(0.25), seed=0)
    >>> max(each.public.budgets) <= 5.25
    True
    """
    means = np.array([owner.epsilon for owner in owners])[_owner_of(problem, owners)]
    drawn = np.asarray(spread(Seed.from_int(seed).generator("owners/budgets", 0), means), dtype=np.float64)
    require(drawn.shape == means.shape, "spread must return one budget for every row")
    require(bool(np.isfinite(drawn).all()), "spread must return finite budgets")
    groups = [problem.public.groups[group] for group in problem.group_of]
    _check_rows(problem)
    return Problem.from_arrays(
        problem.inputs, _names(problem), groups, budgets=np.maximum(drawn, _SMALLEST), classes=_classes(problem)
    )


def uniform_spread(reach: float) -> Spread:
    """Budgets evenly between `reach` below and above the mean.

    Args:
        reach: How far a budget may lie from the mean.

    Returns:
        A spread for `one_row_each`.

    >>> bool((abs(uniform_spread(0.5)(np.random.default_rng(0), np.full(9, 2.0)) - 2.0) <= 0.5).all())
    True
    """
    return lambda generator, means: means + generator.uniform(-reach, reach, size=means.shape)


def normal_spread(deviation: float) -> Spread:
    """Gaussian budgets of this standard deviation around the mean.

    Args:
        deviation: Standard deviation of the budgets.

    Returns:
        A spread for `one_row_each`.

    >>> normal_spread(0.0)(np.random.default_rng(0), np.full(2, 2.0)).tolist()
    [2.0, 2.0]
    """
    return lambda generator, means: means + deviation * generator.standard_normal(means.shape)


def flipped(problem: Problem, share: float, seed: int) -> Problem:
    """The same rows and owners, `share` of the labels replaced by another class at random; for training rows.

    Args:
        problem: Rows with classes, at least two.
        share: Share of the labels to replace, between 0 and 1.
        seed: A public seed.

    Returns:
        The rows with other labels.

    Raises:
        InputError: The share is no share, or there is one class only.

    >>> rows = Problem.from_arrays([[0.0]] * 10, ["a", "b"] * 5)
    >>> int((flipped(rows, 0.2, seed=0).targets != rows.targets).sum())
    2
    """
    require(0 <= share <= 1, f"share is {share}: it must be between 0 and 1")
    count = len(_classes(problem))
    require(count > 1, "labels can only be flipped between two classes or more")
    generator = Seed.from_int(seed).generator("owners/flipped", 0)
    rows = generator.permutation(len(problem.targets))[: round(share * len(problem.targets))]
    targets = problem.targets.clone()
    moves = torch.from_numpy(generator.integers(1, count, size=len(rows)))
    targets[rows] = (targets[rows] + moves) % count
    return replace(problem, targets=targets)


def _owner_of(problem: Problem, owners: Sequence[Owner]) -> NDArray[np.int64]:
    classes = _classes(problem)
    of_class = np.full(len(classes), -1, dtype=np.int64)
    for index, owner in enumerate(owners):
        for name in owner.classes:
            require(name in classes, f'owner "{owner.name}" has the class "{name}": known are {", ".join(classes)}')
            taken = int(of_class[classes.index(name)])
            said = f'class "{name}" belongs to "{owners[taken].name}" and to "{owner.name}": give it to one of them'
            require(taken < 0, said)
            of_class[classes.index(name)] = index
    found: NDArray[np.int64] = of_class[problem.targets.numpy()]
    if (found < 0).any():
        orphan = classes[int(problem.targets[int(np.flatnonzero(found < 0)[0])])]
        raise InputError(f'class "{orphan}" belongs to nobody: give it to an owner')
    return found


def _owned(problem: Problem, owners: Sequence[Owner], owner: NDArray[np.int64]) -> Problem:
    _check_rows(problem)
    names = [one.name for one in owners]
    require(len(set(names)) == len(names), "two owners have the same name")
    groups = [problem.public.groups[group] for group in problem.group_of]
    return Problem.from_arrays(
        problem.inputs,
        _names(problem),
        groups,
        owners=[names[index] for index in owner],
        budgets={one.name: one.epsilon for index, one in enumerate(owners) if (owner == index).any()},
        classes=_classes(problem),
    )


def _classes(problem: Problem) -> list[str]:
    require(bool(problem.public.classes), "owners by class need rows with classes: these have numbers as targets")
    return list(problem.public.classes)


def _names(problem: Problem) -> list[str]:
    classes = _classes(problem)
    return [classes[index] for index in problem.targets.tolist()]


def _check_rows(problem: Problem) -> None:
    require(problem.source is None, "owner scenarios need rows that are one tensor in memory: use Problem.from_arrays")
    require(problem.several is None, "owner scenarios are for rows, not for people with several rows")
