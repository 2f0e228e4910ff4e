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

from dataclasses import dataclass
from typing import ClassVar, Literal

from veil.errors import require
from veil.methods.calibrating import calibrate, relation_for, uniform_draw
from veil.methods.registry import register
from veil.plans import Plan, Settings
from veil.plans.controllers.global_scale import AdaptiveScale
from veil.problem import PublicFacts
from veil.releases import GradientRelease


@register
@dataclass(frozen=True)
class GlobalAdapt:
    """DP-SGD with one scale for nearly all rows, which follows the longest of them."""

    name: ClassVar[str] = "global-adapt"
    family: ClassVar[str] = "private and fair"
    private: ClassVar[bool] = True
    relation: ClassVar[str | None] = "add-remove"
    summary: ClassVar[str] = "scale all gradients by one released factor instead of clipping, so that directions stay"

    clip: float = 1.0
    start_ceiling: float | None = None
    rate: float = 0.1
    tau: float = 1.0
    count_noise: float = 10.0
    neighbours: Literal["add-remove", "replace-one"] | None = None

    def plan(self, facts: PublicFacts, settings: Settings) -> Plan:
        """Calibrate κ for gradient and count together; the count's multiplier is `count_noise` times κ."""
        start = self.clip if self.start_ceiling is None else self.start_ceiling
        for name, value in (("clip", self.clip), ("start_ceiling", start), ("tau", self.tau)):
            require(value > 0, f"{name} is {value}: it must be above 0")
        require(self.count_noise > 0, f"count_noise is {self.count_noise}: it must be above 0")
        require(0 < self.rate < 1, f"rate is {self.rate}: it is the share of rows above τ·Z, between 0 and 1")
        relation = relation_for("poisson", self.neighbours)
        steps, draw = settings.steps_for(facts), uniform_draw(facts, settings, "poisson")
        batch = draw.expected_batch(facts)

        def controller(kappa: float) -> AdaptiveScale:
            return AdaptiveScale(
                draw,
                self.clip,
                len(facts.cells),
                kappa,
                self.count_noise * kappa,
                start,
                self.rate,
                self.tau,
                batch,
                relation,
            )

        def release(kappa: float) -> GradientRelease:
            chosen = controller(kappa)
            return chosen.release(chosen.start(), 0)

        kappa, rules = calibrate(release, facts, settings, steps)
        details = {
            "noise_multiplier": kappa,
            "count_noise_multiplier": self.count_noise * kappa,
            "clip": self.clip,
            "start_ceiling": start,
            "batch": batch,
        }
        return Plan(self.name, facts, settings, steps, controller(kappa), relation, rules, details=details)
