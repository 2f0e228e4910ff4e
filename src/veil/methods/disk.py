"""DiSK: DP-SGD whose noisy gradients are smoothed by a simplified Kalman filter (Zhang et al. 2025).

    g̃ = (Σ_{i ∈ B} clip(∇ℓᵢ(x + γ·(x − x₋₁)), C) + N(0, κ²C²·I)) / b
    m ← φ·m + (1−φ)·g̃,   x ← x − η·m          φ = `filter_memory`, γ = φ/(1−φ) unless set

Guarantee: as DP-SGD's. The look-ahead point follows from released weights and m from released gradients, so the filter
is post-processing; that holds because the noise is calibrated before and is not rescaled afterwards.

Any other method takes the same filter by the setting `noise_filter="disk"`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from veil.methods.calibrating import Sampling
from veil.methods.dp_sgd import DpSgd
from veil.methods.registry import register
from veil.plans import Plan, Settings
from veil.problem import PublicFacts


@register
@dataclass(frozen=True)
class Disk:
    """DP-SGD with the DiSK filter after the noise."""

    name: ClassVar[str] = "disk"
    family: ClassVar[str] = "private baseline"
    private: ClassVar[bool] = True
    relation: ClassVar[str | None] = "add-remove"
    summary: ClassVar[str] = "smooth noisy gradients by a simplified Kalman filter with a look-ahead point, at no cost"

    clip: float = 1.0
    sampling: Sampling = "poisson"
    neighbours: Literal["add-remove", "replace-one"] | None = None

    def plan(self, facts: PublicFacts, settings: Settings) -> Plan:
        """DP-SGD's plan with the filter switched on."""
        filtered = settings.model_copy(update={"noise_filter": "disk"})
        plan = DpSgd(self.clip, self.sampling, self.neighbours).plan(facts, filtered)
        details = {**plan.details, "filter_memory": filtered.filter_memory}
        return replace(plan, method=self.name, details=details)
