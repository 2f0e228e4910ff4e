"""Planning noisy SGD over groups: rates, noise per group, steps and step sizes from public facts and the budgets."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from veil.accounting import (
    Event,
    Gaussian,
    Laplace,
    NoisyMax,
    PoissonGaussian,
    Relation,
    Repeated,
    TokenBucket,
    repeated,
)
from veil.bounding import Clip
from veil.errors import require
from veil.methods.convex.limits import risk_details
from veil.methods.convex.reweighting import Choice, Gradient, NoisySgd, Release, best_rates
from veil.methods.convex.setting import (
    LinearSetting,
    noise_for_cell,
    reach_of,
    tightest_cells,
)
from veil.plans import Plan, Settings
from veil.plans.controllers.solver import Described
from veil.problem import PublicFacts
from veil.releases import GradientRelease
from veil.sampling.draws import OneGroup, Poisson

Sizes = Literal["own", "n-min"]
MOST_STEPS = 1000
_SHARES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
SAME_GROUP = "Every group is charged as if it were chosen at every step."


@dataclass(frozen=True)
class Asked:
    """The user's options of MGR or AGS."""

    choice: Choice
    release: Release
    relation: Relation
    batch: int | None
    sizes: Sizes
    share: float | None
    gradient: Gradient = "one-group"

    def __post_init__(self) -> None:
        known = ("gaussian", "laplace") if self.choice == "mgr" else ("gumbel", "laplace")
        require(self.release in known, f'release is "{self.release}": it must be {" or ".join(known)}')
        parts = ("one-group", "all-groups") if self.choice == "mgr" else ("one-group",)
        require(self.gradient in parts, f'gradient is "{self.gradient}": it must be {" or ".join(parts)}')
        require(self.sizes in ("own", "n-min"), f'sizes is "{self.sizes}": it must be own or n-min')
        require(self.batch is None or self.batch >= 1, f"batch is {self.batch}: it must be at least 1")
        require(self.share is None or 0 < self.share < 1, f"share is {self.share}: it must be between 0 and 1")


@dataclass(frozen=True)
class Calibrated:
    """Noise per group: on the sum of gradients (κ_i·L), and the scale on a group's mean loss."""

    gradient_kappas: tuple[float, ...]
    loss_scales: tuple[float, ...]


def choice_event(asked: Asked, scale: float, rows: int, half_range: float) -> Event:
    """What a row of a group of `rows` is charged for one choice, at noise `scale` on the mean losses.

    A row moves one score only, its group's: by B/(2n) if it comes or goes. A Gumbel maximum then has the bounded range
    (that move)/scale, half of what `NoisyMax` assumes of scores that may all move, and of opposite moves; so the event
    is written at the noise multiplier whose range is the true one.
    """
    multiplier = scale * rows / half_range
    if asked.release == "gaussian":
        return Gaussian(multiplier, asked.relation)
    if asked.release == "laplace":
        return Laplace(multiplier, asked.relation)
    if asked.relation is Relation.ADD_REMOVE:
        return NoisyMax(multiplier, asked.relation, monotone=True)
    return NoisyMax(2 * multiplier, asked.relation)


def gradient_event(asked: Asked, kappa: float, rate: float) -> Event:
    """What a row of the chosen group is charged for one gradient."""
    return Gaussian(kappa, asked.relation) if rate == 1.0 else PoissonGaussian(kappa, rate, asked.relation)


def plan_noisy_sgd(setting: LinearSetting, facts: PublicFacts, settings: Settings, asked: Asked) -> Plan:
    """The whole plan of MGR or AGS."""
    rates = tuple(1.0 if asked.batch is None else min(1.0, asked.batch / n) for n in facts.group_sizes)
    steps, share = best_length(setting, settings, asked, rates)
    noise = calibrate(setting, settings, asked, rates, steps, share)
    sizes, half = facts.group_sizes, setting.constants.range / 2
    gradient_events = tuple(gradient_event(asked, noise.gradient_kappas[c.group], rates[c.group]) for c in facts.cells)
    choices = tuple(choice_event(asked, noise.loss_scales[c.group], sizes[c.group], half) for c in facts.cells)
    lipschitz = setting.constants.lipschitz
    stds = [k * lipschitz / (q * n) for k, q, n in zip(noise.gradient_kappas, rates, sizes, strict=True)]
    drawn = min(q * n for q, n in zip(rates, sizes, strict=True))
    scales = (max(stds), max(noise.loss_scales), drawn)
    found = best_rates(setting, asked.choice, asked.release, steps, *scales, asked.gradient)
    solver = NoisySgd(
        setting,
        asked.relation,
        asked.choice,
        asked.release,
        steps,
        rates,
        tuple(kappa * lipschitz for kappa in noise.gradient_kappas),
        noise.loss_scales,
        found.step_size,
        found.weight_step,
        gradient_events,
        choices,
        settings.secure_noise,
        asked.gradient,
    )
    times = steps if len(facts.groups) > 1 else 0
    rules = tuple(
        # Equal events become one token: a bucket looks for the first that fits.
        TokenBucket(repeated([Repeated(gradient, steps), Repeated(choice, times)]))
        for gradient, choice in zip(gradient_events, choices, strict=True)
    )
    details = risk_details(setting, settings, asked.relation, found.bound, "on the training rows", training_rows=True)
    details |= _details(setting, asked, noise, share)
    return Plan(
        setting.method,
        facts,
        settings,
        steps,
        Described(_described(facts, asked, noise, rates), setting.method),
        asked.relation,
        rules,
        (SAME_GROUP,) if asked.gradient == "one-group" else (),
        details | {"step_size": found.step_size, "weight_step": found.weight_step, "rates": list(rates)},
        solver=solver,
    )


def calibrate(
    setting: LinearSetting, settings: Settings, asked: Asked, rates: tuple[float, ...], steps: int, share: float
) -> Calibrated:
    """Noise at which every group's tightest budget is met: numerically, whatever the batch (Theorem 9 has no such)."""
    facts, half = setting.facts, setting.constants.range / 2
    cells, sizes = tightest_cells(facts, settings), facts.group_sizes
    times = steps if len(sizes) > 1 else 0
    ratio = math.sqrt((1 - share) / share) * (0.5 if asked.release == "gumbel" else 1.0)

    def joint(group: int) -> Callable[[float], list[Repeated]]:
        def build(kappa: float) -> list[Repeated]:
            scale = ratio * kappa / rates[group] * half / sizes[group]
            choice = choice_event(asked, scale, sizes[group], half)
            return list(
                repeated([Repeated(gradient_event(asked, kappa, rates[group]), steps), Repeated(choice, times)])
            )

        return build

    def key(group: int) -> tuple[float, ...]:
        return rates[group], sizes[group], facts.budget_of(cells[group], settings.epsilon)

    groups = range(len(sizes))
    kappas = _alike(groups, key, lambda g: noise_for_cell(joint(g), cells[g], facts, settings))
    scales = [ratio * kappas[g] / rates[g] * half / sizes[g] for g in groups]
    if asked.choice == "ags" or asked.sizes == "n-min":
        scales = [max(scales)] * len(sizes)
    if asked.sizes == "n-min":
        worst = max(kappas[g] / (rates[g] * sizes[g]) for g in groups)
        kappas = [max(worst * rates[g] * sizes[g], kappas[g]) for g in groups]
    elif asked.choice == "ags" and times:
        # Larger groups pay less for the one noise on the choice: what is left goes to their gradients.
        def alone(group: int) -> Callable[[float], list[Repeated]]:
            choice = Repeated(choice_event(asked, scales[group], sizes[group], half), times)
            return lambda kappa: [Repeated(gradient_event(asked, kappa, rates[group]), steps), choice]

        spared = _alike(groups, key, lambda g: noise_for_cell(alone(g), cells[g], facts, settings))
        kappas = [min(first, second) for first, second in zip(kappas, spared, strict=True)]
    return Calibrated(tuple(kappas), tuple(scales))


def _alike(groups: range, key: Callable[[int], tuple[float, ...]], find: Callable[[int], float]) -> list[float]:
    """`find` of every group, computed once for groups with the same key."""
    known: dict[tuple[float, ...], float] = {}
    for group in groups:
        if key(group) not in known:
            known[key(group)] = find(group)
    return [known[key(group)] for group in groups]


def best_length(
    setting: LinearSetting, settings: Settings, asked: Asked, rates: tuple[float, ...]
) -> tuple[int, float]:
    """Steps and the share of the budget for choosing groups: as asked, or those with the smallest upper bound.

    The search takes one Gaussian release at the budget and scales it by √T and by the rate; the plan then calibrates.
    """
    facts, constants = setting.facts, setting.constants
    cells, sizes = tightest_cells(facts, settings), facts.group_sizes
    singles = _alike(
        range(len(sizes)),
        lambda g: (facts.budget_of(cells[g], settings.epsilon),),
        lambda g: noise_for_cell(lambda kappa: [Gaussian(kappa, asked.relation)], cells[g], facts, settings),
    )
    worst = max(single / size for single, size in zip(singles, sizes, strict=True))
    lengths = [settings.steps] if settings.steps else sorted({int(t) for t in np.geomspace(10, MOST_STEPS, 25)})
    drawn = min(q * n for q, n in zip(rates, sizes, strict=True))
    best = (math.inf, lengths[0], 0.1)
    for steps in lengths:
        for share in [asked.share] if asked.share else _SHARES:
            std = worst * math.sqrt(steps / (1 - share)) * constants.lipschitz
            scale = worst * math.sqrt(steps / share) * constants.range / 2 * (0.5 if asked.release == "gumbel" else 1.0)
            noisy = (std, scale, drawn, asked.gradient)
            bound = best_rates(setting, asked.choice, asked.release, steps, *noisy).bound
            best = min(best, (bound, steps, share))
    return best[1], best[2]


def _described(facts: PublicFacts, asked: Asked, noise: Calibrated, rates: tuple[float, ...]) -> GradientRelease:
    """The gradient of one step as other plans show theirs: in units of the noise."""
    groups = tuple(cell.group for cell in facts.cells)
    chances = (1.0 / len(facts.groups),) * len(facts.groups)
    draw = OneGroup(Poisson(tuple(rates[group] for group in groups)), chances, groups)
    limits = tuple(1.0 / noise.gradient_kappas[group] for group in groups)
    return GradientRelease(draw, Clip(limits), 1.0, None, asked.relation)


def _details(setting: LinearSetting, asked: Asked, noise: Calibrated, share: float) -> dict[str, Any]:
    return {
        "noise_multiplier": min(noise.gradient_kappas),
        "gradient_noise_multipliers": list(noise.gradient_kappas),
        "loss_noise": list(noise.loss_scales),
        "loss_share": share,
        "release": asked.release,
        "gradient": asked.gradient,
        "sizes": asked.sizes,
        "reach": reach_of(asked.relation),
        **setting.details(),
        "sampling": "none" if asked.batch is None else "poisson",
    }
