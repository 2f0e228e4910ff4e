"""Made-up rows of the same shape as a table: groups, sizes, columns and classes are those of the table, values are not.

Every column has a normal latent value, whose mean follows from the class of the row. A number is that value, squeezed
into [−1, 1]; a category is the range that it falls into, and ranges have unequal shares. Classes differ in a few
columns more than in others. In each group part of the difference has a direction of its own.

    z = d·(cos θ·a_y + sin θ·b_{g,y})/√2 + N(0, I),   d: how far classes lie apart,   θ: how much groups differ

d follows from the share of rows that can be predicted right if all classes are equally frequent:
∫ φ(t)·Φ(t + d/√2)^(k−1) dt for k classes, Φ(d/2) for two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from veil.foundation.randomness import Seed
from veil.problem import Problem, PublicFacts

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Shape:
    """What is public of a table: its facts, and how many numbers each column becomes.

    `values` has, for columns that are group columns too, the value of each group; `class_of_group` the class of each
    group where groups are crossed with the target.
    """

    facts: PublicFacts
    widths: tuple[int, ...]
    numeric: tuple[bool, ...]
    values: Mapping[int, tuple[int, ...]]
    class_of_group: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Difficulty:
    """How made-up classes and groups differ.

    `right` is the share of rows that the best model predicts right if all classes are equally frequent; `own` is the
    angle θ of what is a group's own; `shares` is the standard deviation over groups of the log-odds of a class.
    """

    right: float
    own: float
    shares: float

    def apart(self, classes: int) -> float:
        """How far classes lie apart, in standard deviations.

        >>> round(Difficulty(0.8, 0.0, 0.0).apart(2), 2), round(Difficulty(0.8, 0.0, 0.0).apart(10), 2)
        (1.68, 3.48)
        """
        places = np.linspace(-8.0, 8.0, 801)
        density = np.exp(-(places**2) / 2) / np.sqrt(2 * np.pi) * (places[1] - places[0])

        def missing(apart: float) -> float:
            return float(density @ ndtr(places + apart / np.sqrt(2)) ** (classes - 1)) - self.right

        return float(brentq(missing, 0.0, 20.0))


@dataclass(frozen=True)
class World:
    """Where made-up rows come from: the centre of each class in each group, and the shares of classes."""

    shape: Shape
    centres: Floats
    class_shares: Floats

    @classmethod
    def made(cls, shape: Shape, difficulty: Difficulty, seed: Seed) -> World:
        """A world that follows from the seed."""
        draw = seed.generator("made-up world", 0)
        columns, classes, groups = len(shape.widths), len(shape.facts.classes), len(shape.facts.groups)
        common = _directions(draw, classes, columns)
        own = np.stack([_directions(draw, classes, columns) for _ in range(groups)])
        mixed = np.cos(difficulty.own) * common + np.sin(difficulty.own) * own
        odds = -np.log(np.arange(1, classes + 1)) + difficulty.shares * draw.standard_normal((groups, classes))
        shares = np.exp(odds) / np.exp(odds).sum(axis=1, keepdims=True)
        if shape.class_of_group is not None:
            shares = np.eye(classes)[list(shape.class_of_group)]
        return cls(shape, difficulty.apart(classes) / np.sqrt(2) * mixed, shares)

    def rows(self, sizes: Sequence[int], seed: Seed) -> tuple[Floats, NDArray[np.int64], NDArray[np.int64]]:
        """Encoded rows with their classes and groups; so many of each group."""
        draw = seed.generator("made-up rows", 0)
        group = np.repeat(np.arange(len(sizes)), sizes)
        chance = draw.random(len(group))
        target = (chance[:, None] > np.cumsum(self.class_shares, axis=1)[group, :-1]).sum(axis=1)
        latent = self.centres[group, target] + draw.standard_normal((len(group), len(self.shape.widths)))
        parts = [self._column(column, latent[:, column], group) for column in range(latent.shape[1])]
        return np.hstack(parts), target, group

    def _column(self, column: int, latent: Floats, group: NDArray[np.int64]) -> Floats:
        width, given = self.shape.widths[column], self.shape.values.get(column)
        if given is not None:
            known: Floats = np.eye(width)[np.array(given)[group] % width]
            return known
        if self.shape.numeric[column]:
            behind = np.zeros((len(latent), width - 1))  # nothing is missing
            return np.hstack([np.tanh(latent / 2)[:, None], behind])
        if width == 1:
            return np.ones((len(latent), 1))
        shares = 1 / np.arange(1, width + 1)
        edges = ndtri(np.cumsum(shares / shares.sum())[:-1])
        return np.eye(width)[np.searchsorted(edges, latent)]


def problem_of(world: World, sizes: Sequence[int], seed: Seed) -> Problem:
    """Made-up rows as a problem to train on, with the names of the real groups and classes."""
    rows, target, group = world.rows(sizes, seed)
    facts = world.shape.facts
    names, classes = np.array(facts.groups, dtype=object), np.array(facts.classes, dtype=object)
    return Problem.from_arrays(rows.astype(np.float32), classes[target], names[group], classes=facts.classes)


def _directions(draw: np.random.Generator, classes: int, columns: int) -> Floats:
    """A direction of length 1 for each class, in which few columns count for much."""
    order = np.stack([draw.permutation(columns) for _ in range(classes)])
    signs = draw.choice([-1.0, 1.0], (classes, columns))
    found = signs / (1 + order)
    found -= found.mean(axis=0)
    lengths: Floats = np.linalg.norm(found, axis=1, keepdims=True).clip(1e-9)
    return np.asarray(found / lengths * np.sqrt(1 - 1 / classes), dtype=np.float64)
