"""Ahead: the next step's noise and rows, made ready by a second thread while this step's gradients are computed.

It changes no value: draws are pure functions of the seed and the step. Rows are fetched early only where their release
is reserved already; if the sampler has changed by then, what was fetched is dropped unused.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

from torch import Tensor

from veil.noise import GaussianNoise
from veil.problem import Problem
from veil.randomness import Seed
from veil.release import Drawn, Ready
from veil.sampling import Sampler


class Ahead:
    """The thread of one run, and what it has made ready for the coming step."""

    def __init__(self, problem: Problem, seed: Seed, noise: GaussianNoise) -> None:
        self._problem = problem
        self._seed = seed
        self._noise = noise
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="veil-ahead")
        self._rows: tuple[int, Sampler, Future[Drawn]] | None = None
        self._normals: tuple[int, Future[dict[str, Tensor]]] | None = None

    def announce(self, step: int, shapes: Mapping[str, Tensor], sampler: Sampler | None) -> None:
        """Begin with a coming step. Without a sampler its rows are left alone: their release is not reserved yet.

        Float-safe noise cannot be drawn before its sum is known, and rows that a program fetches stay on its thread.
        """
        self._normals = self._rows = None
        if sampler is not None and self._problem.source is None:
            self._rows = (step, sampler, self._worker.submit(self._fetch, step, sampler))
        if not self._noise.secure:
            self._normals = (step, self._worker.submit(self._noise.draw, step, shapes, 1.0))

    def take(self, step: int, sampler: Sampler) -> Ready:
        """What is ready, or will be once it is asked for."""
        rows = self._rows if self._rows and self._rows[:2] == (step, sampler) else None
        normals = self._normals if self._normals and self._normals[0] == step else None
        return Ready(rows[2].result if rows else None, normals[1].result if normals else None)

    def _fetch(self, step: int, sampler: Sampler) -> Drawn:
        rows = sampler.draw(self._seed, step)
        return rows, self._problem.batch(rows)

    def __enter__(self) -> Ahead:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._worker.shutdown(wait=True, cancel_futures=True)
