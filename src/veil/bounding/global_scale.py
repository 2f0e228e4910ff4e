"""Bounds that move with released values: one threshold per group in units of the largest, and a global scale."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from veil.bounding.bounds import by_row
from veil.gradients import PerRow


@dataclass(frozen=True, slots=True)
class UnitGroupClip:
    """Clip each cell at its own threshold, in units of the largest of all cells: min(1, C_k/‖g‖) / max C.

    The limit is 1 for every cell, so noise and cost are the same whatever the thresholds are now; the caller multiplies
    the released mean by max C. A cell whose threshold is below the largest moves the sum by less than it is charged.

    Args:
        thresholds: C_k of each cell.

    >>> from veil.gradients import PerRow
    >>> per_row = PerRow(torch.zeros(2), torch.tensor([8.0, 8.0]), torch.ones(2, dtype=torch.bool))
    >>> UnitGroupClip((1.0, 2.0)).weights(per_row, torch.tensor([0, 1])) * per_row.norms
    tensor([0.5000, 1.0000])
    """

    thresholds: tuple[float, ...]
    row_local: bool = True
    needs_norms: bool = True

    @property
    def largest(self) -> float:
        """The largest threshold of all cells, present in a batch or not."""
        return max(self.thresholds)

    @property
    def limits(self) -> tuple[float, ...]:
        """One, for every cell."""
        return (1.0,) * len(self.thresholds)

    def weights(self, per_row: PerRow, cells: Tensor) -> Tensor:
        """min(1, C_k/‖g‖) / max C.

        Args:
            per_row: Gradient norm and loss of each row of the batch.
            cells: Number of the cell of each row.

        Returns:
            One factor for each row, by which its gradient is multiplied.
        """
        own = torch.tensor(self.thresholds, dtype=per_row.norms.dtype)[cells]
        return torch.clamp(own / per_row.norms.clamp_min(torch.finfo(per_row.norms.dtype).tiny), max=1.0) / self.largest


@dataclass(frozen=True, slots=True)
class GlobalScale:
    """Rows up to Z are all scaled by C/Z, which keeps directions and relative lengths; longer ones are clipped to C.

    Args:
        limits: C of each cell.
        ceiling: Z.

    >>> from veil.gradients import PerRow
    >>> per_row = PerRow(torch.zeros(3), torch.tensor([1.0, 4.0, 8.0]), torch.ones(3, dtype=torch.bool))
    >>> GlobalScale((1.0,), 4.0).weights(per_row, torch.zeros(3, dtype=torch.long)) * per_row.norms
    tensor([0.2500, 1.0000, 1.0000])
    """

    limits: tuple[float, ...]
    ceiling: float
    row_local: bool = True
    needs_norms: bool = True

    def weights(self, per_row: PerRow, cells: Tensor) -> Tensor:
        """C / max(‖g‖, Z).

        Args:
            per_row: Gradient norm and loss of each row of the batch.
            cells: Number of the cell of each row.

        Returns:
            One factor for each row, by which its gradient is multiplied.
        """
        limits = by_row(self.limits, cells, per_row.norms.dtype)
        return limits / per_row.norms.clamp_min(self.ceiling)
