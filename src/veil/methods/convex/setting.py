"""The setting of a convex method: the loss with its constants, the two balls, and what planning needs of the facts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from torch import nn

from veil.accounting import AccountingError, Relation
from veil.accounting.calibration import Build, noise_multiplier
from veil.errors import InputError, require
from veil.methods.convex.losses import Constants, Hinge, Loss, SmoothedHinge, certified
from veil.methods.convex.rows import LinearRows, choose_loss, clamp_targets, linear_layer, read_rows, weight_shape
from veil.methods.families import Private
from veil.plans import Settings
from veil.problem import Problem, PublicFacts

Floats = NDArray[np.float64]
ROUNDED = 0.5
# What the hinge becomes where a smooth loss is needed: it lies below the hinge by at most half of this.
NARROW = 0.1
TARGET_BOUND = 1.0


@dataclass(frozen=True)
class LinearSetting:
    """A certified loss of a linear score over public balls.

    `bias_of_loss`: how far it may lie below the loss asked for.
    """

    method: str
    facts: PublicFacts
    loss: Loss
    constants: Constants
    feature_radius: float
    weight_radius: float
    bias_of_loss: float = 0.0

    @property
    def dimension(self) -> int:
        """How many weights are released (a bias counted)."""
        return math.prod(weight_shape(self.facts, bias=True))

    @property
    def sizes(self) -> Floats:
        """Declared rows per group."""
        return np.array(self.facts.group_sizes, dtype=np.float64)

    @property
    def loss_at_zero(self) -> float:
        """What a row of a class loses at w = 0: the same for every row."""
        scores = np.zeros((1, weight_shape(self.facts, bias=False)[1]))
        return float(self.loss.values(scores, np.ones(1))[0])

    def says_nothing(self, bound: float) -> bool:
        """Whether a bound is no better than that of w = 0, which needs no rows."""
        return bound >= self.most_of_nothing

    @property
    def most_of_nothing(self) -> float:
        """The excess of w = 0, at most: its loss less the lowest possible, which some rows reach."""
        if self.facts.task != "classification":
            return self.constants.range
        return self.loss_at_zero - self.constants.low

    def excess_risk(self, bound: float, of: str) -> dict[str, Any]:
        """The plan's bound as reports show it: a number with a sentence.

        `uncompared` is what to add where no released value tells what w = 0 loses; None where the bound says nothing.
        """
        rows = f"{of}, rows shortened to length {self.feature_radius:.3g}"
        if self.says_nothing(bound):
            line = f"An upper bound ({rows}). Weights of 0, which need no rows, have no larger one: it says nothing."
            return {"value": bound, "sentence": line, "uncompared": None}
        apart = f"their excess is between 0 and {self.most_of_nothing:.3g}, and nothing released tells where"
        return {
            "value": bound,
            "sentence": f"An upper bound ({rows}) that holds in expectation, with its constants.",
            "uncompared": f"Not compared with weights of 0, which need no rows: {apart}.",
        }

    def details(self) -> dict[str, Any]:
        """Its description in a plan."""
        return {
            "loss": self.loss.name,
            "lipschitz": self.constants.lipschitz,
            "loss_range": self.constants.range,
            "diameter": 2 * self.weight_radius,
        }

    def layer(self, model: nn.Module) -> nn.Linear:
        """The model's linear layer; raises if there is none."""
        layer = linear_layer(model, self.method)
        features, outputs = math.prod(self.facts.input_shape), self.facts.outputs
        require(
            (layer.in_features, layer.out_features) == (features, outputs),
            f"{self.method} needs a linear model of {features} features and {outputs} outputs",
        )
        return layer

    def read(self, problem: Problem, rows: NDArray[np.int64], bias: bool) -> LinearRows:
        """Rows in the feature ball, with targets in their range. Their cost is reserved before."""
        return clamp_targets(read_rows(problem, rows, self.feature_radius, bias), self.loss)


@dataclass(frozen=True)
class LinearMethod(Private):
    """What all methods share that train a linear model as a whole, over two public balls, with a bound on its risk."""

    family: ClassVar[str] = "convex, with proofs"
    relation: ClassVar[str | None] = "replace-one"
    whole: ClassVar[bool] = True

    loss: Literal["logistic", "smoothed-hinge", "hinge", "squared"] | None = None
    feature_radius: float | None = None
    weight_radius: float = 5.0

    def radius_for(self, facts: PublicFacts) -> float:
        """The length that rows are shortened to.

        Where nobody gave it, it is 1 for classes (every row is longer than that, and a class does not change when
        its row is shortened) and √features for numbers (rows in [−1, 1] stay as they are).
        """
        if self.feature_radius is not None:
            return self.feature_radius
        return 1.0 if facts.task == "classification" else math.sqrt(math.prod(facts.input_shape) + 1)

    def setting(self, facts: PublicFacts, settings: Settings, *, smooth: bool = False) -> LinearSetting:
        """Check what was asked for and certify the constants; from public facts alone."""
        require(settings.ema == 0, f"{self.name} already averages the weights: leave ema at 0")
        require(settings.noise_filter == "none", f"{self.name} does not support a noise filter")
        chosen = choose_loss(self.loss, facts, ROUNDED, TARGET_BOUND)
        below, radius = 0.0, self.radius_for(facts)
        if smooth and isinstance(chosen, Hinge):
            chosen, below = SmoothedHinge(NARROW), NARROW / 2
        constants = certified(chosen, radius, self.weight_radius, TARGET_BOUND)
        return LinearSetting(self.name, facts, chosen, constants, radius, self.weight_radius, below)


@dataclass(frozen=True)
class LinearSolver:
    """What solvers of a linear model share."""

    setting: LinearSetting

    def check(self, model: nn.Module) -> None:
        """Linear models only."""
        self.setting.layer(model)


def reach_of(relation: Relation) -> int:
    """How many bounds a neighbour can move a sum by."""
    return 1 if relation is Relation.ADD_REMOVE else 2


def noise_for_cell(build: Build, cell: int, facts: PublicFacts, settings: Settings) -> float:
    """The smallest κ at which `build(κ)` stays within the cell's budget."""
    budget = facts.budget_of(cell, settings.epsilon)
    try:
        return noise_multiplier(build, budget, settings.delta_for(facts), settings.accountant_for(facts))
    except AccountingError as error:
        raise InputError(f'no noise gives group "{facts.cell_name(cell)}" ε = {budget:g}: {error}') from error


def tightest_cells(facts: PublicFacts, settings: Settings) -> dict[int, int]:
    """The cell of each group whose owner has the smallest budget."""
    found: dict[int, int] = {}
    for index, cell in enumerate(facts.cells):
        budget = facts.budget_of(index, settings.epsilon)
        if cell.group not in found or budget < facts.budget_of(found[cell.group], settings.epsilon):
            found[cell.group] = index
    return found
