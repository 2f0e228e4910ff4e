"""Crosses: products of the levels of a few columns, so that a linear layer learns interactions of two columns."""

from __future__ import annotations

from itertools import combinations

import torch
from torch import Tensor, nn

LEVELS = 4


class Crosses(nn.Module):
    """Rows with, behind them, the products of levels of every two chosen columns.

    A level is a linear map of a row: the share of a few knots of a number, or membership in a few values of a category.
    Columns and levels are empty until a method releases them (`auto` does).

    `blocks` are the columns of a row: the places of each one's numbers. `first` are columns to choose in any case.

    >>> layer = Crosses([[0, 1], [2]], chosen=2)
    >>> layer.levels[0, 0, 0] = layer.levels[2, 1, 3] = 1.0
    >>> layer(torch.tensor([[0.5, 0.0, 3.0]])).nonzero()[:, 1].tolist()
    [0, 2, 6]
    """

    levels: Tensor

    def __init__(self, blocks: list[list[int]], chosen: int, first: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.blocks, self.first = blocks, first[:chosen]
        self.chosen = min(chosen, len(blocks))
        self.pairs = list(combinations(range(self.chosen), 2))
        width = sum(len(block) for block in blocks)
        self.register_buffer("levels", torch.zeros(width, self.chosen, LEVELS))

    @property
    def added(self) -> int:
        """How many numbers are appended to each row."""
        return len(self.pairs) * LEVELS**2

    def forward(self, rows: Tensor) -> Tensor:
        if not self.pairs:
            return rows
        levels = torch.einsum("nd,dcl->ncl", rows, self.levels.to(rows.dtype))
        # All crosses together are as long as all columns.
        length = (len(self.blocks) / len(self.pairs)) ** 0.5
        left, right = (levels[:, [pair[side] for pair in self.pairs]] for side in (0, 1))
        products = torch.einsum("npl,npm->nplm", left, right).flatten(1)
        return torch.cat([rows, products * length], dim=1)
