"""Adversarial training: minimise the loss at the worst input near each row, not private (Madry et al. 2018).

    x_adv = argmax_{‖x' − x‖ ≤ r} ℓ(x'), found by projected gradient ascent;   g̃ = mean gradient at x_adv + N(0, s²·I)

With gradient noise it narrows the robust generalisation gap (Kulynych et al. 2022, section 5.4). ℓ∞ and ℓ₂ balls.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from veil.bounding import Weighted
from veil.errors import require, require_above_zero
from veil.methods.calibrating import batch_of
from veil.methods.families import NotPrivate
from veil.methods.registry import known_as
from veil.methods.reweighted import plain_plan
from veil.plans import LossFunction, Plan, Settings
from veil.problem import PublicFacts
from veil.sampling.draws import Shuffled

Norm = Literal["linf", "l2"]


@known_as("adversarial", "train on the worst input near each row (PGD), with optional gradient noise")
class Adversarial(NotPrivate):
    """PGD training in a ball of the given radius."""

    norm: Norm = "linf"
    radius: float = 8 / 255
    attack_steps: int = 10
    attack_rate: float | None = None
    gradient_noise: float = 0.0

    def plan(self, facts: PublicFacts, settings: Settings) -> Plan:
        """Shuffled batches; the loss of a row is its loss at the attacked input."""
        require(self.norm in ("linf", "l2"), f'norm is "{self.norm}": it must be linf or l2')
        require_above_zero(self, "radius")
        require(self.attack_steps >= 1, f"attack_steps is {self.attack_steps}: it must be at least 1")
        ones = Weighted((1.0,) * len(facts.cells))
        draw = Shuffled(batch_of(facts, settings))
        plan = plain_plan(self.name, facts, settings, draw, ones, self.gradient_noise)
        return replace(plan, transform=self.transform)

    def transform(self, loss: LossFunction) -> LossFunction:
        """The loss at the attacked inputs."""

        def attacked_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
            return loss(model, (self.attack(model, batch, loss), batch[1]))

        return attacked_loss

    def attack(self, model: nn.Module, batch: tuple[Tensor, Tensor], loss: LossFunction) -> Tensor:
        """Inputs within the radius that raise each row's own loss."""
        inputs, targets = batch
        rate = self.attack_rate if self.attack_rate is not None else 2.5 * self.radius / self.attack_steps
        shift = torch.zeros_like(inputs)
        for _ in range(self.attack_steps):
            with torch.enable_grad():
                at = (inputs + shift).detach().requires_grad_()
                (gradient,) = torch.autograd.grad(loss(model, (at, targets)).sum(), at)
            shift = self._project(shift + rate * self._direction(gradient))
        return (inputs + shift).detach()

    def _direction(self, gradient: Tensor) -> Tensor:
        return gradient.sign() if self.norm == "linf" else gradient / _lengths(gradient).clamp_min(1e-12)

    def _project(self, shift: Tensor) -> Tensor:
        if self.norm == "linf":
            return shift.clamp(-self.radius, self.radius)
        return shift * (self.radius / _lengths(shift).clamp_min(1e-12)).clamp(max=1.0)


def _lengths(values: Tensor) -> Tensor:
    """The ℓ₂ length of each row, shaped to broadcast."""
    lengths: Tensor = torch.linalg.vector_norm(values.flatten(1), dim=1)
    return lengths.view(-1, *([1] * (values.ndim - 1)))
