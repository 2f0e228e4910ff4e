"""Binary-tree noise for all prefix sums of a stream (DP-FTRL), with restarts and completion.

Every node of the tree over the steps has its own Gaussian noise. The prefix of t steps is the disjoint union of
popcount(t) nodes, so its noise has variance popcount(t)·std², not t·std², while one row stands in one leaf and moves
only the nodes above it. What that costs is `veil.accounting.events.Tree`.

The noise of a node is a pure function of (seed, tree, level, index): nothing is stored, and a run that resumes at
step t finds the noise that it would have seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from veil.foundation.randomness import Seed
from veil.noise.gaussian import check_std
from veil.noise.secure import add_on_grid, real, secure_normals

Vector = npt.NDArray[np.float64]
# Nodes are drawn in blocks of about this many numbers, so that small vectors do not pay for a generator each.
_BLOCK = 4096


@dataclass(frozen=True, slots=True)
class TreeNoise:
    """Noise on the prefix sums S_1, S_2, … of vectors of length `dimension`.

    `leaves` steps share one tree; then a new tree starts (restart) and the noise of the finished ones stays in all
    later prefixes. With `completion` a finished tree whose `leaves` is not a power of two is filled up with steps
    that hold nothing, so that its total carries the noise of one node, the root, at no cost in privacy.

    `prefixes` is fast for many steps of small vectors, `walk` for one step after the other of large ones.

    With `secure=True` the bits come from ChaCha20, and `add` releases on a fixed grid (`veil.noise.secure`).

    Args:
        seed: The secret seed of the run.
        dimension: Length of a vector.
        std: Standard deviation of the noise of a node, at least 0.
        leaves: Steps that share a tree, at least 1.
        completion: Whether a finished tree is filled up to a power of two.
        secure: Whether noise is safe against attacks on floating-point numbers.
        purpose: What the noise is for; noise of different purposes is independent.

    >>> noise = TreeNoise(Seed.from_int(0), dimension=2, std=1.0, leaves=8)
    >>> bool(np.array_equal(noise.prefixes(5, 7)[1], noise.prefix(6)))
    True
    """

    seed: Seed
    dimension: int
    std: float
    leaves: int
    completion: bool = True
    secure: bool = False
    purpose: str = "prefix"

    def __post_init__(self) -> None:
        check_std(self.std)
        if self.dimension < 1 or self.leaves < 1:
            raise ValueError("tree noise needs at least one dimension and one leaf")

    @property
    def levels(self) -> int:
        """Nodes on the way from a leaf to the root, both included."""
        return (self.leaves - 1).bit_length() + 1

    def prefix(self, steps: int) -> Vector:
        """The noise of the sum of the first `steps` values (0: none).

        Args:
            steps: How many values the sum has, at least 0.

        Returns:
            One vector.

        Raises:
            ValueError: `steps` is negative.
        """
        if steps == 0:
            return np.zeros(self.dimension)
        return self.prefixes(steps, steps + 1).reshape(self.dimension)

    def prefixes(self, start: int, stop: int) -> Vector:
        """The noise of the prefixes of start, …, stop − 1 steps, one per line; about two nodes drawn per step.

        Args:
            start: The first prefix, at least 1.
            stop: The prefix after the last one.

        Returns:
            One line for each prefix.

        Raises:
            ValueError: `start` is below 1, or `stop` below `start`.
        """
        if start < 1 or stop < start:
            raise ValueError(f"prefixes start at 1: {start} to {stop} is not a valid range")
        noise = np.zeros((stop - start, self.dimension))
        if stop == start:
            return noise
        finished = self._finished((start - 1) // self.leaves)
        for tree in range((start - 1) // self.leaves, (stop - 2) // self.leaves + 1):
            first = max(start - tree * self.leaves, 1)
            last = min(stop - 1 - tree * self.leaves, self.leaves)
            place = tree * self.leaves + first - start
            noise[place : place + last - first + 1] = finished
            self._add_within(tree, first, noise[place : place + last - first + 1])
            if last == self.leaves:
                finished = finished + self._total(tree)
                noise[place + last - first] = finished
        return noise

    def walk(self, start: int = 1) -> Iterator[Vector]:
        """The noise of the prefixes of start, start + 1, … steps, for ever; one new node per step.

        Args:
            start: The first prefix, at least 1.

        Yields:
            The noise of the next prefix.

        Raises:
            ValueError: `start` is below 1.
        """
        if start < 1:
            raise ValueError(f"prefixes start at 1: a walk cannot start at {start}")
        tree, before = divmod(start - 1, self.leaves)
        finished = self._finished(tree)
        while True:
            yield from self._walk_tree(tree, before + 1, finished)
            finished = finished + self._total(tree)
            yield finished.copy()
            tree, before = tree + 1, 0

    def _walk_tree(self, tree: int, first: int, finished: Vector) -> Iterator[Vector]:
        """The prefixes of one tree before it is finished, keeping the sums that neighbouring prefixes share."""
        kept: list[tuple[tuple[int, int], Vector]] = []
        for steps in range(first, self.leaves):
            levels = range(steps.bit_length() - 1, -1, -1)
            nodes = [(level, (steps >> level) - 1) for level in levels if steps >> level & 1]
            shared = 0
            while shared < min(len(kept), len(nodes)) and kept[shared][0] == nodes[shared]:
                shared += 1
            del kept[shared:]
            for level, index in nodes[shared:]:
                below = kept[-1][1] if kept else finished
                kept.append(((level, index), below + self._nodes(tree, level, index, index + 1)[0]))
            yield kept[-1][1].copy()

    def add(self, steps: int, values: npt.ArrayLike) -> Vector:
        """The sum of the first `steps` values plus its noise: the release itself.

        Args:
            steps: How many values were summed, at least 0.
            values: The exact sum, of length `dimension`.

        Returns:
            The noisy sum.

        Raises:
            ValueError: `steps` is negative, or the sum has another length or is complex.
        """
        exact = real(values).reshape(self.dimension)
        noise = self.prefix(steps)
        if not self.secure or self.std == 0.0:
            return np.asarray(exact + noise)
        return add_on_grid(exact, noise / self.std, self.std)

    def _add_within(self, tree: int, first: int, noise: Vector) -> None:
        """Add the nodes of the prefixes first, first + 1, … of one tree, from the highest level down."""
        counts = np.arange(first, first + len(noise), dtype=np.int64)
        for level in range(int(counts[-1]).bit_length() - 1, -1, -1):
            shifted = counts >> level
            # Bit `level` of t stands for the node that ends where the higher bits of t say, one before t >> level.
            used = np.flatnonzero(shifted & 1)
            if used.size:
                indices = shifted[used] - 1
                low, high = int(indices[0]), int(indices[-1])
                noise[used] += self._nodes(tree, level, low, high + 1)[indices - low]

    def _total(self, tree: int) -> Vector:
        """The noise of a finished tree's sum."""
        if self.completion:
            return self._nodes(tree, self.levels - 1, 0, 1).reshape(self.dimension)
        total = np.zeros((1, self.dimension))
        self._add_within(tree, self.leaves, total)
        return total.reshape(self.dimension)

    def _finished(self, trees: int) -> Vector:
        total = np.zeros(self.dimension)
        for tree in range(trees):
            total = total + self._total(tree)
        return total

    def _nodes(self, tree: int, level: int, start: int, stop: int) -> Vector:
        """The noise of the nodes start, …, stop − 1 of one level."""
        size = max(1, _BLOCK // self.dimension)
        blocks = [self._block(tree, level, block, size) for block in range(start // size, (stop - 1) // size + 1)]
        skipped = start // size * size
        return np.concatenate(blocks)[start - skipped : stop - skipped]

    def _block(self, tree: int, level: int, block: int, size: int) -> Vector:
        shape, stream = (size, self.dimension), f"{tree}/{level}"
        if self.secure:
            key = self.seed.key("secure tree/" + self.purpose, block, stream)
            return secure_normals(key, size * self.dimension).reshape(shape) * self.std
        return self.seed.generator("tree/" + self.purpose, block, stream).standard_normal(shape) * self.std
