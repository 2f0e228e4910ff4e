"""Pricing: the bound for each rate, so that every step costs a cell the same whatever its rate.

Two ways to hold moving rates to a budget. `AtOneOrder` lets rates move freely and charges a Rényi filter at one order.
`OnALadder` lets rates take a few values fixed in the plan; each has its bound, and one token of the plan pays for any
of them (an `Envelope`), so that the whole run is composed by PLD, which is tighter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from veil.accounting import (
    AccountingError,
    Envelope,
    Event,
    Gaussian,
    Pld,
    PoissonGaussian,
    Relation,
    Repeated,
    SubsetGaussian,
    TokenBucket,
)
from veil.accounting.calibration import kappa, noise_multiplier
from veil.accounting.conversion import analytic_gaussian_noise
from veil.errors import InputError
from veil.methods.calibrating import batch_of
from veil.methods.moving_budget import MovingBudget, SideLosses
from veil.plans import Settings
from veil.problem import PublicFacts

Floats = NDArray[np.float64]
RUNGS = 17  # odd: the middle rung is an even share
# Of more different cells than this, most get the noise between those of others of about their size, if it holds.
MANY = 24
_TOLERANCE = 1e-3


class Pricing(Protocol):
    """Wanted rows per cell in, rows that will be drawn and the noise multiplier of each cell out."""

    def price(self, wanted: Floats) -> tuple[Floats, Floats]:
        """Rows and noise multipliers; a cell with no rows has multiplier inf."""
        ...


@dataclass(frozen=True)
class AtOneOrder:
    """Any rate; the multiplier is κ_α(rate, ε_s)."""

    facts: PublicFacts
    budget: MovingBudget
    sampling: str
    relation: Relation

    def price(self, wanted: Floats) -> tuple[Floats, Floats]:
        """Rows as wanted."""
        sizes = np.array([cell.rows for cell in self.facts.cells], dtype=np.float64)
        owners = np.array([cell.owner for cell in self.facts.cells])
        drawn, found = wanted > 0, np.full(len(wanted), np.inf)
        if drawn.any():
            rates = np.minimum(wanted[drawn] / sizes[drawn], 1.0)
            step_rho = np.array(self.budget.step_rho)[owners[drawn]]
            found[drawn] = kappa(self.budget.order, rates, step_rho, self.sampling, self.relation)  # type: ignore[arg-type]
        return wanted, found


@dataclass(frozen=True)
class Ladder:
    """The rows that a cell may give to a batch, ascending, and the noise multiplier of each."""

    rows: tuple[float, ...]
    kappas: tuple[float, ...]


@dataclass(frozen=True)
class OnALadder:
    """The rung nearest to the wanted rows, by ratio; a cell that gives nothing stays at nothing."""

    ladders: tuple[Ladder, ...]

    def price(self, wanted: Floats) -> tuple[Floats, Floats]:
        """Rows of the nearest rung and its multiplier."""
        rows, found = np.zeros(len(wanted)), np.full(len(wanted), np.inf)
        for cell, ladder in enumerate(self.ladders):
            if wanted[cell] > 0:
                rung = int(np.argmin(np.abs(np.log(np.array(ladder.rows) / wanted[cell]))))
                rows[cell], found[cell] = ladder.rows[rung], ladder.kappas[rung]
        return rows, found


def ladder_rows(most: float, even: float, span: float, whole: bool) -> tuple[float, ...]:
    """Rungs from `even`/`span` to `even`·`span` rows, evenly spaced by ratio, none above `most` that can be drawn.

    >>> ladder_rows(9, 4.0, 4.0, whole=True)
    (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0)
    """
    rungs = np.geomspace(even / span, even * span, RUNGS)
    if whole:
        rungs, most = np.maximum(np.rint(rungs), 1.0), math.ceil(most)
    return tuple(np.unique(np.minimum(rungs, float(most))).tolist())


def sampled_event(noise: float, wanted: float, rows: int, sampling: str, relation: Relation) -> Event:
    """One release on `wanted` of `rows` rows."""
    if wanted >= rows:
        return Gaussian(noise, relation)
    if sampling == "wor":
        return SubsetGaussian(noise, rows, round(wanted))
    return PoissonGaussian(noise, wanted / rows, relation)


def rung_noise(rate: float, reference_rate: float, noise: float, reach: float) -> float:
    """The multiplier at which a rate tells as much per step as the reference: q²·(e^((r/κ)²) − 1) is kept.

    That is the χ²-divergence of the sampled pair, which decides the cost of many steps. A rare rate is not bounded more
    loosely than at two thirds of the reference noise: its rare, large losses would decide instead.
    """
    told = reference_rate**2 * math.expm1((reach / noise) ** 2)
    return max(reach / math.sqrt(math.log1p(told / rate**2)), noise * 2 / 3)


@dataclass(frozen=True)
class LadderBudget:
    """What a ladder plan fixes: the pricing, the rules, the reference noise and the noise of a loss release."""

    pricing: OnALadder
    rules: tuple[TokenBucket, ...]
    kappa: float
    loss_kappa: float


Key: TypeAlias = tuple[int, int, float]
"""What decides the ladder of a cell: its rows, the rows of its group, its budget."""


def _ends_first(keys: Sequence[Key]) -> list[Key]:
    """Different keys in their order; where there are many, some of all sizes come first and the others lie between.

    >>> _ends_first([(5, 5, 1.0), (2, 2, 1.0), (5, 5, 1.0)])
    [(5, 5, 1.0), (2, 2, 1.0)]
    """
    different = list(dict.fromkeys(keys))
    if len(different) <= MANY:
        return different
    ordered = sorted(different, key=lambda key: (key[2], key[0], key[1]))
    places = sorted({round(place) for place in np.linspace(0, len(ordered) - 1, MANY // 2)})
    return list(dict.fromkeys([*(ordered[place] for place in places), *ordered]))


def _between(noises: Mapping[Key, float], key: Key) -> float | None:
    """A noise from those of groups that are a little smaller and larger, if many are known; it must be tried out."""
    rows, size, budget = key
    alike = sorted((one[0], noise) for one, noise in noises.items() if one[2] == budget and one[0] == one[1])
    if len(alike) < MANY // 2 or rows != size or not alike[0][0] < rows < alike[-1][0]:
        return None
    logs = np.log([one for one, _ in alike])
    return float(np.interp(math.log(rows), logs, [noise for _, noise in alike])) * (1 + 2 * _TOLERANCE)


def plan_ladders(
    facts: PublicFacts, settings: Settings, sampling: str, losses: SideLosses, span: float, clip: float
) -> LadderBudget:
    """Ladders around an even share for every group, each calibrated by PLD to its owner's budget."""
    delta, relation, loss_noise = settings.delta_for(facts), losses.relation, losses.noise
    steps, batch = settings.steps_for(facts), batch_of(facts, settings)
    reach = 2.0 if relation is Relation.REPLACE_ONE else 1.0
    smallest = min(facts.budgets or (settings.epsilon,))
    shared_loss = losses.sharing(analytic_gaussian_noise(smallest, delta))
    reference = batch / facts.rows
    even = batch / len(facts.groups)
    sizes = facts.group_sizes
    known: dict[Key, tuple[Ladder, float]] = {}

    def tokens(cell: int, ladder: Ladder, loss_kappa: float) -> tuple[Repeated, ...]:
        rows = facts.cells[cell].rows
        pairs = zip(ladder.rows, ladder.kappas, strict=True)
        rungs = Envelope(tuple(sampled_event(k, r, rows, sampling, relation) for r, k in pairs))  # type: ignore[misc]
        return Repeated(rungs, steps), losses.events(loss_kappa)

    def calibrated(cell: int) -> tuple[Ladder, float]:
        own = facts.cells[cell]
        share = own.rows / sizes[own.group]
        rows = ladder_rows(min(own.rows, batch * share), even * share, span, sampling == "wor")

        def ladder(noise: float) -> Ladder:
            return Ladder(rows, tuple(rung_noise(r / own.rows, reference, noise, reach) for r in rows))

        def events(noise: float) -> tuple[Repeated, ...]:
            return tokens(cell, ladder(noise), shared_loss if loss_noise is None else noise * loss_noise)

        budget = facts.budget_of(cell, settings.epsilon)
        judge = Pld(looseness=5e-4, rows=facts.rows_together)
        guess = _between({key: one[1] for key, one in known.items()}, (own.rows, sizes[own.group], budget))
        if guess is not None and judge.epsilon(events(guess), delta) <= budget:
            return ladder(guess), guess
        # Cells differ little in their noise: the last one with this budget is a good place to start.
        near = next((one[1] for key, one in reversed(known.items()) if key[2] == budget), None)
        noise = noise_multiplier(events, budget, delta, judge, tolerance=_TOLERANCE, near=near)
        return ladder(noise), noise

    keys = [
        (own.rows, sizes[own.group], facts.budget_of(cell, settings.epsilon)) for cell, own in enumerate(facts.cells)
    ]
    cell_of = {key: cell for cell, key in reversed(list(enumerate(keys)))}
    for key in _ends_first(keys):
        cell = cell_of[key]
        try:
            known[key] = calibrated(cell)
        except AccountingError as error:
            raise InputError(f'no noise gives group "{facts.cell_name(cell)}" ε = {key[2]:g}: {error}') from error
    found = [known[key] for key in keys]
    noise = max(one[1] for one in found)
    loss_kappa = shared_loss if loss_noise is None else noise * loss_noise
    ladders = tuple(one[0] for one in found)
    # The ledger is charged σ over the limit, which may differ from κ in the last digit: the tokens say the same.
    sigma = noise * clip
    applied = (Ladder(one.rows, tuple(sigma / (sigma / k) for k in one.kappas)) for one in ladders)
    rules = tuple(TokenBucket(tokens(cell, one, loss_kappa)) for cell, one in enumerate(applied))
    return LadderBudget(OnALadder(ladders), rules, noise, loss_kappa)
