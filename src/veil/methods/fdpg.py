"""FDPG: draw a group more often the more clipping takes from its gradients, at the same ε for every group.

    every step:   row i of group k joins the batch with p_k = b·q_k / Σ_j n_j·q_j, at most p*
                  g̃ = (Σ_{i ∈ B} bound(gᵢ) + N(0, σ₁²C²·I)) / b,        bound: min(1, C/‖g‖)·g, or C·g/(‖g‖ + γ)
                  A_k += Σ_{i ∈ B_k} min(‖gᵢ‖/β, 1) + N(0, σ₂²)
                  B_k += Σ_{i ∈ B_k} ‖bound(gᵢ)‖/C + N(0, σ₂²)
    every epoch:  q_k = G_k/Σ_j G_j  (Eq. 5),   G_k = (β/C)·A_k/B_k, shrunk towards the groups' mean by its known noise

G_k is how many times longer a group's gradients are than what the bound leaves of them: a group that is drawn G_k times
as often has the share of an update, by length, that it would have without privacy. Where no row is clipped all rates
are equal and FDPG is DP-SGD. `signal="clipped-norm"` is the paper's: the mean norm of the rows longer than C, which
says nothing of how many there are and so never ends at equal rates.

Clipping also makes every update shorter, and a model that is trained too little serves small and hard groups worst. A
learning rate that was given is therefore read as that of training without privacy: from the second epoch on an update
is lengthened by G, the same ratio over all rows (`restore_length`). Where Veil chooses the learning rate it knows the
clip, and nothing is lengthened.

The rule settles: q says how much is lost, not for how long. `step_size` η_q has the paper's other rule instead,
q_k ← q_k·exp(η_q·G_k), which goes on as long as signals differ at all: rates then end at the cap.

Guarantee: every group has the same (ε, δ), add-remove; gradient and statistics are one event with
σ_eff = (σ₁⁻² + 2σ₂⁻²)^-½. Rates follow released values, but none exceeds p* = `cap`·b/n. With accountant pld and
`cap` = `sustained` (the default) every step is charged at p*, whatever the rates are, and the run is composed by PLD.
With accountant rdp, or a `cap` above `sustained`, the cost is held by a Rényi filter at the plan's order α*: each cell
is charged for the rates it really had, and σ₁ is such that `sustained`·b/n can be kept up for the whole run. A rate
that the remaining budget does not admit for all remaining steps is lowered (a public decision: it follows from earlier
rates), so a run never ends early. `cap_reached` in the history says where that, or p*, held a group back.

Corrections to the paper: Theorem 3 leaves out the number of steps and the cost of the statistics, and its proof has
(m²−m)/σ² where (m²−m)/(2σ²) is right. p* is a constant of the plan here, not the maximum read off afterwards. Sums
over an epoch do not have sensitivity 1, since a row is drawn several times: the statistics are released at every step,
and the noisy values are summed.

`notion` lets a parity notion decide in place of gradient norms (the paper's D.4): once an epoch, noisy counts of
outcomes per group and class give how far each group is ahead of the last. Several attributes cross into one group.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from veil.accounting import (
    AccountingError,
    Event,
    Gaussian,
    Rdp,
    Relation,
    RenyiFilter,
    Repeated,
    TokenBucket,
    joint_noise_multiplier,
)
from veil.accounting.calibration import best_order, noise_multiplier
from veil.accounting.conversion import rho_for_budget
from veil.accounting.rdp import cost_at
from veil.accounting.spending_rules import SpendingRule
from veil.bounding import Clip, Normalise
from veil.errors import InputError, require, require_above_zero
from veil.methods.calibrating import batch_of
from veil.methods.families import PrivateAndFair
from veil.methods.registry import known_as
from veil.plans import Plan, Settings
from veil.plans.controllers import first_release
from veil.plans.controllers.fdpg import ClippedNorm, FairRates, FdpgController, LostLength, NormStatistic
from veil.plans.controllers.parity import Notion, ParityRelease
from veil.problem import PublicFacts
from veil.sampling.draws import Poisson


@known_as("fdpg", "draw groups more often the more clipping takes from them: privacy costs every group the same")
class Fdpg(PrivateAndFair):
    """Fairness-aware sampling within budgets that are the same for every group."""

    clip: float = 1.0
    bounding: Literal["clip", "normalise"] = "clip"
    gamma: float = 0.01
    step_size: float | None = None
    signal: Literal["lost-length", "clipped-norm"] = "lost-length"
    norm_bound: float = 5.0
    statistic_noise: float = 10.0
    sustained: float = 1.25
    cap: float | None = None
    memory: float = 0.5
    restore_length: bool | None = None
    notion: Literal["gradient-norm", "demographic-parity", "equal-opportunity", "equalised-odds"] = "gradient-norm"
    parity_noise: float = 50.0

    def plan(self, facts: PublicFacts, settings: Settings) -> Plan:
        """σ₁ and α* for the sustained rate, a Rényi filter per cell, p* as the ceiling of every rate."""
        self._check(facts)
        filtered = settings.accountant == "rdp" or self._cap() > self.sustained
        assumptions = (FILTERED,) if filtered and settings.accountant != "rdp" else ()
        if filtered:
            settings = settings.model_copy(update={"accountant": "rdp"})
        steps, batch = settings.steps_for(facts), float(batch_of(facts, settings))
        every = min(steps, max(1, round(facts.rows / batch)))
        updates = (steps - 1) // every if self._parity() else 0
        uniform = batch / facts.rows
        sustained, largest = min(1.0, self.sustained * uniform), min(1.0, self._cap() * uniform)

        def events(kappa: float) -> list[Repeated]:
            draw = Poisson((sustained,) * len(facts.cells))
            step = draw.event(0, self._joint(kappa), Relation.ADD_REMOVE, facts)
            assert step is not None
            return [Repeated(step, steps), Repeated(self._outcomes(kappa), updates)]

        kappa, filters = moving_rules(events, facts, settings) if filtered else (_by_pld(events, facts, settings), ())
        fair = FairRates(facts, filters, self._joint(kappa), batch, largest, Relation.ADD_REMOVE)
        controller = self._controller(facts, kappa, fair, (steps, every), self._restored(settings))
        rules: tuple[SpendingRule, ...] = filters or _tokens(controller, updates)
        details = {
            "noise_multiplier": kappa,
            "statistic_noise_multiplier": self.statistic_noise * kappa,
            "joint_noise_multiplier": fair.kappa,
            "spending": "Rényi filter" if filtered else "largest rate, PLD",
            "clip": self.clip,
            "bounding": self.bounding,
            "notion": self.notion,
            "signal": self.signal,
            "restore_length": controller.restore_length,
            "uniform_rate": uniform,
            "sustained_rate": sustained,
            "largest_rate": largest,
            "batch": batch,
        } | ({"order": filters[0].order} if filtered else {})
        return Plan(self.name, facts, settings, steps, controller, Relation.ADD_REMOVE, rules, assumptions, details)

    def _cap(self) -> float:
        return self.sustained if self.cap is None else self.cap

    def _parity(self) -> bool:
        return self.notion != "gradient-norm"

    def _outcomes(self, kappa: float) -> Event:
        """The parity release as every row sees it."""
        return Gaussian(self.parity_noise * kappa, Relation.ADD_REMOVE, one_sided=True)

    def _joint(self, kappa: float) -> float:
        """σ_eff of gradient and both statistics, as the release charges it; with parity there are none."""
        if self._parity():
            return kappa
        return joint_noise_multiplier(kappa, self.statistic_noise * kappa / math.sqrt(2.0))

    def _signal(self) -> ClippedNorm | LostLength:
        clips = self.bounding == "clip"
        if self.signal == "clipped-norm":
            return ClippedNorm(self.clip if clips else 0.0, self.norm_bound)
        return LostLength(self.clip, self.norm_bound, 0.0 if clips else self.gamma)

    def _restored(self, settings: Settings) -> bool:
        """Whether updates are lengthened: where clipping is told by lost length, and a learning rate was given."""
        told = self.bounding == "clip" and self.signal == "lost-length" and not self._parity()
        return told and (settings.learning_rate is not None if self.restore_length is None else self.restore_length)

    def _controller(
        self, facts: PublicFacts, kappa: float, fair: FairRates, times: tuple[int, int], restored: bool
    ) -> FdpgController:
        steps, every = times
        groups = tuple(cell.group for cell in facts.cells)
        norms = NormStatistic(groups, len(facts.groups), self._signal(), self.statistic_noise * kappa)
        parity, parity_rho = None, 0.0
        if self.notion != "gradient-norm":
            notion: Notion = self.notion
            ceiling = math.sqrt(2.0)
            tau = self.parity_noise * kappa * ceiling
            parity = ParityRelease("outcomes", ceiling, tau, Relation.ADD_REMOVE, notion=notion)
            parity_rho = cost_at(self._outcomes(kappa), fair.filters[0].order) if fair.filters else 0.0
        limits = (self.clip,) * len(facts.cells)
        bound = Clip(limits) if self.bounding == "clip" else Normalise(limits, gamma=self.gamma)
        pace = self.step_size
        if pace is None and parity is not None:
            # How far a group is ahead may be 0, so it is no share: exponential weights for signals in [0, 1].
            pace = math.sqrt(8 * math.log(len(facts.groups)) / max((steps - 1) // every, 1))
        moving = (kappa * self.clip, pace, self.memory, steps, every)
        return FdpgController(fair, norms, parity, parity_rho, bound, *moving, restore_length=restored)

    def _check(self, facts: PublicFacts) -> None:
        require_above_zero(self, "clip", "gamma", "norm_bound", "statistic_noise", "parity_noise")
        require(self.step_size is None or self.step_size >= 0, f"step_size is {self.step_size}: it must be at least 0")
        require(self.bounding in ("clip", "normalise"), f'bounding is "{self.bounding}": it must be clip or normalise')
        require(
            self.signal in ("lost-length", "clipped-norm"),
            f'signal is "{self.signal}": it must be lost-length or clipped-norm',
        )
        known = ("gradient-norm", "demographic-parity", "equal-opportunity", "equalised-odds")
        require(self.notion in known, f'notion is "{self.notion}": it must be one of {", ".join(known)}')
        require(
            not self._parity() or (facts.task == "classification" and len(facts.classes) == 2),
            f'notion "{self.notion}" needs two classes: there are {len(facts.classes)}',
        )
        require(
            not self.restore_length
            or (self.bounding == "clip" and self.signal == "lost-length" and not self._parity()),
            "restore_length needs the lost length: use bounding clip, signal lost-length and notion gradient-norm",
        )
        require(0 <= self.memory < 1, f"memory is {self.memory}: it must be between 0 and 1")
        require(
            1 <= self.sustained <= self._cap(),
            f"sustained is {self.sustained} and cap is {self.cap}: they must satisfy 1 ≤ sustained ≤ cap",
        )
        require(
            self.norm_bound > self.clip or self.bounding == "normalise",
            f"norm_bound is {self.norm_bound}: it must be above clip ({self.clip}), or all clipped rows look the same",
        )


FILTERED = (
    "Rates may rise above what is sustained, which only a Rényi filter can hold: ε was computed by RDP although PLD "
    "was asked for."
)


def _by_pld(events: Callable[[float], list[Repeated]], facts: PublicFacts, settings: Settings) -> float:
    """The smallest κ at which `events(κ)` fit the smallest budget, by PLD."""
    budget = min(facts.budget_of(cell, settings.epsilon) for cell in range(len(facts.cells)))
    try:
        return noise_multiplier(events, budget, settings.delta_for(facts), settings.accountant_for(facts))
    except AccountingError as error:
        raise InputError(f"no noise gives ε = {budget:g}: {error}") from error


def _tokens(controller: FdpgController, updates: int) -> tuple[TokenBucket, ...]:
    """One token per step at the largest rate for every cell, and one per release of outcomes."""
    facts, parity = controller.fair.facts, controller.parity
    events = first_release(controller).events(facts)
    beside = () if parity is None else (Repeated(parity.event(), updates),)
    return tuple(TokenBucket((Repeated(events[cell], controller.steps), *beside)) for cell in range(len(facts.cells)))


def moving_rules(
    events: Callable[[float], list[Repeated]], facts: PublicFacts, settings: Settings
) -> tuple[float, tuple[RenyiFilter, ...]]:
    """The smallest κ at which `events(κ)` fit the smallest budget, and a Rényi filter per cell at their best order."""
    delta, cells = settings.delta_for(facts), range(len(facts.cells))
    budgets = [facts.budget_of(cell, settings.epsilon) for cell in cells]
    try:
        kappa = noise_multiplier(events, min(budgets), delta, Rdp())
        order = best_order(events(kappa), delta)
        rules = tuple(RenyiFilter(order, rho_for_budget(budget, delta, order)) for budget in budgets)
    except AccountingError as error:
        raise InputError(f"no noise gives ε = {min(budgets):g}: {error}") from error
    return kappa, rules
