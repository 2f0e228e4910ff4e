"""Steering: the weight of each group, from its released errors.

    ê_u = (errors of unit u + noise) / n_u,   shrunk towards the average by its known noise
    q_u ← q_u + pace_r · (ê_u − average) · √(usual/average),   where the average error is below the usual one
    a row's weight is exp(q_u), at most `cap` times the average row's
    what a weight may not give, a margin gives: for a linear classifier a class weight e^q and a shift of its score by q
    are the same in the limit, and a margin needs no further noise

A unit is a group that is large enough to be weighted separately at this ε (`rows_to_be_heard`), with the small groups
that share most of its attributes. Small groups without such a group form one unit. Pooling is for steering alone, never
for reports.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from veil.problem import CROSSED, PublicFacts

# Errors of groups differ by about the root of the average error: where few rows are wrong, `pace` counts for more.
USUAL, FEWEST = 0.25, 0.01
# A group is weighted separately if its errors are known up to this. The share of n rows that a model gets wrong varies
# by at most √(1/4n) with who these rows happen to be: those it is trained on, and as many that it is meant for.
HEARD, LUCK = 0.07, 2 * 0.25


def known_to(noise: float, rows: float) -> float:
    """How well the error rate of so many rows is known; `noise` is that of everything released of their errors."""
    return math.hypot(noise / rows, math.sqrt(LUCK / rows))


def rows_to_be_heard(noise: float) -> float:
    """The rows from which on a group's error rate is known up to `HEARD`.

    >>> round(known_to(9.0, rows_to_be_heard(9.0)), 4), round(rows_to_be_heard(0.0))
    (0.07, 102)
    """
    return (LUCK + math.sqrt(LUCK**2 + (2 * HEARD * noise) ** 2)) / (2 * HEARD**2)


@dataclass(frozen=True)
class Units:
    """The unit of each group, the rows of each unit, and whether the unit is weighted separately."""

    of_group: tuple[int, ...]
    rows: tuple[int, ...]
    heard: tuple[bool, ...]

    def pooled(self, groups: Sequence[str], sizes: Sequence[int], needed: float) -> dict[str, str]:
        """Each group too small to be weighted separately, and the group it is combined with; for reports."""
        names: dict[int, str] = {}
        for group, unit in enumerate(self.of_group):
            if sizes[group] >= needed:
                names[unit] = groups[group]
        small = [group for group, size in enumerate(sizes) if size < needed]
        return {groups[group]: names.get(self.of_group[group], "other small groups") for group in small}


def units_of(facts: PublicFacts, needed: float) -> Units:
    """Units from public names and sizes: groups of at least `needed` rows, each with its related small groups.

    >>> from veil.problem import Cell
    >>> names, sizes = ("f × a", "f × b", "m × a"), (900, 3, 800)
    >>> facts = PublicFacts(names, ("all",), tuple(Cell(g, 0, n) for g, n in enumerate(sizes)), (1,))
    >>> units_of(facts, 100.0)
    Units(of_group=(0, 0, 1), rows=(903, 800), heard=(True, True))
    """
    sizes, parts = facts.group_sizes, [name.split(CROSSED) for name in facts.groups]
    large = [group for group, size in enumerate(sizes) if size >= needed]
    unit_of = {group: unit for unit, group in enumerate(large)}
    alone, label = len(large), _label_place(parts, facts.classes)
    found = []
    for group in range(len(sizes)):
        # Weights that serve one class are at the cost of the others: a group of another class is no kin.
        near = [other for other in large if label is None or parts[other][label:][:1] == parts[group][label:][:1]]
        kin = max(near, key=lambda other: (_shared(parts[group], parts[other]), sizes[other]), default=None)
        related = kin is not None and _shared(parts[group], parts[kin]) > 0
        found.append(unit_of[group] if group in unit_of else unit_of[kin] if related and kin is not None else alone)
    count = max(found) + 1
    rows = tuple(sum(size for size, unit in zip(sizes, found, strict=True) if unit == u) for u in range(count))
    return Units(tuple(found), rows, tuple(total >= needed for total in rows))


def _label_place(parts: Sequence[Sequence[str]], classes: Sequence[str]) -> int | None:
    """Where groups have the class in their names; None where they are not crossed with it."""
    width = max(len(one) for one in parts)
    crossed = [one for one in parts if len(one) == width]  # merged groups have a name of their own
    return next((place for place in range(width) if {one[place] for one in crossed} == set(classes)), None)


def _shared(ours: Sequence[str], theirs: Sequence[str]) -> int:
    return sum(a == b for a, b in zip(ours, theirs, strict=False)) if len(ours) == len(theirs) else 0


@dataclass(frozen=True)
class Steering:
    """How weights and margins follow released errors. `pace` is that of the first release; later ones move less."""

    units: Units
    every: int
    pace: float
    slower: float
    cap: float

    def releases(self, steps: int) -> list[int]:
        """Before which steps errors are released."""
        return list(range(self.every, steps, self.every)) if self.pace > 0 and sum(self.units.heard) > 1 else []

    def moved(self, loudness: Tensor, errors: Tensor, noise: float, release: int) -> Tensor:
        """The log-weights q after a release of noisy error counts; `noise` is their standard deviation."""
        rows = torch.tensor(self.units.rows, dtype=errors.dtype)
        heard = torch.tensor(self.units.heard)
        average = errors.sum() / rows.sum()
        apart = torch.where(heard, errors / rows - average, 0.0)
        variance = (noise / rows) ** 2
        # How much units really differ: what is left of their differences without the noise.
        between = (apart**2 - variance)[heard].clamp_min(0.0).mean()
        step = self.pace / (1 + self.slower * release) * torch.sqrt(USUAL / average.clamp(FEWEST, USUAL))
        return self._centred(loudness + step * apart * between / (between + variance).clamp_min(1e-12))

    def weights(self, loudness: Tensor) -> tuple[Tensor, Tensor]:
        """A row's weight by its unit, 1 on average over rows and at most `cap`; and the margin that gives the rest."""
        rows = torch.tensor(self.units.rows, dtype=loudness.dtype)
        weights = torch.exp(loudness - loudness.max())
        for _ in range(2):
            weights = (weights * rows.sum() / (weights * rows).sum()).clamp(max=self.cap)
        return weights, self._centred(loudness - torch.log(weights))

    def _centred(self, values: Tensor) -> Tensor:
        rows = torch.tensor(self.units.rows, dtype=values.dtype)
        return values - (values * rows).sum() / rows.sum()
