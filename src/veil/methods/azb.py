"""aZB, aZB-prop, aZB-weak: one group at a time (Zhou & Bassily 2024, as the ASC paper adapts it).

    every step:     draw a group g ~ λ, then M_g of its n_g rows;  g̃ = (Σ_{i ∈ B} min(1, ξ/‖gᵢ‖)·gᵢ + N(0, σ²·I)) / M_g
    every k steps:  L_g, λ_g ∝ exp(η·Ŝ_g) as in ASC

azb:      M_g = M for every group; σ protects the smallest group, which is drawn at the rate M/n_min.
azb-prop: M_g = M·n_g/n, so that every group is drawn at the same rate.
azb-weak: M_g = M, but σ protects the largest group only: **the minority gets less privacy than requested**. It
          does not run unless `allow_weaker_minority_privacy` is set, and its certificate shows each group's true ε.

Guarantee (Proposition 3): group g has T·ε_α(M_g/n_g, σ/ξ) + u·ε_α(γ^ℓ, τ/ζ), as if it were chosen at every step.
Which group is chosen never changes what an event costs, so the schedule is fixed beforehand and PLD is sound.
`charge="lottery"`: no λ_g may exceed `headroom`/G, and every group is charged for the mixture in which it is chosen
with that public probability and left alone otherwise: far less than being chosen at every step.

Correction: a subset never costs more than all rows, which the paper's accountant did not use (570 and 950 there).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from veil.accounting import Event, Mixture, Repeated, TokenBucket
from veil.accounting.calibration import noise_multiplier
from veil.bounding import Clip
from veil.errors import InputError, require
from veil.methods.asc import LossDrivenMethod
from veil.methods.calibrating import batch_of
from veil.methods.registry import known_as
from veil.plans import Plan, Settings
from veil.plans.controllers import State
from veil.plans.controllers.group_weights import LossDriven
from veil.problem import PublicFacts
from veil.releases import GradientRelease
from veil.sampling.draws import OneGroup, Poisson, StratifiedSubset

Charge = Literal["worst-case", "lottery"]


@dataclass(frozen=True, kw_only=True)
class LotteryController(LossDriven):
    """Group probabilities from released losses; none exceeds `largest_chance`, which is what is charged."""

    within: Poisson | StratifiedSubset
    clip: float
    largest_chance: float

    def start(self) -> State:
        """Every group is as likely."""
        return self.unheard()

    def release(self, state: State, step: int) -> GradientRelease:
        """The lottery with the present probabilities."""
        weights = tuple(state["weights"].tolist())

        def make() -> GradientRelease:
            draw = OneGroup(self.within, weights, tuple(c.group for c in self.facts.cells), self.largest_chance)
            bound = Clip((self.clip,) * len(self.facts.cells))
            return GradientRelease(draw, bound, self.sigma, None, self.relation)

        return self.latest.of(weights, make)

    def hear(self, state: State, step: int, values: NDArray[np.float64]) -> State:
        """New probabilities; what is above the largest chance goes to the other groups."""
        told = self.heard(state, values)
        weights, most = told["weights"], self.largest_chance
        while (weights > most * (1 + 1e-9)).any():
            high = weights >= most
            weights = np.where(high, most, weights * (1.0 - most * high.sum()) / weights[~high].sum())
        return {**told, "weights": weights}


@dataclass(frozen=True)
class _OneGroupAtATime(LossDrivenMethod):
    """What the three variants share; each says how many rows of a group are drawn and which group sets the noise."""

    loss_noise: float = 25.0
    charge: Charge = "worst-case"
    headroom: float = 3.0

    def rows_of(self, group: int, batch: int, facts: PublicFacts) -> float:
        """How many rows of a group are drawn when it is chosen."""
        return float(min(batch, facts.group_sizes[group]))

    def protected(self, facts: PublicFacts) -> list[int]:
        """The cells whose budget sets the noise: all of them."""
        return list(range(len(facts.cells)))

    def plan(self, facts: PublicFacts, settings: Settings) -> Plan:
        """σ and τ from the budget; which events happen is fixed beforehand."""
        require(
            self.headroom >= 1,
            f"headroom is {self.headroom}: it must be at least 1, or the groups' chances could not add up to 1",
        )
        require(self.charge in ("worst-case", "lottery"), f'charge is "{self.charge}": use worst-case or lottery')
        steps, batch = settings.steps_for(facts), batch_of(facts, settings)
        beside = self.side_losses(facts, settings)
        relation = beside.relation
        within = self._within(batch, facts)
        chance = min(1.0, self.headroom / len(facts.groups)) if self.charge == "lottery" else 1.0

        def tokens(kappa: float, cell: int) -> list[Repeated]:
            event = within.event(cell, kappa, relation, facts)
            assert event is not None
            gradient: Event = Mixture(chance, event) if chance < 1.0 else event  # type: ignore[arg-type]
            return [Repeated(gradient, steps), beside.events(kappa * self.loss_noise)]

        kappa = self._noise(tokens, facts, settings)
        controller = LotteryController(
            facts=facts,
            within=within,
            relation=relation,
            clip=self.clip,
            sigma=kappa * self.clip,
            step_size=self.pace(facts, beside),
            losses=beside.release(kappa * self.loss_noise),
            every=self.every(facts, settings),
            steps=steps,
            largest_chance=chance,
        )
        rules = tuple(TokenBucket(tuple(tokens(kappa, cell))) for cell in range(len(facts.cells)))
        details = {
            "noise_multiplier": kappa,
            "loss_noise_multiplier": kappa * self.loss_noise,
            "charge": self.charge,
            "largest_chance": chance,
            "ceiling": beside.ceiling,
            "step_size": controller.step_size,
            "updates": beside.updates,
            "sampling": self.sampling,
            "batch": batch,
        }
        return Plan(self.name, facts, settings, steps, controller, relation, rules, details=details)

    def _within(self, batch: int, facts: PublicFacts) -> Poisson | StratifiedSubset:
        sizes = facts.group_sizes
        rows = [self.rows_of(c.group, batch, facts) * c.rows / sizes[c.group] for c in facts.cells]
        if self.sampling == "poisson":
            return Poisson(tuple(min(1.0, own / c.rows) for own, c in zip(rows, facts.cells, strict=True)))
        return StratifiedSubset(
            tuple(min(c.rows, max(1, round(own))) for own, c in zip(rows, facts.cells, strict=True))
        )

    def _noise(self, tokens: Callable[[float, int], list[Repeated]], facts: PublicFacts, settings: Settings) -> float:
        accountant, delta = settings.accountant_for(facts), settings.delta_for(facts)
        kappa, known = 0.0, set[tuple[float, Event]]()
        for cell in self.protected(facts):
            budget = facts.budget_of(cell, settings.epsilon)
            key = (budget, tokens(1.0, cell)[0].event)
            if key not in known:
                known.add(key)
                kappa = max(kappa, noise_multiplier(lambda k, c=cell: tokens(k, c), budget, delta, accountant))  # type: ignore[misc]
        return kappa


@known_as("azb", "one group at a time, noise for the smallest group (Zhou & Bassily, adapted)")
class Azb(_OneGroupAtATime):
    """One group at a time; the noise protects the smallest group."""


@known_as("azb-prop", "one group at a time with batches in proportion to its size: same rate for all")
class AzbProp(_OneGroupAtATime):
    """One group at a time, batches in proportion to the group."""

    def rows_of(self, group: int, batch: int, facts: PublicFacts) -> float:
        """M·n_g/n."""
        return batch * facts.group_sizes[group] / facts.rows


@known_as("azb-weak", "like azb, with noise for the largest group only: small groups get LESS privacy than requested")
class AzbWeak(_OneGroupAtATime):
    """One group at a time; the noise protects the largest group only."""

    allow_weaker_minority_privacy: bool = False

    def protected(self, facts: PublicFacts) -> list[int]:
        """The cells of the largest group."""
        largest = facts.group_sizes.index(max(facts.group_sizes))
        return [index for index, cell in enumerate(facts.cells) if cell.group == largest]

    def plan(self, facts: PublicFacts, settings: Settings) -> Plan:
        """Raises unless the user has explicitly allowed weaker privacy for the minority."""
        if not self.allow_weaker_minority_privacy:
            raise InputError(
                "azb-weak gives small groups a larger ε than requested: choose asc or azb, or add "
                "--allow-weaker-minority-privacy"
            )
        weaker = "Small groups get less privacy than requested: see the ε of each group."
        return replace(super().plan(facts, settings), over_budget=True, assumptions=(weaker,))
