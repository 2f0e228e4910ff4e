"""Families: the defaults of `veil methods` for all methods of one kind."""

from __future__ import annotations

from typing import ClassVar


class Named:
    """A method has a name, and a line in `veil methods`."""

    name: ClassVar[str]
    summary: ClassVar[str]


class NotPrivate(Named):
    """Training without a guarantee, to compare with."""

    family: ClassVar[str] = "not private"
    private: ClassVar[bool] = False
    relation: ClassVar[str | None] = None


class Private(Named):
    """Training with a guarantee."""

    private: ClassVar[bool] = True
    relation: ClassVar[str | None] = "add-remove"


class PrivateBaseline(Private):
    """Private training that ignores groups."""

    family: ClassVar[str] = "private baseline"


class PrivateAndFair(Private):
    """Private training that takes groups into account."""

    family: ClassVar[str] = "private and fair"


class Individualised(Private):
    """Private training with a budget for every owner."""

    family: ClassVar[str] = "individualised"
