"""DPSUR: keep an update only if a private test on fresh rows says that it helped (Fu et al. 2024).

    try:   w' = w − η·(Σ_{i ∈ B} min(1, C/‖gᵢ‖)·gᵢ + N(0, κ²C²·I)) / b
    test:  ΔẼ = (Σ_{j ∈ V} clip(ℓⱼ(w') − ℓⱼ(w), ±C_v) + N(0, κ_v²C_v²)) / b_v,   V a fresh Poisson sample
    keep:  w ← w' if ΔẼ < β·C_v, else w stays, and momentum starts anew

Guarantee: every try costs its gradient and its test, kept or not; the plan commits T of each, so PLD composition is
sound. The paper's saving, to charge accepted updates only, does not hold: a rejected try is seen through its
rejection, and the accepted ones are what they are because others were rejected.

Corrections: every try costs; the change of the loss is clipped row by row and divided by the expected sample b_v, so
that one row moves the mean by C_v/b_v; clipped as a whole it could move by 2C_v. After a rejection weights,
averages and noise filters are as before and momentum starts anew: that of before would make the same try again. The
test takes a share of the budget: κ_v = `test_noise`·κ.
"""

from __future__ import annotations

from typing import Literal

from veil.accounting import Repeated, TokenBucket
from veil.bounding import Clip
from veil.errors import require, require_above_zero
from veil.methods.calibrating import batch_of, relation_for, uniform_draw
from veil.methods.convex.setting import noise_for_cell
from veil.methods.families import PrivateBaseline
from veil.methods.registry import known_as
from veil.plans import Plan, Settings
from veil.plans.controllers import Constant
from veil.plans.controllers.gate import Gate
from veil.problem import PublicFacts
from veil.releases import GradientRelease


@known_as("dpsur", "keep an update only if a private test shows that it helped; every attempt is charged")
class Dpsur(PrivateBaseline):
    """DP-SGD with selective updates: every try is charged, only those that pass the test stay."""

    clip: float = 1.0
    test_clip: float = 0.1
    test_noise: float = 4.0
    threshold: float = 0.0
    test_batch: int | None = None
    neighbours: Literal["add-remove", "replace-one"] | None = None

    def plan(self, facts: PublicFacts, settings: Settings) -> Plan:
        """Calibrate κ so that T tries and T tests together cost the smallest budget."""
        require_above_zero(self, "clip", "test_clip", "test_noise")
        require(-1 <= self.threshold <= 1, f"threshold is {self.threshold}: it must be between −1 and 1")
        relation = relation_for("poisson", self.neighbours)
        steps, draw = settings.steps_for(facts), uniform_draw(facts, settings, "poisson")
        batch = draw.expected_batch(facts)
        rate = min(1.0, (self.test_batch or batch_of(facts, settings)) / facts.rows)
        bound = Clip((self.clip,) * len(facts.cells))

        def release(kappa: float) -> GradientRelease:
            return GradientRelease(draw, bound, kappa * self.clip, batch, relation)

        def gate(kappa: float) -> Gate:
            return Gate(rate, self.test_clip, self.test_noise * kappa * self.test_clip, self.threshold, relation)

        def tokens(kappa: float, cell: int) -> list[Repeated]:
            spent = (release(kappa).events(facts)[cell], gate(kappa).events(facts)[cell])
            return [Repeated(event, steps) for event in spent]

        # Every cell has the same rates, so the smallest budget decides.
        tightest = min(range(len(facts.cells)), key=lambda cell: facts.budget_of(cell, settings.epsilon))
        kappa = noise_for_cell(lambda value: tokens(value, tightest), tightest, facts, settings)
        rules = tuple(TokenBucket(tuple(tokens(kappa, cell))) for cell in range(len(facts.cells)))
        details = {
            "noise_multiplier": kappa,
            "test_noise_multiplier": self.test_noise * kappa,
            "clip": self.clip,
            "test_clip": self.test_clip,
            "batch": batch,
            "test_batch": rate * facts.rows,
        }
        controller = Constant(release(kappa))
        return Plan(self.name, facts, settings, steps, controller, relation, rules, details=details, gate=gate(kappa))
