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

What is assumed. ChaCha20 with a secret 256-bit key cannot be told from random bits; numpy's log, sqrt and cos are
right within 4 units in the last place; what is released is what `add_secure_gaussian` returns, or a function of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

_FINE_BITS = 40
_COARSE_BITS = 20
_LIMIT_BITS = 20
# Normals worked on at once: few enough to stay in the cache. It changes no value.
_AT_ONCE = 32768
_BLOCK_BYTES = 64
# First words below this, of which radii are made, get further bits.
_SMALL = 1 << 11


def secure_words(key: bytes, count: int, start: int = 0) -> npt.NDArray[np.uint64]:
    """`count` 64-bit words of the ChaCha20 key stream of `key` (RFC 8439, nonce 0), from block `start` on."""
    return word_stream(key, start)(count)


WordStream = Callable[[int], npt.NDArray[np.uint64]]


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


def secure_normals(key: bytes, count: int) -> npt.NDArray[np.float64]:
    """Standard normals from 128 bits of key stream each; never release them bare (see the module's docstring)."""
    normals = np.empty(count)
    words = word_stream(key)
    small: list[tuple[int, npt.NDArray[np.uint64]]] = []
    for start in range(0, count, _AT_ONCE):
        size = min(_AT_ONCE, count - start)
        drawn = words(2 * size)
        uniforms = _radius_uniforms(drawn)
        if uniforms[uniforms.argmin()] < _SMALL * 2.0**-64:
            places = np.flatnonzero(drawn[0::2] < _SMALL)
            small += [(start + int(place), drawn[2 * place : 2 * place + 2]) for place in places]
        normals[start : start + size] = _box_muller(uniforms, drawn)
    for place, pair in small:
        normals[place] = _box_muller(_finer(pair, words), pair)[0]
    return normals


def _radius_uniforms(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """A uniform from each pair of words: the first word and the 11 bits that the angle leaves over of the second."""
    uniforms = (words[1::2] & np.uint64(2047)).astype(np.float64)
    # The half keeps ln away from 0.
    uniforms += 0.5
    uniforms *= 2.0**-11
    uniforms += words[0::2]
    uniforms *= 2.0**-64
    return uniforms


def _finer(pair: npt.NDArray[np.uint64], words: WordStream) -> npt.NDArray[np.float64]:
    """The uniform of one pair with a small first word: 128 further bits in place of the half."""
    whole = (int(pair[0]) << 11) + (int(pair[1]) & 2047)
    return np.asarray((whole + fine_uniforms(words(2))) * 2.0**-75)


def _box_muller(radius: npt.NDArray[np.float64], words: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """One normal from each uniform (which is overwritten) and the angle in the second word of each pair."""
    np.log(radius, out=radius)
    radius *= -2.0
    np.sqrt(np.maximum(radius, 0.0, out=radius), out=radius)
    angle = (words[1::2] >> np.uint64(11)).astype(np.float64)
    angle += 0.5
    angle *= 2.0 * math.pi * 2.0**-53
    radius *= np.cos(angle, out=angle)
    return radius


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


def add_on_grid(
    values: npt.NDArray[np.float64], noise: npt.NDArray[np.float64], scale: float
) -> npt.NDArray[np.float64]:
    """`values` + scale · noise on a grid of step 2^(⌊log₂ scale⌋ − 20): steps 1 to 3 of the module's docstring.

    `noise` has scale 1 and stays below 2²⁰. A value that is NaN counts as 0; one that is too large is limited.
    """
    if not (math.isfinite(scale) and scale > 0.0):
        raise ValueError(f"the scale of the noise is {scale}: it must be finite and above 0")
    exponent = math.frexp(scale)[1] - 1
    if not -900 < exponent < 900:
        raise ValueError(f"the scale of the noise is {scale}: its grid would exceed the range of doubles")
    limit = math.ldexp(1.0, exponent + _LIMIT_BITS)
    bounded = np.clip(np.nan_to_num(values, nan=0.0), -limit, limit)
    sums = np.rint(np.ldexp(bounded, _FINE_BITS - exponent)).astype(np.int64)
    sums += np.rint(noise * math.ldexp(scale, _FINE_BITS - exponent)).astype(np.int64)
    # Adding half a step before the shift rounds to the nearest multiple, exactly and the same way everywhere.
    shift = _FINE_BITS - _COARSE_BITS
    coarse = (sums + (1 << (shift - 1))) >> shift
    return np.asarray(np.ldexp(coarse.astype(np.float64), exponent - _COARSE_BITS), dtype=np.float64)


def add_secure_gaussian(values: npt.NDArray[np.float64], std: float, key: bytes) -> npt.NDArray[np.float64]:
    """`values` + N(0, std²) with noise from the key stream of `key`, released on the grid.

    >>> release = add_secure_gaussian(np.array([0.25, -3.0]), 1.0, bytes(32))
    >>> bool(np.all(release * 2**20 == np.rint(release * 2**20)))
    True
    """
    return add_on_grid(values, secure_normals(key, values.size).reshape(values.shape), std)
