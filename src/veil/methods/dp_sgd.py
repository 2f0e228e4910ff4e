"""DP-SGD: clip every row's gradient, add noise, step (Abadi et al. 2016).

    g̃ = (Σ_{i ∈ B} min(1, C/‖gᵢ‖)·gᵢ + N(0, κ²C²·I)) / b,   b = q·n

Guarantee: every row of every group has the same (ε, δ), composed by PLD (or RDP) over the planned steps.
`sampling="poisson"`: each row joins a batch with rate q = b/n; add-remove (or replace-one).
`sampling="wor"`: batches of exactly b rows without replacement; replace-one, as the ASC paper trains its baseline.

Correction to common practice: the divisor is the public expected batch size b, never the number of rows drawn.
"""

from __future__ import annotations

from typing import Literal

from veil.bounding import Clip
from veil.errors import require_above_zero
from veil.methods.calibrating import Sampling, batch_of, calibrate, relation_for, uniform_draw
from veil.methods.families import PrivateBaseline
from veil.methods.registry import known_as
from veil.plans import Plan, Settings
from veil.plans.controllers import Constant
from veil.problem import PublicFacts
from veil.releases import GradientRelease


@known_as("dp-sgd", "clip every row's gradient, add noise: the baseline, which ignores groups")
class DpSgd(PrivateBaseline):
    """Plain DP-SGD: the same rate, bound and noise for every row."""

    clip: float = 1.0
    sampling: Sampling = "poisson"
    neighbours: Literal["add-remove", "replace-one"] | None = None

    def plan(self, facts: PublicFacts, settings: Settings) -> Plan:
        """Calibrate κ so that the planned steps cost the smallest budget."""
        require_above_zero(self, "clip")
        relation = relation_for(self.sampling, self.neighbours)
        steps, draw = settings.steps_for(facts), uniform_draw(facts, settings, self.sampling)
        bound = Clip((self.clip,) * len(facts.cells))

        def release(kappa: float) -> GradientRelease:
            return GradientRelease(draw, bound, kappa * self.clip, draw.expected_batch(facts), relation)

        kappa, rules = calibrate(release, facts, settings, steps)
        details = {"noise_multiplier": kappa, "clip": self.clip, "sampling": self.sampling}
        details["batch"] = batch_of(facts, settings)
        return Plan(self.name, facts, settings, steps, Constant(release(kappa)), relation, rules, details=details)
