"""Weights for methods that are not private: group weights over the rows that were drawn."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from veil.gradients import PerRow


@dataclass(frozen=True, slots=True)
class GroupMean:
    """Σ_g λ_g · mean over the drawn rows of group g: a row's weight depends on who else was drawn. Not private.

    Args:
        group_weights: λ of each group.
        group_of_cell: Number of the group of each cell.

    >>> from veil.gradients import PerRow
    >>> per_row = PerRow(torch.tensor([1.0, 2.0]), torch.tensor([0.5, 4.0]), torch.ones(2, dtype=torch.bool))
    >>> GroupMean(group_weights=(0.5, 0.5), group_of_cell=(0, 1)).weights(per_row, torch.tensor([0, 1]))
    tensor([0.5000, 0.5000])
    """

    group_weights: tuple[float, ...]
    group_of_cell: tuple[int, ...]
    row_local: bool = False
    needs_norms: bool = False

    @property
    def limits(self) -> tuple[float, ...]:
        """There is none."""
        return tuple(float("inf") for _ in self.group_of_cell)

    def weights(self, per_row: PerRow, cells: Tensor) -> Tensor:
        """λ_g over the number of drawn rows of g.

        Args:
            per_row: Gradient norm and loss of each row of the batch.
            cells: Number of the cell of each row.

        Returns:
            One factor for each row, by which its gradient is multiplied.
        """
        groups = torch.tensor(self.group_of_cell)[cells]
        counts = torch.bincount(groups, minlength=len(self.group_weights)).clamp_min(1)
        shares = torch.tensor(self.group_weights, dtype=per_row.losses.dtype) / counts
        return shares[groups]
