"""Adversarial training: minimise the loss at the worst input near each row, not private (Madry et al. 2018).

    x_adv = argmax_{‖x' − x‖ ≤ r} ℓ(x'), found by projected gradient ascent;   g̃ = mean gradient at x_adv + N(0, s²·I)

With gradient noise it narrows the robust generalisation gap (Kulynych et al. 2022, section 5.4). ℓ∞ and ℓ₂ balls.
`random_start` starts anywhere in the ball (Madry et al.): a number that looks random is made from a row, the place of
each entry and the row's present loss, so that a resumed run finds the same start. `lowest` and `highest` keep attacked
inputs within the range that inputs have (pixels, in the units of the model's inputs).
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
    random_start: bool = False
    lowest: float | None = None
    highest: float | None = None
    gradient_noise: float = 0.0

    def plan(self, facts: PublicFacts, settings: Settings) -> Plan:
        """Shuffled batches; the loss of a row is its loss at the attacked input."""
        require(self.norm in ("linf", "l2"), f'norm is "{self.norm}": it must be linf or l2')
        require_above_zero(self, "radius")
        require(self.attack_steps >= 1, f"attack_steps is {self.attack_steps}: it must be at least 1")
        require(
            self.lowest is None or self.highest is None or self.lowest < self.highest,
            f"lowest is {self.lowest} and highest is {self.highest}: lowest must be below highest",
        )
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
        if self.random_start:
            with torch.no_grad():
                shift = self._within(inputs, self.radius * spread(inputs, loss(model, batch)))
        for _ in range(self.attack_steps):
            with torch.enable_grad():
                at = (inputs + shift).detach().requires_grad_()
                (gradient,) = torch.autograd.grad(loss(model, (at, targets)).sum(), at)
            shift = self._within(inputs, shift + rate * self._direction(gradient))
        return (inputs + shift).detach()

    def _within(self, inputs: Tensor, shift: Tensor) -> Tensor:
        """The nearest shift within the ball, then within the range of inputs."""
        shift = self._project(shift)
        if self.lowest is None and self.highest is None:
            return shift
        # An input outside the range keeps its own value as the limit, so that no shift leaves the ball.
        low = None if self.lowest is None else inputs.clamp(max=self.lowest)
        high = None if self.highest is None else inputs.clamp(min=self.highest)
        return torch.clamp(inputs + shift, low, high) - inputs

    def _direction(self, gradient: Tensor) -> Tensor:
        return gradient.sign() if self.norm == "linf" else gradient / _lengths(gradient).clamp_min(1e-12)

    def _project(self, shift: Tensor) -> Tensor:
        if self.norm == "linf":
            return shift.clamp(-self.radius, self.radius)
        return shift * (self.radius / _lengths(shift).clamp_min(1e-12)).clamp(max=1.0)


def spread(inputs: Tensor, losses: Tensor) -> Tensor:
    """Numbers in [−1, 1) that look random: a fixed function of each entry, its place and its row's loss.

    >>> found = spread(torch.zeros(1, 4), torch.ones(1))
    >>> bool((found.abs() <= 1).all()), len(found.unique())
    (True, 4)
    """
    place = torch.arange(inputs[0].numel(), dtype=torch.float64, device=inputs.device).view(1, *inputs.shape[1:])
    salt = losses.detach().double().view(-1, *([1] * (inputs.ndim - 1)))
    turned = 43758.5453 * torch.sin(12.9898 * inputs.double() + 78.233 * place + 37.719 * salt)
    return (2 * (turned - turned.floor()) - 1).to(inputs.dtype)


def _lengths(values: Tensor) -> Tensor:
    """The ℓ₂ length of each row, shaped to broadcast."""
    lengths: Tensor = torch.linalg.vector_norm(values.flatten(1), dim=1)
    return lengths.view(-1, *([1] * (values.ndim - 1)))
