"""Laplace noise for a scalar or an array, a pure function of (seed, purpose, step)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from veil.foundation.randomness import Seed
from veil.noise.secure import WordStream, add_on_grid, fine_uniforms, real, secure_words, word_stream

# Sizes beyond so many scales are drawn anew.
_FAR = 20.0


@dataclass(frozen=True, slots=True)
class LaplaceNoise:
    """Independent noise with density e^(−|x|/scale)/(2·scale) in every coordinate; its variance is 2·scale².

    With `secure=True` the bits come from ChaCha20 and `add` releases on a fixed grid, as for the Gaussian
    (`veil.noise.secure`). Beyond 20 scales, where a single uniform gets coarse, the rest is drawn again: the
    Laplace law has no memory. Noise reaches 109 scales, so a pure ε holds up to a δ of 10⁻⁴⁷ per coordinate.

    Args:
        seed: The secret seed of the run.
        secure: Whether bits come from a cryptographic generator.

    >>> noise = LaplaceNoise(Seed.from_int(0))
    >>> noise.draw(step=2, shape=(3,), scale=1.0).shape
    (3,)
    """

    seed: Seed
    secure: bool = False

    def draw(
        self, step: int, shape: tuple[int, ...], scale: float, purpose: str = "statistic"
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
        return self.add(step, np.zeros(shape), scale, purpose)

    def add(
        self, step: int, values: npt.ArrayLike, scale: float, purpose: str = "statistic"
    ) -> npt.NDArray[np.float64]:
        """`values` plus the noise of this step: the release itself.

        Args:
            step: Number of the step, from 0.
            values: The exact values. They are not changed.
            scale: Scale of the noise, finite and at least 0; 0 adds nothing and is not private.
            purpose: What the noise is for; noise of different purposes is independent.

        Returns:
            The noisy values.

        Raises:
            ValueError: `scale` is negative or not finite, or the values are complex.
        """
        exact = real(values)
        if not (math.isfinite(scale) and scale >= 0.0):
            raise ValueError(f"the scale of Laplace noise is {scale}: it must be finite and at least 0")
        if scale == 0.0:
            return exact.copy()
        further = word_stream(self.seed.key("laplace tail/" + purpose, step))
        if self.secure:
            noise = _secure_laplace(self.seed.key("secure laplace/" + purpose, step), exact.size)
            return add_on_grid(exact, _with_tail(noise, 1.0, further).reshape(exact.shape), scale)
        noise = self.seed.generator("laplace/" + purpose, step).laplace(0.0, scale, exact.size)
        return np.asarray(exact + _with_tail(noise, scale, further).reshape(exact.shape))


def _with_tail(noise: npt.NDArray[np.float64], scale: float, words: WordStream) -> npt.NDArray[np.float64]:
    """The noise, with fresh bits for what lies beyond 20 scales."""
    far = np.flatnonzero(np.abs(noise) > _FAR * scale)
    sizes = _FAR - np.log(fine_uniforms(words(2 * len(far))))
    noise[far] = np.copysign(scale * sizes, noise[far])
    return noise


def _secure_laplace(key: bytes, count: int) -> npt.NDArray[np.float64]:
    """Laplace of scale 1 from one word each: a bit for the sign, 63 for the size."""
    words = secure_words(key, count)
    uniforms = ((words >> np.uint64(1)).astype(np.float64) + 0.5) * 2.0**-63
    sizes = np.maximum(-np.log(uniforms), 0.0)
    return np.where((words & np.uint64(1)).astype(np.bool_), sizes, -sizes)
