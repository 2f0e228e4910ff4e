"""Adaptive clip: DP-SGD whose threshold follows a quantile of the norms (Andrew et al. 2021).

    b̃ = (Σ_{i ∈ B} (1[‖gᵢ‖ ≤ C] − ½) + N(0, σ_b²)) / b + ½
    C ← C·exp(−η·(b̃ − γ)),   gradient noise κ·C

Guarantee: gradient and count come from the same sample and are one joint event, κ_eff = (κ⁻² + (σ_b/½)⁻²)^-½. It does
not depend on C, so all steps cost the same whatever the threshold does, and PLD composition is sound.

The count's noise multiplier σ_b/½ is `count_noise` times κ: at 5 the count takes 4 % of the privacy cost at any ε and
batch size, where the paper's σ_b = b/20 leaves nothing for the gradient at small batches.

Corrections: the share is taken over the public expected batch b, not over the rows drawn. γ is 0.8 by default: where
half of the rows are soon predicted well, the median falls towards 0 and takes the threshold with it, and the rows that
are still wrong are clipped to nothing. `steady_length` keeps updates in units of the first threshold (De et al. 2022),
so that a learning rate means the same at every step; without it, as in the paper, updates shrink and grow with C.
"""

from __future__ import annotations

from typing import Literal

from veil.errors import require, require_above_zero
from veil.methods.calibrating import Sampling, calibrate, relation_for, uniform_draw
from veil.methods.families import PrivateBaseline
from veil.methods.registry import known_as
from veil.plans import Plan, Settings
from veil.plans.controllers import AdaptiveClip, first_release
from veil.problem import PublicFacts


@known_as("adaptive-clip", "the clipping threshold follows a quantile of the gradient norms, released with noise")
class AdaptiveClipSgd(PrivateBaseline):
    """The clipping threshold tracks the `quantile` of the gradient norms."""

    clip: float = 1.0
    quantile: float = 0.8
    rate: float = 0.2
    count_noise: float = 5.0
    steady_length: bool = True
    sampling: Sampling = "poisson"
    neighbours: Literal["add-remove", "replace-one"] | None = None

    def plan(self, facts: PublicFacts, settings: Settings) -> Plan:
        """Calibrate κ for gradient and count together; the count's multiplier is `count_noise` times the gradient's."""
        require_above_zero(self, "clip", "count_noise")
        require(0 < self.quantile < 1, f"quantile is {self.quantile}: it must be between 0 and 1")
        relation = relation_for(self.sampling, self.neighbours)
        steps, draw = settings.steps_for(facts), uniform_draw(facts, settings, self.sampling)
        batch = draw.expected_batch(facts)

        def controller(kappa: float) -> AdaptiveClip:
            joint = (draw, kappa, 0.5 * self.count_noise * kappa, batch, relation)
            return AdaptiveClip(*joint, len(facts.cells), self.clip, self.quantile, self.rate, self.steady_length)

        kappa, rules = calibrate(lambda kappa: first_release(controller(kappa)), facts, settings, steps)
        details = {
            "noise_multiplier": kappa,
            "count_noise": self.count_noise,
            "sampling": self.sampling,
            "batch": batch,
        }
        return Plan(self.name, facts, settings, steps, controller(kappa), relation, rules, details=details)
