"""The one error that a user causes and can mend: a sentence that says what was wrong, where, and what to do."""

from __future__ import annotations


class InputError(ValueError):
    """Wrong input. The command line prints it as one sentence and exits with code 2."""


def require(condition: bool, message: str) -> None:
    """Raise `InputError(message)` unless `condition` holds."""
    if not condition:
        raise InputError(message)
