"""The learning rate where none was given, from public constants: noise, model, steps and batch.

    rate = min(1/2, R·(1 − μ)·b / (σ·√(d·T)))

σ/b is the noise in every coordinate of an update: the most that it can be, where thresholds that move or a length that
is restored carry it along (that of the first threshold, where nothing ends its rise: adaptive-clip without
steady_length), and its root mean square over the groups, where a lottery picks one at a time. So
σ/b·rate/(1 − μ)·√(d·T) is how far noise alone carries the d weights in T steps with momentum μ: at most R = 15. A
method with more noise takes shorter steps, and where noise is small the rate is that of training without it. Adam
divides by the size of the gradient, so that its noise has size 1.

Where a test takes back updates that do not help (DPSUR), momentum starts anew after each that failed, and a step of
noise alone fails at least half of the tests. So each try carries noise by √(½·Σ_k 2^-k·((1 − μ^k)/(1 − μ))²), not by
1/(1 − μ): 1.49 in place of 10 at μ = 0.9.

Where one linear layer is trained, over rows that the model itself brings to length 1 (so B = √2 with the 1
of a bias), more is known: noise moves a score by σ/b·rate/(1 − μ)·√T·B, whatever d is, and the loss has a curvature
of about L:

    rate = min((1 + μ)/L, S·(1 − μ)·b / (σ·√T·B))        with S = 3 and, for K classes, L = B²/K

(1 + μ)/L is half of the rate at which training without noise no longer settles, by the curvature of a model that gives
every class the same score.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from torch import nn

from veil.models.pretrained import UnitLength
from veil.models.tables import Scale
from veil.models.whitened import Projection, Whitening
from veil.plans import Plan
from veil.plans.controllers import loudest_release

WANDER, SCORE = 15.0, 3.0
LARGEST = {"sgd": 0.5, "adam": 0.01, "adamw": 0.01}
UNBOUNDED = 0.05
# What gives rows of length 1 at most. Scale stands in `additive`, whose columns lie in [−1, 1] and share that length.
OF_LENGTH_1 = (UnitLength, Projection, Whitening, Scale)


def with_learning_rate(plan: Plan, model: nn.Module) -> Plan:
    """The plan with a learning rate: as it was given, or from public constants."""
    settings = plan.settings
    if settings.learning_rate is not None:
        return plan
    weights = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    rate = automatic_rate(plan, weights, longest_row(model))
    return replace(plan, settings=settings.model_copy(update={"learning_rate": rate}))


def automatic_rate(plan: Plan, weights: int, length: float | None = None) -> float:
    """The rate for a model of so many weights, or for a linear one over rows of at most a length, to three digits."""
    settings, release = plan.settings, loudest_release(plan.controller)
    adam = settings.optimizer != "sgd"
    noise = release.update_noise(plan.facts)
    speed = 1.0 if adam and noise > 0 else noise * _carried(plan, settings.momentum * (not adam))
    if length is not None and not adam:
        largest = _three_digits((1.0 + settings.momentum) / _curvature(plan, length))
        reach = SCORE / (length * math.sqrt(plan.steps))
    else:
        # Where nothing bounds the gradients, the rate must suit long ones.
        largest = LARGEST[settings.optimizer] if release.bound.needs_norms or adam else UNBOUNDED
        reach = WANDER / math.sqrt(max(weights, 1) * plan.steps)
    return largest if speed == 0.0 else min(largest, _three_digits(reach / speed))


def _carried(plan: Plan, momentum: float) -> float:
    """How far momentum carries the noise of one step, in learning rates."""
    if plan.gate is None or plan.gate.threshold > 0:
        return 1.0 / (1.0 - momentum)
    # Σ 2^-k·(1 − μ^k)² over the k-th step since momentum started anew; half of the tries are kept.
    squares = 1.0 - 2.0 * momentum / (2.0 - momentum) + momentum**2 / (2.0 - momentum**2)
    return math.sqrt(squares / 2.0) / (1.0 - momentum)


def longest_row(model: nn.Module) -> float | None:
    """How long a row before the only trained layer can be, the 1 of its bias included; None where that is not known.

    >>> longest_row(nn.Sequential(UnitLength(), nn.Linear(3, 2, bias=False)))
    1.0
    >>> longest_row(nn.Linear(3, 2)) is None
    True
    """
    trained = [module for module in model.modules() if any(p.requires_grad for p in module.parameters(recurse=False))]
    layers = [layer for layer in _in_order(model) if not isinstance(layer, nn.Flatten | nn.Identity)]
    if len(layers) < 2 or not isinstance(layers[-2], OF_LENGTH_1):
        return None
    last = layers[-1]
    return math.hypot(1.0, last.bias is not None) if isinstance(last, nn.Linear) and trained == [last] else None


def _in_order(model: nn.Module) -> Iterator[nn.Module]:
    """The layers of a model that calls one after the other."""
    if type(model) is not nn.Sequential:
        yield model
        return
    for part in model:
        yield from _in_order(part)


def _curvature(plan: Plan, length: float) -> float:
    """The curvature of the loss in the weights of a linear model that gives every class the same score."""
    outputs = plan.facts.outputs
    per_score = {"classification": 1.0 / max(outputs, 2), "multi-label": 0.25 / outputs, "regression": 2.0}
    return length**2 * per_score[plan.facts.task]


def _three_digits(rate: float) -> float:
    return float(f"{rate:.3g}")
