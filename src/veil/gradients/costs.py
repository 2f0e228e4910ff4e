"""Costs: counted work, in rough nanoseconds per row, by which a rule chooses among equal ways to a norm.

The constants were read off a two-core CPU. They only steer the choice: every way gives the same numbers up to
rounding, and the choice depends on shapes alone, so a rerun takes the same way and gives the same bits.
"""

from __future__ import annotations

BATCHED_PRODUCT = 0.017  # one multiply-add in a batch of thin matrix products
SQUARE_PRODUCT = 0.012  # one multiply-add in a batch of matrix products that write what they sum over
LARGE_PRODUCT = 0.009  # one multiply-add in a large matrix product or an ordinary convolution
READ = 0.5  # one value read or written
STRIDED_READ = 1.5  # one value that is not beside the one before it
SETUP = 2.5  # one weight of a convolution that is split into one group per row
CACHED_VALUES = 4_000_000  # values beyond this number are fetched from memory that must be mapped first
FAR = 2.5  # one such value


def by_gram(positions: int, p: int, d: int) -> float:
    """Norms by inner products of positions, then the sum as one large product."""
    pairs = positions * positions
    return BATCHED_PRODUCT * pairs * (p + d) + 2 * READ * pairs + LARGE_PRODUCT * positions * p * d


def by_values(rows: int, positions: int, p: int, d: int) -> float:
    """Per-row gradients written out; norm and sum read them again. Memory beyond the inputs' own costs extra."""
    spill = max(0, p * d - positions * (p + d))
    written = READ if rows * p * d <= CACHED_VALUES else FAR
    return SQUARE_PRODUCT * positions * p * d + written * p * d + 2 * READ * spill
