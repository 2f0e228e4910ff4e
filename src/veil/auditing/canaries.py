"""Canaries: synthetic rows, each with its own direction, trained by the real loop of a plan.

Row i moves nothing but coordinate i of two parameter tensors, by all that its bound allows. A fair coin decides
whether it is there (add-remove) or which way it points (replace-one). What is released at coordinate i is then one
independent game about one row, and a single run plays it thousands of times. Draw, bound, noise, controller and ledger
are those of the plan, not copies: their bugs show in the scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor, nn

from veil.accounting import Ledger, Relation, Repeated
from veil.accounting.events import Event, Mixture
from veil.errors import require
from veil.foundation.randomness import Seed
from veil.plans import Plan
from veil.plans.controllers import first_release
from veil.problem import Problem
from veil.problem.people import Several
from veil.releases import GradientRelease, PrivateView, Released
from veil.sampling import OneGroupSampler, Sampler
from veil.sampling.draws import OneGroup, Poisson, PoissonUpTo
from veil.training.loop import Loop

Floats = NDArray[np.float64]
MakeLoop = Callable[..., Loop]
TENSORS = ("first", "second")
NORM = 100.0
# More canaries than declared rows may be in a group: the sum of any other loss would be out of proportion to its size.
BASE_LOSS = 0.0
# Rows of a person who is a canary.
CANARY_ROWS = 3


class CanaryModel(nn.Module):
    """Two tables with one number per canary; the last entry of each is for rows without influence."""

    def __init__(self, canaries: int) -> None:
        super().__init__()
        self.first = nn.Embedding(canaries + 1, 1)
        self.second = nn.Embedding(canaries + 1, 1)
        for table in (self.first, self.second):
            nn.init.zeros_(table.weight)

    def forward(self, ids: Tensor) -> Tensor:
        """The sum of the canary's two numbers."""
        both: Tensor = (self.first(ids) + self.second(ids)).flatten(1).sum(1)
        return both


def canary_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """A loss whose gradient is the canary's direction, `NORM` long, times the sign that stands in the target."""
    ids, signs = batch
    losses: Tensor = BASE_LOSS + NORM / math.sqrt(2.0) * signs * model(ids)
    return losses


@dataclass(frozen=True)
class Canaries:
    """The canaries: cell and coin flip of each, their rows, and how many of these are entries of each canary."""

    cells: NDArray[np.int64]
    coins: NDArray[np.bool_]
    problem: Problem
    rows: int = 1

    def __len__(self) -> int:
        return len(self.cells)


def make_canaries(plan: Plan, per_group: int, seed: Seed, rows: int | None = None) -> Canaries:
    """At least `per_group` canaries in every group of the plan's facts, in and out by fair coins.

    Where rows are drawn independently there may be as many canaries as one likes, as every row plays alone. Batches
    without replacement need exactly the declared rows: there some are canaries and the others have a gradient of 0.
    Where a person's rows count each by itself, a canary is a person with `rows` of them, by default as many as count.
    """
    require(plan.relation is not None, f"{plan.method} is not private: there is no guarantee to audit")
    require(plan.solver is None, f"{plan.method} does not train in steps, so canaries cannot be added")
    require(per_group >= 2, f"{per_group} canaries per group: an audit needs at least 2")
    cells = plan.facts.cells
    free = drawn_alone(first_release(plan.controller))
    in_group = [sum(1 for other in cells if other.group == cell.group) for cell in cells]
    wanted = [-(-per_group // count) for count in in_group]
    each = plan.facts.rows_together if rows is None else rows
    totals = [each * own for own in wanted] if free else [cell.rows for cell in cells]
    playing = [min(own, total // each) for own, total in zip(wanted, totals, strict=True)]
    cell_of = np.repeat(np.arange(len(cells)), totals)
    plays = np.concatenate([np.arange(total) < each * own for own, total in zip(playing, totals, strict=True)])
    count = sum(playing)
    ids = np.full(len(cell_of), count, dtype=np.int64)
    ids[plays] = np.repeat(np.arange(count), each)
    coins = seed.generator("canary coins", 0).random(count) < 0.5
    signs, present = plays.astype(np.float32), np.ones(len(cell_of), dtype=bool)
    if plan.relation is Relation.ADD_REMOVE:
        present[plays] = np.repeat(coins, each)
    else:
        signs[plays] = np.where(np.repeat(coins, each), 1.0, -1.0)
    problem = Problem(torch.from_numpy(ids)[:, None], torch.from_numpy(signs), cell_of, plan.facts, present)
    return Canaries(cell_of[plays][::each], coins, of_unit(problem), each)


def of_unit(problem: Problem) -> Problem:
    """The same, where people are protected by their mean: every canary is a person who has the row several times."""
    if problem.public.unit == "row" or problem.public.person_rows == "each":
        return problem
    rows = np.repeat(np.arange(len(problem.cell_of)), CANARY_ROWS)
    first = CANARY_ROWS * np.arange(len(problem.cell_of) + 1)
    return problem.with_people(Several(problem.inputs[rows], problem.targets[rows], first), CANARY_ROWS)


def drawn_alone(release: GradientRelease) -> bool:
    """Whether rows take part independently of each other (Poisson), as against subsets of a fixed size."""
    draw = release.draw
    return isinstance(draw.within if isinstance(draw, OneGroup) else draw, Poisson | PoissonUpTo)


@dataclass(frozen=True)
class CanaryStep:
    """What one step showed: released values in units of the noise, and what a canary of each cell does to them.

    `shift` is limit over noise, `rate` the public chance to take part in this very step, both by canary. `values` has
    one line for each of the two tensors. `view` is private: it serves the tests of the mechanism, never a score.
    `statistics` are the further values that were released.
    """

    step: int
    release: GradientRelease
    shift: Floats
    rate: Floats
    values: Floats
    statistics: Mapping[str, Floats]
    view: PrivateView


def canary_loop(plan: Plan, canaries: Canaries, seed: Seed, make_loop: MakeLoop = Loop) -> Loop:
    """The plan's own loop over the canaries; weights hardly move, so that every canary keeps its loss."""
    quiet = {"learning_rate": 1e-12, "momentum": 0.0, "l2": 0.0, "ema": 0.0, "noise_filter": "none"}
    still = replace(plan, settings=plan.settings.model_copy(update=quiet))
    model = CanaryModel(len(canaries))
    return make_loop(model, canaries.problem, still, canary_loss, seed, Ledger(plan.terms()))


def run_watched(loop: Loop, canaries: Canaries, look: Callable[[CanaryStep], None]) -> None:
    """Run the loop unchanged, and yield what each step released at the canaries' coordinates."""
    prepare, absorb = loop.prepare, loop.absorb
    latest: dict[int, tuple[GradientRelease, Sampler]] = {}

    def remember(step: int) -> tuple[GradientRelease, Sampler]:
        latest.clear()
        latest[step] = prepare(step)
        return latest[step]

    def show(step: int, released: Released) -> None:
        look(_seen(loop, canaries, step, *latest[step], released))
        absorb(step, released)

    # The loop's own `run` calls these two around every release: nothing of the release itself is replaced.
    loop.prepare, loop.absorb = remember, show  # type: ignore[method-assign]
    loop.run()


def _seen(
    loop: Loop, canaries: Canaries, step: int, release: GradientRelease, sampler: Sampler, released: Released
) -> CanaryStep:
    divisor = released.divisor if release.divisor is None else release.divisor
    shift = (np.array(release.bound.limits) / release.sigma)[canaries.cells]
    rate = _rates(release, sampler, loop, step)[canaries.cells]
    tensors = [released.gradient[f"{name}.weight"][: len(canaries), 0].double().numpy() for name in TENSORS]
    values = np.stack(tensors) * (divisor / release.sigma)
    return CanaryStep(step, release, shift, rate, values, released.statistics, released.view)


def _rates(release: GradientRelease, sampler: Sampler, loop: Loop, step: int) -> Floats:
    """The chance of each cell's rows to take part that the ledger is charged for; a lottery has been drawn already."""
    facts, events = loop.plan.facts, release.events(loop.plan.facts)
    if isinstance(release.draw, PoissonUpTo):
        # It says its rates and is charged for the largest that they may be.
        return np.array(release.draw.rates)
    rates = np.array([rate_of(events.get(cell)) for cell in range(len(facts.cells))])
    if isinstance(sampler, OneGroupSampler):
        chosen = sampler.chosen(loop.seed, step)
        rates *= np.array([cell.group == chosen for cell in facts.cells])
    return rates


def rate_of(event: Event | None) -> float:
    """The sampling rate of an event.

    >>> from veil.accounting import Gaussian, PoissonGaussian
    >>> rate_of(PoissonGaussian(1.0, 0.25)), rate_of(Gaussian(1.0)), rate_of(None)
    (0.25, 1.0, 0.0)
    """
    if event is None:
        return 0.0
    inner = event.event if isinstance(event, Mixture) else event
    return float(getattr(inner, "rate", 1.0))


@dataclass(frozen=True)
class Scores:
    """One run over canaries: what an attacker who knows the plan believes about each, and what each cell was charged.

    `values` are log-likelihood ratios of "in" against "out" (or of one way against the other): above 0 means in.
    """

    canaries: Canaries
    values: Floats
    charged: tuple[tuple[Repeated, ...], ...]


class Likelihood:
    """Sums the log-likelihood ratio of "in" against "out" over steps: the most powerful score."""

    def __init__(self, canaries: Canaries, relation: Relation) -> None:
        self._relation, self._rows = relation, canaries.rows
        self.values = np.zeros(len(canaries))

    def add(self, step: CanaryStep) -> None:
        """log Σ_j P(j of its rows are drawn)·e^(jxμ−j²μ²/2), minus the same for the other direction if replaced."""
        seen = step.values.sum(axis=0) / math.sqrt(2.0)
        self.values += _log_ratio(seen, step.shift, step.rate, self._rows)
        if self._relation is Relation.REPLACE_ONE:
            self.values -= _log_ratio(seen, -step.shift, step.rate, self._rows)


def _log_ratio(seen: Floats, shift: Floats, rate: Floats, rows: int) -> Floats:
    drawn = np.arange(rows + 1)[:, None]
    rates, which = np.unique(rate, return_inverse=True)  # of thousands of canaries, a few
    chances = np.asarray(stats.binom.logpmf(drawn, rows, rates))[:, which]
    ratio: Floats = np.logaddexp.reduce(chances + drawn * seen * shift - (drawn * shift) ** 2 / 2, axis=0)
    return ratio


def play(
    plan: Plan,
    *,
    per_group: int = 20_000,
    seed: Seed | None = None,
    make_loop: MakeLoop = Loop,
    watch: Sequence[Callable[[CanaryStep], None]] = (),
    canaries: Canaries | None = None,
) -> Scores:
    """Run the plan once over canaries and score them. `watch` sees every step, for tests of the mechanism."""
    source = seed or Seed.from_system()
    players = canaries or make_canaries(plan, per_group, source)
    loop = canary_loop(plan, players, source, make_loop)
    assert plan.relation is not None
    likelihood = Likelihood(players, plan.relation)

    def look(step: CanaryStep) -> None:
        likelihood.add(step)
        for one in watch:
            one(step)

    run_watched(loop, players, look)
    ledger = loop.reservations.ledger
    assert ledger is not None
    charged = tuple(ledger.spent(cell) for cell in range(len(plan.facts.cells)))
    return Scores(players, likelihood.values, charged)
