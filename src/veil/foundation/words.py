"""Parsing typed text: comma-separated lists, name=value pairs, numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from veil.errors import InputError, require


def listed(text: str) -> tuple[str, ...]:
    """Names separated by commas.

    >>> listed("sex, race,")
    ('sex', 'race')
    """
    return tuple(name.strip() for name in text.split(",") if name.strip())


def numbers(text: str, name: str) -> list[float]:
    """Numbers separated by commas."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(f'{name} is "{text}": give a number, or several separated by commas') from error


def named_values(pairs: Iterable[str]) -> dict[str, Any]:
    """name=value pairs; a value that looks like a number or a truth value becomes one.

    >>> named_values(["clip=0.5", "steps=3", "secure=true"])
    {'clip': 0.5, 'steps': 3, 'secure': True}
    """
    options: dict[str, Any] = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        require(bool(separator), f'option "{pair}" is not of the form name=value')
        options[name.replace("-", "_")] = _value(text)
    return options


def as_pairs(values: Mapping[str, Any]) -> list[str]:
    """The pairs that `named_values` reads the same values from.

    >>> as_pairs({"clip": 0.5, "secure": True})
    ['clip=0.5', 'secure=true']
    """
    return [f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in values.items()]


def _value(text: str) -> Any:
    if text in {"true", "false"}:
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
