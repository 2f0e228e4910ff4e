"""A linear model over features that need no training: fixed image features, and rows centred and whitened in private.

    image:  scattering maps of orders 0, 1 (each scale) and 2, every block with mean 0 and deviation 1 over the row
    row:    x → x·P (a fixed random projection, where there are many features) → unit length
            → minus the mean → unit length → times the whitening matrix → unit length → a constant behind it

Mean and matrix are 0 and the identity until a method releases them (`group-gd` does). A row has length 1 at the end,
so its gradient is bounded before it is clipped.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from veil.models.normalise import per_row
from veil.models.scattering import scattering
from veil.problem import PublicFacts

# The projection is a public constant of Veil: every model of the same size has the same one.
_PROJECTION_SEED = 20240
SCALES, ANGLES = 2, 8


class ImageFeatures(nn.Module):
    """Scattering features of images, normalised block by block within each row; nothing is trained."""

    def forward(self, images: Tensor) -> Tensor:
        maps = scattering(images, SCALES, ANGLES).reshape(len(images), images.shape[1], -1, *_shrunk(images))
        sizes = [1, *(ANGLES,) * SCALES]
        blocks = torch.split(maps, [*sizes, maps.shape[2] - sum(sizes)], dim=2)
        return torch.cat([per_row(block).reshape(len(images), -1) for block in blocks], dim=1)


class Projection(nn.Module):
    """Rows onto fewer numbers by a fixed random matrix, at length 1; one that is not finite, or overflows, becomes 0.

    >>> Projection(2, 8)(torch.tensor([[3.0, 4.0]])).tolist()
    [[0.6000000238418579, 0.800000011920929]]
    """

    matrix: Tensor

    def __init__(self, features: int, dimensions: int) -> None:
        super().__init__()
        self.register_buffer("matrix", projection(features, dimensions))

    def forward(self, rows: Tensor) -> Tensor:
        return projected(rows, self.matrix)


class Whitening(nn.Module):
    """Rows of unit length in coordinates where no direction is much larger than another.

    >>> layer = Whitening(3, 3)
    >>> layer(torch.tensor([[0.0, 3.0, 4.0]])).norm().item() < 1.0001
    True
    """

    mean: Tensor
    matrix: Tensor
    projection: Tensor

    def __init__(self, features: int, dimensions: int, constant: float = 0.3) -> None:
        super().__init__()
        self.constant = constant
        kept = min(features, dimensions)
        self.register_buffer("projection", projection(features, dimensions))
        self.register_buffer("mean", torch.zeros(kept))
        self.register_buffer("matrix", torch.eye(kept))

    @property
    def dimensions(self) -> int:
        """Numbers per row before the constant."""
        return len(self.mean)

    def project(self, rows: Tensor) -> Tensor:
        """Unit rows before private centring and whitening; a row that is not finite, or overflows, becomes 0."""
        return projected(rows.to(self.mean.dtype), self.projection)

    def whiten(self, rows: Tensor) -> Tensor:
        """Unit rows, centred, whitened, with the constant behind them; never longer than 1."""
        white = unit(unit(rows - self.mean) @ self.matrix)
        behind = torch.full((len(rows), 1), self.constant, dtype=white.dtype)
        return torch.cat([white, behind], dim=1) / math.hypot(1.0, self.constant)

    def forward(self, rows: Tensor) -> Tensor:
        return self.whiten(self.project(rows))


def projection(features: int, dimensions: int) -> Tensor:
    """A public matrix that takes features onto fewer dimensions; empty where they are few enough."""
    if features <= dimensions:
        return torch.empty(0)
    generator = torch.Generator().manual_seed(_PROJECTION_SEED)
    fixed: Tensor = torch.randn(features, dimensions, generator=generator) / dimensions**0.5
    return fixed


def projected(rows: Tensor, matrix: Tensor) -> Tensor:
    """Flat rows at length 1, after the matrix if it is not empty."""
    flat = rows.flatten(1)
    flat = torch.where(torch.isfinite(flat).all(dim=1, keepdim=True), flat, 0.0)
    found: Tensor = unit(flat @ matrix.to(flat.dtype) if matrix.numel() else flat)
    return torch.where(torch.isfinite(found).all(dim=1, keepdim=True), found, 0.0)


def unit(rows: Tensor) -> Tensor:
    """Each row with length 1, or 0 where it has none."""
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows / lengths.clamp_min(1e-6)


def whitened(facts: PublicFacts, dimensions: int = 512) -> nn.Module:
    """Features that need no training, whitening, and one linear layer that starts at zero."""
    images = len(facts.input_shape) == 3
    features = image_features(facts.input_shape) if images else math.prod(facts.input_shape)
    layer = Whitening(features, dimensions)
    head = nn.Linear(layer.dimensions + 1, facts.outputs, bias=False)
    nn.init.zeros_(head.weight)
    return nn.Sequential(ImageFeatures() if images else nn.Flatten(), layer, head)


def _shrunk(images: Tensor) -> tuple[int, int]:
    return images.shape[2] // 2**SCALES, images.shape[3] // 2**SCALES


def image_features(shape: tuple[int, ...]) -> int:
    """How many scattering features an image of this shape has."""
    return int(ImageFeatures()(torch.zeros(1, *shape)).shape[1])
