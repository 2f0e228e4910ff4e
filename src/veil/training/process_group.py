"""Process group: several processes that train one model, each reading its own share of the rows.

Every process draws the same batch (draws are pure functions of the seed), works on the rows of its share, and learns
the norms and losses of the others, so that weights which depend on the whole batch come out the same everywhere. The
bounded sums are added up, and then every process adds the same noise: it is in the sum once. Only the first process
has the run's folder; no release can be made before it has reserved the cost, because no sum is whole without it.
"""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from types import FunctionType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from veil.errors import require
from veil.gradients import GradientEngine, GradientSum, PerRow, Weigh
from veil.problem import Problem
from veil.releases import GradientRelease


@dataclass(frozen=True)
class ProcessGroup:
    """The processes of `torch.distributed`; `rank` 0 leads."""

    rank: int
    size: int

    @classmethod
    def joined(cls) -> ProcessGroup:
        """The group this process is in, which may be of one. Under torchrun it joins the group by itself."""
        if not dist.is_available():
            return ALONE
        if not dist.is_initialized():
            if int(os.environ.get("WORLD_SIZE", "1")) <= 1 or "RANK" not in os.environ:
                return ALONE
            dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
            # Left while torch still stands: its threads may abort a process that ends with the group open.
            atexit.register(_leave)
        _held_by_nobody()
        return cls(dist.get_rank(), dist.get_world_size()) if dist.get_world_size() > 1 else ALONE

    @property
    def alone(self) -> bool:
        """Whether there is no other process."""
        return self.size == 1

    @property
    def leads(self) -> bool:
        """Whether this process keeps the run's folder."""
        return self.rank == 0

    def own(self, rows: NDArray[np.int64], total: int) -> NDArray[np.int64]:
        """Which of some rows this process works on, as positions: its share is one block of the table.

        >>> ProcessGroup(1, 2).own(np.array([0, 5, 9]), total=10)
        array([1, 2])
        """
        start, stop = self.rank * total // self.size, (self.rank + 1) * total // self.size
        return np.flatnonzero((rows >= start) & (rows < stop))

    def bounded_sum(
        self, release: GradientRelease, engine: GradientEngine, problem: Problem, rows: NDArray[np.int64]
    ) -> GradientSum:
        """The sum of the whole batch's gradients, each within its bound; weights may depend on every row of it.

        Where a row's weight depends on that row alone, processes exchange numbers once: sums and what is known of rows.
        """
        own = self.own(rows, len(problem.cell_of))
        if release.bound.row_local:
            return self._joined(release.bounded_sum(engine, problem, rows[own]), own, len(rows))
        everything = _Everything(self, release.weigh(problem, rows), own, len(rows))
        part = engine.weighted_sum(problem.batch(rows[own]), everything, rows=len(own))
        assert everything.per_row is not None
        assert everything.weights is not None
        sums = [self._summed(values) for values in part.sums]
        return GradientSum(sums, everything.per_row, everything.weights)

    def losses(self, of: Callable[[NDArray[np.int64]], Tensor], rows: NDArray[np.int64], problem: Problem) -> Tensor:
        """The loss of each row, in the order of `rows`."""
        own = self.own(rows, len(problem.cell_of))
        return self.spread(of(rows[own]), own, len(rows))

    def spread(self, values: Tensor, own: NDArray[np.int64], total: int) -> Tensor:
        """Values of every row of the batch (the last dimension) from what each process knows of its own rows."""
        place = _meeting_place()
        whole = torch.zeros(*values.shape[:-1], total, dtype=torch.float64, device=place)
        whole[..., torch.from_numpy(own).to(place)] = values.detach().to(place, torch.float64)
        # Every place is filled by one process and is 0 elsewhere, so the sum is exact.
        dist.all_reduce(whole)
        return whole.to(values.device, values.dtype)

    def _joined(self, part: GradientSum, own: NDArray[np.int64], total: int) -> GradientSum:
        """The whole of the parts that the processes have each computed by themselves, by one exchange."""
        known = part.per_row
        places = torch.from_numpy(own).to(known.norms.device)
        spread = [
            values.new_zeros(*values.shape[:-1], total).index_copy_(-1, places, values)
            for values in (known.losses, known.norms, known.finite, part.weights)
        ]
        summed = [values for sums in part.sums for values in sums.values()]
        # The weights' kind, as every process has it: one without rows knows nothing of the kind of losses.
        kind = reduce(torch.promote_types, (values.dtype for values in summed), torch.float32)
        spread = [values.to(kind) if values.is_floating_point() else values for values in spread]
        *flat, losses, norms, finite, weights = self._added([*summed, *spread])
        given = iter(flat)
        sums = [{name: next(given) for name in values} for values in part.sums]
        return GradientSum(sums, PerRow(losses, norms, finite), weights)

    def _added(self, values: list[Tensor]) -> list[Tensor]:
        """Each tensor added up over the processes, all in one piece; a place that one process alone fills is exact."""
        place = _meeting_place()
        kind = reduce(torch.promote_types, (value.dtype for value in values if value.is_floating_point()))
        flat = torch.cat([value.detach().reshape(-1).to(place, kind) for value in values])
        dist.all_reduce(flat)
        pieces = torch.split(flat, [value.numel() for value in values])
        return [p.view(v.shape).to(v.device, v.dtype) for p, v in zip(pieces, values, strict=True)]

    def _summed(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        return dict(zip(values, self._added(list(values.values())), strict=True))

    def wait(self) -> None:
        """Wait until every process is here."""
        dist.barrier()

    def all(self, holds: bool) -> bool:
        """Whether it holds in every process."""
        failed = torch.tensor([0 if holds else 1], device=_meeting_place())
        dist.all_reduce(failed)
        return int(failed) == 0

    def told(self, record: bytes | None) -> bytes | None:
        """Broadcast the leader's value; None stays None."""
        place = _meeting_place()
        length = torch.tensor([-1 if record is None else len(record)], device=place)
        dist.broadcast(length, 0)
        if int(length) < 0:
            return None
        content = torch.zeros(int(length), dtype=torch.uint8, device=place)
        if record:
            content = torch.frombuffer(bytearray(record), dtype=torch.uint8).to(place)
        if int(length):
            dist.broadcast(content, 0)
        return content.cpu().numpy().tobytes()

    def told_json(self, value: Any) -> Any:
        """The leader's value as JSON."""
        record = self.told(json.dumps(value).encode() if self.leads else None)
        require(record is not None, "the leading process did not respond")
        assert record is not None
        return json.loads(record)


class OneProcess(ProcessGroup):
    """A group of one process: nothing to exchange or wait for."""

    def bounded_sum(
        self, release: GradientRelease, engine: GradientEngine, problem: Problem, rows: NDArray[np.int64]
    ) -> GradientSum:
        """The release's own sum."""
        return release.bounded_sum(engine, problem, rows)

    def losses(self, of: Callable[[NDArray[np.int64]], Tensor], rows: NDArray[np.int64], problem: Problem) -> Tensor:
        """The loss of each row."""
        return of(rows)

    def wait(self) -> None:
        """Nothing to wait for."""

    def all(self, holds: bool) -> bool:
        """Whether it holds here."""
        return holds

    def told(self, record: bytes | None) -> bytes | None:
        """What it says itself."""
        return record


ALONE = OneProcess(0, 1)


def _meeting_place() -> torch.device:
    """Where processes exchange numbers: NCCL reads the memory of its device alone."""
    return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")


def _known(per_row: PerRow) -> Tensor:
    return torch.stack([per_row.losses, per_row.norms, per_row.finite.to(per_row.losses.dtype)])


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _held_by_nobody() -> None:
    """Let the group end where it is destroyed.

    `torch.distributed.nn.functional`, which torch imports by itself in the middle of a run, takes the group that is
    open then as its functions' default argument. The group's threads would outlive it and may abort the process at
    its end, so that torchrun reports a finished run as failed. `None` means the same group and holds nothing.
    """
    from torch.distributed.nn import functional

    for function in vars(functional).values():
        if isinstance(function, FunctionType) and dist.group.WORLD in (function.__defaults__ or ()):
            defaults = function.__defaults__ or ()
            function.__defaults__ = tuple(None if one is dist.group.WORLD else one for one in defaults)


@dataclass
class _Everything:
    """Computes weights from the norms and losses of all processes' rows."""

    processes: ProcessGroup
    weigh: Weigh
    own: NDArray[np.int64]
    total: int
    row_local: bool = False
    per_row: PerRow | None = field(default=None, init=False)
    weights: Tensor | None = field(default=None, init=False)

    def __call__(self, per_row: PerRow) -> Tensor:
        losses, norms, finite = self.processes.spread(_known(per_row), self.own, self.total)
        self.per_row = PerRow(losses, norms, finite > 0)
        self.weights = self.weigh(self.per_row)
        return self.weights[..., torch.from_numpy(self.own).to(self.weights.device)]
