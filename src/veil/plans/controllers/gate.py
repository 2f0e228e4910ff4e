"""Gate: a release that tests an update on fresh rows and decides whether it stays (DPSUR, Fu et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veil.accounting.events import Event, Relation
from veil.foundation.randomness import Seed
from veil.noise import GaussianNoise
from veil.problem import PublicFacts, Strata
from veil.sampling import PoissonSampler
from veil.sampling.draws import Poisson

PURPOSE = "gate"


@dataclass(frozen=True)
class Verdict:
    """The noisy mean change of the loss, and whether the update stays."""

    change: float
    accepted: bool


@dataclass(frozen=True)
class Gate:
    """Σ over fresh rows of clip(ℓ_after − ℓ_before, ±limit), plus noise `sigma`, over the expected rows: below
    `threshold`·`limit` the update stays.

    The rows are drawn for the gate alone (Poisson, `rate`), independently of the gradient's sample; each moves the sum
    by at most `limit`. The verdict is post-processing of the noisy sum.
    """

    rate: float
    limit: float
    sigma: float
    threshold: float
    relation: Relation

    def events(self, facts: PublicFacts) -> dict[int, Event]:
        """What every cell is charged for one test, whatever its outcome."""
        draw, multiplier = Poisson((self.rate,) * len(facts.cells)), self.sigma / self.limit
        found = {cell: draw.event(cell, multiplier, self.relation, facts) for cell in range(len(facts.cells))}
        return {cell: event for cell, event in found.items() if event is not None}

    def rows(self, strata: Strata, seed: Seed, step: int) -> NDArray[np.int64]:
        """The fresh sample. The caller has reserved `events` before."""
        return PoissonSampler(strata, (self.rate,) * len(strata.members), purpose=PURPOSE).draw(seed, step)

    def judge(self, before: Tensor, after: Tensor, facts: PublicFacts, step: int, noise: GaussianNoise) -> Verdict:
        """The release: losses of the same rows before and after the update. What is not finite counts as 0."""
        change = (after - before).to(torch.float64)
        change = torch.nan_to_num(change, nan=0.0).clamp(-self.limit, self.limit)
        total = noise.add(step, {PURPOSE: change.sum().reshape(1)}, self.sigma, PURPOSE)[PURPOSE]
        mean = float(total[0]) / (self.rate * facts.rows)
        return Verdict(mean, mean < self.threshold * self.limit)
