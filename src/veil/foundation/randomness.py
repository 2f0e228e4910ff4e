"""Counter-based randomness: every draw is a pure function of (seed, purpose, step, stream or row id).

No generator lives from one step to the next, so there is no state to store: a resumed run, a run on more processes
and a batch cut into pieces all see the same draws. A seed is hashed with what the draw is for (BLAKE2b) into the key
and the starting counter of a Philox generator; two different descriptions never share a stream.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import cast

import numpy as np
import numpy.typing as npt
from numpy.random.bit_generator import ISeedSequence

_SEED_BYTES = 32
_SEEDS_AT_ONCE = 16
# Few enough rows to stay in the cache; it changes no value.
_LANES_AT_ONCE = 16384


def _describe(purpose: str, step: int, stream: int | str) -> bytes:
    """An encoding that no two different descriptions share: lengths first, and the kind of stream."""
    if not 0 <= step < 1 << 63:
        raise ValueError(f"step is {step}: it must be between 0 and 2⁶³ − 1")
    name = purpose.encode()
    if isinstance(stream, str):
        kind, tail = b"s", stream.encode()
    else:
        kind, tail = b"i", int(stream).to_bytes(16, "little", signed=True)
    return len(name).to_bytes(4, "little") + name + int(step).to_bytes(8, "little") + kind + tail


def mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The 64-bit finaliser of splitmix (variant 13), in place: every input bit reaches every output bit."""
    values ^= values >> np.uint64(30)
    values *= np.uint64(0xBF58476D1CE4E5B9)
    values ^= values >> np.uint64(27)
    values *= np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return values


class _PhiloxKey(ISeedSequence):
    """Hands a ready key to Philox; its `key=` argument would first ask the operating system for an unused seed."""

    def __init__(self, words: npt.NDArray[np.uint64]) -> None:
        self.words = words

    def generate_state(
        self, n_words: int, dtype: npt.DTypeLike = np.uint32
    ) -> npt.NDArray[np.uint32] | npt.NDArray[np.uint64]:
        """The key itself: Philox asks for two words of 64 bits."""
        return self.words


@dataclass(frozen=True, slots=True)
class Seed:
    """256 secret bits from which all randomness of a run follows.

    `given` says whether a person chose the seed (tests; stated on the certificate) or the operating system did.
    Whoever knows the seed can subtract the noise, so it is never printed.

    >>> Seed.from_int(7)
    Seed(given=True, value hidden)
    >>> first = Seed.from_int(7).generator("batch", step=3).integers(1000)
    >>> bool(first == Seed.from_int(7).generator("batch", step=3).integers(1000))
    True
    """

    secret: bytes = field(repr=False)
    given: bool = True

    def __post_init__(self) -> None:
        if len(self.secret) != _SEED_BYTES:
            raise ValueError(f"a seed has {_SEED_BYTES} bytes, not {len(self.secret)}")

    @classmethod
    def from_int(cls, value: int) -> Seed:
        """A seed that a person chose: for tests and reproduction, not for production."""
        if not 0 <= value < 1 << 256:
            raise ValueError("a seed given as a number must be between 0 and 2²⁵⁶ − 1")
        return cls(int(value).to_bytes(_SEED_BYTES, "little"), given=True)

    @classmethod
    def from_system(cls) -> Seed:
        """A fresh seed from the operating system: for production."""
        return cls(os.urandom(_SEED_BYTES), given=False)

    def __repr__(self) -> str:
        """Only whether it was given: the value would undo the noise."""
        return f"Seed(given={self.given}, value hidden)"

    def key(self, purpose: str, step: int, stream: int | str = 0) -> bytes:
        """32 bytes that look random and independent for every (purpose, step, stream)."""
        return blake2b(_describe(purpose, step, stream), digest_size=32, key=self.secret).digest()

    def generator(self, purpose: str, step: int, stream: int | str = 0) -> np.random.Generator:
        """A numpy generator (Philox) that belongs to this (purpose, step, stream) alone."""
        words = np.frombuffer(self.key(purpose, step, stream), dtype="<u8")
        # Half of the hash is the key, a quarter the high counter word: streams stay apart for 2¹⁹² draws each.
        counter = np.array((0, 0, 0, words[2]), dtype=np.uint64)
        # numpy takes any ISeedSequence here; its stubs name only one of them.
        source = cast(np.random.SeedSequence, _PhiloxKey(words[:2]))
        return np.random.Generator(np.random.Philox(source, counter=counter))

    def uniforms(self, purpose: str, step: int, row_ids: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """One uniform in [0, 1) per row id, whatever other rows are asked for and in whichever order.

        A keyed integer hash (three splitmix rounds over 64-bit lanes, each after a fresh key word from BLAKE2b).
        Its quality is statistical, not cryptographic: never use it for noise that protects a release.

        >>> seed = Seed.from_int(1)
        >>> bool(seed.uniforms("order", 0, [5, 9])[1] == seed.uniforms("order", 0, [9])[0])
        True
        """
        ids = np.asarray(row_ids)
        if ids.size and not np.issubdtype(ids.dtype, np.integer):
            raise ValueError(f"row ids must be whole numbers, not {ids.dtype}")
        keys = np.frombuffer(self.key(purpose, step, "uniforms by row"), dtype="<u8").astype(np.uint64)
        lanes = ids.astype(np.int64).reshape(-1).view(np.uint64)
        uniforms = np.empty(lanes.shape)
        for start in range(0, len(lanes), _LANES_AT_ONCE):
            part = lanes[start : start + _LANES_AT_ONCE]
            part = mixed(mixed(mixed(part + keys[0]) ^ keys[1]) + keys[2])
            np.multiply(part >> np.uint64(11), 2.0**-53, out=uniforms[start : start + _LANES_AT_ONCE])
        return uniforms.reshape(ids.shape)


class SeedsAhead:
    """For every step a number that starts another generator; those of coming steps are drawn with it.

    A step of training pushes everything else out of the caches: one draw by itself takes ten times as long as one of
    several in a row.

    >>> seed = Seed.from_int(0)
    >>> SeedsAhead(seed, "forward").of(20) == int(seed.generator("forward", 20).integers(2**62))
    True
    """

    def __init__(self, seed: Seed, purpose: str, stream: int | str = 0) -> None:
        self._seed, self._purpose, self._stream = seed, purpose, stream
        self._drawn: dict[int, int] = {}

    def of(self, step: int) -> int:
        """The number of this step, the same whichever steps are asked for."""
        found = self._drawn.get(step)
        if found is None:
            self._drawn = {
                coming: int(self._seed.generator(self._purpose, coming, self._stream).integers(2**62))
                for coming in range(step, step + _SEEDS_AT_ONCE)
            }
            found = self._drawn[step]
        return found
