"""Generated data with groups: sizes, distance between classes, label noise and shift of each group are yours to set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from veil.errors import require
from veil.problem import Problem


@dataclass(frozen=True)
class GroupSpec:
    """One group: two Gaussian classes at ±`margin`/2 along the group's own direction, moved by `shift`.

    `angle` turns the direction within the first two features, `label_noise` flips that share of the labels.

    Args:
        name: Name of the group.
        rows: How many rows.
        margin: Distance between the classes, in standard deviations.
        angle: Angle of the direction, in radians.
        shift: How far the group is moved.
        label_noise: Share of flipped labels, between 0 and 1.
    """

    name: str
    rows: int
    margin: float = 2.0
    angle: float = 0.0
    shift: float = 0.0
    label_noise: float = 0.0

    def best_accuracy(self) -> float:
        """The accuracy of the best classifier that knows the group.

        Returns:
            A share between 0 and 1.

        >>> round(GroupSpec("a", 100, margin=2.0).best_accuracy(), 3)
        0.841
        """
        right = float(ndtr(self.margin / 2))
        return right * (1 - self.label_noise) + (1 - right) * self.label_noise


def generate(groups: Sequence[GroupSpec], features: int = 10, seed: int = 0) -> Problem:
    """Rows of all groups, in the order of the groups.

    Args:
        groups: Name and size of each group, and by how much its optimum is turned.
        features: How many numbers a row has.
        seed: Public: the same seed gives the same rows.

    Returns:
        Two classes, all groups.

    Raises:
        InputError: There are fewer than 2 features.

    >>> generate([GroupSpec("a", 90), GroupSpec("b", 10, angle=1.0)]).public.group_sizes
    (90, 10)
    """
    require(features >= 2, f"features is {features}: there must be at least 2")
    generator = np.random.default_rng(seed)
    inputs, targets, labels = [], [], []
    for group in groups:
        truth = generator.integers(0, 2, size=group.rows)
        direction = np.zeros(features)
        direction[:2] = np.cos(group.angle), np.sin(group.angle)
        centre = np.zeros(features)
        centre[-1] = group.shift
        x = generator.standard_normal((group.rows, features)) + centre
        x += np.outer(2 * truth - 1, direction) * group.margin / 2
        flipped = generator.random(group.rows) < group.label_noise
        inputs.append(x)
        targets.append(np.where(flipped, 1 - truth, truth))
        labels += [group.name] * group.rows
    return Problem.from_arrays(
        np.concatenate(inputs).astype(np.float32), np.concatenate(targets), labels, classes=[0, 1]
    )
