"""Reading TOML with errors in one sentence, and writing it, which the standard library does not."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from veil.errors import InputError, require


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a file; what is not TOML, in whichever way, raises `InputError`."""
    require(path.exists(), f"file not found: {path}")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # a number of too many digits is a ValueError of its own
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise InputError(f"{path} is not a TOML file: {reason}") from error


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
    if path and (lines or not table):
        lines = ["", f"[{'.'.join(map(_key, path))}]", *lines]
    for name, value in table.items():
        if isinstance(value, Mapping):
            lines += _lines(value, (*path, name))
    return lines


def _key(name: str) -> str:
    bare = name and all(c.isascii() and (c.isalnum() or c in "-_") for c in name)
    return name if bare else _text(name)


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
    return repr(value) if isinstance(value, int) else _text(str(value))


def _text(value: str) -> str:
    """A text in quotes. JSON's escapes are TOML's, but for characters outside the first 65,536 and for DEL."""
    whole = value.encode("utf-8", "replace").decode("utf-8")
    return json.dumps(whole, ensure_ascii=False).replace("\x7f", "\\u007f")
