"""Row-local bounds: a row's weight depends on its own norm, loss and cell, and on public constants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

from veil.errors import require
from veil.gradients import PerRow


@lru_cache(maxsize=32)
def _table(values: tuple[float, ...], dtype: torch.dtype) -> Tensor:
    return torch.tensor(values, dtype=dtype)


def by_row(values: tuple[float, ...], cells: Tensor, dtype: torch.dtype) -> Tensor:
    """The value of each row's cell.

    Args:
        values: One number per cell.
        cells: The cell of each row.
        dtype: Of the result.

    Returns:
        One number per row.

    >>> by_row((1.0, 3.0), torch.tensor([1, 0, 1]), torch.float32)
    tensor([3., 1., 3.])
    """
    return _table(tuple(values), dtype).index_select(0, cells)


class Bound(Protocol):
    """How much one row can move the sum: at most `limits[cell]`, in the ℓ₂ norm.

    `weights` gives each row's factor. A row-local bound must not depend on other rows: the release checks this on
    synthetic rows before use, and clamps every weight so that no row exceeds its limit.
    """

    @property
    def limits(self) -> tuple[float, ...]:
        """The bound per cell."""
        ...

    @property
    def row_local(self) -> bool:
        """Whether a row's weight depends on that row alone."""
        ...

    @property
    def needs_norms(self) -> bool:
        """Whether weights depend on gradient norms; only methods that are not private can omit them."""
        ...

    def weights(self, per_row: PerRow, cells: Tensor) -> Tensor:
        """A factor per row from the norms and losses of the batch and the cell of each row.

        Args:
            per_row: Gradient norm and loss of each row of the batch.
            cells: Number of the cell of each row.

        Returns:
            One factor for each row, by which its gradient is multiplied.
        """
        ...


@dataclass(frozen=True, slots=True)
class Clip:
    """Scale a row's gradient down to the limit of its cell where it is longer: min(1, C / ‖g‖).

    Args:
        limits: C of each cell.

    >>> from veil.gradients import PerRow
    >>> per_row = PerRow(torch.zeros(2), torch.tensor([0.5, 4.0]), torch.ones(2, dtype=torch.bool))
    >>> Clip((1.0,)).weights(per_row, torch.zeros(2, dtype=torch.long))
    tensor([1.0000, 0.2500])
    """

    limits: tuple[float, ...]
    row_local: bool = True
    needs_norms: bool = True

    def weights(self, per_row: PerRow, cells: Tensor) -> Tensor:
        """min(1, C / ‖g‖).

        Args:
            per_row: Gradient norm and loss of each row of the batch.
            cells: Number of the cell of each row.

        Returns:
            One factor for each row, by which its gradient is multiplied.
        """
        limits = by_row(self.limits, cells, per_row.norms.dtype)
        return torch.clamp(limits / per_row.norms.clamp_min(torch.finfo(per_row.norms.dtype).tiny), max=1.0)


@dataclass(frozen=True, slots=True)
class TighterClip:
    """Clip at `clips`, none above the limit that is charged: min(1, clip / ‖g‖).

    Args:
        limits: The limit of each cell that is charged.
        clips: The clip of each cell, at most its limit.

    >>> from veil.gradients import PerRow
    >>> per_row = PerRow(torch.tensor([1.0, 2.0]), torch.tensor([0.5, 4.0]), torch.ones(2, dtype=torch.bool))
    >>> TighterClip(limits=(1.0,), clips=(0.5,)).weights(per_row, torch.zeros(2, dtype=torch.long))
    tensor([1.0000, 0.1250])
    """

    limits: tuple[float, ...]
    clips: tuple[float, ...]
    row_local: bool = True
    needs_norms: bool = True

    def __post_init__(self) -> None:
        require(
            all(clip <= limit for clip, limit in zip(self.clips, self.limits, strict=True)),
            "a clip is above its limit: lower it, or charge for it",
        )

    def weights(self, per_row: PerRow, cells: Tensor) -> Tensor:
        """min(1, clip / ‖g‖).

        Args:
            per_row: Gradient norm and loss of each row of the batch.
            cells: Number of the cell of each row.

        Returns:
            One factor for each row, by which its gradient is multiplied.
        """
        return Clip(self.clips).weights(per_row, cells)


@dataclass(frozen=True, slots=True)
class UnitClip:
    """Clip at a threshold that moves, in units of the threshold: min(1/C, 1/‖g‖), so the limit is always 1.

    The noise is then the same whatever C is now, and so is the cost; the caller multiplies the released mean by C.

    Args:
        threshold: C.
        cells: How many cells there are.

    >>> from veil.gradients import PerRow
    >>> per_row = PerRow(torch.tensor([1.0, 2.0]), torch.tensor([0.5, 4.0]), torch.ones(2, dtype=torch.bool))
    >>> UnitClip(threshold=2.0, cells=1).weights(per_row, torch.zeros(2, dtype=torch.long))
    tensor([0.5000, 0.2500])
    """

    threshold: float
    cells: int
    row_local: bool = True
    needs_norms: bool = True

    @property
    def limits(self) -> tuple[float, ...]:
        """One, for every cell."""
        return (1.0,) * self.cells

    def weights(self, per_row: PerRow, cells: Tensor) -> Tensor:
        """min(1/C, 1/‖g‖).

        Args:
            per_row: Gradient norm and loss of each row of the batch.
            cells: Number of the cell of each row.

        Returns:
            One factor for each row, by which its gradient is multiplied.
        """
        return 1.0 / per_row.norms.clamp_min(self.threshold)


@dataclass(frozen=True, slots=True)
class Normalise:
    """Give every row nearly the same length: R / (‖g‖ + γ), as AUTO-S does with γ = 0.01 (R is the limit).

    Args:
        limits: R of each cell.
        gamma: γ, added to each norm; above 0.

    >>> from veil.gradients import PerRow
    >>> per_row = PerRow(torch.tensor([1.0, 2.0]), torch.tensor([0.5, 4.0]), torch.ones(2, dtype=torch.bool))
    >>> Normalise((1.0,)).weights(per_row, torch.zeros(2, dtype=torch.long))
    tensor([1.9608, 0.2494])
    """

    limits: tuple[float, ...]
    gamma: float = 0.01
    row_local: bool = True
    needs_norms: bool = True

    def __post_init__(self) -> None:
        require(self.gamma > 0, f"γ is {self.gamma}: it must be above 0")

    def weights(self, per_row: PerRow, cells: Tensor) -> Tensor:
        """R / (‖g‖ + γ).

        Args:
            per_row: Gradient norm and loss of each row of the batch.
            cells: Number of the cell of each row.

        Returns:
            One factor for each row, by which its gradient is multiplied.
        """
        limits = by_row(self.limits, cells, per_row.norms.dtype)
        return limits / (per_row.norms + self.gamma)


@dataclass(frozen=True, slots=True)
class Weighted:
    """No limit at all: a fixed weight per cell, for methods that are not private.

    Args:
        factors: The factor of each cell.

    >>> from veil.gradients import PerRow
    >>> per_row = PerRow(torch.tensor([1.0, 2.0]), torch.tensor([0.5, 4.0]), torch.ones(2, dtype=torch.bool))
    >>> Weighted((3.0,)).weights(per_row, torch.zeros(2, dtype=torch.long))
    tensor([3., 3.])
    """

    factors: tuple[float, ...]
    row_local: bool = True
    needs_norms: bool = False

    @property
    def limits(self) -> tuple[float, ...]:
        """There is none."""
        return tuple(float("inf") for _ in self.factors)

    def weights(self, per_row: PerRow, cells: Tensor) -> Tensor:
        """The cell's factor.

        Args:
            per_row: Gradient norm and loss of each row of the batch.
            cells: Number of the cell of each row.

        Returns:
            One factor for each row, by which its gradient is multiplied.
        """
        return by_row(self.factors, cells, per_row.losses.dtype)


def check_row_local(bound: Bound, cells: int) -> None:
    """Reject a bound whose weight for one row depends on other rows: its limits would not be the sensitivity.

    Tested on synthetic rows only. A bound that orders or ranks rows needs its own sensitivity proof.

    Args:
        bound: The bound to test.
        cells: How many cells the problem has.

    Raises:
        InputError: A row's weight depends on other rows, and Veil has no proof of the sensitivity.

    >>> from veil.bounding import UnitClip
    >>> check_row_local(UnitClip(1.0, 2), cells=2)
    """
    if not bound.row_local:
        require(
            type(bound).__module__.startswith("veil."),
            f"the bound {type(bound).__name__} depends on other rows, and Veil has no proof of its sensitivity",
        )
        return
    require(
        looks_at_one_row(bound.weights, cells),
        f"the bound {type(bound).__name__} computes a row's weight from other rows, so one row can change the sum "
        "by more than its bound: make the weight of a row depend on that row alone",
    )


def looks_at_one_row(function: Callable[[PerRow, Tensor], Tensor], cells: int) -> bool:
    """Whether a function's value for a row does not depend on other rows, tested on synthetic rows.

    Args:
        function: Values of rows from their losses and norms, and from the cell of each.
        cells: How many cells there are.

    Returns:
        Whether each value stays the same when its row is alone.

    >>> looks_at_one_row(lambda rows, cells: rows.norms, cells=2)
    True
    >>> looks_at_one_row(lambda rows, cells: rows.norms / rows.norms.sum(), cells=2)
    False
    """
    generator = torch.Generator().manual_seed(0)
    rows = 16
    norms = torch.rand(rows, generator=generator, dtype=torch.float64) * 10
    losses = torch.rand(rows, generator=generator, dtype=torch.float64) * 5
    index = torch.randint(0, cells, (rows,), generator=generator)
    finite = torch.ones(rows, dtype=torch.bool)
    whole = function(PerRow(losses, norms, finite), index)
    parts = (slice(row, row + 1) for row in range(rows))
    return all(
        torch.allclose(
            function(PerRow(losses[alone], norms[alone], finite[alone]), index[alone]),
            whole[alone],
            rtol=1e-9,
            atol=0.0,
        )
        for alone in parts
    )
