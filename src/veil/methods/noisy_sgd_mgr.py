"""Noisy SGD with multiplicative group reweighting (Zhou & Bassily, algorithm 3).

    every step:  w ← Proj_W(w − η_w·(Σ_j λ_j·mean gradient of group j + Gaussian noise))
                 L̃_j = mean loss of group j + noise, for every group;   λ_j ← λ_j·e^(η_λ·L̃_j), normalised
    the run's weights are the average of all w

Guarantee: group j is charged for noise κ_j at every step, and for every release of the losses. The noise is
max_j κ_j·L·λ_j/n_j, so no group has less than it is charged for, whatever λ is; λ follows from released values, so the
schedule is fixed and PLD is sound. The excess worst-group risk on the training rows has an upper bound with its
constants (`veil.methods.convex.reweighting`), in the plan's details, and the finished run has a smaller one from what
was released (`veil.methods.convex.realised`), which holds with probability 0.95 and costs nothing.

`gradient="one-group"` is the paper's: i ~ λ, and the gradient of group i alone. It is charged alike, since every group
might be the one, and has the noise of a drawn group instead of a weighted one.

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
from veil.methods.convex.reweighting import Choice, Gradient, Release
from veil.methods.convex.setting import LinearMethod
from veil.methods.convex.sgd_plan import Asked, Sizes, plan_noisy_sgd
from veil.methods.registry import known_as
from veil.plans import Plan, Settings
from veil.problem import PublicFacts


@known_as("noisy-sgd-mgr", "projected noisy SGD on all groups, weighted by what they were released to lose")
class NoisySgdMgr(LinearMethod):
    """Groups weighted by weights that follow released losses; projected and averaged."""

    choice: ClassVar[Choice] = "mgr"

    neighbours: Literal["add-remove", "replace-one"] = "replace-one"
    release: Release = "gaussian"
    batch: int | None = None
    sizes: Sizes = "own"
    share: float | None = None
    gradient: Gradient = "all-groups"

    def plan(self, facts: PublicFacts, settings: Settings) -> Plan:
        """Steps, noise and step sizes from public facts alone."""
        relation = relation_for("poisson", self.neighbours)
        asked = Asked(self.choice, self.release, relation, self.batch, self.sizes, self.share, self.gradient)
        return plan_noisy_sgd(self.setting(facts, settings), facts, settings, asked)
