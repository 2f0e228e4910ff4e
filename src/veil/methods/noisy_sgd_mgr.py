"""Noisy SGD with multiplicative group reweighting (Zhou & Bassily, algorithm 3).

    every step:  i ~ λ;   w ← Proj_W(w − η_w·(mean gradient of group i + Gaussian noise))
                 L̃_j = mean loss of group j + noise, for every group;   λ_j ← λ_j·e^(η_λ·L̃_j), normalised
    the run's weights are the average of all w

Guarantee: every group is charged as if it were chosen at every step, and for every release of the losses; which group
is chosen follows from released values, so the schedule is fixed and PLD is sound. The excess worst-group risk on the
training rows has an upper bound with its constants (`veil.methods.convex.reweighting`), in the plan's details.

Corrections: Theorem 9 states its noise up to a constant c that no condition on the batch makes right (0.8 to 6,950):
noise is calibrated numerically. Losses are released with Gaussian noise, which is smaller (standard deviation 118
against 167 at T = 1000, ε = 1); `release="laplace"` is the paper's. A loss in a range B moves a mean by B/n_j when a
row is replaced. Batches are Poisson with a public divisor instead of drawn with replacement; by default a group's
every row takes part, which gives the most for the noise. `sizes="own"`: each group's noise fits its own size;
`sizes="n-min"`: one noise for all, that of the smallest group, and larger groups are charged less (the paper's remark
on unequal sizes).
"""

from __future__ import annotations

from typing import ClassVar, Literal

from veil.methods.calibrating import relation_for
from veil.methods.convex.reweighting import Choice, Release
from veil.methods.convex.setting import LinearMethod
from veil.methods.convex.sgd_plan import Asked, Sizes, plan_noisy_sgd
from veil.methods.registry import known_as
from veil.plans import Plan, Settings
from veil.problem import PublicFacts


@known_as("noisy-sgd-mgr", "projected noisy SGD on one group at a time, drawn by weights that follow released losses")
class NoisySgdMgr(LinearMethod):
    """One group at a time, drawn by weights that follow released losses; projected and averaged."""

    choice: ClassVar[Choice] = "mgr"

    neighbours: Literal["add-remove", "replace-one"] = "replace-one"
    release: Release = "gaussian"
    batch: int | None = None
    sizes: Sizes = "own"
    share: float | None = None

    def plan(self, facts: PublicFacts, settings: Settings) -> Plan:
        """Steps, noise and step sizes from public facts alone."""
        relation = relation_for("poisson", self.neighbours)
        asked = Asked(self.choice, self.release, relation, self.batch, self.sizes, self.share)
        return plan_noisy_sgd(self.setting(facts, settings), facts, settings, asked)
