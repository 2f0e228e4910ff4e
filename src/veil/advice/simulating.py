"""Simulating: `auto` on made-up rows of the same shape, at the noise of a real run.

Whatever `auto` derives from public facts follows from rows over noise, n/κ. So a run on a tenth of the rows with a
tenth of the noise is the same run, but for which rows were drawn: large tables are simulated with fewer rows.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
import torch

from veil.accounting import Gaussian, Ledger
from veil.advice.made_up import Difficulty, Shape, World, problem_of
from veil.foundation.randomness import Seed
from veil.methods import Method, planned
from veil.methods.auto import crossed_for, knots_for, noise_of_one
from veil.models import build_model
from veil.plans import Settings
from veil.problem import PublicFacts

ROWS = 6_000
MEASURED = 400
WORLDS = 2
TYPICAL = Difficulty(right=0.8, own=0.4, shares=0.4)
"""Four rows of five can be predicted right where classes are equally frequent: about what public tables allow."""


@dataclass(frozen=True)
class Simulated:
    """The accuracy of each group on new made-up rows, and the seconds that training on all rows would take."""

    by_group: tuple[float, ...]
    seconds: float


def simulate(shape: Shape, method: Method, settings: Settings) -> Simulated:
    """The mean over a few made-up worlds; the seeds are fixed, so the same facts give the same figures."""
    found = [_in_world(shape, method, settings, Seed.from_int(1 + world)) for world in range(WORLDS)]
    means = np.mean([one.by_group for one in found], axis=0)
    return Simulated(tuple(map(float, means)), min(one.seconds for one in found))


def _in_world(shape: Shape, method: Method, settings: Settings, seed: Seed) -> Simulated:
    """Train on made-up rows with the noise of a real run, and measure on others."""
    facts = shape.facts
    share = min(1.0, ROWS / facts.rows)
    world = World.made(shape, TYPICAL, seed)
    problem = problem_of(world, [max(1, round(share * size)) for size in facts.group_sizes], seed)
    scaled = _scaled(settings, facts, share)
    plan = planned(method, problem.public, scaled)
    starts = np.cumsum([0, *shape.widths[:-1]]).tolist()
    options = {
        "blocks": shape.widths,
        "numbers": [start for start, number in zip(starts, shape.numeric, strict=True) if number],
        "knots": knots_for(problem.public, scaled),
        "crossed": crossed_for(problem.public, scaled),
        "first": sorted(shape.values),
    }
    model = build_model("additive", problem.public, seed, **options)
    assert plan.solver is not None, "auto trains as a whole"
    start = time.process_time()
    plan.solver.solve(model, problem, seed, Ledger(plan.terms()), lambda step, state: None)
    return Simulated(_measured(world, model, seed), (time.process_time() - start) / share)


def _measured(world: World, model: torch.nn.Module, seed: Seed) -> tuple[float, ...]:
    groups = range(len(world.shape.facts.groups))
    rows, target, group = world.rows([MEASURED] * len(groups), replace(seed, secret=seed.key("new rows", 0)))
    with torch.no_grad():
        right = model(torch.from_numpy(rows).float()).argmax(dim=1).numpy() == target
    return tuple(float(right[group == index].mean()) for index in groups)


def _scaled(settings: Settings, facts: PublicFacts, share: float) -> Settings:
    """Settings at which a share of the rows has that share of the noise."""
    delta, accountant = settings.delta_for(facts), settings.accountant_for(facts)
    epsilon = settings.epsilon
    if share < 1.0:
        epsilon = accountant.epsilon([Gaussian(share * noise_of_one(facts, settings))], delta)
    return settings.model_copy(update={"delta": delta, "epsilon": epsilon})
