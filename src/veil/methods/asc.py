"""ASC: adaptive sampling and clipping for the worst group, with equal privacy for all (Cairney-Leeming et al.).

    every step:     draw m_g of n_g rows of each group g, bound each by ξ_g = σ/κ_α(m_g/n_g, ε_s)
                    g̃ = (Σ_g Σ_{i ∈ B_g} min(1, ξ_g/‖gᵢ‖)·gᵢ + N(0, σ²·I)) / M
    every k steps:  L_g = (Σ_{i ∈ D_g} min(ℓᵢ, ζ) + N(0, τ²)) / n_g,   λ_g ← λ_g·exp(η·L_g),   m = round(M·λ)

κ_α(γ, ε_s) is the noise multiplier at which one release at rate γ costs ε_s at order α. A group that is drawn more is
bounded more tightly, so that every step costs every group the same. As κ grows about in proportion to the rate,
m_g·ξ_g stays about the same: what a harder group gains is lower variance.

Guarantee: every group has the same (ε, δ). Rates move with released losses, so the cost needs a rule that holds however
they move. With accountant rdp it is a Rényi filter at the plan's order α*, converted there: T·ε_s + ⌊T/k⌋·ε_α(1, τ/ζ)
(Theorem 1). With accountant pld rates climb a ladder fixed in the plan, each rung has its bound, and one token pays for
any rung: the run is composed by PLD, which needs about half the noise without replacement (see `veil.methods.pricing`).
`sampling="poisson"`: public rates m_g/n_g, add-remove or replace-one.
`sampling="wor"`: m_g of n_g rows without replacement, replace-one within the group (the paper).

Corrections: Lemma 1 misprints ξ = σ²/κ; a loss in [0, ζ] moves by ζ when a row is replaced, not by 2ζ
(`paper_losses=True` charges 2ζ as the paper does); a group whose size rounds to 0 is not drawn and not charged, but
keeps a small weight so that it can return; m_g never exceeds n_g, the rest goes to the others; the
weights are kept unrounded. Group labels and sizes are public, which the paper uses silently. `loss_noise` is the ratio
of the two noise multipliers, 25 in the paper; by default it is such that losses take a tenth of the budget.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from veil.accounting import Event
from veil.accounting.spending_rules import SpendingRule
from veil.bounding import Clip
from veil.errors import require, require_above_zero
from veil.methods.calibrating import Sampling, batch_of, relation_for
from veil.methods.families import PrivateAndFair
from veil.methods.moving_budget import SideLosses, split_budget
from veil.methods.pricing import AtOneOrder, Pricing, plan_ladders, sampled_event
from veil.methods.registry import known_as
from veil.plans import Plan, Settings
from veil.plans.controllers import State
from veil.plans.controllers.group_weights import FLOOR, LossDriven, reweigh, rounded, rounding_generator, shares_within
from veil.problem import PublicFacts
from veil.releases import GradientRelease, LossRelease
from veil.sampling.draws import Poisson, StratifiedSubset


@dataclass(frozen=True, kw_only=True)
class AscController(LossDriven):
    """Batch sizes from weights, bounds from batch sizes, weights from released losses."""

    pricing: Pricing
    sampling: Sampling
    batch: int

    def start(self) -> State:
        """Every group weighs the same."""
        groups = len(self.facts.groups)
        return self._state(np.full(groups, 1.0 / groups), np.zeros(groups), 0)

    def release(self, state: State, step: int) -> GradientRelease:
        """Rates and bounds that cost every cell one step's part of its budget."""
        rows = tuple(state["cell_rows"].tolist())

        def make() -> GradientRelease:
            draw = (
                Poisson(tuple(r / c.rows for r, c in zip(rows, self.facts.cells, strict=True)))
                if self.sampling == "poisson"
                else StratifiedSubset(tuple(int(r) for r in rows))
            )
            bound = Clip(tuple(state["cell_clips"].tolist()))
            return GradientRelease(draw, bound, self.sigma, float(self.batch), self.relation)

        return self.latest.of(rows, make)

    def hear(self, state: State, step: int, values: NDArray[np.float64]) -> State:
        """New weights, batch sizes and bounds. Noise may carry a loss outside [0, ζ]; the weights do not follow it."""
        losses = np.clip(values, 0.0, self.losses.ceiling)
        return self._state(reweigh(state["weights"], losses, self.step_size), losses, step + 1)

    def clip_ranges(self) -> list[tuple[float, float]]:
        """The smallest and the largest bound that each cell may get: at most and at least rows."""
        sizes = self.facts.group_sizes
        shares = np.array([c.rows / sizes[c.group] for c in self.facts.cells])
        most = np.minimum(self.batch * shares, [c.rows for c in self.facts.cells])
        least = most * FLOOR / len(self.facts.groups)
        low, high = (self.sigma / self.pricing.price(rows)[1] for rows in (most, least))
        return list(zip(low.tolist(), high.tolist(), strict=True))

    def _state(self, weights: NDArray[np.float64], losses: NDArray[np.float64], step: int) -> State:
        sizes = np.array(self.facts.group_sizes, dtype=np.float64)
        rows = shares_within(weights, float(self.batch), sizes)
        wanted = np.array([rows[c.group] * c.rows / sizes[c.group] for c in self.facts.cells])
        if self.sampling == "wor":
            ceilings = np.array([c.rows for c in self.facts.cells], dtype=np.int64)
            wanted = rounded(wanted, ceilings, rounding_generator(step)).astype(np.float64)
        drawn, kappas = self.pricing.price(wanted)
        return {"weights": weights, "losses": losses, "cell_rows": drawn, "cell_clips": self.sigma / kappas}


@dataclass(frozen=True)
class LossDrivenMethod(PrivateAndFair):
    """The options of methods that follow the groups' losses, released `updates_per_epoch` times in a pass."""

    clip: float = 1.0
    sampling: Sampling = "poisson"
    neighbours: Literal["add-remove", "replace-one"] | None = None
    step_size: float = 1.0
    ceiling: float = 1.0
    loss_noise: float | None = None
    updates_per_epoch: float = 1.0

    def every(self, facts: PublicFacts, settings: Settings) -> int:
        """How many steps lie between two releases of the losses."""
        passes = round(facts.rows / batch_of(facts, settings) / self.updates_per_epoch)
        return min(settings.steps_for(facts), max(1, passes))


@known_as("asc", "draw groups with a high loss more often and bound them more: same ε for every group")
class Asc(LossDrivenMethod):
    """Adaptively sampled and clipped worst-group optimisation."""

    paper_losses: bool = False
    span: float = 8.0

    def plan(self, facts: PublicFacts, settings: Settings) -> Plan:
        """σ, τ, ε_s and α* from the budget, before any row is read."""
        require_above_zero(self, "clip", "ceiling", "loss_noise", "updates_per_epoch")
        require(self.span > 1, f"span is {self.span}: it must be above 1")
        require(self.step_size >= 0, f"step_size is {self.step_size}: it must be at least 0")
        relation = relation_for(self.sampling, self.neighbours)
        steps, batch = settings.steps_for(facts), batch_of(facts, settings)
        every = self.every(facts, settings)
        updates = steps // every
        beside = SideLosses(updates, relation, not self.paper_losses, self.loss_noise)
        if settings.accountant == "pld":
            ladders = plan_ladders(facts, settings, self.sampling, beside, self.span, self.clip)
            pricing: Pricing = ladders.pricing
            rules: tuple[SpendingRule, ...] = ladders.rules
            kappa, loss_kappa = ladders.kappa, ladders.loss_kappa
            details: dict[str, object] = {"spending": "ladder of rates, PLD"}
        else:

            def step_event(noise: float) -> Event:
                return sampled_event(noise, float(batch), facts.rows, self.sampling, relation)

            budget = split_budget(step_event, facts, settings, steps, beside)
            pricing, rules = AtOneOrder(facts, budget, self.sampling, relation), budget.rules(facts)
            kappa, loss_kappa = budget.kappa, budget.loss_kappa
            details = {"spending": "Rényi filter", "order": budget.order, "step_rho": min(budget.step_rho)}
            details["share_spent_on_losses"] = 1.0 - steps * min(budget.step_rho) / min(budget.rho)
        tau = loss_kappa * self.ceiling
        losses = LossRelease("group losses", self.ceiling, tau, relation, one_sided=not self.paper_losses)
        controller = AscController(
            facts=facts,
            pricing=pricing,
            sampling=self.sampling,
            relation=relation,
            batch=batch,
            sigma=kappa * self.clip,
            step_size=self.step_size,
            losses=losses,
            every=every,
        )
        details |= {
            "noise_multiplier": kappa,
            "loss_noise_multiplier": loss_kappa,
            "sigma": controller.sigma,
            "tau": tau,
            "updates": updates,
            "sampling": self.sampling,
            "batch": batch,
        }
        return Plan(self.name, facts, settings, steps, controller, relation, rules, details=details)
