"""IDP-SGD: every owner's own budget, used up (Boenisch et al. 2023; as INO-SGD's baseline, Tian et al.).

    sample: one bound C for all, owner o is drawn with the rate q_o that spends ε_o; κ is such that Σ n_o·q_o = b
    scale:  one rate q = b/n for all, owner o is bounded by C_o = σ/κ_o(ε_o); σ is such that the mean bound is C
    both:   rates half-way (geometrically) between the two, bounds spend what is left of each budget

Guarantee: a row of owner o has (ε_o, δ), composed exactly by RDP or PLD; every budget is used to 1 % and none overrun.

Correction: the papers' closed form 2αq²C²/σ² holds only for small q and large σ/C and under-reports outside; here rates
and bounds come from the exact cost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from veil.accounting import Rdp, Relation
from veil.accounting.accountant import Accountant
from veil.accounting.calibration import noise_for, rate_for
from veil.bounding import Clip
from veil.errors import InputError, require, require_above_zero
from veil.methods.calibrating import batch_of, relation_for, rules_for
from veil.methods.families import Individualised
from veil.methods.registry import known_as
from veil.plans import Plan, Settings
from veil.plans.controllers import Constant
from veil.problem import PublicFacts
from veil.releases import GradientRelease
from veil.sampling.draws import Poisson

Variant = Literal["sample", "scale", "both"]


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
    rate = batch_of(facts, settings) / facts.rows
    if variant == "scale":
        return _by_scale(budgets, (rate,) * len(budgets), clip, facts, settings, relation)
    by_sample = _by_sample(budgets, clip, facts, settings, relation)
    if variant == "sample":
        return by_sample
    rates = tuple(math.sqrt(rate * own) for own in by_sample.rates)
    return _by_scale(budgets, rates, clip, facts, settings, relation)


def _by_sample(
    budgets: tuple[float, ...], clip: float, facts: PublicFacts, settings: Settings, relation: Relation
) -> OwnerShares:
    """One noise multiplier; rates fall with the budget. κ is found by RDP (fast), rates by the accountant."""
    steps, delta, batch = settings.steps_for(facts), settings.delta_for(facts), batch_of(facts, settings)

    def rates(kappa: float, accountant: Accountant) -> tuple[float, ...]:
        known = {
            budget: rate_for(budget, delta, kappa, steps, relation, accountant=accountant) for budget in set(budgets)
        }
        return tuple(known[budget] for budget in budgets)

    def expected(kappa: float) -> float:
        found = rates(kappa, Rdp())
        return sum(rows * rate for rows, rate in zip(facts.owner_sizes, found, strict=True))

    low, high = math.log(0.3), math.log(0.6)
    while expected(math.exp(high)) < batch:
        low, high = high, high + math.log(2)
        if high > math.log(1e6):
            raise InputError(f"no noise draws {batch} rows per step within these budgets: lower --batch-size")
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if expected(math.exp(middle)) < batch else (low, middle)
    kappa = math.exp(high)
    return OwnerShares(rates(kappa, settings.accountant_for()), (clip,) * len(budgets), kappa * clip)


def _by_scale(
    budgets: tuple[float, ...],
    rates: tuple[float, ...],
    clip: float,
    facts: PublicFacts,
    settings: Settings,
    relation: Relation,
) -> OwnerShares:
    """Given rates; bounds grow with the budget and average (over rows) to `clip`."""
    steps, delta, accountant = settings.steps_for(facts), settings.delta_for(facts), settings.accountant_for()
    known: dict[tuple[float, float], float] = {}
    for pair in set(zip(budgets, rates, strict=True)):
        known[pair] = noise_for(pair[0], delta, pair[1], steps, relation, accountant=accountant)
    kappas = [known[pair] for pair in zip(budgets, rates, strict=True)]
    mean_inverse = sum(rows / kappa for rows, kappa in zip(facts.owner_sizes, kappas, strict=True)) / facts.rows
    sigma = clip / mean_inverse
    return OwnerShares(rates, tuple(sigma / kappa for kappa in kappas), sigma)
