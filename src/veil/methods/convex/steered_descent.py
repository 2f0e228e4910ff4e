"""Steered descent: full-batch steps of a linear model over whitened rows; weights follow released group errors.

    once:        knots of the numbers, and which columns are crossed, where the model has that (`knot_places`,
                 `cross_choice`)
                 x: features, stairs in place of shares of knots (`stairs`)
                 m = (Σ x + noise)/n,   S = (Σ (x−m)(x−m)ᵀ + noise)/n;   z = (x − m)·W/s with a constant behind it,
                 W = U·(λ + floor)^−power,   s such that the average row has length 1
    every step:  p_i = softmax(θ·z_i − e_{y_i}·margin_u),   g_i = (p_i − e_{y_i}) ⊗ z_i
                 G = Σ_i (w_u/max w)·min(1, C/‖g_i‖)·g_i + N(0, (σ·C)²·I)
                 V ← β·V + (1−β)·max w·G/(C·n),   θ ← θ − (travel/steps)·V
    now and then: errors of each unit, with noise, move weights and margins (`steering`)
    at the end:  the mean over the last two fifths of the steps; two classes: the cut that serves the aim (`offsets`)

Squared errors have the same curvature everywhere, so steps above 2(1+β)/(1−β) over it swing ever wider: there, steps
are at most a tenth as long, by the largest released second moment. A softmax gives way where scores are large.

Rows are never rescaled one by one, so the model stays linear in what it is given: whitening is folded into the layer.
Of people with several rows, each row counts with its share in every sum: a person moves it by a mean of what rows may.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from veil.accounting import Gaussian, Ledger, Relation
from veil.errors import InputError
from veil.foundation.randomness import Seed
from veil.methods.convex.cross_choice import CROSSES, CrossRelease
from veil.methods.convex.feature_rows import INSIDE, Featured, shortened
from veil.methods.convex.group_descent import AVERAGED, GRADIENTS
from veil.methods.convex.knot_places import KNOTS, KnotRelease
from veil.methods.convex.offsets import SENSITIVITY, OffsetChoice
from veil.methods.convex.stairs import Stairs
from veil.methods.convex.steered_rows import (
    CONSTANT,
    Classes,
    Cuts,
    Errors,
    InCoordinates,
    Numbers,
    Pull,
    Whitened,
    kind_of,
)
from veil.methods.convex.steering import Steering
from veil.methods.convex.whitening import MEAN, MOMENTS, WhiteningRelease
from veil.models.crosses import Crosses
from veil.models.knots import Knots
from veil.models.tables import Head, Scale
from veil.models.whitened import ImageFeatures, Projection
from veil.noise import GaussianNoise
from veil.plans.controllers.solver import Report
from veil.problem import Problem, PublicFacts
from veil.problem.sums import RowSums, sums_of

ERRORS, OFFSET = "group errors", "offset"
# Features that need no training and take every row alone: what else a model does could mix rows.
FIXED = (nn.Flatten, nn.Identity, Knots, Crosses, Scale, ImageFeatures, Projection)
# Of all rows, in double precision, so many stand in memory at once, where there is room.
COPIES = 4
# Where steps are long enough that weights swing, slopes are at their bounds and answer about half as much.
STABLE = 0.5
# Of the longest step with which squared errors still settle, so much is taken: a group may weigh four times as much as
# the average, and rows be longer than the shortened ones whose moments are released.
SETTLING, FLAT = 0.1, 1e-12
# Gaps in a column are learned from where their sum is at least so many times its noise.
GAPS_SEEN = 2.0


@dataclass(frozen=True)
class Noises:
    """Noise of each release over what one row added or removed moves; None: the release is not made."""

    knots: KnotRelease | None
    crosses: CrossRelease | None
    whitening: WhiteningRelease
    gradients: float
    errors: float | None
    offset: float | None

    def events(self, relation: Relation, steps: int, releases: int) -> list[tuple[str, int, Gaussian]]:
        """Purpose, how often, and what one costs every row."""
        mean, moments = self.whitening.events()
        found = [(MEAN, 1, mean), (MOMENTS, 1, moments), (GRADIENTS, steps, Gaussian(self.gradients, relation))]
        if self.knots is not None:
            found.append((KNOTS, self.knots.stages, self.knots.event()))
        if self.crosses is not None:
            found.append((CROSSES, 1, self.crosses.event()))
        if self.errors is not None:
            found.append((ERRORS, releases, Gaussian(self.errors, relation)))
        if self.offset is not None:
            found.append((OFFSET, 1, Gaussian(self.offset, relation)))
        return found


@dataclass(frozen=True)
class SteeredDescent:
    """Everything public that the solver needs."""

    noises: Noises
    relation: Relation
    steering: Steering
    choice: OffsetChoice
    start: tuple[float, ...]
    clip: float
    steps: int
    travel: float
    momentum: float
    secure: bool

    weighs_rows: ClassVar[bool] = True
    sums_rows: ClassVar[bool] = True

    def check(self, model: nn.Module) -> None:
        """Only features that need no training, and one linear layer with a bias."""
        _parts(model)

    def events(self) -> list[tuple[str, int, Gaussian]]:
        """The cost of all releases to every row."""
        return self.noises.events(self.relation, self.steps, len(self.steering.releases(self.steps)))

    def solve(self, model: nn.Module, problem: Problem, seed: Seed, ledger: Ledger, report: Report) -> None:
        """Whiten once, then descend; every cost is on the ledger before a row is read."""
        self.solve_with(GaussianNoise(seed, secure=self.secure), model, problem, ledger, report)

    def solve_with(
        self, noise: GaussianNoise, model: nn.Module, problem: Problem, ledger: Ledger, report: Report
    ) -> None:
        """The same with this noise: rows are read by what it is added to, and by nothing else."""
        features, layer = _parts(model)
        facts = problem.public
        used = {KNOTS: bool(_curves(features).numbers), CROSSES: bool(_crosses(features).pairs)}
        for purpose, count, event in self.events():
            # What a model without knots or crosses does not need is paid by the plan, and never released. Crosses that
            # a plan has no release for stay as they are: zeros.
            if not used.get(purpose, True):
                continue
            ledger.reserve(purpose, 0, count, dict.fromkeys(range(len(facts.cells)), event))
        with torch.no_grad():
            rows = sums_of(problem)
            self._arrange(features, facts, rows, noise)
            stairs, kind = Stairs.of(features), kind_of(facts)
            featured = rows.through(Featured(features, stairs))
            white = self._whiten(featured, facts.rows, noise, _gaps(features))
            work = featured.through(InCoordinates(white, self._units(facts), kind, facts.outputs))
            # Features of images take longer than all steps: their model is measured at the end only.
            slow = any(isinstance(part, ImageFeatures) for part in features)
            loudest, travel = [], self._travel(kind, white)
            for step, weights, voices, off in self._descend(work, (facts.outputs, white.width), travel, noise):
                loudest.append(float(voices.max()))
                weight, bias = white.folded(weights)
                layer.weight.copy_(weight if stairs is None else stairs.back(weight))
                layer.bias.copy_(bias)
                last = step == self.steps - 1
                if not slow or last:
                    report(step, {"weights": voices[list(self.steering.units.of_group)].numpy()})
                if last and isinstance(layer, Head):
                    curvature = kind.falling(off, self.clip) / self.clip * white.energy / math.hypot(1.0, CONSTANT) ** 2
                    root = white.root(self._weight_noise(loudest, facts.rows, travel, curvature))
                    layer.noise_root = root if stairs is None else stairs.back(root.T).T

    @property
    def _swinging(self) -> float:
        """Where step and curvature have this product, weights swing for ever."""
        return 2 * (1 + self.momentum) / (1 - self.momentum)

    def _travel(self, kind: type[Classes] | type[Numbers], white: Whitened) -> float:
        """How far all steps lead: as planned, or less where steps of that length would not settle."""
        if kind.curvature is None:
            return self.travel
        steepest = kind.curvature / self.clip * float(white.energy.max()) / math.hypot(1.0, CONSTANT) ** 2
        return min(self.travel, SETTLING * self._swinging * self.steps / max(steepest, FLAT))

    def _weight_noise(self, loudest: Sequence[float], size: int, travel: float, curvature: Tensor) -> Tensor:
        """The noise in each coordinate of the released weights; later steps correct it as this curvature lets them."""
        later, found = self.steps - math.ceil(AVERAGED * self.steps), torch.zeros_like(curvature)
        curvature = curvature.clamp(max=STABLE * self._swinging * self.steps / travel)
        # What becomes of one unit of noise: after each step, the same whatever step it came in.
        weights, speed, after = torch.zeros_like(curvature), torch.zeros_like(curvature), []
        for step in range(self.steps):
            speed = self.momentum * speed + (1 - self.momentum) * (curvature * weights + float(step == 0))
            weights = weights - travel / self.steps * speed
            after.append(weights)
        # By the step that it came in: its sum over the steps that are averaged.
        latest_first, totals = torch.stack(after[::-1]), curvature.new_zeros(self.steps, *curvature.shape)
        for step in range(later, self.steps):
            totals[: step + 1] += latest_first[self.steps - 1 - step :]
        for loud, total in zip(loudest, totals, strict=True):
            found += (loud * total / (self.steps - later)) ** 2
        return self.noises.gradients / size * found.sqrt()

    def _arrange(self, features: nn.Sequential, facts: PublicFacts, rows: RowSums, noise: GaussianNoise) -> None:
        """Released places for the knots of the model, and the columns that it crosses, where it has any."""
        curves, crosses = _curves(features), _crosses(features)
        if curves.numbers and self.noises.knots is not None:
            self.noises.knots.make(curves, rows, noise)
        if crosses.pairs and self.noises.crosses is not None:
            self.noises.crosses.make(crosses, curves, rows, len(facts.classes), noise)

    def _whiten(self, rows: RowSums, size: int, noise: GaussianNoise, gaps: Sequence[int] = ()) -> Whitened:
        release = self.noises.whitening
        mean = release.mean(rows, size, noise, shortened)
        values, directions = release.spectrum(rows, size, noise, mean, shortened)
        # Directions below the noise of their own moments are not blown up.
        floor = release.floor + release.moment_noise * math.sqrt(len(mean) / 2) / size
        scales = (values + floor) ** -release.power
        length = float(torch.sqrt((values * scales**2).sum()).clamp_min(1e-9))
        # Below that noise single values are 0 or noise, and their mean is right.
        real = torch.where(values > floor, values, values[values <= floor].mean() if (values <= floor).any() else 0.0)
        matrix = directions * scales / length
        # A gap that no row seems to have would get a weight of noise alone.
        matrix[[place for place in gaps if mean[place] * size < GAPS_SEEN * release.mean_noise]] = 0.0
        return Whitened(mean, matrix, real * scales**2 / length**2)

    def _units(self, facts: PublicFacts) -> Tensor:
        return torch.tensor([self.steering.units.of_group[cell.group] for cell in facts.cells])

    def _descend(
        self, work: RowSums, shape: tuple[int, int], travel: float, noise: GaussianNoise
    ) -> Iterator[tuple[int, Tensor, Tensor, float | None]]:
        """By step: the weights, averaged towards the end; a row's weight by its unit; the last released mean error."""
        off: float | None = None
        loudness, size = torch.tensor(self.start, dtype=torch.float64), sum(self.steering.units.rows)
        weights, speed, total = (torch.zeros(shape, dtype=torch.float64) for _ in range(3))
        releases, later = self.steering.releases(self.steps), self.steps - math.ceil(AVERAGED * self.steps)
        voices, margins = self.steering.weights(loudness)
        for step in range(self.steps):
            if step in releases:
                released = self._errors(work, weights, releases.index(step), noise)
                loudness = self._steer(loudness, released, releases.index(step))
                voices, margins = self.steering.weights(loudness)
                off = float(released.sum()) / size
            loudest = float(voices.max())
            pull = work.total(Pull(weights, margins, voices / loudest, self.clip * INSIDE))
            pulled = noise.add(step, {"head": pull}, self.noises.gradients * self.clip, GRADIENTS)
            gradient = pulled["head"] * (loudest / (self.clip * size))
            speed = self.momentum * speed + (1 - self.momentum) * gradient
            weights = weights - travel / self.steps * speed
            if step >= later:
                total += weights
            shown = total / (step - later + 1) if step >= later else weights
            last = step == self.steps - 1
            yield step, self._cut(work, shown, noise) if last else shown, voices, off

    def _errors(self, work: RowSums, weights: Tensor, release: int, noise: GaussianNoise) -> Tensor:
        errors = work.total(Errors(weights, len(self.start)))
        assert self.noises.errors is not None, "planned with the releases"
        return noise.add(release, {ERRORS: errors}, self.noises.errors, ERRORS)[ERRORS]

    def _steer(self, loudness: Tensor, released: Tensor, release: int) -> Tensor:
        assert self.noises.errors is not None, "planned with the releases"
        return self.steering.moved(loudness, released, self.noises.errors, release)

    def _cut(self, work: RowSums, weights: Tensor, noise: GaussianNoise) -> Tensor:
        """The weights with the offset of two classes in them."""
        if self.noises.offset is None:
            return weights
        sigma, counts = self.noises.offset * SENSITIVITY, work.total(Cuts(weights, len(self.start)))
        released = noise.add(0, {OFFSET: counts}, sigma, OFFSET)[OFFSET]
        moved = weights.clone()
        moved[1, -1] -= self.choice.choose(released, sigma) * math.hypot(1.0, CONSTANT) / CONSTANT
        return moved


def memory_for(rows: int, features: int) -> int:
    """The bytes that training takes: all rows in double precision, a few times over."""
    return COPIES * 8 * rows * features


def _curves(features: nn.Sequential) -> Knots:
    return next((part for part in features if isinstance(part, Knots)), Knots([], 2))


def _crosses(features: nn.Sequential) -> Crosses:
    return next((part for part in features if isinstance(part, Crosses)), Crosses([], 0))


def _gaps(features: nn.Sequential) -> list[int]:
    """Where inputs stand that say that a number is missing: behind the number, before its knots."""
    curves, crosses = _curves(features), _crosses(features)
    flagged = 2 + curves.places.shape[1]
    # A projection mixes all inputs.
    own = [] if any(isinstance(part, Projection) for part in features) else crosses.blocks
    return [block[1] for block in own if block[0] in curves.numbers and len(block) == flagged]


def trains_as_a_whole(model: nn.Module) -> bool:
    """Whether a model is one linear layer with a bias, over features that need no training."""
    try:
        return len(_parts(model)) > 0
    except InputError:
        return False


def _parts(model: nn.Module) -> tuple[nn.Sequential, nn.Linear]:
    """What needs no training, and the linear layer behind it."""
    match list(model) if isinstance(model, nn.Sequential) else [model]:
        case [*features, nn.Linear(bias=nn.Parameter()) as layer] if all(type(part) in FIXED for part in features):
            return nn.Sequential(*features), layer
    raise InputError('auto trains one linear layer with a bias, over fixed features: choose the model "additive"')
