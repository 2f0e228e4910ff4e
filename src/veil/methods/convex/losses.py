"""Convex losses of a linear score with constants that hold over a ball of weights and a ball of features.

With ‖w‖ ≤ r and ‖x‖ ≤ R a score is at most r·R in size. From that alone follow L (how fast a row's loss moves with w),
the range [low, high] of its values, and β (how fast its gradient moves). B = high − low: a constant that is added to
every row's loss changes no method here, so the range is what counts. `certified` checks the constants on a grid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from veil.errors import require

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Constants:
    """What holds for every row and every w in the ball; `steepness` is the largest ‖∂ℓ/∂score‖, L = steepness·R."""

    steepness: float
    lipschitz: float
    low: float
    high: float
    smoothness: float

    @property
    def range(self) -> float:
        """B: how far two rows' losses at the same w can be apart."""
        return self.high - self.low

    @property
    def middle(self) -> float:
        """The middle of the range: a loss less this is at most B/2 in size."""
        return (self.low + self.high) / 2


class Loss(Protocol):
    """A convex loss of the scores of a row (n × k) and its target."""

    @property
    def name(self) -> str:
        """As users write it."""
        ...

    def values(self, scores: Floats, targets: Floats) -> Floats:
        """The loss of each row."""
        ...

    def slopes(self, scores: Floats, targets: Floats) -> Floats:
        """A subgradient of each row's loss in its scores, n × k."""
        ...

    def constants(self, feature_radius: float, weight_radius: float) -> Constants:
        """What holds for ‖x‖ ≤ R and ‖w‖ ≤ r."""
        ...


@dataclass(frozen=True, slots=True)
class Logistic:
    """log(1 + e^(−y·s)) for y = ±1.

    Its slope is at most 1/(1 + e^(−rR)), its values lie between log(1 + e^(−rR)) and log(1 + e^(rR)): B = r·R.

    >>> Logistic().constants(1.0, 2.0).range
    2.0
    """

    name: str = "logistic"

    def values(self, scores: Floats, targets: Floats) -> Floats:
        """log(1 + e^(−y·s))."""
        return np.logaddexp(0.0, -targets * scores[:, 0])

    def slopes(self, scores: Floats, targets: Floats) -> Floats:
        """−y / (1 + e^(y·s))."""
        return (-targets * np.exp(-np.logaddexp(0.0, targets * scores[:, 0])))[:, None]

    def constants(self, feature_radius: float, weight_radius: float) -> Constants:
        """Slope, range and curvature 1/4."""
        most = feature_radius * weight_radius
        steep = 1.0 / (1.0 + math.exp(-most))
        low = math.log1p(math.exp(-most))
        return Constants(steep, steep * feature_radius, low, low + most, feature_radius**2 / 4)


@dataclass(frozen=True, slots=True)
class SmoothedHinge:
    """The hinge with its corner rounded over a width h: 0 from margin 1 on, a straight line below margin 1 − h.

    It lies below the hinge by at most h/2.
    """

    width: float = 0.5
    name: str = "smoothed-hinge"

    def __post_init__(self) -> None:
        require(self.width > 0, f"the width of the smoothed hinge is {self.width}: it must be above 0")

    def values(self, scores: Floats, targets: Floats) -> Floats:
        """(1 − m)²/(2h) on the rounded part, 1 − m − h/2 below it."""
        gap = np.maximum(0.0, 1.0 - targets * scores[:, 0])
        return np.where(gap < self.width, gap**2 / (2 * self.width), gap - self.width / 2)

    def slopes(self, scores: Floats, targets: Floats) -> Floats:
        """−y·min(1, (1 − m)/h) where the margin is below 1."""
        gap = np.maximum(0.0, 1.0 - targets * scores[:, 0])
        return (-targets * np.minimum(1.0, gap / self.width))[:, None]

    def constants(self, feature_radius: float, weight_radius: float) -> Constants:
        """Slope 1, the values at the two largest margins, curvature 1/h."""
        most = feature_radius * weight_radius
        ends = self.values(np.array([[most], [-most]]), np.ones(2))
        return Constants(1.0, feature_radius, float(ends[0]), float(ends[1]), feature_radius**2 / self.width)


@dataclass(frozen=True, slots=True)
class Hinge:
    """max(0, 1 − y·s): it has a corner, so it is solved by subgradients, or through its smoothed form."""

    name: str = "hinge"

    def values(self, scores: Floats, targets: Floats) -> Floats:
        """max(0, 1 − m)."""
        return np.maximum(0.0, 1.0 - targets * scores[:, 0])

    def slopes(self, scores: Floats, targets: Floats) -> Floats:
        """−y where the margin is below 1."""
        return np.where(targets * scores[:, 0] < 1.0, -targets, 0.0)[:, None]

    def constants(self, feature_radius: float, weight_radius: float) -> Constants:
        """Slope 1; no curvature bounds it."""
        most = feature_radius * weight_radius
        return Constants(1.0, feature_radius, max(0.0, 1.0 - most), 1.0 + most, math.inf)


@dataclass(frozen=True, slots=True)
class Squared:
    """(s − y)²/2 for targets in [−Y, Y]; rows' targets are clamped to that, which is part of the method."""

    target_bound: float = 1.0
    name: str = "squared"

    def values(self, scores: Floats, targets: Floats) -> Floats:
        """(s − y)²/2."""
        return 0.5 * (scores[:, 0] - targets) ** 2

    def slopes(self, scores: Floats, targets: Floats) -> Floats:
        """s − y."""
        return scores - targets[:, None]

    def constants(self, feature_radius: float, weight_radius: float) -> Constants:
        """Slope rR + Y, values up to its half square, curvature 1."""
        most = feature_radius * weight_radius + self.target_bound
        return Constants(most, most * feature_radius, 0.0, most**2 / 2, feature_radius**2)


@dataclass(frozen=True, slots=True)
class Softmax:
    """Cross-entropy over k classes: log Σ_j e^(s_j − s_y), targets are class numbers.

    ‖softmax − e_y‖ ≤ √2, and no two scores are further apart than √2·rR when all weights together lie in the ball.
    """

    classes: int
    name: str = "logistic"

    def values(self, scores: Floats, targets: Floats) -> Floats:
        """log Σ e^s − s_y."""
        top = scores.max(axis=1)
        total = np.log(np.exp(scores - top[:, None]).sum(axis=1)) + top
        return np.asarray(total - scores[np.arange(len(scores)), targets.astype(np.int64)])

    def slopes(self, scores: Floats, targets: Floats) -> Floats:
        """softmax(s) − e_y."""
        raised = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares = raised / raised.sum(axis=1, keepdims=True)
        shares[np.arange(len(scores)), targets.astype(np.int64)] -= 1.0
        return np.asarray(shares)

    def constants(self, feature_radius: float, weight_radius: float) -> Constants:
        """Slope √2, values from the largest gap in scores, curvature 1/2."""
        gap, others = math.sqrt(2.0) * feature_radius * weight_radius, self.classes - 1
        low, high = math.log1p(others * math.exp(-gap)), math.log1p(others * math.exp(gap))
        return Constants(math.sqrt(2.0), math.sqrt(2.0) * feature_radius, low, high, feature_radius**2 / 2)


def certified(loss: Loss, feature_radius: float, weight_radius: float, target_bound: float = 1.0) -> Constants:
    """The constants of a loss, checked against the loss itself at many scores; a wrong one raises `InputError`.

    Only public numbers are looked at. What the run applies is clamped to these constants besides.

    >>> certified(Squared(1.0), 1.0, 1.0).lipschitz
    2.0
    """
    for name, value in (("feature_radius", feature_radius), ("weight_radius", weight_radius)):
        require(math.isfinite(value) and value > 0, f"{name} is {value}: it must be finite and above 0")
    claimed = loss.constants(feature_radius, weight_radius)
    most = feature_radius * weight_radius
    if isinstance(loss, Softmax):
        directions = np.random.default_rng(0).standard_normal((4000, loss.classes))
        scores = np.concatenate([directions, np.sign(directions)])
        scores *= most / np.linalg.norm(scores, axis=1, keepdims=True)
        targets = np.asarray(np.arange(len(scores)) % loss.classes, dtype=np.float64)
    else:
        line, ends = np.linspace(-most, most, 2001), [-target_bound, target_bound]
        scores, targets = np.tile(line, 2)[:, None], np.repeat(ends, len(line))
    values, slopes = loss.values(scores, targets), np.linalg.norm(loss.slopes(scores, targets), axis=1)
    room = 1e-9 * (1.0 + claimed.range)
    sound = (
        values.min() >= claimed.low - room
        and values.max() <= claimed.high + room
        and slopes.max() <= claimed.steepness * (1 + 1e-9)
        and claimed.lipschitz >= claimed.steepness * feature_radius * (1 - 1e-12)
    )
    require(bool(sound), f"the constants of the loss {loss.name} do not hold over its ball: they cannot be used")
    return claimed
