"""Knots: a number becomes its shares of the two knots around it, so that a linear layer learns a curve of it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Knots(nn.Module):
    """Rows with, behind them, every named number's shares of its knots. Numbers lie in [−1, 1] and are clamped to it.

    Knots are evenly spread until a method releases better places for them (`auto` does).

    >>> layer = Knots([1], 3)
    >>> layer(torch.tensor([[7.0, 0.5]])).tolist()
    [[7.0, 0.5, 0.0, 0.5, 0.5]]
    """

    places: Tensor

    def __init__(self, numbers: Sequence[int], count: int) -> None:
        super().__init__()
        self.numbers = list(numbers)
        self.register_buffer("places", torch.linspace(-1.0, 1.0, count).repeat(len(self.numbers), 1))

    @property
    def added(self) -> int:
        """How many numbers are appended to each row."""
        return self.places.numel()

    def values(self, rows: Tensor) -> Tensor:
        """The numbers that have knots, clamped; what is not finite is in the middle."""
        return torch.nan_to_num(rows[:, self.numbers], nan=0.0, posinf=1.0, neginf=-1.0).clamp(-1.0, 1.0)

    def forward(self, rows: Tensor) -> Tensor:
        if not self.numbers:
            return rows
        places = self.places.to(rows.dtype)
        values = self.values(rows).T.contiguous()
        below = (torch.searchsorted(places, values, right=True) - 1).clamp(0, places.shape[1] - 2)
        low, high = places.gather(1, below), places.gather(1, below + 1)
        # Two knots in one place leave nothing between them: the share is that of the upper one.
        share = torch.where(high > low, (values - low) / (high - low).clamp_min(1e-12), 1.0).clamp(0.0, 1.0)
        shares = torch.zeros(*places.shape, len(rows), dtype=rows.dtype)
        shares.scatter_(1, below[:, None], 1 - share[:, None])
        shares.scatter_(1, below[:, None] + 1, share[:, None])
        return torch.cat([rows, shares.flatten(0, 1).T], dim=1)
