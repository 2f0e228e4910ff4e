"""Rows of a linear model in the feature ball, and weights into and out of a torch module."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from veil.errors import InputError, require
from veil.methods.convex.losses import Hinge, Logistic, Loss, SmoothedHinge, Softmax, Squared
from veil.models.tables import Shortened
from veil.problem import Problem, PublicFacts

Floats = NDArray[np.float64]
LOSSES = ("logistic", "smoothed-hinge", "hinge", "squared")
# Rows stay this much inside the ball, so that rounding never brings one out of it.
_INSIDE = 1 - 1e-12


@dataclass(frozen=True)
class LinearRows:
    """Rows in the feature ball with targets as the loss wants them, and the group of each."""

    features: Floats
    targets: Floats
    groups: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, chosen: NDArray[np.int64]) -> LinearRows:
        """Some of the rows."""
        return LinearRows(self.features[chosen], self.targets[chosen], self.groups[chosen])


def choose_loss(name: str | None, facts: PublicFacts, width: float, target_bound: float) -> Loss:
    """The loss by name for a task; by default logistic for classes and squared for numbers."""
    chosen = name or ("logistic" if facts.task == "classification" else "squared")
    require(chosen in LOSSES, f'loss is "{chosen}": it must be one of {", ".join(LOSSES)}')
    if facts.task == "regression":
        require(chosen == "squared", f'the loss "{chosen}" is for two classes: use squared for numbers')
        return Squared(target_bound)
    if facts.outputs > 2:
        require(chosen == "logistic", f'the loss "{chosen}" is for two classes: use logistic for {facts.outputs}')
        return Softmax(facts.outputs)
    known: dict[str, Loss] = {
        "logistic": Logistic(),
        "smoothed-hinge": SmoothedHinge(width),
        "hinge": Hinge(),
        "squared": Squared(1.0),
    }
    return known[chosen]


def score_count(facts: PublicFacts) -> int:
    """Scores per row: one for two classes or a number, else one per class."""
    return 1 if facts.outputs <= 2 else facts.outputs


def linear_layer(model: nn.Module, method: str) -> nn.Linear:
    """The one linear layer of a linear model; anything else is rejected."""
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    passive = (nn.Sequential, nn.Flatten, nn.Identity, nn.Linear, Shortened)
    if len(layers) != 1 or not all(isinstance(module, passive) for module in model.modules()):
        raise InputError(f'{method} is proved for convex losses of a linear model: choose the model "logistic"')
    require(
        all(p.requires_grad for p in layers[0].parameters()),
        f"{method} trains all weights of the linear model: do not freeze any",
    )
    return layers[0]


def read_rows(problem: Problem, rows: NDArray[np.int64], feature_radius: float, bias: bool) -> LinearRows:
    """The chosen rows: a 1 is put behind the features (where there is a bias), then each row is projected.

    A row longer than R is shortened as a whole, its 1 included, which changes no class that a linear model predicts.
    A row that is not finite becomes all zeros.
    """
    inputs, targets = problem.batch(rows)
    features = inputs.detach().to(torch.float64).reshape(len(rows), -1).numpy()
    if bias:
        features = np.concatenate([features, np.ones((len(features), 1))], axis=1)
    features = into_ball(features, feature_radius)
    facts = problem.public
    values = targets.detach().to(torch.float64).numpy()
    if facts.task == "classification" and facts.outputs == 2:
        values = 2.0 * values - 1.0
    return LinearRows(features, np.asarray(values), problem.group_of[rows])


def clamp_targets(rows: LinearRows, loss: Loss) -> LinearRows:
    """Targets within what the constants of the squared loss assume."""
    if not isinstance(loss, Squared):
        return rows
    limit = loss.target_bound
    values = np.clip(np.nan_to_num(rows.targets, nan=0.0, posinf=limit, neginf=-limit), -limit, limit)
    return LinearRows(rows.features, values, rows.groups)


def into_ball(vectors: Floats, radius: float) -> Floats:
    """Each vector scaled into the ball; one that is not finite becomes 0.

    >>> into_ball(np.array([[3.0, 4.0], [0.1, 0.0], [np.inf, 0.0]]), 1.0).round(6)
    array([[0.6, 0.8],
           [0.1, 0. ],
           [0. , 0. ]])
    """
    finite = np.isfinite(vectors).all(axis=1, keepdims=True)
    safe = np.where(finite, vectors, 0.0)
    largest = np.abs(safe).max(axis=1, initial=0.0, keepdims=True)
    # Through the largest entry, so that squares of huge entries do not overflow.
    with np.errstate(over="ignore"):
        lengths = largest * np.linalg.norm(safe / np.where(largest > 0, largest, 1.0), axis=1, keepdims=True)
    return np.asarray(safe * np.minimum(1.0, radius * _INSIDE / np.maximum(lengths, 1e-300)))


def project(weights: Floats, radius: float) -> Floats:
    """The nearest weights in the ball."""
    length = float(np.linalg.norm(weights))
    return weights if length <= radius else weights * (radius / length)


def weight_shape(facts: PublicFacts, bias: bool) -> tuple[int, int]:
    """Features (and the 1 behind them) × scores."""
    return math.prod(facts.input_shape) + int(bias), score_count(facts)


def install(layer: nn.Linear, weights: Floats, bias: bool) -> None:
    """Put weights (features × scores) into the layer; one score of two classes is split evenly between them."""
    columns = weights.T
    if len(columns) == 1 and layer.out_features == 2:
        columns = np.concatenate([-columns / 2, columns / 2])
    require(len(columns) == layer.out_features, "the linear layer does not have the problem's number of outputs")
    values = torch.from_numpy(np.ascontiguousarray(columns)).to(layer.weight.dtype)
    with torch.no_grad():
        layer.weight.copy_(values[:, :-1] if bias else values)
        if bias:
            layer.bias.copy_(values[:, -1])
