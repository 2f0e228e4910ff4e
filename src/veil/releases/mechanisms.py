"""Mechanisms without a model: the ordered sum (INO-SGM) of any vectors, scores and bounds."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from veil.accounting.events import Event, Gaussian, PoissonGaussian
from veil.bounding.ordered import BetaTail, Tail, descending, importance
from veil.errors import require
from veil.foundation.randomness import Seed
from veil.noise import GaussianNoise


def ordered_sum(
    values: ArrayLike,
    scores: ArrayLike,
    bounds: ArrayLike,
    tail: Tail | float,
    sigma: float,
    *,
    seed: Seed | None = None,
    step: int = 0,
    secure: bool = False,
) -> NDArray[np.float64]:
    """Σ ρ_k·v_k + N(0, σ²·I): rows with high scores count fully, those at the end of the order less.

    `values` has one vector per row, `scores` one number, `bounds` the length to which the row's vector is clipped (one
    for all, or one per row). `tail` is a tail importance function, or the length of the default one (α = β = 1).

    Formal guarantee: for rows that were drawn independently with public rates q (or all rows, q = 1), the release costs
    a row with bound C what `ordered_event(sigma, C, q)` says, under add-remove. A score may depend on its own row and
    on public or released values, not on other rows; of equal scores the first row goes first, so rows must keep their
    relative order when one comes or goes. The noise is fresh from the operating system unless a seed is given; one
    (seed, step) is for one release.

    Args:
        values: One vector or number per row.
        scores: One number per row; the highest go first.
        bounds: Length to which a row's vector is clipped: one for all rows, or one per row.
        tail: A tail importance function, or the length of the default one.
        sigma: Standard deviation of the noise, at least 0.
        seed: A seed, for tests.
        step: Number of the release under this seed.
        secure: Whether noise is drawn by the secure sampler.

    Returns:
        The noisy sum.

    Raises:
        InputError: Numbers of values, scores and bounds differ, or a bound or sigma is negative or not finite.

    >>> ordered_sum([[3.0], [1.0]], scores=[0.1, 0.9], bounds=1.0, tail=1.0, sigma=0.0)
    array([1.5])
    """
    vectors = np.asarray(values, dtype=np.float64)
    require(vectors.ndim in (1, 2), "values must be one vector or number for each row")
    vectors = vectors[:, None] if vectors.ndim == 1 else vectors
    rows = len(vectors)
    given = np.asarray(scores, dtype=np.float64).reshape(-1)
    require(len(given) == rows, f"there are {rows} values and {len(given)} scores: the numbers must match")
    limits = np.asarray(bounds, dtype=np.float64)
    require(limits.ndim == 0 or limits.shape == (rows,), "give one bound for all rows or one for each")
    limits = np.broadcast_to(limits, (rows,))
    require(bool(np.all(np.isfinite(limits) & (limits >= 0))), "a bound is negative or not finite")
    require(np.isfinite(sigma) and sigma >= 0, f"sigma is {sigma}: it must be finite and at least 0")
    total = _clipped(vectors, limits).T @ _weights(given, limits, tail)
    noise = GaussianNoise(Seed.from_system() if seed is None else seed, secure=secure)
    return noise.add(step, {"sum": torch.from_numpy(total)}, float(sigma), "ordered sum")["sum"].numpy()


def ordered_event(sigma: float, bound: float, rate: float = 1.0) -> Event:
    """What one ordered sum costs a row with this bound that takes part with this rate.

    Args:
        sigma: Standard deviation of the noise.
        bound: Bound of the row, above 0.
        rate: Public probability with which the row takes part.

    Returns:
        The event, for an accountant.

    Raises:
        InputError: The bound is not above 0.

    >>> ordered_event(4.0, 2.0, 0.01)
    PoissonGaussian(noise_multiplier=2.0, rate=0.01, relation=<Relation.ADD_REMOVE: 'add-remove'>)
    """
    require(bound > 0, f"bound is {bound}: a row that takes part must have a bound above 0")
    return Gaussian(sigma / bound) if rate == 1.0 else PoissonGaussian(sigma / bound, rate)


def _clipped(vectors: NDArray[np.float64], limits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each vector no longer than its limit; one that is not finite is 0."""
    finite = np.asarray(np.isfinite(vectors).all(axis=1))
    vectors = np.where(finite[:, None], vectors, 0.0)
    largest = np.abs(vectors).max(axis=1, initial=0.0)
    # Through the largest entry, so that squares of huge entries do not overflow.
    scaled = vectors / np.where(largest > 0, largest, 1.0)[:, None]
    lengths = largest * np.linalg.norm(scaled, axis=1)
    return np.asarray(vectors * np.minimum(1.0, limits / np.where(lengths > 0, lengths, 1.0))[:, None])


def _weights(scores: NDArray[np.float64], limits: NDArray[np.float64], tail: Tail | float) -> NDArray[np.float64]:
    """ρ of each row; a score that is not a number stands last."""
    line = descending(np.nan_to_num(scores, nan=-np.inf, posinf=np.inf, neginf=-np.inf))
    return importance(limits, line, BetaTail(float(tail)) if isinstance(tail, (int, float)) else tail)
