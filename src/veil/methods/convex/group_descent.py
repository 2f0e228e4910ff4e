"""Full-batch descent of a softmax head over whitened rows: bounds and margins from the size of a row's group.

    every step:  p_i = softmax(W·x_i + e_{y_i}·τ·a_g),   a_g = log n_g less its mean over groups
                 G = Σ_i min(1, C_g/‖(p_i − e_{y_i}) ⊗ x_i‖)·(p_i − e_{y_i}) ⊗ x_i + N(0, σ²·I)
                 V ← β·V + G/(C·s),   W ← W − η·V,   s = Σ_g n_g·(n_min/n_g)^power,   C_g = C·(n_min/n_g)^power

The weights released are the mean over the last two fifths of the steps. All rows take part in every step: there is no
sampling to amplify privacy and none to add variance, and a step costs what a Gaussian release costs.
"""

from __future__ import annotations

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
from veil.methods.convex.whitening import MEAN, MOMENTS, WhiteningRelease
from veil.models.whitened import ImageFeatures, Whitening
from veil.noise import GaussianNoise
from veil.plans.controllers.solver import Report
from veil.problem import Problem, PublicFacts

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
            problem, share_of = problem.apart()
            present, kept = np.flatnonzero(problem.present), layer.mean.dtype
            shares = torch.from_numpy(share_of[present])
            # Sums over all rows in double precision: in single, rounding would move them by parts of a row's bound.
            layer.double()
            try:
                rows = torch.cat([layer.project(through(features, inputs)) for inputs in inputs_of(problem, present)])
                self.whitening.make(layer, rows, shares, problem.public.rows, noise)
                white = layer.whiten(rows)
            finally:
                layer.to(kept)
            if problem.weights is not None:
                shares = shares * torch.from_numpy(problem.weights[present])
            # Features of images take longer than all steps: their model is measured at the end only.
            told = {self.steps - 1} if isinstance(features, ImageFeatures) else range(self.steps)
            for step in self._descend(white, problem, present, shares, head, noise):
                if step in told:
                    report(step, {})

    def _descend(
        self,
        rows: Tensor,
        problem: Problem,
        present: np.ndarray[tuple[int], np.dtype[np.int64]],
        shares: Tensor,
        head: nn.Linear,
        noise: GaussianNoise,
    ) -> Iterator[int]:
        """Generator over steps; the head has the current weights."""
        cells = torch.from_numpy(problem.cell_of[present])
        targets = torch.nn.functional.one_hot(problem.targets[present].long(), head.out_features).to(rows.dtype)
        margins = targets * torch.tensor(self.margins, dtype=rows.dtype)[cells, None]
        limits = torch.tensor(self.limits, dtype=rows.dtype)[cells] * _INSIDE
        lengths = torch.linalg.vector_norm(rows, dim=1)
        weights, speed, total = (torch.zeros_like(head.weight, dtype=rows.dtype) for _ in range(3))
        later = self.steps - math.ceil(AVERAGED * self.steps)
        for step in range(self.steps):
            slopes = bounded_slopes(rows, lengths, weights, margins, targets, limits) * shares.to(rows.dtype)[:, None]
            released = noise.add(step, {"head": slopes.T @ rows}, self.sigma, GRADIENTS)["head"]
            speed = self.momentum * speed + released / self.scale
            weights = weights - self.learning_rate * speed
            if step >= later:
                total += weights
            head.weight.copy_(total / (step - later + 1) if step >= later else weights)
            yield step


def bounded_slopes(
    rows: Tensor, lengths: Tensor, weights: Tensor, margins: Tensor, targets: Tensor, limits: Tensor
) -> Tensor:
    """Each row's softmax slope p − e_y, lowered where slope ⊗ row would be longer than its limit."""
    slopes = torch.softmax(rows @ weights.T + margins, dim=1) - targets
    # Weights that grew beyond all measure give no slope: such a row counts as 0.
    slopes = torch.where(torch.isfinite(slopes).all(dim=1, keepdim=True), slopes, 0.0)
    norms = (torch.linalg.vector_norm(slopes, dim=1) * lengths).clamp_min(torch.finfo(rows.dtype).tiny)
    slopes *= torch.clamp(limits / norms, max=1.0)[:, None]
    return slopes


def group_bounds(facts: PublicFacts, power: float) -> tuple[float, ...]:
    """(n_min/n_g)^power of each cell's group: the smallest group has 1."""
    smallest = min(facts.group_sizes)
    return tuple((smallest / facts.group_sizes[cell.group]) ** power for cell in facts.cells)


def group_margins(facts: PublicFacts, margin: float) -> tuple[float, ...]:
    """τ·log n_g less its mean over groups, of each cell's group: a row of a small group has to be won by more."""
    logs = np.log(np.array(facts.group_sizes, dtype=np.float64))
    return tuple(float(margin * (logs[cell.group] - logs.mean())) for cell in facts.cells)


def inputs_of(problem: Problem, rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Iterator[Tensor]:
    """The inputs of some rows, a few thousand at a time."""
    for start in range(0, max(len(rows), 1), _ROWS_AT_ONCE):
        yield problem.batch(rows[start : start + _ROWS_AT_ONCE])[0]


def through(features: nn.Module, inputs: Tensor) -> Tensor:
    """Features of some rows or of none: some take no empty batch, so a row of zeros goes through in its place."""
    rows: Tensor = features(inputs if len(inputs) else inputs.new_zeros(1, *inputs.shape[1:]))
    return rows[: len(inputs)]


def _parts(model: nn.Module) -> tuple[nn.Module, Whitening, nn.Linear]:
    """The three parts of the model `whitened`."""
    parts = list(model) if isinstance(model, nn.Sequential) else []
    trained = sum(1 for p in model.parameters() if p.requires_grad)
    match parts:
        case [features, Whitening() as layer, nn.Linear() as head] if trained == 1:
            return features, layer, head
    raise InputError('group-gd trains a linear layer over whitened rows: choose the model "whitened"')
