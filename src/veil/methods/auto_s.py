"""AUTO-S: normalise every row's gradient instead of clipping it (Bu et al. 2023).

    g̃ = (Σ_{i ∈ B} gᵢ/(‖gᵢ‖ + γ) + N(0, κ²·I)) / b

There is no clipping threshold to choose: every row counts nearly the same, however small its gradient. The bound on
one row is 1 (below 1, since ‖g‖/(‖g‖+γ) < 1). Guarantee as DP-SGD's.
"""

from __future__ import annotations

from typing import Literal

from veil.bounding import Normalise
from veil.methods.calibrating import Sampling, batch_of, calibrate, relation_for, uniform_draw
from veil.methods.families import PrivateBaseline
from veil.methods.registry import known_as
from veil.plans import Plan, Settings
from veil.plans.controllers import Constant
from veil.problem import PublicFacts
from veil.releases import GradientRelease


@known_as("auto-s", "normalise every row's gradient: no clipping threshold to choose")
class AutoS(PrivateBaseline):
    """Automatic clipping by normalisation with stability constant γ."""

    gamma: float = 0.01
    sampling: Sampling = "poisson"
    neighbours: Literal["add-remove", "replace-one"] | None = None

    def plan(self, facts: PublicFacts, settings: Settings) -> Plan:
        """Calibrate κ so that the planned steps cost the smallest budget."""
        relation = relation_for(self.sampling, self.neighbours)
        steps, draw = settings.steps_for(facts), uniform_draw(facts, settings, self.sampling)
        bound = Normalise((1.0,) * len(facts.cells), self.gamma)

        def release(kappa: float) -> GradientRelease:
            return GradientRelease(draw, bound, kappa, draw.expected_batch(facts), relation)

        kappa, rules = calibrate(release, facts, settings, steps)
        details = {"noise_multiplier": kappa, "gamma": self.gamma, "sampling": self.sampling}
        details["batch"] = batch_of(facts, settings)
        return Plan(self.name, facts, settings, steps, Constant(release(kappa)), relation, rules, details=details)
