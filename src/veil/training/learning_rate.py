"""The learning rate where none was given, from public constants: noise, model size, steps and batch.

    rate = min(1/2, R·(1 − μ)·b / (σ·√(d·T)))

σ/b is the noise in every coordinate of an update, so σ/b·rate/(1 − μ)·√(d·T) is how far noise alone carries the d
weights in T steps with momentum μ: at most R = 15. A method with more noise takes shorter steps, and where noise is
small the rate is that of training without it. Adam divides by the size of the gradient, so that its noise has size 1.
"""

from __future__ import annotations

import math
from dataclasses import replace

from torch import nn

from veil.plans import Plan
from veil.plans.controllers import first_release

WANDER = 15.0
LARGEST = {"sgd": 0.5, "adam": 0.01, "adamw": 0.01}
UNBOUNDED = 0.05


def with_learning_rate(plan: Plan, model: nn.Module) -> Plan:
    """The plan with a learning rate: as it was given, or from public constants."""
    settings = plan.settings
    if settings.learning_rate is not None:
        return plan
    weights = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    rate = automatic_rate(plan, weights)
    return replace(plan, settings=settings.model_copy(update={"learning_rate": rate}))


def automatic_rate(plan: Plan, weights: int) -> float:
    """The rate for a model of so many weights, to three digits."""
    settings, release = plan.settings, first_release(plan.controller)
    adam = settings.optimizer != "sgd"
    largest = LARGEST[settings.optimizer]
    if not release.bound.needs_norms and not adam:
        # Nothing bounds these gradients, so the rate must suit long ones.
        largest = UNBOUNDED
    noise = release.sigma / (release.divisor or release.draw.expected_batch(plan.facts))
    speed = 1.0 if adam and noise > 0 else noise / (1.0 - settings.momentum * (not adam))
    if speed == 0.0:
        return largest
    return min(largest, float(f"{WANDER / (speed * math.sqrt(max(weights, 1) * plan.steps)):.3g}"))
