"""ASC: adaptive sampling and clipping for the worst group, with equal privacy for all (Cairney-Leeming et al.).

    every step:     draw m_g of n_g rows of each group g, bound each by ξ_g = σ/κ_α(m_g/n_g, ε_s)
                    g̃ = (Σ_g Σ_{i ∈ B_g} min(1, ξ_g/‖gᵢ‖)·gᵢ + N(0, σ²·I)) / M
    every k steps:  L_g = (Σ_{i ∈ D_g} min(ℓᵢ, ζ) + N(0, τ²)) / n_g,   λ_g ∝ exp(η·Ŝ_g),   m = round(M·λ)

Ŝ_g is the sum of the L_g released so far, shrunk towards the mean of the groups by its known noise (the paper uses the
sum as it is; without noise both are the same). A last release that no step would use is neither made nor charged.

κ_α(γ, ε_s) is the noise multiplier at which one release at rate γ costs ε_s at order α. A group that is drawn more is
bounded more tightly, so that every step costs every group the same. As κ grows about in proportion to the rate,
m_g·ξ_g stays about the same: where most rows are clipped, what a harder group gains is lower variance, and groups have
about the say that DP-SGD gives them, not λ. `power` p moves that towards λ: rows of group g are clipped at
ξ_g^(1−p)·ξ_min^p, below what the group is charged for, so that at p = 1 all groups have the same bound. It costs signal
at the same noise. `clipped_shares` in the history has every group's share of an update whose rows are all clipped.

Guarantee: every group has the same (ε, δ). Rates move with released losses, so the cost needs a rule that holds however
they move. With accountant rdp it is a Rényi filter at the plan's order α*, converted there: T·ε_s + u·ε_α(γ^ℓ, τ/ζ) for
u = ⌊(T − 1)/k⌋ loss releases (Theorem 1). With accountant pld rates climb a ladder fixed in the plan, each rung has its
bound, and one token pays for any rung: the run is composed by PLD, which needs about half the noise without replacement
(see `veil.methods.pricing`).
`sampling="poisson"`: public rates m_g/n_g, add-remove or replace-one.
`sampling="wor"`: m_g of n_g rows without replacement, replace-one within the group (the paper).
`loss_rate` is γ^ℓ: losses of a Poisson sample of the rows, for less computation. By default `LOSS_RATE` under
add-remove, or more where the smallest group would have fewer than `LOSS_ROWS` rows or ε is so large that the noise
would fall below `LOSS_NOISE`; every row under replace-one, where a sampled loss is charged twice.

Corrections: Lemma 1 misprints ξ = σ²/κ; a loss in [0, ζ] moves by ζ when a row is replaced, not by 2ζ
(`paper_losses=True` charges 2ζ as the paper does); a group whose size rounds to 0 is not drawn and not charged, but
keeps a small weight so that it can return; m_g never exceeds n_g, the rest goes to the others; the
weights are kept unrounded. Group labels and sizes are public, which the paper uses silently. `loss_noise` is the ratio
of the two noise multipliers, 25 in the paper; by default it is such that losses take a tenth of the budget. Other
defaults are public constants too: ζ = 1.5·ln(classes), above what guessing loses; at least twenty updates; and
η = √(8·ln G/u)/ζ, the step size of exponential weights for u losses in [0, ζ].
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from veil.accounting import Event, Relation
from veil.accounting.conversion import analytic_gaussian_noise
from veil.accounting.spending_rules import SpendingRule
from veil.bounding import Clip, TighterClip
from veil.errors import require, require_above_zero
from veil.methods.calibrating import Sampling, batch_of, relation_for
from veil.methods.families import PrivateAndFair
from veil.methods.moving_budget import SideLosses, split_budget
from veil.methods.pricing import AtOneOrder, Pricing, plan_ladders, sampled_event
from veil.methods.registry import known_as
from veil.plans import Plan, Settings
from veil.plans.controllers import State
from veil.plans.controllers.group_weights import FLOOR, LossDriven, rounded, rounding_generator, shares_within
from veil.problem import PublicFacts
from veil.releases import GradientRelease
from veil.sampling.draws import Poisson, StratifiedSubset

UPDATES = 20
# Losses of a sample: at least this share of the rows, and about so many rows of the smallest group. Both are what was
# found to be enough on validation rows (pages asc-loss-rate-*).
LOSS_RATE = 0.05
LOSS_ROWS = 100
# Noise multiplier of a sampled loss, at least: below it a sample costs nearly as much as all rows, at less noise. Here
# it costs gradients less than half a percent more noise than losses of all rows do.
LOSS_NOISE = 2.0


@dataclass(frozen=True, kw_only=True)
class AscController(LossDriven):
    """Batch sizes from weights, bounds from batch sizes, weights from released losses."""

    pricing: Pricing
    sampling: Sampling
    batch: int
    power: float

    def start(self) -> State:
        """Every group weighs the same."""
        return self._with_rates(self.unheard(), 0)

    def release(self, state: State, step: int) -> GradientRelease:
        """Rates and bounds that cost every cell one step's part of its budget."""
        rows = tuple(state["cell_rows"].tolist())

        def make() -> GradientRelease:
            draw = (
                Poisson(tuple(r / c.rows for r, c in zip(rows, self.facts.cells, strict=True)))
                if self.sampling == "poisson"
                else StratifiedSubset(tuple(int(r) for r in rows))
            )
            limits, clips = self._limits(state["cell_rows"]), tuple(state["cell_clips"].tolist())
            bound = TighterClip(limits, clips) if self.power else Clip(limits)
            return GradientRelease(draw, bound, self.sigma, float(self.batch), self.relation)

        return self.latest.of(rows, make)

    def hear(self, state: State, step: int, values: NDArray[np.float64]) -> State:
        """New weights, batch sizes and bounds."""
        return self._with_rates(self.heard(state, values), step + 1)

    def clip_ranges(self) -> list[tuple[float, float]]:
        """The smallest and the largest bound that each cell may get: at most and at least rows."""
        sizes = self.facts.group_sizes
        shares = np.array([c.rows / sizes[c.group] for c in self.facts.cells])
        most = np.minimum(self.batch * shares, [c.rows for c in self.facts.cells])
        least = most * FLOOR / len(self.facts.groups)
        low, high = (self.sigma / self.pricing.price(rows)[1] for rows in (most, least))
        return list(zip(low.tolist(), high.tolist(), strict=True))

    def _limits(self, rows: NDArray[np.float64]) -> tuple[float, ...]:
        """What each cell is charged for when it gives so many rows."""
        return tuple((self.sigma / self.pricing.price(rows)[1]).tolist())

    def _with_rates(self, state: State, step: int) -> State:
        weights = state["weights"]
        sizes = np.array(self.facts.group_sizes, dtype=np.float64)
        rows = shares_within(weights, float(self.batch), sizes)
        wanted = np.array([rows[c.group] * c.rows / sizes[c.group] for c in self.facts.cells])
        if self.sampling == "wor":
            ceilings = np.array([c.rows for c in self.facts.cells], dtype=np.int64)
            wanted = rounded(wanted, ceilings, rounding_generator(step)).astype(np.float64)
        drawn, kappas = self.pricing.price(wanted)
        clips = self.sigma / kappas
        if self.power:
            smallest = clips[drawn > 0].min()
            clips = np.minimum(clips, clips ** (1 - self.power) * smallest**self.power)
        say = np.bincount([c.group for c in self.facts.cells], drawn * clips, len(sizes))
        return {**state, "cell_rows": drawn, "cell_clips": clips, "clipped_shares": say / say.sum()}


@dataclass(frozen=True)
class LossDrivenMethod(PrivateAndFair):
    """The options of methods that follow the groups' losses, released `updates_per_epoch` times in a pass."""

    clip: float = 1.0
    sampling: Sampling = "poisson"
    neighbours: Literal["add-remove", "replace-one"] | None = None
    step_size: float | None = None
    ceiling: float | None = None
    loss_noise: float | None = None
    loss_rate: float | None = None
    updates_per_epoch: float | None = None

    def every(self, facts: PublicFacts, settings: Settings) -> int:
        """How many steps lie between two releases of the losses: a pass, or less for `UPDATES` in the run."""
        steps, passes = settings.steps_for(facts), facts.rows / batch_of(facts, settings)
        if self.updates_per_epoch is None:
            return max(1, min(round(passes), (steps - 1) // UPDATES))
        return min(steps, max(1, round(passes / self.updates_per_epoch)))

    def side_losses(self, facts: PublicFacts, settings: Settings, one_sided: bool = True) -> SideLosses:
        """The loss releases of a run, in public constants."""
        require_above_zero(self, "clip", "ceiling", "loss_noise", "updates_per_epoch")
        relation, rate = relation_for(self.sampling, self.neighbours), self.loss_rate
        require(rate is None or 0 < rate <= 1, f"loss_rate is {rate}: it must be above 0 and at most 1")
        updates = (settings.steps_for(facts) - 1) // self.every(facts, settings)
        ceiling = 1.5 * math.log(max(2, len(facts.classes))) if self.ceiling is None else self.ceiling
        losses = SideLosses(updates, relation, one_sided, self.loss_noise, ceiling, 1.0 if rate is None else rate)
        return losses if rate is not None else replace(losses, rate=self.share_of_losses(facts, settings, losses))

    def share_of_losses(self, facts: PublicFacts, settings: Settings, of_all: SideLosses) -> float:
        """γ^ℓ by default, in public constants; every row where sampling saves little or costs accuracy."""
        if of_all.relation is Relation.REPLACE_ONE or self.loss_noise is not None:
            return 1.0  # charged twice there; here, noise that is fixed would be more for each drawn row
        budget = min(facts.budgets or (settings.epsilon,))
        noise = of_all.sharing(analytic_gaussian_noise(budget, settings.delta_for(facts)))
        rate = max(LOSS_RATE, LOSS_ROWS / max(1, min(facts.group_sizes)), LOSS_NOISE / noise)
        return rate if rate < 0.5 else 1.0

    def pace(self, facts: PublicFacts, losses: SideLosses) -> float:
        """η as given, or that of exponential weights for so many losses in [0, ζ]."""
        require(self.step_size is None or self.step_size >= 0, f"step_size is {self.step_size}: it must be at least 0")
        if self.step_size is not None:
            return self.step_size
        return math.sqrt(8 * math.log(len(facts.groups)) / max(losses.updates, 1)) / losses.ceiling


@known_as("asc", "draw groups with a high loss more often and bound them more: same ε for every group")
class Asc(LossDrivenMethod):
    """Adaptively sampled and clipped worst-group optimisation."""

    paper_losses: bool = False
    span: float = 8.0
    power: float = 0.0

    def plan(self, facts: PublicFacts, settings: Settings) -> Plan:
        """σ, τ, ε_s and α* from the budget, before any row is read."""
        require(self.span > 1, f"span is {self.span}: it must be above 1")
        require(0 <= self.power <= 1, f"power is {self.power}: it must lie between 0 and 1")
        steps, batch = settings.steps_for(facts), batch_of(facts, settings)
        beside = self.side_losses(facts, settings, one_sided=not self.paper_losses)
        relation = beside.relation
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
        losses = beside.release(loss_kappa)
        controller = AscController(
            facts=facts,
            pricing=pricing,
            sampling=self.sampling,
            relation=relation,
            batch=batch,
            sigma=kappa * self.clip,
            step_size=self.pace(facts, beside),
            losses=losses,
            every=self.every(facts, settings),
            steps=steps,
            power=self.power,
        )
        details |= {
            "noise_multiplier": kappa,
            "loss_noise_multiplier": loss_kappa,
            "sigma": controller.sigma,
            "tau": losses.tau,
            "ceiling": losses.ceiling,
            "step_size": controller.step_size,
            "updates": beside.updates,
            "loss_rate": beside.rate,
            "sampling": self.sampling,
            "batch": batch,
        }
        return Plan(self.name, facts, settings, steps, controller, relation, rules, details=details)
