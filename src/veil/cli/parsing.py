"""Words of the command line into values: lists by commas, name=value pairs, numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
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


def delta_of(text: str) -> float | None:
    """A δ, or None for auto."""
    if text == "auto":
        return None
    try:
        return float(text)
    except ValueError as error:
        raise InputError(f'delta is "{text}": give a number between 0 and 1, or auto') from error


def checked_backend(name: str) -> str:
    """A backend that joblib knows; any other is refused before anything runs.

    >>> checked_backend("loky")
    'loky'
    """
    from joblib.parallel import BACKENDS, EXTERNAL_BACKENDS

    known = sorted({*BACKENDS, *EXTERNAL_BACKENDS, "ray"})
    require(name in known, f'backend is "{name}": joblib knows {", ".join(known)}')
    return name


def checked_jobs(jobs: int) -> int:
    """How many pieces of work are done at once; joblib reads −1 as one per core.

    >>> checked_jobs(2)
    2
    """
    require(jobs != 0, "jobs is 0: give how many to run at once, or -1 for one per core")
    return jobs


def load_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file."""
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is not a JSON file: {error}") from error
    return record


def named_values(pairs: Sequence[str]) -> dict[str, object]:
    """name=value pairs; a value that looks like a number or a truth value becomes one.

    >>> named_values(["clip=0.5", "steps=3", "secure=true"])
    {'clip': 0.5, 'steps': 3, 'secure': True}
    """
    options: dict[str, object] = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        require(bool(separator), f'option "{pair}" is not of the form name=value')
        options[name.replace("-", "_")] = _value(text)
    return options


def _value(text: str) -> object:
    if text in {"true", "false"}:
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
