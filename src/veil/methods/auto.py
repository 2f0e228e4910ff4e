"""Auto: a linear model over the columns of a table, configured by public facts, that weights groups by their errors.

    once:        places of knots for columns of numbers, with noise; then mean and second moments of the rows, with
                 noise: rows are whitened by them
    every step:  all rows; a step's length, and how far all steps lead, follow from rows, ε and δ
    now and then: the errors of each group, with noise; groups with more errors weigh more, at most `cap` times
    at the end:  for two classes, the best cut for the aim, from one noisy release

Numbers are predicted alike, with targets in [−1, 1] and squared errors whose slope is bounded.

`veil.methods.convex.steered_descent`, `steering` and `offsets` have the formulas in full. Over columns that are cut
into knots the model is additive: what it learned of every column can be drawn.

Aims: `worst-group` steers by released errors; `balanced` gives every group the same weight; `overall` every row. Where
the groups are three or more classes, `worst-group` starts with classes that weigh the same, and steers more often.

Guarantee: all rows take part in every release; everything is a Gaussian release, fixed in the plan and composed
exactly. What a group's weight is follows from values that were released before.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from veil.accounting import Repeated, TokenBucket
from veil.accounting.calibration import noise_multiplier
from veil.accounting.events import Gaussian, repeated
from veil.bounding import Clip
from veil.errors import require, require_above_zero
from veil.methods.calibrating import relation_for
from veil.methods.convex.cross_choice import CrossRelease
from veil.methods.convex.knot_places import KnotRelease
from veil.methods.convex.offsets import AIMS, Aim, OffsetChoice
from veil.methods.convex.setting import noise_for_cell
from veil.methods.convex.steered_descent import Noises, SteeredDescent
from veil.methods.convex.steering import Steering, Units, rows_to_be_heard, units_of
from veil.methods.convex.whitening import WhiteningRelease
from veil.methods.families import PrivateAndFair
from veil.methods.registry import known_as
from veil.plans import Plan, Settings
from veil.plans.controllers.solver import Described
from veil.problem import PublicFacts
from veil.releases import GradientRelease
from veil.sampling.draws import Poisson

# So many steps, or as many more as keep one no longer than this: longer ones swing where the weights should settle.
STEPS, MOST_STEPS, LONGEST_STEP = 40, 100, 120.0
# Steps lead so far in all, for each row that stands against the noise of a single release. What lies beyond the most
# steps is no way to go: by then weights have settled.
TRAVEL, LEAST_TRAVEL = 0.5, 200.0
# Squared errors curve about five times as much as a softmax.
FOR_NUMBERS = 0.2
# Knots for each root of that number.
KNOTS, FEWEST, MOST = 0.25, 4, 64
# Columns that are crossed, where n/κ is at least so much.
CROSSED_COLUMNS, CARRIES_CROSSES = 6, 4000.0
# Histograms that knots are placed by: how many bins, and how many stages where n/κ is at least so much.
BINS, STAGES, SEEN = 48, 3, 1000.0
# Steps between releases of group errors, more where there are more steps; and where groups are three or more classes.
EVERY, EVERY_OF_CLASSES = 4, 3
_SHARES = ("knot_share", "cross_share", "mean_share", "moment_share", "error_share", "offset_share")


@known_as("auto", "an additive model for tables without tuning: whitening, full-batch steps, group errors")
class Auto(PrivateAndFair):
    """Whiten, then full-batch gradient descent, with group weights from released errors."""

    whole: ClassVar[bool] = True
    sums_rows: ClassVar[bool] = True

    aim: Aim = "worst-group"
    clip: float = 0.3
    knot_share: float = 0.05
    cross_share: float = 0.03
    mean_share: float = 0.02
    moment_share: float = 0.1
    error_share: float = 0.08
    offset_share: float = 0.08
    whitening: float = 0.35
    floor: float = 0.001
    momentum: float = 0.5
    every: int | None = None
    pace: float = 1.5
    slower: float = 0.5
    cap: float = 4.0
    neighbours: Literal["add-remove", "replace-one"] = "add-remove"

    def plan(self, facts: PublicFacts, settings: Settings) -> Plan:
        """One noise for the whole run, split between the releases."""
        self._check(facts, settings)
        relation, steps = relation_for("poisson", self.neighbours), settings.steps or steps_for(facts, settings)
        cells, crosses = range(len(facts.cells)), crossed_for(facts, settings) > 0
        usual = EVERY_OF_CLASSES if _are_classes(facts) else EVERY
        every = self.every or max(usual, round(usual * steps / STEPS))

        def solver(kappa: float) -> SteeredDescent:
            """κ is the noise of a single release that would cost as much as the whole run."""
            units = units_of(facts, rows_to_be_heard(self.noise_of_errors(kappa)))
            steering = Steering(units, every, self.pace, self.slower, self.cap)
            releases = len(steering.releases(steps)) if self.aim == "worst-group" else 0
            return SteeredDescent(
                self._noises(kappa, steps, releases, facts, crosses),
                relation,
                steering if releases else Steering(units, steps, 0.0, 0.0, self.cap),
                OffsetChoice(units, self.aim),
                _start(facts, units, self.aim),
                self.clip,
                steps,
                _travel(facts, facts.rows / kappa),
                self.momentum,
                settings.secure_noise,
            )

        def tokens(kappa: float) -> list[Repeated]:
            return [Repeated(event, count) for _, count, event in solver(kappa).events()]

        tightest = {facts.budget_of(cell, settings.epsilon): cell for cell in reversed(cells)}
        needed = max(noise_for_cell(tokens, cell, facts, settings) for cell in tightest.values())
        chosen = solver(needed)
        heard = rows_to_be_heard(self.noise_of_errors(needed))
        pooled = chosen.steering.units.pooled(facts.groups, facts.group_sizes, heard)
        details = {
            "noise_multiplier": chosen.noises.gradients,
            "sampling": "all rows",
            "batch": facts.rows,
            "aim": self.aim,
            "rows_to_be_heard": math.ceil(heard),
            "heard_together": pooled,
        }
        release = GradientRelease(
            Poisson((1.0,) * len(cells)),
            Clip((self.clip,) * len(cells)),
            self.clip * chosen.noises.gradients,
            1.0,
            relation,
        )
        rules = (TokenBucket(repeated(tokens(needed))),) * len(cells)
        controller = Described(release, self.name)
        return Plan(self.name, facts, settings, steps, controller, relation, rules, details=details, solver=chosen)

    def noise_of_errors(self, kappa: float) -> float:
        """The noise of everything that is released of a group's errors, taken together."""
        return kappa / math.sqrt(self.error_share + self.offset_share)

    def _noises(self, kappa: float, steps: int, releases: int, facts: PublicFacts, crosses: bool) -> Noises:
        """The noise of each release; what is not released leaves its share to the gradients."""
        errors = self.error_share if releases else 0.0
        offset = self.offset_share if len(facts.classes) == 2 else 0.0
        knots = self.knot_share if len(facts.input_shape) < 3 else 0.0
        crossed = self.cross_share if crosses else 0.0
        rest = 1.0 - knots - crossed - self.mean_share - self.moment_share - errors - offset
        relation = relation_for("poisson", self.neighbours)
        stages = STAGES if facts.rows / kappa > SEEN else 1
        shares = self.mean_share, self.moment_share
        white = WhiteningRelease.of(kappa, shares, relation, self.whitening, self.floor)
        return Noises(
            KnotRelease(kappa * math.sqrt(stages / knots), relation, stages, BINS) if knots else None,
            CrossRelease(kappa / math.sqrt(crossed), relation) if crossed else None,
            white,
            kappa * math.sqrt(steps / rest),
            kappa * math.sqrt(releases / errors) if errors else None,
            kappa / math.sqrt(offset) if offset else None,
        )

    def _check(self, facts: PublicFacts, settings: Settings) -> None:
        require(self.aim in AIMS, f'aim is "{self.aim}": it must be one of {", ".join(AIMS)}')
        require(settings.ema == 0, f"{self.name} already averages the weights: leave ema at 0")
        require(settings.noise_filter == "none", f"{self.name} does not support a noise filter")
        require_above_zero(self, "clip", "floor", *_SHARES)
        for name in ("whitening", "pace", "slower"):
            value = getattr(self, name)
            require(value >= 0, f"{name} is {value}: it must be at least 0")
        require(0 <= self.momentum < 1, f"momentum is {self.momentum}: it must be at least 0 and below 1")
        require(self.every is None or self.every >= 1, f"every is {self.every}: it must be at least 1")
        require(self.cap >= 1, f"cap is {self.cap}: it must be at least 1")
        require(
            sum(getattr(self, name) for name in _SHARES) < 1,
            "the shares must sum to less than 1, to leave budget for training",
        )


def _are_classes(facts: PublicFacts) -> bool:
    """Whether the groups are three or more classes."""
    return len(facts.classes) > 2 and sorted(facts.groups) == sorted(facts.classes)


def _start(facts: PublicFacts, units: Units, aim: Aim) -> tuple[float, ...]:
    """The starting weight of each unit: that of its rows, or the same for each unit.

    Where the groups are the classes, a rare one would be predicted for nobody until its errors are released. Of two
    classes the cut takes care.
    """
    if aim == "overall" or (aim == "worst-group" and not _are_classes(facts)):
        return (0.0,) * len(units.rows)
    # A unit that is not heard weighs as much as the average row, but a class must be predicted for somebody.
    weighed = [True] * len(units.rows) if aim == "worst-group" else list(units.heard)
    heard = [rows for rows, own in zip(units.rows, weighed, strict=True) if own]
    mean = sum(rows * math.log(rows) for rows in heard) / max(sum(heard), 1)
    return tuple(mean - math.log(rows) if own else 0.0 for rows, own in zip(units.rows, weighed, strict=True))


def steps_for(facts: PublicFacts, settings: Settings) -> int:
    """How many steps, from public facts: more where all of them lead further.

    >>> from veil.problem import Cell
    >>> facts = PublicFacts(("all",), ("all",), (Cell(0, 0, 30_000),), (1,))
    >>> [steps_for(facts, Settings.checked(epsilon=epsilon)) for epsilon in (1.0, 3.0, 8.0)]
    [40, 93, 100]
    """
    return min(MOST_STEPS, max(STEPS, math.ceil(_travel(facts, _standing_out(facts, settings)) / LONGEST_STEP)))


def _travel(facts: PublicFacts, standing_out: float) -> float:
    """How far all steps lead, from rows for each unit of noise of a single release."""
    far = min(max(TRAVEL * standing_out, LEAST_TRAVEL), MOST_STEPS * LONGEST_STEP)
    return far * (1.0 if facts.task == "classification" else FOR_NUMBERS)


def knots_for(facts: PublicFacts, settings: Settings) -> int:
    """How many knots a column of numbers gets, from public facts: more with more rows and a larger ε.

    >>> from veil.problem import Cell
    >>> facts = PublicFacts(("all",), ("all",), (Cell(0, 0, 30_000),), (1,))
    >>> knots_for(facts, Settings.checked(epsilon=1.0))
    24
    """
    return 1 + min(MOST, max(FEWEST, round(KNOTS * math.sqrt(_standing_out(facts, settings)))))


def crossed_for(facts: PublicFacts, settings: Settings) -> int:
    """How many columns are crossed with each other: none where rows and ε are too few."""
    if len(facts.input_shape) == 3 or _standing_out(facts, settings) < CARRIES_CROSSES:
        return 0
    return CROSSED_COLUMNS


def noise_of_one(facts: PublicFacts, settings: Settings) -> float:
    """κ: the noise multiplier of a single release that costs the whole budget."""
    budget = min(facts.budget_of(cell, settings.epsilon) for cell in range(len(facts.cells)))
    return noise_multiplier(_single, budget, settings.delta_for(facts), settings.accountant_for(facts))


def _standing_out(facts: PublicFacts, settings: Settings) -> float:
    """Rows for each unit of noise of a single release."""
    return facts.rows / noise_of_one(facts, settings)


def _single(kappa: float) -> list[Repeated]:
    return [Repeated(Gaussian(kappa))]
