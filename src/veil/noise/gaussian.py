"""Gaussian noise for named tensors, a pure function of (seed, purpose, step, name)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from veil.noise.secure import WordStream, add_secure_gaussian, word_stream
from veil.randomness import Seed

Shape = Tensor | torch.Size | Sequence[int]


# Words worked on at once: small arrays stay in the cache and in the allocator's hands. It changes no value.
_AT_ONCE = 8192
# Tensors of at most this many words are worked on together.
_SHORT = 1024


def fast_normals(words: WordStream, count: int, std: float = 1.0) -> npt.NDArray[np.float32]:
    """Two normals in single precision from each of `count` random words, by Box and Muller: one in each of two lines.

    About twice as fast as a ziggurat, as no step branches on the value. They reach 6.6 standard deviations (beyond:
    3·10⁻¹¹) and are about 10⁻⁷ apart near 0.

    >>> fast_normals(lambda count: np.array([1 << 63], dtype=np.uint64), 1).round(3)
    array([[-6.66],
           [ 0.  ]], dtype=float32)
    """
    normals = np.empty((2, count), dtype=np.float32)
    for start in range(0, count, _AT_ONCE):
        part = normals[:, start : start + _AT_ONCE]
        _box_muller(words(part.shape[1]), std, part)
    return normals


def _box_muller(words: npt.NDArray[np.uint64], std: float, into: npt.NDArray[np.float32]) -> None:
    halves = words.view(np.uint32).reshape(-1, 2)
    # 31 bits, so that the conversion is a signed one (fast); the half keeps the logarithm away from 0.
    radius = (halves[:, 0] >> np.uint32(1)).view(np.int32).astype(np.float32)
    radius += np.float32(0.5)
    radius *= np.float32(2.0**-31)
    np.log(radius, out=radius)
    radius *= np.float32(-2.0)
    np.sqrt(np.maximum(radius, np.float32(0.0), out=radius), out=radius)
    radius *= np.float32(std)
    angle = halves[:, 1].view(np.int32).astype(np.float32)
    angle *= np.float32(2.0 * math.pi * 2.0**-32)
    np.multiply(np.cos(angle), radius, out=into[0])
    np.multiply(np.sin(angle, out=angle), radius, out=into[1])


def check_std(std: float) -> None:
    """A standard deviation is finite and not negative; 0 is allowed and is not private."""
    if not (math.isfinite(std) and std >= 0.0):
        raise ValueError(f"standard deviation of the noise is {std}: it must be finite and at least 0")


@dataclass(frozen=True, slots=True)
class GaussianNoise:
    """Independent N(0, std²) in every coordinate of every named tensor.

    Each name has its own stream, so noise for one tensor does not depend on which others are asked for, in which
    order, or on which process. `std=0.0` gives exact zeros: it is there for methods that are not private.

    With `secure=False` noise comes from ChaCha20 in float32 arithmetic (Philox for float64): fast, but such sums
    leave traces that an attacker with the exact released bits can use. With `secure=True` it is made in double
    precision, and `add` releases on a fixed grid (see `veil.noise.secure` for what that protects against and what it
    assumes).
    Release by `add`: noise that is drawn first and summed afterwards in floating point is float-safe in neither case.

    One description (purpose, step, name) is for one release: whoever sees two different values with the same noise can
    subtract one from the other. Releases that share a step need different purposes or names.

    >>> noise = GaussianNoise(Seed.from_int(0))
    >>> a = noise.draw(step=4, shapes={"w": (2, 3), "b": (3,)}, std=1.0)
    >>> torch.equal(a["b"], noise.draw(step=4, shapes={"b": (3,)}, std=1.0)["b"])
    True
    """

    seed: Seed
    secure: bool = False

    def draw(self, step: int, shapes: Mapping[str, Shape], std: float, purpose: str = "gradient") -> dict[str, Tensor]:
        """Noise by name. A tensor as shape also gives device and dtype (float64 stays, all else gets float32)."""
        check_std(std)
        if self.secure or std == 0.0:
            zeros = {name: torch.zeros(_size(shape), dtype=_dtype(shape)) for name, shape in shapes.items()}
            noise = self.add(step, zeros, std, purpose)
        else:
            noise = self._draw_fast(step, shapes, std, purpose)
        return {
            name: noise[name].to(shape.device) if isinstance(shape, Tensor) else noise[name]
            for name, shape in shapes.items()
        }

    def add(self, step: int, values: Mapping[str, Tensor], std: float, purpose: str = "gradient") -> dict[str, Tensor]:
        """`values` plus the noise of this step: the release itself, and the only float-safe way to make it."""
        check_std(std)
        if std == 0.0:
            return {name: value.detach().to(_dtype(value), copy=True) for name, value in values.items()}
        if self.secure:
            return {name: self._add_secure(step, name, value, std, purpose) for name, value in values.items()}
        noise = self.draw(step, values, std, purpose)
        return {name: noise[name].add_(value.detach()) for name, value in values.items()}

    def _draw_fast(self, step: int, shapes: Mapping[str, Shape], std: float, purpose: str) -> dict[str, Tensor]:
        """Every name has its own key stream; short ones are made into normals together, which changes no value."""
        noise: dict[str, Tensor] = {}
        short: dict[str, npt.NDArray[np.uint64]] = {}
        for name, shape in shapes.items():
            size = _size(shape)
            count = math.prod(size)
            if _dtype(shape) == torch.float64:
                generator = self.seed.generator("noise/" + purpose, step, name)
                noise[name] = torch.from_numpy(generator.standard_normal(count) * std).view(size)
                continue
            words, pairs = word_stream(self.seed.key("noise/" + purpose, step, name)), (count + 1) // 2
            if pairs <= _SHORT:
                short[name] = words(pairs)
            else:
                noise[name] = torch.from_numpy(fast_normals(words, pairs, std).reshape(-1)[:count]).view(size)
        if short:
            joined = np.concatenate(list(short.values()))
            normals, start = np.empty((2, len(joined)), dtype=np.float32), 0
            _box_muller(joined, std, normals)
            for name, drawn in short.items():
                size, stop = _size(shapes[name]), start + len(drawn)
                # A copy of its own: a view could lie in memory with gaps.
                own = normals[:, start:stop].flatten()[: math.prod(size)]
                noise[name], start = torch.from_numpy(own).view(size), stop
        return noise

    def _add_secure(self, step: int, name: str, value: Tensor, std: float, purpose: str) -> Tensor:
        key = self.seed.key("secure noise/" + purpose, step, name)
        exact = value.detach().cpu().to(torch.float64).numpy()
        release = torch.from_numpy(add_secure_gaussian(exact, std, key))
        return release.to(value.device, _dtype(value))


def _size(shape: Shape) -> tuple[int, ...]:
    return tuple(shape.shape) if isinstance(shape, Tensor) else tuple(int(extent) for extent in shape)


def _dtype(shape: Shape) -> torch.dtype:
    """Noise of half precision would be too coarse: all but float64 is released in float32."""
    return torch.float64 if isinstance(shape, Tensor) and shape.dtype == torch.float64 else torch.float32
