"""Noise ahead: the noise of coming steps made together with that of this one, which changes no value.

A step of a small model takes a few milliseconds, and the gradients push everything else out of the caches: most of the
time of a single draw is spent on finding its code and tables again. Noise is a pure function of (seed, purpose, step,
name), so several steps can be drawn at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from veil.noise.gaussian import GaussianNoise, Size, drawn_steps

_MOST_STEPS = 16
# Numbers that are kept for coming steps: 4 MB. Larger models draw step by step, where it makes no difference.
_MOST_VALUES = 1 << 20


@dataclass(frozen=True, slots=True)
class _Kept:
    """The noise of some steps in a row that was not asked for yet, and what it was drawn for."""

    sizes: Mapping[str, Size]
    std: float
    steps: range
    normals: dict[int, dict[str, Tensor]]


@dataclass(frozen=True, slots=True)
class NoiseAhead(GaussianNoise):
    """Gaussian noise for a run that goes through its steps in order; the same values as without.

    Every new block is twice as long as the one before, so little is drawn in vain where a run changes its noise.

    Args:
        seed: The secret seed of the run.
        secure: Whether noise is safe against attacks on floating-point numbers.

    >>> from veil.foundation.randomness import Seed
    >>> ahead, plain = NoiseAhead(Seed.from_int(0)), GaussianNoise(Seed.from_int(0))
    >>> pairs = [(ahead.draw(step, {"w": (3,)}, 1.0), plain.draw(step, {"w": (3,)}, 1.0)) for step in range(9)]
    >>> all((one["w"] == other["w"]).all() for one, other in pairs)
    True
    """

    _kept: dict[str, _Kept] = field(default_factory=dict, init=False, repr=False, compare=False)

    def _normals(self, step: int, sizes: Mapping[str, Size], std: float, purpose: str) -> dict[str, Tensor]:
        kept = self._kept.get(purpose)
        same = kept is not None and kept.std == std and kept.sizes == sizes and list(kept.sizes) == list(sizes)
        if kept is None or not same or step not in kept.normals:
            follows = kept is not None and same and step == kept.steps.stop
            steps = range(step, step + self._length(kept if follows else None, sizes))
            drawn = drawn_steps(self.seed, steps, sizes, std, purpose)
            kept = _Kept(dict(sizes), std, steps, dict(zip(steps, drawn, strict=True)))
            self._kept[purpose] = kept
        # Handed out once: whoever gets it may write into it.
        return kept.normals.pop(step)

    def _length(self, before: _Kept | None, sizes: Mapping[str, Size]) -> int:
        """How many steps are drawn together: twice as many as in the block before, up to a limit."""
        values = sum(math.prod(size) for size in sizes.values())
        most = max(1, min(_MOST_STEPS, _MOST_VALUES // max(1, values)))
        return 1 if before is None else min(2 * len(before.steps), most)
