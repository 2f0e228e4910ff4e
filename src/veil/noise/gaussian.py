"""Gaussian noise for named tensors, a pure function of (seed, purpose, step, name)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from veil.noise.secure import add_secure_gaussian
from veil.randomness import Seed

Shape = Tensor | torch.Size | Sequence[int]


# Words worked on at once: the arrays of one round stay in the cache. It changes no value.
_AT_ONCE = 32768


def fast_normals(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.float32]:
    """Two standard normals in single precision from each random word, by Box and Muller: one in each of two lines.

    About twice as fast as a ziggurat, as no step branches on the value. They reach 6.6 standard deviations (beyond:
    3·10⁻¹¹) and are about 10⁻⁷ apart near 0.

    >>> fast_normals(np.array([1 << 63], dtype=np.uint64)).round(3)
    array([[-6.66],
           [ 0.  ]], dtype=float32)
    """
    normals = np.empty((2, len(words)), dtype=np.float32)
    halves = words.view(np.uint32).reshape(-1, 2)
    for start in range(0, len(words), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        # 31 bits, so that the conversion is a signed one (fast); the half keeps the logarithm away from 0.
        radius = (halves[part, 0] >> np.uint32(1)).view(np.int32).astype(np.float32)
        radius += np.float32(0.5)
        radius *= np.float32(2.0**-31)
        np.log(radius, out=radius)
        radius *= np.float32(-2.0)
        np.sqrt(np.maximum(radius, np.float32(0.0), out=radius), out=radius)
        angle = halves[part, 1].view(np.int32).astype(np.float32)
        angle *= np.float32(2.0 * math.pi * 2.0**-32)
        np.multiply(np.cos(angle), radius, out=normals[0, part])
        np.multiply(np.sin(angle, out=angle), radius, out=normals[1, part])
    return normals


def check_std(std: float) -> None:
    """A standard deviation is finite and not negative; 0 is allowed and is not private."""
    if not (math.isfinite(std) and std >= 0.0):
        raise ValueError(f"standard deviation of the noise is {std}: it must be finite and at least 0")


@dataclass(frozen=True, slots=True)
class GaussianNoise:
    """Independent N(0, std²) in every coordinate of every named tensor.

    Each name has its own stream, so noise for one tensor does not depend on which others are asked for, in which
    order, or on which process. `std=0.0` gives exact zeros: it is there for methods that are not private.

    With `secure=False` noise comes from Philox and float32 arithmetic: right for research, but floating-point sums
    leave traces that an attacker with the exact released bits can use. With `secure=True` it comes from ChaCha20 and
    `add` releases on a fixed grid (see `veil.noise.secure` for what that protects against and what it assumes).
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
        """Every name has its own random words; those of small tensors become normals together, to save calls."""
        noise: dict[str, Tensor] = {}
        small: list[tuple[npt.NDArray[np.float32], npt.NDArray[np.uint64]]] = []
        for name, shape in shapes.items():
            generator, size = self.seed.generator("noise/" + purpose, step, name), _size(shape)
            count = math.prod(size)
            if _dtype(shape) == torch.float64:
                noise[name] = torch.from_numpy(generator.standard_normal(count)).reshape(size)
                continue
            half = (count + 1) // 2
            normals = np.empty((2, half), dtype=np.float32)
            noise[name] = torch.from_numpy(normals.reshape(-1)[:count]).view(size)
            if half <= _AT_ONCE:
                small.append((normals, generator.bit_generator.random_raw(half)))
                continue
            for start in range(0, half, _AT_ONCE):
                stop = min(start + _AT_ONCE, half)
                normals[:, start:stop] = fast_normals(generator.bit_generator.random_raw(stop - start))
        if small:
            joined, start = fast_normals(np.concatenate([words for _, words in small])), 0
            for normals, words in small:
                normals[:] = joined[:, start : start + len(words)]
                start += len(words)
        for tensor in noise.values():
            tensor.mul_(std)
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
