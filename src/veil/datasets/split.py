"""Split: training, test and validation rows of one data set, and the public way in which rows are set apart."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from veil.foundation.randomness import Seed
from veil.problem import Problem


@dataclass(frozen=True)
class Split:
    """Rows to train on, rows to measure on, and, where a paper has them, rows to choose settings by.

    Args:
        train: Rows to train on.
        test: Rows to measure on.
        validation: Rows to choose settings by, or None.

    >>> from veil.datasets import GroupSpec, generate
    >>> rows = generate([GroupSpec("all", 30)])
    >>> Split(train=rows, test=rows).validation is None
    True
    """

    train: Problem
    test: Problem
    validation: Problem | None = None


def shuffled(rows: int, seed: int, purpose: str) -> NDArray[np.int64]:
    """Row positions in a public random order: it depends on the seed alone, never on what rows say.

    >>> shuffled(4, 0, "example").tolist() == shuffled(4, 0, "example").tolist()
    True
    """
    return Seed.from_int(seed).generator("split/" + purpose, 0).permutation(rows).astype(np.int64)


def set_apart(rows: int, share: float, seed: int, purpose: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The positions that stay and, in number `share` of all, those that are set apart; each in their old order.

    >>> [len(part) for part in set_apart(10, 0.2, 0, "example")]
    [8, 2]
    """
    order = shuffled(rows, seed, purpose)
    away = round(rows * share)
    return np.sort(order[away:]), np.sort(order[:away])
