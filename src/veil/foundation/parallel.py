"""Parallel: many independent pieces of work over joblib; a worker that dies is replaced and its work is done again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from typing import Any, TypeVar

import joblib

from veil.errors import InputError

Item = TypeVar("Item")
Result = TypeVar("Result")
# So often may workers die in a row before the piece of work that comes next is given up.
PATIENCE = 4
WORKER_DIED = "its worker process ended again and again (out of memory?): start the same again to go on"


def in_order(
    work: Callable[[Item], Result], items: Sequence[Item], *, jobs: int, backend: str = "loky"
) -> Iterator[tuple[Item, Result | None]]:
    """Each item with its result, in order; None where workers died of it. Work must bear being done again.

    >>> list(in_order(abs, [-1, 2], jobs=1, backend="threading"))
    [(-1, 1), (2, 2)]
    """
    done = deaths = 0
    while done < len(items):
        try:
            for result in _results(work, items[done:], jobs, backend):
                yield items[done], result
                done, deaths = done + 1, 0
        except BrokenExecutor:
            deaths += 1
            if deaths >= PATIENCE:
                yield items[done], None
                done, deaths = done + 1, 0


def _results(work: Callable[[Item], Result], items: Sequence[Item], jobs: int, backend: str) -> Iterable[Any]:
    calls = (joblib.delayed(work)(item) for item in items)
    if backend == "ray":
        try:
            from ray.util.joblib import register_ray
        except ImportError as error:
            raise InputError("the backend ray needs the package ray: pip install 'veil[ray]'") from error
        register_ray()
    # Ray's backend gives all results at the end; the others give each as it comes.
    form = "list" if backend == "ray" else "generator"
    results: Iterable[Any] = joblib.Parallel(n_jobs=jobs, backend=backend, return_as=form)(calls)
    return results
