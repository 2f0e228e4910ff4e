"""Gumbel noise and the noisy maximum (the exponential mechanism), a pure function of (seed, purpose, step)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from veil.foundation.randomness import Seed
from veil.noise.secure import WordStream, fine_uniforms, real, secure_uniforms, word_stream

# Noise above 20 scales, or so low that e^(−noise/scale) is above 20, is drawn anew within its tail.
_FAR = 20.0


@dataclass(frozen=True, slots=True)
class GumbelNoise:
    """Independent Gumbel noise: P(noise ≤ x) = exp(−e^(−x/scale)).

    The index of the largest noisy score is i with probability proportional to e^(score_i/scale). Only that index may
    be released, never the noisy scores. With `secure=True` the bits come from ChaCha20; an index has no low-order
    bits that could betray a row, so no grid is needed. Both tails have fresh bits, as a single uniform is coarse there:
    what cannot be drawn has a mass below 10⁻⁴⁶.

    Args:
        seed: The secret seed of the run.
        secure: Whether bits come from a cryptographic generator.

    >>> noise = GumbelNoise(Seed.from_int(0))
    >>> noise.largest(step=0, scores=[0.0, 1000.0, 0.0], scale=1.0)
    1
    """

    seed: Seed
    secure: bool = False

    def draw(
        self, step: int, shape: tuple[int, ...], scale: float, purpose: str = "selection"
    ) -> npt.NDArray[np.float64]:
        """Noise of this shape; `scale=0.0` gives zeros and is not private.

        Args:
            step: Number of the step, from 0.
            shape: Shape of the result.
            scale: Scale of the distribution, finite and at least 0.
            purpose: What the noise is for; noise of different purposes is independent.

        Returns:
            The noise.

        Raises:
            ValueError: `scale` is negative or not finite.
        """
        if not (math.isfinite(scale) and scale >= 0.0):
            raise ValueError(f"the scale of Gumbel noise is {scale}: it must be finite and at least 0")
        if scale == 0.0:
            return np.zeros(shape)
        if self.secure:
            uniforms = secure_uniforms(self.seed.key("secure gumbel/" + purpose, step), math.prod(shape))
            noise = np.asarray(-scale * np.log(-np.log(uniforms)))
        else:
            noise = self.seed.generator("gumbel/" + purpose, step).gumbel(0.0, scale, math.prod(shape))
        further = word_stream(self.seed.key("gumbel tails/" + purpose, step))
        return _with_tails(noise, scale, further).reshape(shape)

    def largest(self, step: int, scores: npt.ArrayLike, scale: float, purpose: str = "selection") -> int:
        """The index of the largest score after noise; a score that is not a number is never chosen.

        Args:
            step: Number of the step, from 0.
            scores: At least one score.
            scale: Scale of the noise, finite and at least 0.
            purpose: What the noise is for; noise of different purposes is independent.

        Returns:
            Position of the winner, from 0.

        Raises:
            ValueError: There is no score, a score is complex, or `scale` is negative or not finite.
        """
        exact = real(scores)
        if exact.ndim != 1 or not exact.size:
            raise ValueError("the noisy maximum needs a list of at least one score")
        noisy = np.where(np.isnan(exact), -np.inf, exact) + self.draw(step, exact.shape, scale, purpose)
        return int(np.argmax(noisy))


def _with_tails(noise: npt.NDArray[np.float64], scale: float, words: WordStream) -> npt.NDArray[np.float64]:
    """The noise, with fresh bits beyond 20 scales and in the short left tail.

    Gumbel noise is −scale·ln E with E exponential: on the right, E is below c = e⁻²⁰; on the left it is above 20, and
    the exponential law has no memory.
    """
    right = np.flatnonzero(noise > _FAR * scale)
    left = np.flatnonzero(noise < -math.log(_FAR) * scale)
    below = -np.log1p(fine_uniforms(words(2 * len(right))) * math.expm1(-math.exp(-_FAR)))
    above = _FAR - np.log(fine_uniforms(words(2 * len(left))))
    noise[right] = -scale * np.log(below)
    noise[left] = -scale * np.log(above)
    return noise
