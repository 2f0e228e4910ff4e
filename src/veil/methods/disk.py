"""DiSK: DP-SGD whose noisy gradients are smoothed by a simplified Kalman filter (Zhang et al. 2025).

    g̃ = (Σ_{i ∈ B} clip(∇ℓᵢ(x + γ·(x − x₋₁)), C) + N(0, κ²C²·I)) / b
    m ← φ·m + (1−φ)·g̃,   x ← x − η·m          φ = `filter_memory`, γ = φ/(1−φ) unless set

Guarantee: as DP-SGD's. The look-ahead point follows from released weights and m from released gradients, so the filter
is post-processing; that holds because the noise is calibrated before and is not rescaled afterwards.

Any other method takes the same filter by the setting `noise_filter="disk"`.
"""

from __future__ import annotations

from dataclasses import replace

from veil.methods.dp_sgd import DpSgd
from veil.methods.registry import known_as
from veil.plans import Plan, Settings
from veil.problem import PublicFacts


@known_as("disk", "smooth noisy gradients by a simplified Kalman filter with a look-ahead point, at no cost")
class Disk(DpSgd):
    """DP-SGD with the DiSK filter after the noise."""

    def plan(self, facts: PublicFacts, settings: Settings) -> Plan:
        """DP-SGD's plan with the filter switched on."""
        filtered = settings.model_copy(update={"noise_filter": "disk"})
        plan = super().plan(facts, filtered)
        return replace(plan, details={**plan.details, "filter_memory": filtered.filter_memory})
