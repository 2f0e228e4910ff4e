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

from typing import ClassVar, Literal

from veil.methods.convex.reweighting import Choice
from veil.methods.noisy_sgd_mgr import NoisySgdMgr
from veil.methods.registry import known_as


@known_as("noisy-sgd-ags", "projected noisy SGD on the group that a noisy maximum finds worst")
class NoisySgdAgs(NoisySgdMgr):
    """One group at a time, the worst one by a noisy maximum; projected and averaged."""

    choice: ClassVar[Choice] = "ags"

    release: Literal["gumbel", "laplace"] = "gumbel"
    gradient: Literal["one-group"] = "one-group"
