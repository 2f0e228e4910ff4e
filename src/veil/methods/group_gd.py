"""Group GD: full-batch descent over privately whitened rows, with bounds and margins by group size (Veil's own).

    once:        mean and second moments of unit rows, with noise; rows are centred and whitened by them
    every step:  G = Σ_i min(1, C_g/‖gᵢ‖)·gᵢ + N(0, σ²·I),   C_g = C·(n_min/n_g)^power
                 where gᵢ is row i's softmax gradient, with a margin for rows of small groups

`veil.methods.convex.whitening` and `veil.methods.convex.group_descent` have the formulas in full.

What each part is for: whitening lets a linear layer converge in few steps, so that little noise is added in all; bounds
that shrink with a group's size make a small group's sum weigh as much as a large one's; the margin, public like the
sizes, has rows of small groups won by more.

Guarantee: all rows take part in every step, so everything is a Gaussian release, fixed in the plan and composed
exactly. The smallest group spends ε; larger groups have smaller bounds under the same noise and spend less, which their
certificates show.
"""

from __future__ import annotations

import math
from functools import partial
from typing import ClassVar, Literal

from veil.accounting import Repeated, TokenBucket
from veil.accounting.events import repeated
from veil.bounding import Clip
from veil.errors import require
from veil.methods.calibrating import relation_for
from veil.methods.convex.group_descent import GroupDescent, group_bounds, group_margins
from veil.methods.convex.setting import noise_for_cell
from veil.methods.convex.whitening import WhiteningRelease
from veil.methods.families import PrivateAndFair
from veil.methods.registry import known_as
from veil.plans import Plan, Settings
from veil.plans.controllers.solver import Described
from veil.problem import PublicFacts
from veil.releases import GradientRelease
from veil.sampling.draws import Poisson

STEPS = 40


@known_as("group-gd", "private whitening, then full-batch steps with bounds and margins by group size")
class GroupGd(PrivateAndFair):
    """Whiten, then descend with all rows."""

    whole: ClassVar[bool] = True
    sums_rows: ClassVar[bool] = True

    clip: float = 0.3
    power: float = 0.6
    margin: float = 2.0
    mean_share: float = 0.02
    moment_share: float = 0.08
    whitening: float = 0.25
    floor: float = 0.002
    step_size: float = 12.0
    neighbours: Literal["add-remove", "replace-one"] = "add-remove"

    def plan(self, facts: PublicFacts, settings: Settings) -> Plan:
        """One noise for the whole run, split between mean, second moments and gradients."""
        self._check(facts, settings)
        relation, steps = relation_for("poisson", self.neighbours), settings.steps or STEPS
        descent = 1.0 - self.mean_share - self.moment_share
        factors, cells = group_bounds(facts, self.power), range(len(facts.cells))
        bound = Clip(tuple(self.clip * factor for factor in factors))

        def parts(kappa: float) -> tuple[WhiteningRelease, GradientRelease]:
            """κ is the noise of a single release that would cost as much as the whole run."""
            shares = self.mean_share, self.moment_share
            white = WhiteningRelease.of(kappa, shares, relation, self.whitening, self.floor)
            sigma = self.clip * kappa * math.sqrt(steps / descent)
            return white, GradientRelease(Poisson((1.0,) * len(cells)), bound, sigma, 1.0, relation)

        def tokens(cell: int, kappa: float) -> list[Repeated]:
            white, release = parts(kappa)
            return [*(Repeated(event) for event in white.events()), Repeated(release.events(facts)[cell], steps)]

        needed = max(noise_for_cell(partial(tokens, cell), cell, facts, settings) for cell in _tightest(facts))
        white, release = parts(needed)
        events = release.events(facts)
        scale = self.clip * sum(cell.rows * factor for cell, factor in zip(facts.cells, factors, strict=True))
        solver = GroupDescent(
            white,
            bound.limits,
            group_margins(facts, self.margin),
            tuple(events[cell] for cell in cells),
            release.sigma,
            scale,
            steps,
            self.step_size,
            settings.momentum,
            settings.secure_noise,
        )
        details = {
            "noise_multiplier": release.sigma / self.clip,
            "mean_noise": white.mean_noise,
            "moment_noise": white.moment_noise,
            "sampling": "all rows",
            "batch": facts.rows,
        }
        rules = tuple(TokenBucket(repeated(tokens(cell, needed))) for cell in cells)
        controller = Described(release, self.name)
        return Plan(self.name, facts, settings, steps, controller, relation, rules, details=details, solver=solver)

    def _check(self, facts: PublicFacts, settings: Settings) -> None:
        require(facts.task == "classification", f"{self.name} needs classes: for regression use asc or dp-sgd")
        require(settings.ema == 0, f"{self.name} already averages the weights: leave ema at 0")
        require(settings.noise_filter == "none", f"{self.name} does not support a noise filter")
        for name in ("clip", "mean_share", "moment_share", "floor", "step_size"):
            value = getattr(self, name)
            require(0 < value < 1e6, f"{name} is {value}: it must be above 0 and below a million")
        for name in ("power", "margin", "whitening"):
            value = getattr(self, name)
            require(value >= 0, f"{name} is {value}: it must be at least 0")
        require(
            self.mean_share + self.moment_share < 1,
            "mean_share and moment_share must sum to less than 1, to leave budget for training",
        )


def _tightest(facts: PublicFacts) -> list[int]:
    """Of each owner the cell with the smallest group: its bound, and so its cost, is the largest."""
    sizes = facts.group_sizes
    found: dict[int, int] = {}
    for index, cell in enumerate(facts.cells):
        if cell.owner not in found or sizes[cell.group] < sizes[facts.cells[found[cell.owner]].group]:
            found[cell.owner] = index
    return list(found.values())
