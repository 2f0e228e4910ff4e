"""The registry: methods by their command-line names."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar, Protocol, TypeVar

from veil.errors import InputError
from veil.plan import Plan, Settings
from veil.problem import PublicFacts


class Method(Protocol):
    """A frozen dataclass whose fields are the method's own options."""

    name: ClassVar[str]
    family: ClassVar[str]
    private: ClassVar[bool]
    relation: ClassVar[str | None]
    summary: ClassVar[str]

    def plan(self, facts: PublicFacts, settings: Settings) -> Plan:
        """Every public constant of the run, from public facts alone."""
        ...


_METHODS: dict[str, type[Any]] = {}
M = TypeVar("M", bound=type[Any])


def register(method: M) -> M:
    """Class decorator: make a method known by its name."""
    _METHODS[method.name] = method
    return method


def names() -> list[str]:
    """All names, in the order of the families.

    >>> "dp-sgd" in names()
    True
    """
    return list(_METHODS)


def create(name: str, options: Mapping[str, Any] | None = None) -> Method:
    """A method with its options; unknown names and options raise `InputError` with the nearest known one.

    >>> create("dp-sdg")
    Traceback (most recent call last):
        ...
    veil.errors.InputError: unknown method "dp-sdg": did you mean "dp-sgd"?
    """
    if name not in _METHODS:
        raise InputError(f'unknown method "{name}": {_nearest(name, names())}')
    known = {field.name for field in fields(_METHODS[name])}
    for option in options or {}:
        if option not in known:
            raise InputError(f'method "{name}" has no option "{option}": {_nearest(option, sorted(known))}')
    try:
        method: Method = _METHODS[name](**(options or {}))
    except TypeError as error:
        raise InputError(f'method "{name}": {error}') from error
    return method


def table() -> list[dict[str, Any]]:
    """What `veil methods` prints."""
    keys = ("name", "family", "private", "relation", "summary")
    return [{key: getattr(method, key) for key in keys} for method in _METHODS.values()]


def _nearest(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    if close:
        return f'did you mean "{close[0]}"?'
    return f"known are {', '.join(known)}" if known else "there are none"
