"""Reading ahead: rows of coming steps are read and decoded while this step is computed. The values are the same.

Only rows of steps whose cost is in the ledger already are read, so a crash still over-reports alone. A thread serves
files that Veil decodes itself, which draws no random numbers; workers (processes) serve any data set, as each of
them has generators of its own to start again for every row.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
import warnings
from collections import deque
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veil.errors import InputError
from veil.foundation.nested import Nested, mapped
from veil.foundation.randomness import Seed
from veil.foundation.row_draws import begin_key, step_key
from veil.problem import Problem
from veil.problem.rows import ItemRows, Rows
from veil.sampling import Sampler

# Batches that are held for coming steps, for each thread or worker.
_EACH = 2
_SECONDS_TO_LOOK = 1.0
DIED = (
    "a worker that reads rows has ended unexpectedly (out of memory?): use fewer workers. The reserved budget stays "
    "charged"
)


@dataclass(frozen=True, eq=False)
class _Coming:
    """A step whose rows are being read."""

    step: int
    rows: NDArray[np.int64]
    found: Future[Any]


class ReadAhead:
    """Rows of a run that goes through its steps in order; `take` gives what the source gives.

    Args:
        source: Where rows come from.
        seed: The secret seed of the run.
        pinned: Whether the thread puts batches into memory from which a GPU can copy them by itself.
    """

    def __init__(self, source: ItemRows, seed: Seed, pinned: bool = False) -> None:
        self._source, self._seed, self._pinned = source, seed, pinned
        self._depth = _EACH * max(1, source.workers)
        self._coming: deque[_Coming] = deque()
        self._sampler: Sampler | None = None
        self._step = -1
        self._running: Executor | None = None

    def follow(self, sampler: Sampler, step: int, until: int) -> None:
        """A step begins; read what follows it.

        Args:
            sampler: What draws the rows of this step and of those that follow it.
            step: Number of the step.
            until: The first step of which nothing may be read: its cost is not reserved, or its draw is not known.
        """
        if sampler is not self._sampler:
            self._drop(self._coming)
        self._drop([one for one in self._coming if one.step < step])
        self._sampler, self._step = sampler, step
        first = max((one.step for one in self._coming), default=step) + 1
        for coming in range(first, min(until, step + self._depth + 1)):
            rows = sampler.draw(self._seed, coming)
            self._coming.append(_Coming(coming, rows, self._read(coming, rows)))

    def take(self, rows: NDArray[np.int64]) -> Nested:
        """The inputs of some rows: those of this step as they were read before, any others now."""
        for one in self._coming:
            if one.step == self._step and np.array_equal(one.rows, rows):
                try:
                    found = one.found.result()
                except BrokenExecutor as error:
                    raise InputError(DIED) from error
                return pickle.loads(found) if isinstance(found, bytes) else found  # bytes of a worker of ours
        return self._source.take(rows)

    def close(self) -> None:
        """End the thread or the workers; what was read and not used is forgotten."""
        self._drop(self._coming)
        if self._running is not None:
            self._running.shutdown(wait=True, cancel_futures=True)
            self._running = None

    def _drop(self, what: Any) -> None:
        for one in list(what):
            one.found.cancel()
            self._coming.remove(one)

    def _read(self, step: int, rows: NDArray[np.int64]) -> Future[Any]:
        workers = self._source.workers
        if self._running is None and workers:
            self._running = ProcessPoolExecutor(workers, initializer=_begin, initargs=(self._source, os.getpid()))
        elif self._running is None:
            self._running = ThreadPoolExecutor(1, thread_name_prefix="veil-rows")
        if not workers:
            return self._running.submit(_taken, self._source, rows, self._pinned)
        try:
            with warnings.catch_warnings():  # as torch's own loader does; the workers touch no lock of other threads
                warnings.filterwarnings("ignore", message=".*use of fork.*", category=DeprecationWarning)
                return self._running.submit(_taken_by_worker, step_key(self._seed, step), rows)
        except BrokenExecutor as error:
            raise InputError(DIED) from error


def read_ahead(problem: Problem, seed: Seed) -> ReadAhead | None:
    """What reads the rows of a problem ahead; None where that gains nothing, or cannot give the same values."""
    source = problem.source
    if not isinstance(source, ItemRows) or not (source.workers or source.reads_files):
        return None
    return ReadAhead(source, seed, pinned=problem.device is not None and problem.device.type == "cuda")


def _taken(source: Rows, rows: NDArray[np.int64], pinned: bool) -> Nested:
    found = source.take(rows)
    return mapped(found, Tensor.pin_memory) if pinned else found


_SOURCE: list[Rows] = []


def _begin(source: Rows, parent: int) -> None:
    """A worker starts: an interrupt is for the run to handle, and nothing is left where the run was killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    _SOURCE[:] = [source]
    threading.Thread(target=partial(_end_with, parent), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_SECONDS_TO_LOOK)
    os._exit(1)


def _taken_by_worker(key: bytes, rows: NDArray[np.int64]) -> bytes:
    """Inputs as they travel by a pipe: tensors in shared memory would need more of it than many containers have."""
    begin_key(key)
    return pickle.dumps(_SOURCE[0].take(rows))
