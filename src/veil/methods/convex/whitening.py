"""Private whitening: the mean and the second moments of unit rows, each released once with Gaussian noise.

    m = (Σ x + N(0, σ_m²·I)) / n,             ‖x‖ ≤ 1: a row moves the sum by 1 (replaced: by 2)
    S = (Σ x·xᵀ + N)/n of the centred rows,   ‖x·xᵀ‖ = ‖x‖² ≤ 1 (replaced: ‖x·xᵀ − y·yᵀ‖ ≤ √2, in Frobenius' norm)
    W = U·diag((max(λ, 0) + floor)^−power),   S = U·diag(λ)·Uᵀ

N is symmetric with deviation σ on the diagonal and σ/√2 beside it: in coordinates in which the Frobenius norm is the
ℓ₂ norm (entries beside the diagonal times √2) that is σ everywhere. The rows of a person count with shares that add up
to 1: a mean of such matrices is no longer, and two of them are no further apart, as neither has an eigenvalue below 0:
‖A − B‖² ≤ ‖A‖² + ‖B‖² ≤ 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from veil.accounting import Gaussian, Relation
from veil.noise import GaussianNoise
from veil.problem.sums import Part, RowSums

# Makes every row at most 1 long, each by itself.
Shorten = Callable[[Tensor], Tensor]
MEAN, MOMENTS = "feature mean", "feature moments"


@dataclass(frozen=True)
class WhiteningRelease:
    """Noise of the two releases, over what one row added or removed moves."""

    mean_noise: float
    moment_noise: float
    relation: Relation
    power: float
    floor: float

    @classmethod
    def of(cls, kappa: float, shares: tuple[float, float], relation: Relation, power: float, floor: float) -> Self:
        """Mean and moments for their shares of what a single release with noise κ costs."""
        # Moments of a replaced row move by √2 bounds, other sums by 2: they need less noise for the same cost.
        less = 1.0 if relation is Relation.ADD_REMOVE else math.sqrt(0.5)
        mean, moments = shares
        return cls(kappa / math.sqrt(mean), kappa * less / math.sqrt(moments), relation, power, floor)

    def events(self) -> tuple[Gaussian, Gaussian]:
        """What mean and second moments cost every row."""
        # Moments of a replaced row move by √2, not by 2.
        replaced = self.relation is Relation.REPLACE_ONE
        moments = self.moment_noise / math.sqrt(2.0) if replaced else self.moment_noise
        return Gaussian(self.mean_noise, self.relation), Gaussian(moments, self.relation, one_sided=replaced)

    def mean(self, rows: RowSums, size: int, noise: GaussianNoise, shorten: Shorten) -> Tensor:
        """The noisy mean of rows that are shortened to 1, each with its share. The cost is reserved before."""
        total = rows.total(Total(shorten))
        return noise.add(0, {MEAN: total}, self.mean_noise, MEAN)[MEAN] / size

    def spectrum(
        self, rows: RowSums, size: int, noise: GaussianNoise, mean: Tensor, shorten: Shorten
    ) -> tuple[Tensor, Tensor]:
        """Eigenvalues, none below 0, and directions of the noisy second moments of centred rows, shortened to 1."""
        moments = noisy_moments(rows.total(Moments(mean, shorten)), self.moment_noise, noise) / size
        values, directions = torch.linalg.eigh(moments.to(torch.float64))
        return values.clamp_min(0.0), directions


@dataclass(frozen=True)
class Features:
    """Rows of features, and the share of each."""

    rows: Tensor
    part: Part

    @property
    def shares(self) -> Tensor:
        """The share of each row, in the precision of the features."""
        return self.part.shares.to(self.rows.dtype)


@dataclass(frozen=True)
class Total:
    """Σ x of rows that are shortened to 1, each with its share."""

    shorten: Shorten

    def __call__(self, seen: Features) -> Tensor:
        total: Tensor = (self.shorten(seen.rows) * seen.shares[:, None]).sum(dim=0)
        return total


@dataclass(frozen=True)
class Moments:
    """Σ x·xᵀ of rows that are centred, then shortened to 1, each with its share."""

    mean: Tensor
    shorten: Shorten

    def __call__(self, seen: Features) -> Tensor:
        rows = self.shorten(seen.rows - self.mean) * seen.shares.sqrt()[:, None]
        return rows.T @ rows


def noisy_moments(sums: Tensor, sigma: float, noise: GaussianNoise) -> Tensor:
    """Σ x·xᵀ with symmetric noise."""
    upper = torch.triu_indices(len(sums), len(sums))
    stretch = torch.where(upper[0] == upper[1], 1.0, math.sqrt(2.0)).to(sums.dtype)
    released = noise.add(0, {MOMENTS: sums[upper[0], upper[1]] * stretch}, sigma, MOMENTS)[MOMENTS] / stretch
    noisy = torch.zeros_like(sums)
    noisy[upper[0], upper[1]] = released
    noisy[upper[1], upper[0]] = released
    return noisy
