"""Models for tables: logistic regression, an additive model, fully connected layers, a wide part beside a deep one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

import torch
from torch import Tensor, nn

from veil.errors import require
from veil.models.crosses import Crosses
from veil.models.knots import Knots
from veil.models.whitened import ImageFeatures, Projection, image_features
from veil.problem import PublicFacts

# Second moments take the square of these.
MOST_NUMBERS, MOST_MAPS = 1024, 512
# A projection of more features takes more than a gigabyte.
MOST_FEATURES = 250_000
ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU}


def logistic(facts: PublicFacts, feature_radius: float | None = None) -> nn.Module:
    """Logistic (or linear) regression, starting at zero; with a radius, of rows that are shortened to it."""
    layer = _zeros(nn.Linear(prod(facts.input_shape), facts.outputs))
    return nn.Sequential(nn.Flatten(), layer if feature_radius is None else Shortened(layer, feature_radius))


class Shortened(nn.Module):
    """A linear layer of rows that are shortened to a length, the 1 of the bias included, where they are longer."""

    def __init__(self, linear: nn.Linear, radius: float) -> None:
        super().__init__()
        require(radius > 0, f"feature_radius is {radius}: it must be above 0")
        self.linear, self.radius = linear, radius

    def forward(self, rows: Tensor) -> Tensor:
        constant = 0.0 if self.linear.bias is None else 1.0
        lengths = (rows.square().sum(dim=-1, keepdim=True) + constant).sqrt()
        scores: Tensor = self.linear(rows)
        return scores * (self.radius / lengths.clamp_min(self.radius))


def _zeros(layer: nn.Linear) -> nn.Linear:
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


class Scale(nn.Module):
    """Rows times a constant."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, rows: Tensor) -> Tensor:
        return rows * self.factor


class Head(nn.Linear):
    """A linear layer that may know the noise in its weights: root·rootᵀ is the covariance of each output's weights.

    It is public, like the weights, and not saved with them; None where the layer was not trained with noise.
    """

    noise_root: Tensor | None = None


def additive(
    facts: PublicFacts,
    blocks: Sequence[int] | None = None,
    numbers: Sequence[int] = (),
    knots: int = 8,
    crossed: int = 0,
    first: Sequence[int] = (),
) -> nn.Module:
    """A linear layer over columns, starting at zero, that adds up a curve for each column of numbers.

    `blocks` are the widths of the encoded columns: rows are scaled so that each column has the same part of length 1.
    `numbers` are the places of numbers in [−1, 1]; each has so many `knots`. So many columns are `crossed`, those of
    `first` in any case. Images become scattering maps, and rows of very many numbers are projected onto fewer.
    """
    if len(facts.input_shape) == 3:
        features = image_features(facts.input_shape)
        head = _zeros(nn.Linear(min(features, MOST_MAPS), facts.outputs))
        return nn.Sequential(ImageFeatures(), Projection(features, MOST_MAPS), head)
    inputs = prod(facts.input_shape)
    widths = [1] * inputs if blocks is None else list(blocks)
    features = inputs + knots * len(numbers)
    require(
        features <= MOST_FEATURES,
        f"the columns give {features:,} features with their knots, and additive takes at most {MOST_FEATURES:,}: leave "
        "out columns, or train a network with --model mlp",
    )
    curves = Knots(numbers, knots)
    crosses = Crosses(_places(widths, curves), crossed, tuple(first))
    wide = inputs + curves.added + crosses.added
    if wide > MOST_NUMBERS:
        head = _zeros(nn.Linear(MOST_NUMBERS, facts.outputs))
        return nn.Sequential(nn.Flatten(), curves, crosses, Projection(wide, MOST_NUMBERS), head)
    head = _zeros(Head(wide, facts.outputs))
    return nn.Sequential(nn.Flatten(), curves, crosses, Scale(len(widths) ** -0.5), head)


def _places(widths: Sequence[int], curves: Knots) -> list[list[int]]:
    """Where each column's numbers stand in a row with knots behind it."""
    found, start, count = [], 0, curves.places.shape[1]
    order, behind = {number: place for place, number in enumerate(curves.numbers)}, sum(widths)
    for width in widths:
        places = list(range(start, start + width))
        if start in order:
            knots = behind + order[start] * count
            places += range(knots, knots + count)
        found.append(places)
        start += width
    return found


def mlp(facts: PublicFacts, width: int = 64, depth: int = 2, activation: str = "tanh") -> nn.Module:
    """Fully connected layers; tanh, whose output is bounded, suits clipped gradients best."""
    require(activation in ACTIVATIONS, f'activation is "{activation}": it must be {" or ".join(ACTIVATIONS)}')
    sizes = [prod(facts.input_shape), *([width] * depth)]
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], facts.outputs))


class WideAndDeep(nn.Module):
    """A linear map of all columns plus fully connected layers over category embeddings and numbers.

    `blocks` are the widths of the encoded columns in their order. A block of more than `embedding` numbers is a
    category: a linear map of its one-hot columns is its embedding. All else goes to the deep part as it is.
    """

    def __init__(self, outputs: int, blocks: Sequence[int], embedding: int, width: int) -> None:
        super().__init__()
        self.blocks = tuple(blocks)
        self.wide = _zeros(nn.Linear(sum(blocks), outputs))
        self.embeddings = nn.ModuleList(
            nn.Linear(block, embedding, bias=False) if block > embedding else nn.Identity() for block in blocks
        )
        deep = sum(min(block, embedding) for block in blocks)
        self.deep = nn.Sequential(
            nn.Linear(deep, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, outputs)
        )

    def forward(self, rows: Tensor) -> Tensor:
        """Scores of each row."""
        parts = torch.split(rows, list(self.blocks), dim=1)
        embedded = [part(block) for part, block in zip(self.embeddings, parts, strict=True)]
        scores: Tensor = self.wide(rows) + self.deep(torch.cat(embedded, dim=1))
        return scores


def wide_and_deep(
    facts: PublicFacts, blocks: Sequence[int] | None = None, embedding: int = 8, width: int = 64
) -> nn.Module:
    """A wide and a deep part; `blocks` are the widths of the encoded columns (`Encoding.widths`)."""
    inputs = prod(facts.input_shape)
    blocks = [inputs] if blocks is None else list(blocks)
    require(sum(blocks) == inputs, f"the blocks add up to {sum(blocks)} numbers and a row has {inputs}")
    return WideAndDeep(facts.outputs, blocks, embedding, width)
