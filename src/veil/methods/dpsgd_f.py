"""DPSGD-F: a clipping threshold per group, higher where more rows are clipped (Xu, Du and Wu 2021).

    m̃_k = |{i ∈ B_k : ‖gᵢ‖ > C₀}| + N(0, σ_m²),   s̃_k = max(m̃_k, 0)/b_k,   C_k = C₀·(1 + s̃_k/s̃)
    g̃ = (Σ_k Σ_{i ∈ B_k} min(1, C_k/‖gᵢ‖)·gᵢ + N(0, κ²·max_k C_k²·I)) / b

Guarantee: gradient and counts come from the same sample and are one joint event, κ_eff = (κ⁻² + σ_m⁻²)^-½. Gradients
are released in units of the largest threshold, so all steps cost the same and PLD composition is sound. A group below
the largest threshold is charged as if it were at it.

Corrections: the noise follows the largest threshold of *all* groups, not of those present in the batch (which would
tell who was drawn); the count release is charged, jointly; counts are clamped at 0; shares are over expected rows
b_k = q·n_k, which are public, so that no second count is released. Counts of one step set the thresholds of the next,
averaged with `memory`, since one batch holds only a few rows of a small group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from veil.errors import require
from veil.methods.calibrating import batch_of, calibrate, relation_for, uniform_draw
from veil.methods.registry import register
from veil.plans import Plan, Settings
from veil.plans.controllers.thresholds import GroupThresholds
from veil.problem import PublicFacts
from veil.releases import GradientRelease


@register
@dataclass(frozen=True)
class DpSgdF:
    """DP-SGD whose threshold is higher for groups that are clipped more."""

    name: ClassVar[str] = "dpsgd-f"
    family: ClassVar[str] = "private and fair"
    private: ClassVar[bool] = True
    relation: ClassVar[str | None] = "add-remove"
    summary: ClassVar[str] = "a clipping threshold per group, higher where noisy counts say that more rows are clipped"

    clip: float = 1.0
    count_noise: float = 10.0
    memory: float = 0.9
    largest_ratio: float = 4.0
    neighbours: Literal["add-remove", "replace-one"] | None = None

    def plan(self, facts: PublicFacts, settings: Settings) -> Plan:
        """Calibrate κ for gradient and counts together; the counts' multiplier is `count_noise` times κ."""
        for name in ("clip", "count_noise", "largest_ratio"):
            require(getattr(self, name) > 0, f"{name} is {getattr(self, name)}: it must be above 0")
        require(0 <= self.memory < 1, f"memory is {self.memory}: it must lie between 0 and 1")
        relation = relation_for("poisson", self.neighbours)
        steps, draw = settings.steps_for(facts), uniform_draw(facts, settings, "poisson")
        batch, rate = draw.expected_batch(facts), batch_of(facts, settings) / facts.rows

        def controller(kappa: float) -> GroupThresholds:
            return GroupThresholds(
                draw,
                tuple(cell.group for cell in facts.cells),
                tuple(rate * rows for rows in facts.group_sizes),
                kappa,
                self.count_noise * kappa,
                self.clip,
                self.memory,
                self.largest_ratio,
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
            "largest_threshold": self.clip * (1.0 + self.largest_ratio),
            "batch": batch,
        }
        return Plan(self.name, facts, settings, steps, controller(kappa), relation, rules, details=details)
