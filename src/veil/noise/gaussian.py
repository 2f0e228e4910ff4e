"""Gaussian noise for named tensors, a pure function of (seed, purpose, step, name) and the tensor's size.

What fast noise guarantees. It draws pairs, by Box and Muller, from a radius of 31 bits and an angle of 32, in single
precision. Radii near either end, where 31 bits are too coarse, get 128 further bits and double precision. Every pair
then lies within η = 3·10⁻⁵ σ of an exactly normal pair (within 10⁻⁶ σ for all but one in 1,000), save for a mass of
2⁻¹⁵⁹ beyond 14.8 σ: 10⁻³³ over 10⁹ parameters and 10⁶ steps, below any δ. So a release that is (ε, δ)-private with
exact noise gives, with fast noise, for neighbours D and D′ and every set S of outcomes

    P(release of D in S) ≤ e^ε · P(release of D′ within 2η of S) + δ,

where "within" is meant pair by pair, and the rounding of the sum to a floating-point number is added to η.

What it assumes. Nobody looks closer than that: fast noise takes finitely many values (an exact 0 once in 2³² pairs),
and anybody who knows all other rows and sees every released bit can test which values are possible. Then use
`secure=True`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Never

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from veil.foundation.randomness import Seed
from veil.noise.secure import (
    ROOMS,
    SHORT,
    Streams,
    Words,
    WordStream,
    drawn_in_pieces,
    fine_uniforms,
    released_on_grid,
    word_stream,
)

Shape = Tensor | torch.Size | Sequence[int]
Size = tuple[int, ...]
Places = npt.NDArray[np.int64]

# Words worked on at once: small arrays stay in the cache and in the allocator's hands. It changes no value.
_AT_ONCE = 16384
# So many radii at either end get further bits: next to them, neighbouring radii are 5·10⁻⁵ standard deviations apart.
_END = 1 << 12
_LAST = (1 << 31) - 1
# Beyond, products of single precision would overflow or lose their digits, down to no noise at all.
_LEAST_STD, _LARGEST_STD = 1e-30, 1e30
_NOWHERE = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.uint64)


def fast_normals(words: WordStream, count: int, std: float = 1.0) -> npt.NDArray[np.float32]:
    """Two normals in single precision from each of `count` random words, by Box and Muller: one in each of two lines.

    About twice as fast as a ziggurat, as all words but a few take the same steps. Further bits for the ends of the
    radius come from the words after the first `count`. How near this is to exact normals: see the module's docstring.

    >>> fast_normals(lambda count: np.zeros(count, dtype=np.uint64), 1).round(3)
    array([[14.893],
           [ 0.   ]], dtype=float32)
    """
    normals = np.empty((2, count), dtype=np.float32)
    _fill([(words, count)], [normals.reshape(-1)], std)
    return normals


def _fill(streams: Streams, lines: Sequence[npt.NDArray[np.float32]], std: float) -> None:
    """Fill each line with the normals of its stream: all cosines, then the sines, as many as there is room for.

    Streams are worked on together, in pieces that stay in the cache, which changes no value.
    """
    counts = [count for _, count in streams]
    ends = np.cumsum(counts)
    stops: list[int] = ends.tolist()
    near_end: list[tuple[Places, Words]] = []
    start = owner = 0
    with ROOMS.of((4, _AT_ONCE), np.float32) as room:
        for drawn in drawn_in_pieces(streams, _AT_ONCE):
            stop, work = start + len(drawn), room[:, : len(drawn)]
            while stops[owner] <= start:
                owner += 1
            cosines, sines = _lines(lines[owner], counts[owner], start - stops[owner], stop - stops[owner])
            alone = stop <= stops[owner] and len(sines) == len(drawn)
            places, words = _box_muller(drawn, std, work, (cosines, sines) if alone else (work[2], work[3]))
            if places.size:
                near_end.append((places + start, words))
            done = start
            while not alone and done < stop:
                while stops[owner] <= done:
                    owner += 1
                upto, count = min(stop, stops[owner]), counts[owner]
                cosines, sines = _lines(lines[owner], count, done - stops[owner], upto - stops[owner])
                cosines[:] = work[2, done - start : upto - start]
                sines[:] = work[3, done - start : done - start + len(sines)]
                done = upto
            start = stop
    if near_end:
        places, words = (np.concatenate(found) for found in zip(*near_end, strict=True))
        owners = np.searchsorted(ends, places, side="right")
        for index in np.unique(owners).tolist():
            own = owners == index
            cosines, sines = _refined(words[own], streams[index][0], std)
            at = places[own] - ends[index] + counts[index]
            lines[index][at] = cosines
            held = counts[index] + at < len(lines[index])
            lines[index][counts[index] + at[held]] = sines[held]


def _lines(
    line: npt.NDArray[np.float32], count: int, first: int, last: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Where the pairs of some words lie, counted from the end of their stream: an odd line has no last sine."""
    return line[count + first : count + last], line[2 * count + first : 2 * count + last]


def _box_muller(
    words: Words, std: float, room: npt.NDArray[np.float32], into: tuple[npt.NDArray[np.float32], ...]
) -> tuple[Places, Words]:
    """Fill `into`; return places and words of the radii that are too near an end for single precision.

    The first two lines of `room` are to work in.
    """
    halves = words.view(np.uint32).reshape(-1, 2)
    radius, angle = room[0], room[1]
    # 31 bits, so that the conversion is a signed one (fast); the half keeps the logarithm away from 0.
    np.right_shift(halves[:, 0], np.uint32(1), out=angle.view(np.uint32))
    np.copyto(radius, angle.view(np.int32), casting="unsafe")
    # Places of extremes are found faster than the extremes themselves.
    near_end = radius.size > 0 and (
        radius.item(radius.argmin()) < _END or radius.item(radius.argmax()) >= _LAST + 1 - _END
    )
    radius += np.float32(0.5)
    radius *= np.float32(2.0**-31)
    np.log(radius, out=radius)
    radius *= np.float32(-2.0)
    np.sqrt(radius, out=radius)
    radius *= np.float32(std)
    np.copyto(angle, halves[:, 1].view(np.int32), casting="unsafe")
    angle *= np.float32(2.0 * math.pi * 2.0**-32)
    np.cos(angle, out=into[0])
    np.multiply(into[0], radius, out=into[0])
    np.sin(angle, out=angle)
    np.multiply(angle, radius, out=into[1])
    if not near_end:
        return _NOWHERE
    whole = halves[:, 0] >> np.uint32(1)
    places = np.flatnonzero((whole < _END) | (whole > _LAST - _END))
    return places, words[places]


def _refined(ends: Words, words: WordStream, std: float) -> npt.NDArray[np.float64]:
    """The pairs of words whose radius is near an end: as before with 128 further bits each, in double precision."""
    halves = ends.view(np.uint32).reshape(-1, 2)
    whole = (halves[:, 0] >> np.uint32(1)).astype(np.float64)
    near_one = whole > _LAST / 2
    edge = (np.where(near_one, _LAST - whole, whole) + fine_uniforms(words(2 * len(ends)))) * 2.0**-31
    radius = std * np.sqrt(-2.0 * np.where(near_one, np.log1p(-edge), np.log(edge)))
    angle = halves[:, 1].view(np.int32) * (2.0 * math.pi * 2.0**-32)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)])


def check_std(std: float) -> None:
    """A standard deviation is finite and not negative; 0 is allowed and is not private."""
    if not (math.isfinite(std) and std >= 0.0):
        raise ValueError(f"standard deviation of the noise is {std}: it must be finite and at least 0")


@dataclass(frozen=True, slots=True)
class GaussianNoise:
    """Independent N(0, std²) in every coordinate of every named tensor.

    Each name has its own stream, so noise for one tensor does not depend on which others are asked for, in which
    order, or on which process. `std=0.0` gives exact zeros: it is there for methods that are not private.

    With `secure=False` noise comes from ChaCha20 in float32 arithmetic (Philox for float64): fast and with all of its
    tail, but such sums leave traces that an attacker with the exact released bits can use (the module's docstring says
    what is guaranteed). With `secure=True` it is made in double precision, and `add` releases on a fixed grid (see
    `veil.noise.secure` for what that protects against and what it assumes).
    Release by `add`: noise that is drawn first and summed afterwards in floating point is float-safe in neither case.

    One description (purpose, step, name) is for one release: anybody who sees two values with the same noise can
    subtract one from the other. Releases that share a step need different purposes or names.

    Args:
        seed: The secret seed of the run.
        secure: Whether noise is safe against attacks on floating-point numbers.

    >>> noise = GaussianNoise(Seed.from_int(0))
    >>> a = noise.draw(step=4, shapes={"w": (2, 3), "b": (3,)}, std=1.0)
    >>> torch.equal(a["b"], noise.draw(step=4, shapes={"b": (3,)}, std=1.0)["b"])
    True
    """

    seed: Seed
    secure: bool = False

    def draw(self, step: int, shapes: Mapping[str, Shape], std: float, purpose: str = "gradient") -> dict[str, Tensor]:
        """Noise by name. A tensor as shape also gives device and dtype (float64 stays, all else gets float32).

        Args:
            step: Number of the step, from 0.
            shapes: Shape, or a tensor of this shape, by name.
            std: Standard deviation, finite and at least 0; 0 gives zeros and is not private.
            purpose: What the noise is for; noise of different purposes is independent.

        Returns:
            One tensor of noise for each name.

        Raises:
            ValueError: `std` is negative or not finite, or a tensor does not hold real floating-point numbers.
        """
        check_std(std)
        _check_real({name: shape for name, shape in shapes.items() if isinstance(shape, Tensor)})
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
        """`values` plus the noise of this step: the release itself, and the only float-safe way to make it.

        Args:
            step: Number of the step, from 0.
            values: The exact values by name. They are not changed.
            std: Standard deviation, finite and at least 0; 0 adds nothing and is not private.
            purpose: What the noise is for; noise of different purposes is independent.

        Returns:
            One noisy tensor for each name.

        Raises:
            ValueError: `std` is negative or not finite, or a value does not hold real floating-point numbers: noise on
                a complex number would leave its imaginary part as it is.
        """
        check_std(std)
        _check_real(values)
        if std == 0.0:
            return {name: value.detach().to(_dtype(value), copy=True) for name, value in values.items()}
        if self.secure:
            return self._add_secure(step, values, std, purpose)
        if not values:
            return {}
        noise = self._draw_fast(step, values, std, purpose)
        # Into the noise: what is released lies in memory like a new tensor of its shape, whatever the sum lies like.
        drawn = [noise[name] if value.is_cpu else noise[name].to(value.device) for name, value in values.items()]
        with torch.no_grad():
            torch._foreach_add_(drawn, list(values.values()))
        return dict(zip(values, drawn, strict=True))

    def _draw_fast(self, step: int, shapes: Mapping[str, Shape], std: float, purpose: str) -> dict[str, Tensor]:
        """Every name has its own key stream and its own memory, which nobody else holds."""
        noise: dict[str, Tensor] = {}
        single = {name: _size(shape) for name, shape in shapes.items() if _dtype(shape) != torch.float64}
        if len(single) < len(shapes):
            for name in shapes.keys() - single.keys():
                generator, size = self.seed.generator("noise/" + purpose, step, name), _size(shapes[name])
                noise[name] = torch.from_numpy(generator.standard_normal(math.prod(size)) * std).view(size)
        if not single:
            return noise
        if not _LEAST_STD <= std <= _LARGEST_STD:
            _refuse_single(next(iter(single)), std)
        return noise | self._normals(step, single, std, purpose)

    def _normals(self, step: int, sizes: Mapping[str, Size], std: float, purpose: str) -> dict[str, Tensor]:
        """Fast normals for each name, in memory of its own."""
        (normals,) = drawn_steps(self.seed, range(step, step + 1), sizes, std, purpose)
        return normals

    def _add_secure(self, step: int, values: Mapping[str, Tensor], std: float, purpose: str) -> dict[str, Tensor]:
        """Every name has its own key stream; all normals are made in one go."""
        if not values:
            return {}
        streams = [
            (word_stream(self.seed.key("secure noise/" + purpose, step, name)), value.numel())
            for name, value in values.items()
        ]
        held = [value.detach().cpu() for value in values.values()]
        exact = [(one if one.dtype == torch.float32 else one.to(torch.float64)).numpy() for one in held]
        kinds = [np.float64 if _dtype(value) == torch.float64 else np.float32 for value in values.values()]
        released = released_on_grid(streams, exact, std, kinds)
        return {
            name: torch.from_numpy(one).to(value.device)
            for (name, value), one in zip(values.items(), released, strict=True)
        }


def drawn_steps(
    seed: Seed, steps: range, sizes: Mapping[str, Size], std: float, purpose: str
) -> list[dict[str, Tensor]]:
    """Fast normals by name for each of some steps: what every step would draw by itself, made in one go."""
    with torch.inference_mode(False):  # noise kept for coming steps may be used outside of the mode it was drawn in
        drawn = [{name: torch.empty(size, dtype=torch.float32) for name, size in sizes.items()} for _ in steps]
    long: list[tuple[tuple[WordStream, int], npt.NDArray[np.float32]]] = []
    short: list[tuple[tuple[WordStream, int], npt.NDArray[np.float32]]] = []
    for step, normals in zip(steps, drawn, strict=True):
        for name, value in normals.items():
            line = value.numpy().reshape(-1)
            stream = word_stream(seed.key("noise/" + purpose, step, name)), (line.size + 1) // 2
            (long if stream[1] > SHORT * _AT_ONCE else short).append((stream, line))
    # Short streams share a piece where they follow each other.
    ordered = long + short
    _fill([stream for stream, _ in ordered], [line for _, line in ordered], std)
    return drawn


def _check_real(values: Mapping[str, Tensor]) -> None:
    """Noise is real: torch would add it to the real part of a complex number, and release the imaginary part bare."""
    for name, value in values.items():
        if not value.dtype.is_floating_point:
            raise ValueError(
                f'"{name}" is {str(value.dtype).removeprefix("torch.")}: noise is for real floating-point numbers; '
                "view complex numbers by torch.view_as_real, and convert whole ones by .to(torch.float64)"
            )


def _refuse_single(name: str, std: float) -> Never:
    raise ValueError(
        f'standard deviation of the noise on "{name}" is {std}: in single precision it must be between '
        f"{_LEAST_STD:g} and {_LARGEST_STD:g}; scale the values or use float64"
    )


def _size(shape: Shape) -> Size:
    return tuple(shape.shape) if isinstance(shape, Tensor) else tuple(int(extent) for extent in shape)


def _dtype(shape: Shape) -> torch.dtype:
    """Noise of half precision would be too coarse: all but float64 is released in float32."""
    return torch.float64 if isinstance(shape, Tensor) and shape.dtype == torch.float64 else torch.float32
