"""DP-IS-SGD: importance sampling that gives every group the same share of a batch (Kulynych et al. 2022).

    row i of group g joins a batch with p_g = p̄ / (m·q_g),   p̄ = b/n, m groups, q_g = n_g/n
    g̃ = (Σ_{i ∈ B} bound(gᵢ) + N(0, κ²C²·I)) / b,     bound: min(1, C/‖g‖)·g, or normalised, C·g/(‖g‖ + γ)

Guarantee: a row of group g has the ε of its own rate p_g; the smallest group has the largest rate p* and the largest
ε, and that one is held to the budget. The certificate shows both: ε per group, and ε(p*).

Corrections: the paper's printed formula for p(z) is garbled, the one above is what its text describes; max p ≤ 1 is
required, not assumed; the divisor is the public expected batch p̄·n, not the number of rows drawn; the paper's figures
use the GDP approximation, which under-reports, Veil composes by PLD.
"""

from __future__ import annotations

from typing import Literal

from veil.bounding import Clip, Normalise
from veil.errors import InputError, require, require_above_zero
from veil.methods.calibrating import balanced_rates, batch_of, calibrate, relation_for
from veil.methods.families import PrivateAndFair
from veil.methods.registry import known_as
from veil.plans import Plan, Settings
from veil.plans.controllers import Constant
from veil.problem import PublicFacts
from veil.releases import GradientRelease
from veil.sampling.draws import Poisson


@known_as("dp-is-sgd", "draw small groups more often; they then have the largest ε, which is the budget")
class DpIsSgd(PrivateAndFair):
    """DP-SGD on batches in which every group is expected to have as many rows."""

    clip: float = 1.0
    bounding: Literal["clip", "normalise"] = "clip"
    gamma: float = 0.01
    neighbours: Literal["add-remove", "replace-one"] | None = None

    def plan(self, facts: PublicFacts, settings: Settings) -> Plan:
        """Calibrate κ at the largest rate p*."""
        require_above_zero(self, "clip", "gamma")
        require(self.bounding in ("clip", "normalise"), f'bounding is "{self.bounding}": it is clip or normalise')
        relation = relation_for("poisson", self.neighbours)
        batch = batch_of(facts, settings)
        rates = balanced_rates(facts, float(batch))
        if max(rates) > 1:
            group = facts.cells[rates.index(max(rates))].group
            raise InputError(
                f'group "{facts.groups[group]}" has {facts.group_sizes[group]} rows, fewer than the batch share '
                f"{batch / len(facts.groups):.0f}: lower --batch-size or merge groups"
            )
        draw, limits = Poisson(rates), (self.clip,) * len(facts.cells)
        bound = Clip(limits) if self.bounding == "clip" else Normalise(limits, gamma=self.gamma)
        steps = settings.steps_for(facts)

        def release(kappa: float) -> GradientRelease:
            return GradientRelease(draw, bound, kappa * self.clip, float(batch), relation)

        kappa, rules = calibrate(release, facts, settings, steps)
        details = {"noise_multiplier": kappa, "clip": self.clip, "sampling": "poisson", "batch": batch}
        details["rates"] = list(rates)
        return Plan(self.name, facts, settings, steps, Constant(release(kappa)), relation, rules, details=details)
