"""The one error that a user causes and can fix: a sentence that says what was wrong, where, and what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class InputError(ValueError):
    """Wrong input. The command line prints it as one sentence and exits with code 2."""


@contextmanager
def about(what: str) -> Iterator[None]:
    """Prefix every `InputError` of the block with its context."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{what}: {error}") from error


def require(condition: bool, message: str) -> None:
    """Raise `InputError(message)` unless `condition` holds."""
    if not condition:
        raise InputError(message)


def require_above_zero(options: object, *names: str) -> None:
    """Raise `InputError` unless each of these options is above 0, or not set."""
    for name in names:
        value = getattr(options, name)
        require(value is None or value > 0, f"{name} is {value}: it must be above 0")


class Caution(UserWarning):
    """A warning about what was asked for: one sentence for a person. The command line prints it as a plain line."""


def quoted(names: Sequence[str], most: int = 5) -> str:
    """One or several columns for a message: the first few names in quotation marks.

    >>> quoted(["age"]), quoted(["age", "sex"])
    ('column "age"', 'columns "age", "sex"')
    """
    shown = ", ".join(f'"{name}"' for name in names[:most])
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return f"{'column' if len(names) == 1 else 'columns'} {shown}{more}"
