"""Laplace noise for a scalar or an array, a pure function of (seed, purpose, step)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from veil.noise.secure import add_on_grid, secure_words
from veil.randomness import Seed


@dataclass(frozen=True, slots=True)
class LaplaceNoise:
    """Independent noise with density e^(−|x|/scale)/(2·scale) in every coordinate; its variance is 2·scale².

    With `secure=True` the bits come from ChaCha20 and `add` releases on a fixed grid, as for the Gaussian
    (`veil.noise.secure`). Noise then never exceeds 44 scales, so a pure ε holds up to a δ of 10⁻¹⁹ per coordinate.

    >>> noise = LaplaceNoise(Seed.from_int(0))
    >>> noise.draw(step=2, shape=(3,), scale=1.0).shape
    (3,)
    """

    seed: Seed
    secure: bool = False

    def draw(
        self, step: int, shape: tuple[int, ...], scale: float, purpose: str = "statistic"
    ) -> npt.NDArray[np.float64]:
        """Noise of this shape; `scale=0.0` gives zeros and is not private."""
        return self.add(step, np.zeros(shape), scale, purpose)

    def add(
        self, step: int, values: npt.ArrayLike, scale: float, purpose: str = "statistic"
    ) -> npt.NDArray[np.float64]:
        """`values` plus the noise of this step: the release itself."""
        exact = np.asarray(values, dtype=np.float64)
        if not (math.isfinite(scale) and scale >= 0.0):
            raise ValueError(f"the scale of Laplace noise is {scale}: it must be finite and at least 0")
        if scale == 0.0:
            return exact.copy()
        if self.secure:
            key = self.seed.key("secure laplace/" + purpose, step)
            return add_on_grid(exact, _secure_laplace(key, exact.size).reshape(exact.shape), scale)
        generator = self.seed.generator("laplace/" + purpose, step)
        return np.asarray(exact + generator.laplace(0.0, scale, exact.shape))


def _secure_laplace(key: bytes, count: int) -> npt.NDArray[np.float64]:
    """Laplace of scale 1 from one word each: a bit for the sign, 63 for the size."""
    words = secure_words(key, count)
    uniforms = ((words >> np.uint64(1)).astype(np.float64) + 0.5) * 2.0**-63
    sizes = np.maximum(-np.log(uniforms), 0.0)
    return np.where((words & np.uint64(1)).astype(np.bool_), sizes, -sizes)
