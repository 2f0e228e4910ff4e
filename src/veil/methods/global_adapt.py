"""DPSGD-Global-Adapt: scale all rows alike instead of clipping the long ones (Esipova et al. 2023).

    ḡᵢ = gᵢ·C/Z if ‖gᵢ‖ ≤ Z, else gᵢ·C/‖gᵢ‖
    f̃ = (|{i ∈ B : ‖gᵢ‖ > τ·Z}| + N(0, σ_f²)) / b,   Z ← Z·exp(−η_Z + f̃)
    g̃ = (Σ_{i ∈ B} ḡᵢ + N(0, κ²C²·I)) / b

A gradient that keeps the direction of the mean has no misalignment, which is what makes clipping unfair. The price is a
shorter step: the signal shrinks by C/Z while the noise stays, so it wants a larger learning rate than DP-SGD.

Guarantee: gradient and count come from the same sample and are one joint event, κ_eff = (κ⁻² + σ_f⁻²)^-½, the same at
every step whatever Z does; PLD composition is sound.

Corrections: rows longer than Z are clipped to C, not dropped; the share is over the public expected batch b; the count
is charged jointly.
"""

from __future__ import annotations

from typing import Literal

from veil.errors import require, require_above_zero
from veil.methods.calibrating import calibrate, relation_for, uniform_draw
from veil.methods.families import PrivateAndFair
from veil.methods.registry import known_as
from veil.plans import Plan, Settings
from veil.plans.controllers import first_release
from veil.plans.controllers.global_scale import AdaptiveScale
from veil.problem import PublicFacts


@known_as("global-adapt", "scale all gradients by one released factor instead of clipping, which keeps directions")
class GlobalAdapt(PrivateAndFair):
    """DP-SGD with one scale for nearly all rows, which follows the longest of them."""

    clip: float = 1.0
    start_ceiling: float | None = None
    rate: float = 0.1
    tau: float = 1.0
    count_noise: float = 10.0
    neighbours: Literal["add-remove", "replace-one"] | None = None

    def plan(self, facts: PublicFacts, settings: Settings) -> Plan:
        """Calibrate κ for gradient and count together; the count's multiplier is `count_noise` times κ."""
        start = self.clip if self.start_ceiling is None else self.start_ceiling
        require_above_zero(self, "clip", "start_ceiling", "tau", "count_noise")
        require(0 < self.rate < 1, f"rate is {self.rate}: it is the share of rows above τ·Z, between 0 and 1")
        relation = relation_for("poisson", self.neighbours)
        steps, draw = settings.steps_for(facts), uniform_draw(facts, settings, "poisson")
        batch = draw.expected_batch(facts)

        def controller(kappa: float) -> AdaptiveScale:
            joint = (draw, kappa, self.count_noise * kappa, batch, relation)
            return AdaptiveScale(*joint, len(facts.cells), self.clip, start, self.rate, self.tau)

        kappa, rules = calibrate(lambda kappa: first_release(controller(kappa)), facts, settings, steps)
        details = {
            "noise_multiplier": kappa,
            "count_noise_multiplier": self.count_noise * kappa,
            "clip": self.clip,
            "start_ceiling": start,
            "batch": batch,
        }
        return Plan(self.name, facts, settings, steps, controller(kappa), relation, rules, details=details)
