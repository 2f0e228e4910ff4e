"""gDRO: group distributionally robust optimisation, not private (Sagawa et al. 2020).

    λ_g ← λ_g·exp(η·L̂_g), normalised,   g̃ = Σ_g λ_g · mean of the gradients of group g in the batch

L̂_g is the mean loss of group g's rows in the batch. Groups are drawn equally often, so that each is seen at every
step. Under differential privacy the group losses need a release of their own: that is `asc` and `azb`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veil.bounding import GroupMean
from veil.errors import require
from veil.gradients import PerRow
from veil.methods.calibrating import balanced_rates, batch_of
from veil.methods.families import NotPrivate
from veil.methods.registry import known_as
from veil.plans import Plan, Settings
from veil.plans.controllers import State, Steady
from veil.problem import PublicFacts
from veil.releases import GradientRelease, Statistic
from veil.sampling.draws import Poisson


@dataclass(frozen=True)
class GroupWeights(Steady):
    """Exponential weights on the exact losses of the batch: for training that is not private."""

    draw: Poisson
    group_of_cell: tuple[int, ...]
    groups: int
    step_size: float
    gradient_noise: float

    def start(self) -> State:
        """Every group weighs the same."""
        return {"weights": np.full(self.groups, 1.0 / self.groups)}

    def release(self, state: State, step: int) -> GradientRelease:
        """Weigh groups, and note their losses."""
        bound = GroupMean(tuple(state["weights"].tolist()), self.group_of_cell)
        losses = Statistic("group_losses", self._losses, float("inf"), 0.0)
        return GradientRelease(self.draw, bound, self.gradient_noise, 1.0, None, (losses,))

    def observe(self, state: State, step: int, statistics: Mapping[str, NDArray[np.float64]]) -> State:
        """λ ← λ·exp(η·L), normalised; a group without rows in the batch keeps its weight."""
        sums, counts = statistics["group_losses"].reshape(2, self.groups)
        losses = np.divide(sums, counts, out=np.zeros(self.groups), where=counts > 0)
        logits = np.log(state["weights"]) + self.step_size * losses
        weights = np.exp(logits - logits.max())
        return {"weights": np.clip(weights / weights.sum(), 1e-12, 1.0)}

    def _losses(self, per_row: PerRow, cells: Tensor) -> Tensor:
        member = torch.nn.functional.one_hot(torch.tensor(self.group_of_cell)[cells], self.groups).to(torch.float64)
        return torch.cat([member * per_row.losses[:, None].to(torch.float64), member], dim=1)


@known_as("gdro", "minimise the worst group's loss by exponential weights on the groups")
class Gdro(NotPrivate):
    """Minimise the loss of the worst group."""

    step_size: float = 0.01
    gradient_noise: float = 0.0

    def plan(self, facts: PublicFacts, settings: Settings) -> Plan:
        """Balanced draws and adaptive weights."""
        require(self.step_size >= 0, f"step_size is {self.step_size}: it must be at least 0")
        require(self.gradient_noise >= 0, f"gradient_noise is {self.gradient_noise}: it must be at least 0")
        rates = tuple(min(rate, 1.0) for rate in balanced_rates(facts, float(batch_of(facts, settings))))
        controller = GroupWeights(
            Poisson(rates),
            tuple(cell.group for cell in facts.cells),
            len(facts.groups),
            self.step_size,
            self.gradient_noise,
        )
        details = {"step_size": self.step_size, "gradient_noise": self.gradient_noise}
        return Plan(self.name, facts, settings, settings.steps_for(facts), controller, details=details)
