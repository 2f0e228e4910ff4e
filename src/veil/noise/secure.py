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

Z = √(−2 ln u)·cos(2πv) from 128 fresh bits of key stream (75 for u, 53 for v); the sine is thrown away. Where u is
below 2⁻⁵³ (beyond 8.5σ) it gets 128 further bits. Nothing else is drawn again, so the time taken does not depend on the
noise save once in 2⁵³ coordinates. Double precision places the edges of a coarse cell (wider than 2⁻²¹σ) within 2⁻⁴⁹σ
on average over v, so its probability is right within a factor 1 ± 2⁻²⁷ even if all rounding errors conspired; beyond
7σ, where u itself is coarser, the factor is wider but the mass is below 10⁻¹¹. Together the divergence from the ideal
is below 2⁻⁵³ per coordinate, and by Pinsker's inequality d coordinates over T steps are within √(dT)·2⁻²⁷ of the ideal
in total variation: the most that an attacker can gain in δ, and far from what errors that do not conspire give away.
|Z| reaches 16.8 (mass beyond: below 10⁻⁶¹).

What is assumed. ChaCha20 with a secret 256-bit key cannot be told from random bits; numpy's log and sqrt and torch's
cos are right within 4 units in the last place; what is released is what `add_on_grid` returns, or a function of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
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
# Normals worked on at once: few enough to stay in the cache. It changes no value.
_AT_ONCE = 8192
_BLOCK_BYTES = 64
# First words below this, of which radii are made, get further bits.
_SMALL = 1 << 11
# First words below this are doubles without rounding, to which the 11 bits of the second word add.
_FEW_BITS = 2.0**53


def secure_words(key: bytes, count: int, start: int = 0) -> npt.NDArray[np.uint64]:
    """`count` 64-bit words of the ChaCha20 key stream of `key` (RFC 8439, nonce 0), from block `start` on."""
    return word_stream(key, start)(count)


WordStream = Callable[[int], Words]
Streams = Sequence[tuple[WordStream, int]]


def word_stream(key: bytes, start: int = 0) -> WordStream:
    """The next words of a key stream at every call; the next call continues within a block.

    >>> more = word_stream(bytes(32))
    >>> bool(np.array_equal(np.concatenate([more(3), more(6)]), secure_words(bytes(32), 9)))
    True
    """
    if len(key) != 32:
        raise ValueError("ChaCha20 needs a key of 32 bytes")
    left = ((1 << 32) - start) * _BLOCK_BYTES
    stream = Cipher(ChaCha20(key, start.to_bytes(4, "little") + bytes(12)), mode=None).encryptor()

    def more(count: int) -> npt.NDArray[np.uint64]:
        nonlocal left
        left -= 8 * count
        if left < 0:
            raise ValueError("the ChaCha20 block counter has 32 bits: draw from another stream")
        return np.frombuffer(stream.update(bytes(8 * count)), dtype="<u8")

    return more


def drawn_in_pieces(streams: Streams, at_once: int) -> Iterator[Words]:
    """So many words of each stream, one stream after another, in pieces of at most `at_once`.

    Short streams come together, as each piece has its price; a long one begins a piece, as joining means copying.
    """
    waiting: list[Words] = []
    room = at_once
    for words, count in streams:
        if waiting and count > at_once // 8:
            yield np.concatenate(waiting) if len(waiting) > 1 else waiting[0]
            waiting, room = [], at_once
        while count > 0:
            drawn = words(min(count, room))
            waiting.append(drawn)
            count, room = count - len(drawn), room - len(drawn)
            if room == 0:
                yield np.concatenate(waiting) if len(waiting) > 1 else drawn
                waiting, room = [], at_once
    if waiting:
        yield np.concatenate(waiting) if len(waiting) > 1 else waiting[0]


def secure_normals(key: bytes, count: int) -> Floats:
    """Standard normals from 128 bits of key stream each; never release them bare (see the module's docstring)."""
    return joint_normals([(word_stream(key), count)])


def joint_normals(streams: Streams) -> Floats:
    """So many standard normals from each stream, one stream after another; working on all together changes no value."""
    normals = np.empty(sum(count for _, count in streams))
    angles, bits = np.empty(_AT_ONCE), np.empty(_AT_ONCE, dtype=np.uint64)
    small: list[tuple[int, Words]] = []
    start = 0
    for drawn in drawn_in_pieces([(words, 2 * count) for words, count in streams], 2 * _AT_ONCE):
        size = len(drawn) // 2
        part = normals[start : start + size]
        found = _radius_uniforms(drawn, part)
        small += [(start + place, drawn[2 * place : 2 * place + 2]) for place in found]
        _box_muller(part, drawn, angles[:size], bits[:size])
        start += size
    ends = np.cumsum([count for _, count in streams])
    for place, pair in small:
        words = streams[int(np.searchsorted(ends, place, side="right"))][0]
        normals[place] = _finer(pair, words)
        _box_muller(normals[place : place + 1], pair, angles[:1], bits[:1])
    return normals


def _radius_uniforms(words: Words, into: Floats) -> list[int]:
    """A uniform from each pair of words; returns the places of those so small that they need further bits.

    They are the first word and the 11 bits that the angle leaves over of the second, which change no double but where
    the first word is below 2⁵³.
    """
    np.copyto(into, words[0::2], casting="unsafe")
    few = np.flatnonzero(into < _FEW_BITS)
    first, second = words[2 * few], words[2 * few + 1]
    # The half keeps ln away from 0.
    into[few] += ((second & np.uint64(2047)).astype(np.float64) + 0.5) * 2.0**-11
    into *= 2.0**-64
    found: list[int] = few[first < _SMALL].tolist()
    return found


def _finer(pair: Words, words: WordStream) -> float:
    """The uniform of one pair with a small first word: 128 further bits in place of the half."""
    whole = (int(pair[0]) << 11) + (int(pair[1]) & 2047)
    return float((whole + fine_uniforms(words(2)))[0] * 2.0**-75)


def _box_muller(radius: Floats, words: Words, angles: Floats, bits: Words) -> None:
    """Turn each uniform into a normal by the angle in the second word of each pair; the rest is room to work in."""
    np.log(radius, out=radius)
    radius *= -2.0
    np.sqrt(np.abs(radius, out=radius), out=radius)
    np.right_shift(words[1::2], np.uint64(11), out=bits)
    # Signed, as 53 bits fit: the conversion is twice as fast.
    np.copyto(angles, bits.view(np.int64), casting="unsafe")
    angles += 0.5
    angles *= 2.0 * math.pi * 2.0**-53
    # torch's cosine of doubles is three times as fast as numpy's.
    torch.cos_(torch.from_numpy(angles))
    radius *= angles


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


def add_on_grid(values: npt.NDArray[Any], noise: Floats, scale: float, dtype: npt.DTypeLike = np.float64) -> Floats:
    """`values` + scale · noise on a grid of step 2^(⌊log₂ scale⌋ − 20): steps 1 to 3 of the module's docstring.

    `noise` has scale 1, stays below 2²⁰ and has as many values. A value that is NaN counts as 0; one that is too large
    is limited. The sum is made in double precision and then rounded to `dtype`.
    """
    if not (math.isfinite(scale) and scale > 0.0):
        raise ValueError(f"the scale of the noise is {scale}: it must be finite and above 0")
    exponent = math.frexp(scale)[1] - 1
    if not -900 < exponent < 900:
        raise ValueError(f"the scale of the noise is {scale}: its grid would exceed the range of doubles")
    release = np.empty(values.shape, dtype=dtype)
    exact, normal, into = values.reshape(-1), noise.reshape(-1), release.reshape(-1)
    sums, terms = np.empty(_AT_ONCE), np.empty(_AT_ONCE)
    for start in range(0, exact.size, _AT_ONCE):
        part = slice(start, min(start + _AT_ONCE, exact.size))
        size = part.stop - start
        sums[:size] = exact[part]
        np.multiply(normal[part], math.ldexp(scale, _FINE_BITS - exponent), out=terms[:size])
        _on_grid(sums[:size], np.rint(terms[:size], out=terms[:size]), exponent)
        into[part] = sums[:size]
    return release


def _on_grid(values: Floats, noise: Floats, exponent: int) -> None:
    """Replace values by their sum with noise, which is in whole steps of the fine grid, on the coarse grid."""
    # Products with a power of two are exact: every exponent is far from the ends of the range.
    to_fine, shift = math.ldexp(1.0, _FINE_BITS - exponent), _FINE_BITS - _COARSE_BITS
    if _none_beyond(values, exponent + 11) and _none_beyond(noise, _FINE_BITS + 11):
        # Both are at most 2⁵¹ steps of the fine grid: such whole numbers add exactly as doubles.
        values *= to_fine
        np.rint(values, out=values)
        values += noise
        values *= 2.0**-shift
        values += 0.5
        np.floor(values, out=values)
    else:
        limit = math.ldexp(1.0, exponent + _LIMIT_BITS)
        bounded = np.clip(np.nan_to_num(values, nan=0.0), -limit, limit)
        sums = np.rint(bounded * to_fine).astype(np.int64) + noise.astype(np.int64)
        # Adding half a step before the shift rounds to the nearest multiple, exactly and the same way everywhere.
        values[:] = (sums + (1 << (shift - 1))) >> shift
    values *= math.ldexp(1.0, exponent - _COARSE_BITS)


def _none_beyond(values: Floats, exponent: int) -> bool:
    """Whether no value is NaN or beyond 2^exponent, by their squares together; False may be wrong."""
    return -400 < exponent < 400 and bool(np.dot(values, values) <= math.ldexp(1.0, 2 * exponent))


def add_secure_gaussian(values: Floats, std: float, key: bytes) -> Floats:
    """`values` + N(0, std²) with noise from the key stream of `key`, released on the grid.

    >>> release = add_secure_gaussian(np.array([0.25, -3.0]), 1.0, bytes(32))
    >>> bool(np.all(release * 2**20 == np.rint(release * 2**20)))
    True
    """
    return add_on_grid(values, secure_normals(key, values.size), std)
