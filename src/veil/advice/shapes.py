"""Shapes: what is public of opened rows, and in words what of it was read from them."""

from __future__ import annotations

from collections.abc import Sequence

from veil.advice.made_up import Shape
from veil.plans.plan import CLASSES_READ, SIZES
from veil.problem import CROSSED, PublicFacts
from veil.tables.encoding import Date, Encoding, Numeric


def shape_of(facts: PublicFacts, encoding: Encoding, groups: Sequence[str], target: str) -> Shape:
    """The shape of a table, from its public facts and how its columns become numbers.

    Args:
        facts: Groups, sizes and classes.
        encoding: The columns to learn from.
        groups: The columns that make groups, in the order of their names.
        target: The column to predict; it may be among those of the groups.

    Returns:
        What made-up rows are drawn from.
    """
    parts = [name.split(CROSSED) for name in facts.groups]
    whole = all(len(part) == len(groups) for part in parts)
    values, names = {}, [column.name for column in encoding.columns]
    for place, column in enumerate(groups):
        if whole and column in names:
            known = sorted({part[place] for part in parts})
            values[names.index(column)] = tuple(known.index(part[place]) for part in parts)
    of_group = None
    if whole and target in groups:
        mine = [part[list(groups).index(target)] for part in parts]
        of_group = tuple(facts.classes.index(name) for name in mine) if set(mine) <= set(facts.classes) else None
    numeric = tuple(isinstance(column, Numeric | Date) for column in encoding.columns)
    return Shape(facts, encoding.widths(), numeric, values, of_group)


def read_from_rows(facts: PublicFacts, not_covered: Sequence[str]) -> list[str]:
    """What was read from the rows to make this plan, one sentence each."""
    classes = [CLASSES_READ] if facts.classes and not facts.classes_declared else []
    return [SIZES[facts.sizes], *classes, *not_covered]
