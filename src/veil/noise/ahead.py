"""Noise ahead: the noise of coming steps made together with that of this one, which changes no value.

A step of a small model takes a few milliseconds, and the gradients push everything else out of the caches: most of the
time of a single draw is spent on finding its code and tables again. Noise is a pure function of (seed, purpose, step,
name), so several steps can be drawn at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from veil.noise.gaussian import GaussianNoise, fill_steps

_MOST_STEPS = 16
# Numbers that are kept for coming steps: 4 MB. Larger models draw step by step, where it makes no difference.
_MOST_VALUES = 1 << 20


@dataclass(frozen=True, slots=True)
class _Kept:
    """The noise of some steps in a row, and what it was drawn for."""

    counts: tuple[tuple[str, int], ...]
    std: float
    steps: range
    normals: Tensor


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
    >>> all(torch.equal(one["w"], other["w"]) for one, other in pairs)
    True
    """

    _kept: dict[str, _Kept] = field(default_factory=dict, init=False, repr=False, compare=False)

    def _normals(self, step: int, counts: Mapping[str, int], std: float, purpose: str) -> Tensor:
        kept, asked = self._kept.get(purpose), tuple(counts.items())
        same = kept is not None and kept.std == std and kept.counts == asked
        if kept is None or not same or step not in kept.steps:
            follows = kept is not None and same and step == kept.steps.stop
            # Out first, back when it is full: what is drawn into the memory of the block before may be interrupted.
            self._kept.pop(purpose, None)
            kept = self._block(kept if follows else None, step, asked, std)
            fill_steps(kept.normals, self.seed, kept.steps, counts, std, purpose)
            self._kept[purpose] = kept
        return kept.normals[step - kept.steps.start]

    def _own(self, normals: Tensor) -> Tensor:
        """A copy: what is handed out must not share memory with noise of coming steps, which would be saved with it."""
        return normals.clone()

    def _block(self, before: _Kept | None, step: int, counts: tuple[tuple[str, int], ...], std: float) -> _Kept:
        """Room for the noise of this step and some coming ones: twice as many as in the block before, up to a limit."""
        values = sum(count for _, count in counts)
        most = max(1, min(_MOST_STEPS, _MOST_VALUES // max(1, values)))
        length = 1 if before is None else min(2 * len(before.steps), most)
        # The same memory again: fresh memory costs as much as drawing a tenth of what fills it.
        same = before is not None and len(before.steps) == length
        room = before.normals if before is not None and same else torch.empty(length, values)
        return _Kept(counts, std, range(step, step + length), room)
