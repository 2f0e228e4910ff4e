"""Values of the command line that several commands check, and JSON files that they read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from veil.errors import InputError, require


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
