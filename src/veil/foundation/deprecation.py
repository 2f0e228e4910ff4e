"""Names that will go: they work as before and say what to use instead."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def deprecated(*, since: str, instead: str, removed_in: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Mark a public function that will be removed; docs/releasing.md has the policy.

    Args:
        since: The version that marks it, like "0.3".
        instead: What to use in its place, as code: "veil.fit".
        removed_in: The version that removes it, at least two minor versions later.

    Returns:
        A decorator. The function works as before, and each call warns with `FutureWarning`, at the caller's line.

    Raises:
        ValueError: `removed_in` is less than two minor versions after `since`.

    >>> @deprecated(since="0.3", instead="total", removed_in="0.5")
    ... def count(rows: list[int]) -> int:
    ...     return len(rows)
    >>> with warnings.catch_warnings(record=True) as seen:
    ...     warnings.simplefilter("always")
    ...     count([1, 2])
    2
    >>> print(seen[0].message)
    count is deprecated since 0.3 and will be removed in 0.5: use total instead
    """
    if _place(removed_in) < _two_later(_place(since)):
        raise ValueError(f"removed_in is {removed_in}: a name stays for at least two minor versions after {since}")

    def mark(function: Callable[P, R]) -> Callable[P, R]:
        said = f"is deprecated since {since} and will be removed in {removed_in}: use {instead} instead"
        name = getattr(function, "__name__", "this")

        @functools.wraps(function)
        def call(*args: P.args, **named: P.kwargs) -> R:
            warnings.warn(f"{name} {said}", FutureWarning, stacklevel=2)
            return function(*args, **named)

        call.__doc__ = f"{(function.__doc__ or '').rstrip()}\n\n    It {said}."
        return call

    return mark


def _place(version: str) -> tuple[int, int]:
    major, minor = (int(part) for part in version.split(".")[:2])
    return major, minor


def _two_later(place: tuple[int, int]) -> tuple[int, int]:
    major, minor = place
    return major, minor + 2
