"""IDP-SGD: every owner's own budget, used up (Boenisch et al. 2023; as INO-SGD's baseline, Tian et al.).

    sample: one bound C for all, owner o is drawn with the rate q_o that spends ε_o; κ is such that Σ n_o·q_o = b
    scale:  one rate q = b/n for all, owner o is bounded by C_o = σ/κ_o(ε_o); σ is such that the mean bound is C
    both:   rates half-way (geometrically) between the two that draw b rows, bounds spend what is left of each budget

Guarantee: a row of owner o has (ε_o, δ), composed exactly by RDP or PLD; every budget is used to 1 % and none overrun.
One accountant finds κ, rates and bounds.

Correction: the papers' closed form 2αq²C²/σ² holds only for small q and large σ/C and under-reports outside; here rates
and bounds come from the exact cost.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from veil.accounting import AccountingError, Relation
from veil.accounting.accountant import Accountant
from veil.accounting.calibration import SMALLEST_NOISE, noises_for, rates_for
from veil.accounting.events import Gaussian, PoissonGaussian, Repeated
from veil.bounding import Clip
from veil.errors import Caution, InputError, require, require_above_zero
from veil.methods.calibrating import batch_of, relation_for, rules_for
from veil.methods.families import Individualised
from veil.methods.registry import known_as
from veil.plans import Plan, Settings
from veil.plans.controllers import Constant
from veil.problem import PublicFacts
from veil.releases import GradientRelease
from veil.sampling.draws import Poisson

Variant = Literal["sample", "scale", "both"]

_CLOSE = 5e-4  # how far above the batch a search for noise may end, relatively
_CURVE = 16  # rates whose costs are computed where there are many budgets; a curve through them proposes all rates
_SMALLEST_RATE = 1e-12
_CHECKED = 2e-4  # by how much a proposed rate is lowered before it is checked
_SELDOM = 0.01  # below this share of the common rate an owner hardly takes part


@dataclass(frozen=True)
class OwnerShares:
    """The rate and the bound of each owner, under one noise σ."""

    rates: tuple[float, ...]
    clips: tuple[float, ...]
    sigma: float

    def draw(self, facts: PublicFacts) -> Poisson:
        """Every row at the rate of its owner."""
        return Poisson(tuple(self.rates[cell.owner] for cell in facts.cells))

    def limits(self, facts: PublicFacts) -> tuple[float, ...]:
        """The bound of each cell."""
        return tuple(self.clips[cell.owner] for cell in facts.cells)

    def details(self, facts: PublicFacts) -> dict[str, Any]:
        """What a plan says of them."""
        return {
            "sigma": self.sigma,
            "sampling": "poisson",
            "batch": self.draw(facts).expected_batch(facts),
            "owner_rates": dict(zip(facts.owners, self.rates, strict=True)),
            "owner_clips": dict(zip(facts.owners, self.clips, strict=True)),
        }


@known_as("idp-sgd", "every owner sets a budget, which is used in full through sampling rates or bounds")
class IdpSgd(Individualised):
    """DP-SGD with a budget per owner, spent through rates, bounds or both."""

    variant: Variant = "sample"
    clip: float = 1.0
    neighbours: Literal["add-remove", "replace-one"] | None = None

    def plan(self, facts: PublicFacts, settings: Settings) -> Plan:
        """Solve for rates and bounds, owner by owner."""
        require_above_zero(self, "clip")
        relation = relation_for("poisson", self.neighbours)
        steps, shares = settings.steps_for(facts), owner_shares(self.variant, self.clip, facts, settings, relation)
        draw, bound = shares.draw(facts), Clip(shares.limits(facts))
        release = GradientRelease(draw, bound, shares.sigma, draw.expected_batch(facts), relation)
        details = {"variant": self.variant, **shares.details(facts)}
        rules = rules_for(release, facts, steps)
        return Plan(self.name, facts, settings, steps, Constant(release), relation, rules, details=details)


def owner_shares(
    variant: str,
    clip: float,
    facts: PublicFacts,
    settings: Settings,
    relation: Relation = Relation.ADD_REMOVE,
) -> OwnerShares:
    """Rates and bounds that spend each owner's budget, whatever method draws and bounds with them."""
    require(variant in ("sample", "scale", "both"), f'variant is "{variant}": it must be sample, scale or both')
    budgets = facts.budgets or (settings.epsilon,) * len(facts.owners)
    cost = _Cost(
        settings.steps_for(facts),
        settings.delta_for(facts),
        relation,
        settings.accountant_for(facts),
        facts.owner_sizes,
    )
    require(
        cost.accountant.supports(PoissonGaussian(1.0, 0.5, relation)),
        "rows of a person that are drawn one by one and replaced are accounted for one row of a person alone: use "
        "person_rows mean, or neighbours add-remove",
    )
    batch = batch_of(facts, settings)
    rate = batch / facts.rows
    if variant == "scale":
        return _by_scale(budgets, (rate,) * len(budgets), clip, cost)
    kappa, rates = _by_sample(budgets, batch, cost)
    shares = OwnerShares(rates, (clip,) * len(budgets), kappa * clip)
    if variant == "both":
        between = drawing([math.sqrt(rate * own) for own in rates], facts.owner_sizes, batch)
        shares = _by_scale(budgets, between, clip, cost)
    _warn_of_owners_left_out(shares, rate, facts, budgets, settings.accountant)
    return shares


@dataclass(frozen=True)
class _Cost:
    """What every search for rates, noise and bounds is about: one accountant for all of them."""

    steps: int
    delta: float
    relation: Relation
    accountant: Accountant
    sizes: tuple[int, ...]

    def rates(self, budgets: Sequence[float], kappa: float, near: float) -> tuple[float, ...]:
        return rates_for(budgets, self.delta, kappa, self.steps, self.relation, self.accountant, near)

    def noises(self, budgets: Sequence[float], rate: float) -> tuple[float, ...]:
        return noises_for(budgets, self.delta, rate, self.steps, self.relation, self.accountant)

    def epsilon(self, rate: float, kappa: float) -> float:
        event = PoissonGaussian(kappa, rate, self.relation) if rate < 1 else Gaussian(kappa, self.relation)
        return self.accountant.epsilon([Repeated(event, self.steps)], self.delta)

    def batch(self, rates: Sequence[float]) -> float:
        return sum(rows * rate for rows, rate in zip(self.sizes, rates, strict=True))


def _by_sample(budgets: tuple[float, ...], batch: int, cost: _Cost) -> tuple[float, tuple[float, ...]]:
    """One noise multiplier κ for all; rates fall with the budget and draw `batch` rows."""
    rows, usual, many = sum(cost.sizes), batch / sum(cost.sizes), len(set(budgets)) > 2 * _CURVE
    proposed = _along_curve if many else _solved

    def expected(kappa: float) -> float:
        return cost.batch(proposed(budgets, kappa, usual, cost))

    aim, kappa, step = batch * (1 + 5 * _CHECKED if many else 1.0), 1.0, 2.0
    for _ in range(4):
        kappa = _noise_that_draws(aim, rows, expected, kappa, step)
        rates = _checked(budgets, kappa, usual, cost) if many else _solved(budgets, kappa, usual, cost)
        drawn = cost.batch(rates)
        if drawn >= batch or not many:
            break
        # Rates off a curve are lowered where they cost too much: the search aims as much higher.
        aim, step = aim * (1 + 5 * _CHECKED) * batch / drawn, 1.01
    # What is left of the search: rates a little lower draw the batch exactly, on the private side.
    shrink = min(1.0, batch / drawn)
    return kappa, tuple(rate * shrink for rate in rates)


def _solved(budgets: Sequence[float], kappa: float, near: float, cost: _Cost) -> tuple[float, ...]:
    """The exact rate of every budget."""
    return cost.rates(budgets, kappa, near)


def _along_curve(budgets: Sequence[float], kappa: float, near: float, cost: _Cost) -> tuple[float, ...]:
    """Rates read off a smooth curve through the exact costs of a few rates: one cost each, no search for any."""
    from scipy.interpolate import PchipInterpolator

    low = high = near
    while low > _SMALLEST_RATE and cost.epsilon(low, kappa) > min(budgets):
        low /= 4
    if low <= _SMALLEST_RATE:
        cost.rates([min(budgets)], kappa, near)  # raises where no rate is small enough
    while high < 1 and cost.epsilon(high, kappa) < max(budgets):
        high = min(4 * high, 1.0)
    places = np.geomspace(low, high, _CURVE) if low < high else np.array([low / 2, high])
    # Costs that hardly rise (at the smallest rates) would turn the curve over.
    costs = np.array([cost.epsilon(float(rate), kappa) for rate in places])
    rising = np.flatnonzero(np.diff(np.maximum.accumulate(costs), prepend=0.0) > 0)
    if len(rising) < 2:
        return cost.rates(budgets, kappa, near)
    curve = PchipInterpolator(np.log(costs[rising]), np.log(places[rising]))
    within = np.clip(np.log(budgets), *np.log(costs[rising[[0, -1]]]))
    return tuple(np.exp(np.minimum(curve(within), 0.0)).tolist())


def _checked(budgets: Sequence[float], kappa: float, near: float, cost: _Cost) -> tuple[float, ...]:
    """Rates off the curve, each lowered until the accountant itself says that its cost is within its budget.

    One look at the accountant for each budget instead of a search: the curve only proposes, so nothing rests on it.
    """
    proposed = dict(zip(budgets, _along_curve(budgets, kappa, near, cost), strict=True))
    found: dict[float, float] = {}
    for budget, rate in proposed.items():
        at, less = rate * (1 - _CHECKED), _CHECKED
        while cost.epsilon(at, kappa) > budget:
            at, less = at * (1 - less), 2 * less
        found[budget] = at
    return tuple(found[budget] for budget in budgets)


def _noise_that_draws(batch: float, rows: int, expected: Callable[[float], float], near: float, step: float) -> float:
    """The noise multiplier at which `expected` rows are the batch, or up to 0.05 % more; more noise draws more rows."""

    def excess(log_kappa: float) -> float:
        try:
            return math.log(max(expected(math.exp(log_kappa)), 1e-300) / batch)
        except AccountingError:
            return -math.inf  # at so little noise the smallest budget allows no rate at all

    smallest, largest = math.log(SMALLEST_NOISE), math.log(1e6)
    at, reach = math.log(near), math.log(step)
    low, below, high, above = -math.inf, -math.inf, math.inf, math.inf
    for count in range(100):
        value = excess(at)
        if value >= 0:
            high, above = at, value
        else:
            low, below = at, value
        # Where all rows are drawn, less noise may still draw them all.
        drawn = above <= _CLOSE and batch < rows
        if drawn or high <= smallest or high - low < 1e-5:
            break
        if low >= largest:
            raise InputError(f"no noise draws {batch:g} rows per step within these budgets: lower --batch-size")
        if not (math.isfinite(low) and math.isfinite(high)):
            at = min(at + reach, largest) if value < 0 else max(at - reach, smallest)
            reach *= 1.5
        elif count % 3 == 2 or not (math.isfinite(below) and math.isfinite(above)) or above == below:
            at = (low + high) / 2
        else:
            at = low + (high - low) * min(max((0.5 * _CLOSE - below) / (above - below), 0.01), 0.99)
    return math.exp(high)


def _by_scale(budgets: tuple[float, ...], rates: tuple[float, ...], clip: float, cost: _Cost) -> OwnerShares:
    """Given rates; bounds grow with the budget and average (over rows) to `clip`."""
    pairs = list(zip(budgets, rates, strict=True))
    known: dict[tuple[float, float], float] = {}
    for rate in set(rates):
        wanted = sorted({budget for budget, own in pairs if own == rate})
        known |= zip(((budget, rate) for budget in wanted), cost.noises(wanted, rate), strict=True)
    kappas = [known[pair] for pair in pairs]
    mean_inverse = sum(rows / kappa for rows, kappa in zip(cost.sizes, kappas, strict=True)) / sum(cost.sizes)
    sigma = clip / mean_inverse
    return OwnerShares(rates, tuple(sigma / kappa for kappa in kappas), sigma)


def drawing(rates: Sequence[float], sizes: Sequence[int], batch: float) -> tuple[float, ...]:
    """Rates in the same proportions, at most 1 each, that draw `batch` rows.

    >>> drawing([0.1, 0.4], [100, 100], 150)
    (0.5, 1.0)
    """
    found, certain = list(rates), [False] * len(rates)
    for _ in rates:
        left = batch - sum(rows for rows, sure in zip(sizes, certain, strict=True) if sure)
        mass = sum(rows * rate for rows, rate, sure in zip(sizes, rates, certain, strict=True) if not sure)
        found = [1.0 if sure else rate * left / mass for rate, sure in zip(rates, certain, strict=True)]
        if max(found) <= 1:
            break
        certain = [rate >= 1 for rate in found]
    return tuple(min(rate, 1.0) for rate in found)


def _warn_of_owners_left_out(
    shares: OwnerShares, usual: float, facts: PublicFacts, budgets: tuple[float, ...], accountant: str
) -> None:
    """One sentence on owners whose rows are drawn so seldom that the model learns next to nothing from them."""
    left_out = [owner for owner, rate in enumerate(shares.rates) if rate < _SELDOM * usual]
    if not left_out:
        return
    owner = min(left_out, key=lambda owner: shares.rates[owner])
    others = f" (and {len(left_out) - 1} more)" if len(left_out) > 1 else ""
    ways = (
        "a larger batch or variant scale" if accountant == "pld" else "accountant pld, a larger batch or variant scale"
    )
    warnings.warn(
        f'Owner "{facts.owners[owner]}"{others} with ε = {budgets[owner]:g} is drawn '
        f"{shares.rates[owner] * facts.owner_sizes[owner]:.2g} times per step, where equal rates would draw "
        f"{usual * facts.owner_sizes[owner]:.3g}: the model learns next to nothing from it; use {ways}.",
        Caution,
        stacklevel=2,
    )
