"""Normalisation of image rows that looks at no other row: constants published with the data, or the row itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from veil.errors import require

Normalisation = Literal["published", "per-row", "none"]


def normalise(
    pixels: Tensor, kind: Normalisation, mean: Sequence[float] = (0.5,), std: Sequence[float] = (0.5,)
) -> Tensor:
    """Bytes [rows, channels, height, width] as numbers: published constants, each row by itself, or just [0, 1].

    Args:
        pixels: Bytes from 0 to 255.
        kind: `published`, `per-row` or `none`.
        mean: Published mean of each channel.
        std: Published standard deviation of each channel.

    Returns:
        Numbers of the same shape.

    Raises:
        InputError: The kind is unknown.

    >>> normalise(torch.tensor([[[[0, 255]]]], dtype=torch.uint8), "none")
    tensor([[[[0., 1.]]]])
    """
    require(kind in ("published", "per-row", "none"), f'normalisation is "{kind}": use published, per-row or none')
    scaled = pixels.to(torch.float32).div_(255.0)
    if kind == "published":
        shape = (1, -1, 1, 1)
        return scaled.sub_(torch.tensor(mean).view(shape)).div_(torch.tensor(std).view(shape))
    return per_row(scaled) if kind == "per-row" else scaled


def per_row(rows: Tensor, floor: float = 1e-3) -> Tensor:
    """Each row with mean 0 and standard deviation 1 over its own values; a constant row becomes zeros.

    No other row is looked at, so it costs no privacy, and the gradient norms of bright and dark rows come nearer to
    one another, which clipping rewards.

    Args:
        rows: Numbers; the first dimension counts rows.
        floor: The least standard deviation that is divided by.

    Returns:
        Numbers of the same shape.

    >>> per_row(torch.tensor([[1.0, 3.0], [5.0, 5.0]]))
    tensor([[-1.,  1.],
            [ 0.,  0.]])
    """
    flat = rows.reshape(len(rows), -1)
    centred = flat - flat.mean(dim=1, keepdim=True)
    spread = centred.pow(2).mean(dim=1, keepdim=True).sqrt().clamp_min(floor)
    return (centred / spread).reshape(rows.shape)
