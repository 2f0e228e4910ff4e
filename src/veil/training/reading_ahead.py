"""Reading ahead: image files of coming steps are decoded while this step is computed. The values are the same.

Only rows of steps whose cost is in the ledger already are read, so a crash still over-reports alone. A thread serves
files that Veil decodes itself, which draws no random numbers and keeps nothing open from row to row. Code of others
promises neither, so their data sets are read when rows are drawn.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from veil.foundation.nested import Nested, mapped
from veil.foundation.randomness import Seed
from veil.problem import Problem
from veil.problem.rows import ItemRows, Rows
from veil.sampling import Sampler

# Batches that are held for coming steps.
_DEPTH = 2


@dataclass(frozen=True, eq=False)
class _Coming:
    """A step whose rows are being read."""

    step: int
    rows: NDArray[np.int64]
    found: Future[Nested]


class ReadAhead:
    """Rows of a run that goes through its steps in order; `take` gives what the source gives.

    Args:
        source: Where rows come from.
        seed: The secret seed of the run.
        pinned: Whether the thread puts batches into memory from which a GPU can copy them by itself.
    """

    def __init__(self, source: Rows, seed: Seed, pinned: bool = False) -> None:
        self._source, self._seed, self._pinned = source, seed, pinned
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
        if self._running is None:
            self._running = ThreadPoolExecutor(1, thread_name_prefix="veil-rows")
        for coming in range(first, min(until, step + _DEPTH + 1)):
            rows = sampler.draw(self._seed, coming)
            found = self._running.submit(_taken, self._source, rows, self._pinned)
            self._coming.append(_Coming(coming, rows, found))

    def take(self, rows: NDArray[np.int64]) -> Nested:
        """The inputs of some rows: those of this step as they were read before, any others now.

        Rows that are asked for again are read again: whoever got them may have changed them in place.
        """
        for one in self._coming:
            if one.step == self._step and np.array_equal(one.rows, rows):
                self._coming.remove(one)
                return one.found.result()
        return self._source.take(rows)

    def close(self) -> None:
        """End the thread; what was read and not used is forgotten."""
        self._drop(self._coming)
        if self._running is not None:
            self._running.shutdown(wait=True, cancel_futures=True)
            self._running = None

    def _drop(self, what: Any) -> None:
        for one in list(what):
            one.found.cancel()
            self._coming.remove(one)


def read_ahead(problem: Problem, seed: Seed) -> ReadAhead | None:
    """What reads the rows of a problem ahead; None where that gains nothing, or may not give the same values."""
    source = problem.source
    if not isinstance(source, ItemRows) or not source.reads_files:
        return None
    return ReadAhead(source, seed, pinned=problem.device is not None and problem.device.type == "cuda")


def _taken(source: Rows, rows: NDArray[np.int64], pinned: bool) -> Nested:
    found = source.take(rows)
    return mapped(found, Tensor.pin_memory) if pinned else found
