"""Writing TOML: the standard library reads it but does not write it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def to_toml(table: Mapping[str, Any]) -> str:
    """A table of plain values, lists and sub-tables as TOML; None is left out.

    >>> print(to_toml({"a": 1, "b": {"c": "x", "d": None}}), end="")
    a = 1
    <BLANKLINE>
    [b]
    c = "x"
    """
    return "\n".join(_lines(table, ())).lstrip("\n") + "\n"


def _lines(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    plain = {k: v for k, v in table.items() if v is not None and not isinstance(v, Mapping)}
    lines = [f"{_key(name)} = {_value(value)}" for name, value in plain.items()]
    if path and lines:
        lines = ["", f"[{'.'.join(map(_key, path))}]", *lines]
    for name, value in table.items():
        if isinstance(value, Mapping):
            lines += _lines(value, (*path, name))
    return lines


def _key(name: str) -> str:
    bare = name and all(c.isascii() and (c.isalnum() or c in "-_") for c in name)
    return name if bare else json.dumps(name)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return (
            ("nan" if math.isnan(value) else "inf" if value > 0 else "-inf")
            if not math.isfinite(value)
            else repr(value)
        )
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    return repr(value) if isinstance(value, int) else json.dumps(str(value))
