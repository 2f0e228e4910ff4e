"""Gumbel noise and the noisy maximum (the exponential mechanism), a pure function of (seed, purpose, step)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from veil.noise.secure import secure_uniforms
from veil.randomness import Seed


@dataclass(frozen=True, slots=True)
class GumbelNoise:
    """Independent Gumbel noise: P(noise ≤ x) = exp(−e^(−x/scale)).

    The index of the largest noisy score is i with probability proportional to e^(score_i/scale). Only that index may
    be released, never the noisy scores. With `secure=True` the bits come from ChaCha20; an index has no low-order
    bits that could betray a row, so no grid is needed.

    >>> noise = GumbelNoise(Seed.from_int(0))
    >>> noise.largest(step=0, scores=[0.0, 1000.0, 0.0], scale=1.0)
    1
    """

    seed: Seed
    secure: bool = False

    def draw(
        self, step: int, shape: tuple[int, ...], scale: float, purpose: str = "selection"
    ) -> npt.NDArray[np.float64]:
        """Noise of this shape; `scale=0.0` gives zeros and is not private."""
        if not (math.isfinite(scale) and scale >= 0.0):
            raise ValueError(f"the scale of Gumbel noise is {scale}: it must be finite and at least 0")
        if scale == 0.0:
            return np.zeros(shape)
        if self.secure:
            uniforms = secure_uniforms(self.seed.key("secure gumbel/" + purpose, step), math.prod(shape))
            return np.asarray(-scale * np.log(-np.log(uniforms))).reshape(shape)
        return np.asarray(self.seed.generator("gumbel/" + purpose, step).gumbel(0.0, scale, shape))

    def largest(self, step: int, scores: npt.ArrayLike, scale: float, purpose: str = "selection") -> int:
        """The index of the largest score after noise; a score that is not a number is never chosen."""
        exact = np.asarray(scores, dtype=np.float64)
        if exact.ndim != 1 or not exact.size:
            raise ValueError("the noisy maximum needs a list of at least one score")
        noisy = np.where(np.isnan(exact), -np.inf, exact) + self.draw(step, exact.shape, scale, purpose)
        return int(np.argmax(noisy))
