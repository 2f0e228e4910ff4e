"""Parallel: many independent pieces of work; a worker that dies is replaced and its work is done again.

Work goes to joblib's workers, or to tasks of Ray, which start them again on another machine where one is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass
from inspect import isfunction
from typing import Any, TypeVar

from veil.errors import require

Item = TypeVar("Item")
Result = TypeVar("Result")
# So often may workers die in a row before the piece of work that comes next is given up.
PATIENCE = 4
WORKER_DIED = "its worker process died repeatedly (out of memory?): run the same command again to continue"


@dataclass(frozen=True)
class Workers:
    """Workers: the number of parallel `jobs` (-1: one per core) and the joblib `backend`.

    >>> Workers(0)
    Traceback (most recent call last):
        ...
    veil.errors.InputError: jobs is 0: give how many to run at once, or -1 for one per core
    """

    jobs: int = 1
    backend: str = "loky"

    def __post_init__(self) -> None:
        """Reject early what joblib would reject only when work starts."""
        require(self.jobs != 0, "jobs is 0: give how many to run at once, or -1 for one per core")
        from joblib.parallel import BACKENDS, EXTERNAL_BACKENDS  # loaded where work is spread, not by every run

        known = sorted({*BACKENDS, *EXTERNAL_BACKENDS, "ray"})
        require(self.backend in known, f'backend is "{self.backend}": it must be one of {", ".join(known)}')


def in_order(
    work: Callable[[Item], Result], items: Sequence[Item], workers: int | Workers = 1
) -> Iterator[tuple[Item, Result | None]]:
    """Each item with its result, in order; None where workers died. Work must be repeatable.

    >>> list(in_order(abs, [-1, 2], Workers(1, "threading")))
    [(-1, 1), (2, 2)]
    """
    given = Workers(workers) if isinstance(workers, int) else workers
    if given.backend == "ray":
        yield from _on_ray(work, items, given.jobs)
        return
    done = deaths = 0
    while done < len(items):
        try:
            for result in _results(work, items[done:], given):
                yield items[done], result
                done, deaths = done + 1, 0
        except BrokenExecutor:
            deaths += 1
            if deaths >= PATIENCE:
                yield items[done], None
                done, deaths = done + 1, 0


def _results(work: Callable[[Item], Result], items: Sequence[Item], workers: Workers) -> Iterable[Any]:
    import joblib

    calls = (joblib.delayed(work)(item) for item in items)
    results: Iterable[Any] = joblib.Parallel(n_jobs=workers.jobs, backend=workers.backend, return_as="generator")(calls)
    return results


def _on_ray(work: Callable[[Item], Result], items: Sequence[Item], jobs: int) -> Iterator[tuple[Item, Result | None]]:
    """The same with tasks of Ray, so many at a time (-1: one for each core of the cluster)."""
    import joblib

    from veil.foundation.ray_cluster import RayCluster

    cluster = RayCluster(jobs if jobs > 0 else joblib.cpu_count())
    ray = cluster.ray
    try:
        task = ray.remote(work if isfunction(work) else lambda item: work(item)).options(max_retries=PATIENCE)
        at_once = jobs if jobs > 0 else max(1, int(ray.cluster_resources().get("CPU", 1)))
        under_way = [task.remote(item) for item in items[:at_once]]
        for index, item in enumerate(items):
            try:
                result: Result | None = ray.get(under_way[index])
            except ray.exceptions.RayTaskError as error:
                raise error.cause from error
            except ray.exceptions.RayError:  # the task died with its worker or machine, again and again
                result = None
            under_way += [task.remote(following) for following in items[len(under_way) : len(under_way) + 1]]
            yield item, result
    finally:
        cluster.close()
