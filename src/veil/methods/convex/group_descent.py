"""Full-batch descent of a softmax head over whitened rows: bounds and margins from the size of a row's group.

    every step:  p_i = softmax(W·x_i + e_{y_i}·τ·a_g),   a_g = log n_g less its mean over groups
                 G = Σ_i min(1, C_g/‖(p_i − e_{y_i}) ⊗ x_i‖)·(p_i − e_{y_i}) ⊗ x_i + N(0, σ²·I)
                 V ← β·V + G/(C·s),   W ← W − η·V,   s = Σ_g n_g·(n_min/n_g)^power,   C_g = C·(n_min/n_g)^power

The weights released are the mean over the last two fifths of the steps. All rows take part in every step: there is no
sampling to amplify privacy and none to add variance, and a step costs what a Gaussian release costs.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from veil.accounting import Event, Ledger
from veil.errors import InputError
from veil.foundation.randomness import Seed
from veil.methods.convex.feature_rows import bounded_slopes, through
from veil.methods.convex.whitening import MEAN, MOMENTS, Features, WhiteningRelease
from veil.models.whitened import ImageFeatures, Whitening, unit
from veil.noise import GaussianNoise
from veil.plans.controllers.solver import Report
from veil.problem import Problem, PublicFacts
from veil.problem.sums import Part, RowSums, sums_of

GRADIENTS = "gradient"
# The share of the steps, at the end, over whose weights the mean is taken.
AVERAGED = 0.4
# Rows stay this much inside their bound, so that rounding never brings one out of it.
_INSIDE = 1 - 1e-12
_ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class GroupDescent:
    """Everything public that the solver needs; `events` is one step's cost per cell."""

    whitening: WhiteningRelease
    limits: tuple[float, ...]
    margins: tuple[float, ...]
    events: tuple[Event, ...]
    sigma: float
    scale: float
    steps: int
    learning_rate: float
    momentum: float
    secure: bool

    weighs_rows: ClassVar[bool] = True
    sums_rows: ClassVar[bool] = True

    def check(self, model: nn.Module) -> None:
        """Only features that need no training, whitening, and one linear layer."""
        _parts(model)

    def solve(self, model: nn.Module, problem: Problem, seed: Seed, ledger: Ledger, report: Report) -> None:
        """Whiten once, then descend; every cost is on the ledger before a row is read."""
        self.solve_with(GaussianNoise(seed, secure=self.secure), model, problem, ledger, report)

    def solve_with(
        self, noise: GaussianNoise, model: nn.Module, problem: Problem, ledger: Ledger, report: Report
    ) -> None:
        """The same with this noise: rows are read by what it is added to, and by nothing else."""
        features, layer, head = _parts(model)
        cells = range(len(self.events))
        for purpose, event in zip((MEAN, MOMENTS), self.whitening.events(), strict=True):
            ledger.reserve(purpose, 0, 1, dict.fromkeys(cells, event))
        ledger.reserve(GRADIENTS, 0, self.steps, dict(enumerate(self.events)))
        with torch.no_grad():
            facts = problem.public
            # Sums over all rows in double precision: in single, rounding would move them by parts of a row's bound.
            exact = copy.deepcopy(layer).double()
            rows = sums_of(problem).through(Projected(features, exact))
            self._whiten(exact, rows, facts.rows, noise)
            layer.mean.copy_(exact.mean)
            layer.matrix.copy_(exact.matrix)
            work = rows.through(InCoordinates(exact, self._of_cells(), head.out_features))
            # Features of images take longer than all steps: their model is measured at the end only.
            told = {self.steps - 1} if isinstance(features, ImageFeatures) else range(self.steps)
            for step in self._descend(work, head, noise):
                if step in told:
                    report(step, {})

    def _whiten(self, layer: Whitening, rows: RowSums, size: int, noise: GaussianNoise) -> None:
        """Release mean and second moments of unit rows and put them into the layer."""
        layer.mean.copy_(self.whitening.mean(rows, size, noise, as_it_is))
        values, directions = self.whitening.spectrum(rows, size, noise, layer.mean, unit)
        layer.matrix.copy_(directions * (values + self.whitening.floor) ** -self.whitening.power)

    def _of_cells(self) -> tuple[Tensor, Tensor]:
        """Margin and limit of each cell."""
        margins, limits = (torch.tensor(values, dtype=torch.float64) for values in (self.margins, self.limits))
        return margins, limits * _INSIDE

    def _descend(self, work: RowSums, head: nn.Linear, noise: GaussianNoise) -> Iterator[int]:
        """Generator over steps; the head has the current weights."""
        weights, speed, total = (torch.zeros_like(head.weight, dtype=torch.float64) for _ in range(3))
        later = self.steps - math.ceil(AVERAGED * self.steps)
        for step in range(self.steps):
            released = noise.add(step, {"head": work.total(Pull(weights))}, self.sigma, GRADIENTS)["head"]
            speed = self.momentum * speed + released / self.scale
            weights = weights - self.learning_rate * speed
            if step >= later:
                total += weights
            head.weight.copy_(total / (step - later + 1) if step >= later else weights)
            yield step


@dataclass(frozen=True)
class Projected:
    """A view: unit rows before centring and whitening."""

    features: nn.Module
    layer: Whitening

    def __call__(self, part: Part) -> Features:
        pieces = torch.split(part.inputs, _ROWS_AT_ONCE)
        return Features(torch.cat([self.layer.project(through(self.features, inputs)) for inputs in pieces]), part)


@dataclass(frozen=True)
class Work:
    """Whitened rows with what their slopes follow from."""

    rows: Tensor
    lengths: Tensor
    classes: Tensor
    margins: Tensor
    limits: Tensor
    shares: Tensor


@dataclass(frozen=True)
class InCoordinates:
    """A view: unit rows centred and whitened; `of_cells` are margins and limits by cell."""

    layer: Whitening
    of_cells: tuple[Tensor, Tensor]
    outputs: int

    def __call__(self, seen: Features) -> Work:
        rows, part = self.layer.whiten(seen.rows), seen.part
        margins, limits = (values[part.cells] for values in self.of_cells)
        classes = torch.nn.functional.one_hot(part.targets.long(), self.outputs).to(rows.dtype)
        lengths = torch.linalg.vector_norm(rows, dim=1)
        return Work(rows, lengths, classes, classes * margins[:, None], limits, part.weights.to(rows.dtype))


@dataclass(frozen=True)
class Pull:
    """Σ of bounded gradients, each with its share."""

    weights: Tensor

    def __call__(self, work: Work) -> Tensor:
        slopes = bounded_slopes(work.rows, work.lengths, self.weights, work.margins, work.classes, work.limits)
        return (slopes * work.shares[:, None]).T @ work.rows


def as_it_is(rows: Tensor) -> Tensor:
    """Rows that have length 1 already."""
    return rows


def group_bounds(facts: PublicFacts, power: float) -> tuple[float, ...]:
    """(n_min/n_g)^power of each cell's group: the smallest group has 1."""
    smallest = min(facts.group_sizes)
    return tuple((smallest / facts.group_sizes[cell.group]) ** power for cell in facts.cells)


def group_margins(facts: PublicFacts, margin: float) -> tuple[float, ...]:
    """τ·log n_g less its mean over groups, of each cell's group: a row of a small group has to be won by more."""
    logs = np.log(np.array(facts.group_sizes, dtype=np.float64))
    return tuple(float(margin * (logs[cell.group] - logs.mean())) for cell in facts.cells)


def _parts(model: nn.Module) -> tuple[nn.Module, Whitening, nn.Linear]:
    """The three parts of the model `whitened`."""
    parts = list(model) if isinstance(model, nn.Sequential) else []
    trained = sum(1 for p in model.parameters() if p.requires_grad)
    match parts:
        case [features, Whitening() as layer, nn.Linear() as head] if trained == 1:
            return features, layer, head
    raise InputError('group-gd trains a linear layer over whitened rows: choose the model "whitened"')
