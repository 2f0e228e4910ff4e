"""The secure generator: ChaCha20 key stream, and a Gaussian release that keeps no floating-point traces.

What goes wrong otherwise. A textbook sampler returns only some of the floating-point numbers, and x + noise only some
others that depend on x: seeing the exact bits of a release can rule out a neighbour altogether (Mironov 2012). For
samplers such as Box–Muller an attacker can also test whether the released bits can come from any pair of uniforms
(Holohan and Braghin 2021). A generator that is not cryptographic (Mersenne Twister, Philox) may let enough released
noise predict the rest.

What is done here. Let G = 2^⌊log₂σ⌋.
1. x is rounded to the fine grid 2⁻⁴⁰·G and limited to ±2²⁰·G, both as 64-bit integers. Rounding moves a pair of
   neighbours apart by at most √d·2⁻⁴⁰·G in ℓ₂ (10⁻⁹ σ for a million coordinates); limiting moves them closer.
2. σZ is rounded to the same fine grid and added as an integer, hence exactly. For an ideal Z this equals the rounding
   of x + σZ: post-processing of the ideal Gaussian release, so every accountant's answer stands.
3. The sum is rounded to the coarse grid 2⁻²⁰·G, which is again post-processing. Every release is a whole multiple
   of the same power of two whatever the rows are, and each multiple can come from every x.

Pairs Z = √(−2 ln u)·cos(2πv) and Z′ = √(−2 ln u)·sin(2πv) come from 128 fresh bits of key stream (75 for u, 53 for v).
Where u is below 2⁻⁵³ (beyond 8.5σ) it gets 128 further bits. Nothing else is drawn again, so the time taken does not
depend on the noise save once in 2⁵³ pairs. What is seen of a pair is which coarse cells it lies in, a square with sides
of more than 2⁻²¹σ: the points that 128 bits give lie far closer (2πr·2⁻⁵³ on a circle of radius r). Double
precision places each of its edges within 2⁻⁴⁹σ on average over v, so the probability of the square is right within a
factor 1 ± 2⁻²⁶ even if all rounding errors conspired; beyond 7σ, where u itself is coarser, the factor is wider but the
mass is below 10⁻¹⁰. Together the divergence of a pair from the ideal is below 2⁻⁵², and by Pinsker's inequality d
coordinates over T steps are within √(dT)·2⁻²⁷ of the ideal in total variation: the most that an attacker can gain in δ,
and far from what errors that do not conspire give away. |Z| reaches 16.8 (mass beyond: below 10⁻⁶¹).

What is assumed. ChaCha20 with a secret 256-bit key cannot be told from random bits; numpy's log and sqrt and torch's
cos and sin are right within 4 units in the last place; what is released is what `add_on_grid` or `released_on_grid`
returns, or a function of it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

Words = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float64]

_FINE_BITS = 40
_COARSE_BITS = 20
_LIMIT_BITS = 20
# Numbers near it are one step of the fine grid apart, where the coarse grid has step 1.
_ROUNDING = 1.5 * 2.0 ** (52 - _FINE_BITS + _COARSE_BITS)
# Normals worked on at once: more of them fall out of the caches, fewer pay for each piece. It changes no value.
_AT_ONCE = 65536
_BLOCK_BYTES = 64
# What a key stream is added to: 256 KB, so that it is there once.
_ZEROS = memoryview(bytes(1 << 18))
# Streams of at most this share of a piece are joined with others.
SHORT = 1 / 8
# First words below this, of which radii are made, get further bits.
_SMALL = 1 << 11
# First words below this are doubles without rounding, to which the 11 bits of the second word add.
_FEW_BITS = 2.0**53


def secure_words(key: bytes, count: int, start: int = 0) -> npt.NDArray[np.uint64]:
    """`count` 64-bit words of the ChaCha20 key stream of `key` (RFC 8439, nonce 0), from block `start` on."""
    return word_stream(key, start)(count)


WordStream = Callable[[int], Words]
Streams = Sequence[tuple[WordStream, int]]


class _Rooms(threading.local):
    """Memory to work in, by shape and kind, which a thread keeps: fresh memory for each release costs as much as half
    of its noise."""

    def __init__(self) -> None:
        self._free: dict[tuple[tuple[int, ...], object], npt.NDArray[Any]] = {}

    @contextmanager
    def of(self, shape: tuple[int, ...], kind: type | str) -> Iterator[npt.NDArray[Any]]:
        """Memory that nobody else works in meanwhile; whatever it holds."""
        room = self._free.pop((shape, kind), None)
        room = np.empty(shape, dtype=kind) if room is None else room
        try:
            yield room
        finally:
            self._free[shape, kind] = room


ROOMS = _Rooms()


class KeyStream:
    """The next words of a ChaCha20 key stream at every call; the next call continues within a block."""

    __slots__ = ("_left", "_stream")

    def __init__(self, key: bytes, start: int = 0) -> None:
        if len(key) != 32:
            raise ValueError("ChaCha20 needs a key of 32 bytes")
        self._left = ((1 << 32) - start) * _BLOCK_BYTES
        self._stream = Cipher(ChaCha20(key, start.to_bytes(4, "little") + bytes(12)), mode=None).encryptor()

    def __call__(self, count: int) -> Words:
        """So many words in new memory."""
        words = np.empty(count, dtype="<u8")
        self.fill(words)
        return words

    def fill(self, words: Words) -> None:
        """Words into memory that is there: fresh memory for every piece costs as much as half of the key stream."""
        self._left -= words.nbytes
        if self._left < 0:
            raise ValueError("the ChaCha20 block counter has 32 bits: draw from another stream")
        for start in range(0, words.size, len(_ZEROS) // 8):
            part = words[start : start + len(_ZEROS) // 8].view(np.uint8)
            self._stream.update_into(_ZEROS[: part.size], part.data)


def word_stream(key: bytes, start: int = 0) -> WordStream:
    """The key stream of `key` from a block on.

    >>> more = word_stream(bytes(32))
    >>> bool(np.array_equal(np.concatenate([more(3), more(6)]), secure_words(bytes(32), 9)))
    True
    """
    return KeyStream(key, start)


def drawn_in_pieces(streams: Streams, at_once: int) -> Iterator[Words]:
    """So many words of each stream, one stream after another, in pieces of at most `at_once`.

    Short streams come together, as each piece has its price; a long one begins a piece. All pieces lie in the same
    memory: one is valid until the next.
    """
    with ROOMS.of((at_once,), "<u8") as room:
        filled = 0
        for words, count in streams:
            if filled and count > SHORT * at_once:
                yield room[:filled]
                filled = 0
            while count > 0:
                part = room[filled : filled + count]
                if isinstance(words, KeyStream):
                    words.fill(part)
                else:
                    part[:] = words(len(part))
                count, filled = count - len(part), filled + len(part)
                if filled == at_once:
                    yield room
                    filled = 0
        if filled:
            yield room[:filled]


def secure_normals(key: bytes, count: int) -> Floats:
    """Standard normals, two from 128 bits of key stream; never release them bare (see the module's docstring)."""
    normals = np.empty(count)
    for _, first, drawn in _normals([(word_stream(key), count)]):
        normals[first : first + len(drawn)] = drawn
    return normals


def released_on_grid(
    streams: Streams, values: Sequence[npt.NDArray[Any]], scale: float, kinds: Sequence[npt.DTypeLike]
) -> list[Floats]:
    """`add_on_grid` of each of some arrays and normals of its own stream, in pieces that stay in the cache."""
    released = [np.empty(one.shape, dtype=kind) for one, kind in zip(values, kinds, strict=True)]
    exact, into = [one.reshape(-1) for one in values], [one.reshape(-1) for one in released]
    grid = Grid(scale)
    with ROOMS.of((2 * _AT_ONCE,), np.float64) as room:
        for owner, first, drawn in _normals(streams, grid.steps):
            part = slice(first, first + len(drawn))
            grid.add(exact[owner][part], drawn, into[owner][part], room, small=True)
    return released


def _normals(streams: Streams, scale: float = 1.0) -> Iterator[tuple[int, int, Floats]]:
    """So many normals of this scale from each stream, in pieces: which stream, the place of the first, the normals.

    A piece is valid until the next; of a pair that needs further bits, a later piece is the right one. Working on all
    streams together changes no value.
    """
    counts = [count for _, count in streams]
    even = [(words, count + count % 2) for words, count in streams]
    ends = np.cumsum([count for _, count in even]).tolist()
    small: list[tuple[int, int, Words]] = []
    start = owner = 0
    with ROOMS.of((5, _AT_ONCE), np.float64) as room:
        for drawn in drawn_in_pieces(even, 2 * _AT_ONCE):
            work, normals = room[:3, : len(drawn) // 2], room[3:].reshape(-1)[: len(drawn)]
            found = _radius_uniforms(drawn, work[0])
            _box_muller(work, drawn, normals, scale)
            done, stop = start, start + len(drawn)
            while done < stop:
                while ends[owner] <= done:
                    owner += 1
                own, upto = ends[owner] - even[owner][1], min(stop, ends[owner])
                small += [
                    (owner, start + 2 * p - own, drawn[2 * p : 2 * p + 2].copy())
                    for p in found
                    if done <= start + 2 * p < upto
                ]
                held = min(upto - own, counts[owner]) - (done - own)  # none for the last sine of an odd stream
                yield owner, done - own, normals[done - start : done - start + held]
                done = upto
            start = stop
        for owner, place, pair in small:
            work, normals = room[:3, :1], room[3, :2]
            work[0] = _finer(pair, streams[owner][0])
            _box_muller(work, pair, normals, scale)
            yield owner, place, normals[: min(2, counts[owner] - place)]


def _radius_uniforms(words: Words, into: Floats) -> list[int]:
    """A uniform from each pair of words; returns the places of those so small that they need further bits.

    They are the first word and the 11 bits that the angle leaves over of the second, which change no double but where
    the first word is below 2⁵³.
    """
    np.copyto(into, words[0::2], casting="unsafe")
    few = _places(into < _FEW_BITS)
    first, second = words[2 * few], words[2 * few + 1]
    # The half keeps ln away from 0.
    into[few] += ((second & np.uint64(2047)).astype(np.float64) + 0.5) * 2.0**-11
    into *= 2.0**-64
    found: list[int] = few[first < _SMALL].tolist()
    return found


def _places(found: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Where something rare was found: eight places are looked at together.

    >>> _places(np.arange(20) % 9 == 8)
    array([ 8, 17])
    """
    whole = found.size // 8 * 8
    eights = np.flatnonzero(found[:whole].view(np.uint64))
    near = (8 * eights[:, None] + np.arange(8)).reshape(-1)
    places: npt.NDArray[np.int64] = np.concatenate([near, np.arange(whole, found.size)])
    return places[found[places]]


def _finer(pair: Words, words: WordStream) -> float:
    """The uniform of one pair with a small first word: 128 further bits in place of the half."""
    whole = (int(pair[0]) << 11) + (int(pair[1]) & 2047)
    return float((whole + fine_uniforms(words(2)))[0] * 2.0**-75)


def _box_muller(work: Floats, words: Words, into: Floats, scale: float) -> None:
    """Two normals from each uniform in `work[0]` and the angle in the second word of each pair, side by side."""
    radius, angles, cosines = work
    np.log(radius, out=radius)
    radius *= -2.0
    np.sqrt(radius, out=radius)
    radius *= scale
    # All words, as what lies side by side is shifted faster; signed, as 53 bits fit: the conversion is twice as fast.
    whole = np.right_shift(words, np.uint64(11), out=into.view(np.uint64)).view(np.int64)
    np.copyto(angles, whole[1::2], casting="unsafe")
    angles += 0.5
    angles *= 2.0 * math.pi * 2.0**-53
    # torch's cosines and sines of doubles are three times as fast as numpy's.
    turns = torch.from_numpy(angles)
    torch.cos(turns, out=torch.from_numpy(cosines))
    np.multiply(cosines, radius, out=into[0::2])
    np.multiply(torch.sin_(turns).numpy(), radius, out=into[1::2])


def fine_uniforms(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """A uniform above 0 and at most 1 from each pair of words: 128 bits, down to 2⁻¹²⁹."""
    uniforms = words[1::2].astype(np.float64)
    uniforms += 0.5
    uniforms *= 2.0**-64
    uniforms += words[0::2]
    uniforms *= 2.0**-64
    return uniforms


def secure_uniforms(key: bytes, count: int) -> npt.NDArray[np.float64]:
    """Uniforms strictly between 0 and 1 from 64 bits each, as fine near 0 as doubles and 64 bits allow."""
    uniforms = secure_words(key, count).astype(np.float64)
    uniforms += 0.5
    uniforms *= 2.0**-64
    # Words that round up to 2⁶⁴ would give 1, whose logarithm is 0.
    return np.minimum(uniforms, 1.0 - 2.0**-53, out=uniforms)


def real(values: npt.ArrayLike) -> Floats:
    """Values in double precision; complex ones are rejected, of which only the real part would be taken.

    >>> real([1, 2])
    array([1., 2.])
    """
    given = np.asarray(values)
    if np.iscomplexobj(given):
        raise ValueError("noise is for real numbers, and these are complex: release real and imaginary parts as two")
    return given.astype(np.float64, copy=False)


class Grid:
    """The grids for noise of one scale, which is so many `steps` of the coarse one: see the module's docstring."""

    def __init__(self, scale: float) -> None:
        if not (math.isfinite(scale) and scale > 0.0):
            raise ValueError(f"the scale of the noise is {scale}: it must be finite and above 0")
        self.exponent = math.frexp(scale)[1] - 1
        if not -900 < self.exponent < 900:
            raise ValueError(f"the scale of the noise is {scale}: its grid would exceed the range of doubles")
        self.steps = math.ldexp(scale, _COARSE_BITS - self.exponent)

    def add(
        self, values: npt.NDArray[Any], noise: Floats, into: npt.NDArray[Any], room: Floats, *, small: bool
    ) -> None:
        """Fill `into` with `values` plus noise on the coarse grid; the noise is in its steps, and is lost.

        `small` says that no noise is beyond 2³⁰ steps, as no normal is.
        """
        sums = room[: values.size]
        # Looked at as they are given: half of the memory where they are in single precision.
        small = small and _none_beyond(values, self.exponent + 11)
        # Converted first and multiplied then: both at once take longer.
        np.copyto(sums, values)
        # Products with a power of two are exact: every exponent is far from the ends of the range.
        with np.errstate(over="ignore"):  # infinite is beyond the limit too
            sums *= math.ldexp(1.0, _COARSE_BITS - self.exponent)
        _on_grid(sums, noise, small)
        sums *= math.ldexp(1.0, self.exponent - _COARSE_BITS)
        np.copyto(into, sums, casting="same_kind")


def add_on_grid(values: npt.NDArray[Any], noise: Floats, scale: float, dtype: npt.DTypeLike = np.float64) -> Floats:
    """`values` + scale · noise on a grid of step 2^(⌊log₂ scale⌋ − 20): steps 1 to 3 of the module's docstring.

    `noise` has scale 1, stays below 2²⁰ and has as many values. A value that is NaN counts as 0; one that is too large
    is limited. The sum is made in double precision and then rounded to `dtype`.
    """
    grid, release = Grid(scale), np.empty(values.shape, dtype=dtype)
    exact, normal, into = values.reshape(-1), noise.reshape(-1), release.reshape(-1)
    with ROOMS.of((2 * _AT_ONCE,), np.float64) as room:
        for start in range(0, exact.size, _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            steps = normal[part] * grid.steps
            small = _none_beyond(steps, _COARSE_BITS + 10)
            grid.add(exact[part], steps, into[part], room, small=small)
    return release


def _on_grid(values: Floats, noise: Floats, small: bool) -> None:
    """Replace values by their sum with noise, rounded. Both are in steps of the coarse grid; the noise is lost.

    `small` says that no value is beyond 2³¹ steps and no noise beyond 2³⁰.

    At most 2³¹ steps away from 1.5·2³² numbers are 2⁻²⁰ steps apart, which is the fine grid: adding that rounds to it.
    The sum of what was rounded is exact.
    """
    if small:
        values += _ROUNDING
        noise -= _ROUNDING - 0.5  # half a step is on the fine grid; with it, rounding down is rounding to the nearest
        values += noise
        np.floor(values, out=values)
    else:
        fine, limit = 2.0 ** (_FINE_BITS - _COARSE_BITS), 2.0 ** (_LIMIT_BITS + _COARSE_BITS)
        bounded = np.clip(np.nan_to_num(values, nan=0.0), -limit, limit)
        sums = np.rint(bounded * fine).astype(np.int64) + np.rint(noise * fine).astype(np.int64)
        # Adding half a step before the shift rounds to the nearest multiple, exactly and the same way everywhere.
        shift = _FINE_BITS - _COARSE_BITS
        values[:] = (sums + (1 << (shift - 1))) >> shift


def _none_beyond(values: npt.NDArray[Any], exponent: int) -> bool:
    """Whether no value is NaN or beyond 2^exponent. (An inner product would be handed to all threads of BLAS.)"""
    limit = math.ldexp(1.0, exponent)
    # As doubles: single precision would take a limit beyond its range for infinity.
    return values.size == 0 or (float(values.max()) <= limit and float(values.min()) >= -limit)


def add_secure_gaussian(values: Floats, std: float, key: bytes) -> Floats:
    """`values` + N(0, std²) with noise from the key stream of `key`, released on the grid.

    >>> release = add_secure_gaussian(np.array([0.25, -3.0]), 1.0, bytes(32))
    >>> bool(np.all(release * 2**20 == np.rint(release * 2**20)))
    True
    """
    return add_on_grid(values, secure_normals(key, values.size), std)
