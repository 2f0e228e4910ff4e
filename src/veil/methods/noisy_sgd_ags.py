"""Noisy SGD with active group selection (Zhou & Bassily, algorithm 5).

    every step:  i = the largest mean loss after noise;   w ← Proj_W(w − η·(mean gradient of group i + Gaussian noise))
    the run's weights are the average of all w

Guarantee: as `noisy-sgd-mgr`, with a noisy maximum in place of released losses. The excess worst-group risk on the
training rows has an upper bound with its constants (`veil.methods.convex.reweighting`), in the plan's details.

Corrections: the maximum is taken with Gumbel noise (the exponential mechanism), which costs a bounded range η only
η²/8 in zCDP. A row moves one score, its own group's, so η is the move over the scale, half of what scores that may all
move would cost. `release="laplace"` is the paper's. Noise is calibrated numerically; batches and sizes as in
`noisy-sgd-mgr`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from veil.methods.convex.setting import linear_setting, neighbours_of
from veil.methods.convex.sgd_plan import Asked, Sizes, plan_noisy_sgd
from veil.methods.registry import register
from veil.plans import Plan, Settings
from veil.problem import PublicFacts


@register
@dataclass(frozen=True)
class NoisySgdAgs:
    """One group at a time, the worst one by a noisy maximum; projected and averaged."""

    name: ClassVar[str] = "noisy-sgd-ags"
    family: ClassVar[str] = "convex, with proofs"
    private: ClassVar[bool] = True
    relation: ClassVar[str | None] = "replace-one"
    summary: ClassVar[str] = "projected noisy SGD on the group that a noisy maximum finds worst"
    whole: ClassVar[bool] = True

    loss: Literal["logistic", "smoothed-hinge", "hinge", "squared"] | None = None
    feature_radius: float | None = None
    weight_radius: float = 5.0
    neighbours: Literal["add-remove", "replace-one"] = "replace-one"
    release: Literal["gumbel", "laplace"] = "gumbel"
    batch: int | None = None
    sizes: Sizes = "own"
    share: float | None = None

    def plan(self, facts: PublicFacts, settings: Settings) -> Plan:
        """Steps, noise and step size from public facts alone."""
        setting = linear_setting(self.name, facts, settings, self.loss, self.feature_radius, self.weight_radius)
        asked = Asked("ags", self.release, neighbours_of(self.neighbours), self.batch, self.sizes, self.share)
        return plan_noisy_sgd(setting, facts, settings, asked)
