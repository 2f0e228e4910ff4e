"""Leaks: columns that tell the target by themselves, because they copy it or were written down after it was known.

A column is cut into its values or into quantiles; on one half of the rows each piece learns its target, on the other
half that is tried. This reads the rows without noise.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from veil.tables.encoding import Numeric, words

# Of each class (or of the target's variance) a column that tells the target gets this share right.
TELLS = 0.95
_PIECES = 32
_FEWEST = 20


def columns_that_tell(table: pd.DataFrame, names: Iterable[str], target: str, number: Numeric | None) -> list[str]:
    """The columns that tell the target of nearly every row; none where there are too few rows to say so.

    Args:
        table: The rows, or some of them.
        names: The columns to look at.
        target: The column to predict.
        number: The target as a number within its bounds; None where it is a class.

    Returns:
        Their names, in the order given.

    >>> rows = pd.DataFrame({"ill": ["yes", "no"] * 50, "treated": [1, 0] * 50, "age": range(100)})
    >>> columns_that_tell(rows, ["treated", "age"], "ill", None)
    ['treated']
    """
    if number is None:
        codes, classes = pd.factorize(pd.Series(words(table[target]), dtype=object))
        counts = np.bincount(codes[codes >= 0], minlength=len(classes))
        if len(classes) < 2 or np.sort(counts)[-2] < _FEWEST:
            return []
        targets = codes.astype(np.int64)
        return [name for name in names if _classes_told(_pieces(table[name]), targets, counts) >= TELLS]
    values = number.encode(table[target])[:, 0].astype(np.float64)
    if len(values) < 2 * _FEWEST or np.ptp(values) == 0:
        return []
    return [name for name in names if _variance_told(_pieces(table[name]), values) >= TELLS]


def _pieces(column: pd.Series) -> NDArray[np.int64]:
    """The piece of each row: its value, or its quantile where numbers are many; a missing value is a piece too."""
    plain = pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)
    if plain and column.nunique() > _PIECES and not pd.api.types.is_complex_dtype(column):
        ranks = column.rank(pct=True, method="average").to_numpy(dtype=np.float64, na_value=np.nan)
        return np.where(np.isnan(ranks), _PIECES, np.minimum(np.nan_to_num(ranks) * _PIECES, _PIECES - 1)).astype(int)
    return np.asarray(pd.factorize(pd.Series(words(column), dtype=object))[0], dtype=np.int64)


def _classes_told(pieces: NDArray[np.int64], targets: NDArray[np.int64], counts: NDArray[np.int64]) -> float:
    """The mean share of rows that are told right, over the classes that have enough rows."""
    halves, right = _halves(len(pieces)), np.zeros(len(pieces), dtype=bool)
    weights = 1 / np.maximum(counts, 1)
    for half in (0, 1):
        learned = np.zeros((int(pieces.max()) + 1, len(counts)))
        of = halves != half
        # Each class counts the same: else the common one would be told of every piece.
        np.add.at(learned, (pieces[of], targets[of]), weights[targets[of]])
        right[~of] = learned.argmax(axis=1)[pieces[~of]] == targets[~of]
    return float(np.mean([right[targets == k].mean() for k in np.flatnonzero(counts >= _FEWEST)]))


def _halves(rows: int) -> NDArray[np.int64]:
    """Half of the rows by a fixed shuffle: a table may be in any order."""
    return np.random.default_rng(0).permutation(rows) % 2


def _variance_told(pieces: NDArray[np.int64], values: NDArray[np.float64]) -> float:
    """The share of the variance that the means of the pieces explain on the other half."""
    halves, told, top = _halves(len(pieces)), np.empty(len(values)), int(pieces.max()) + 1
    for half in (0, 1):
        of = halves != half
        sums = np.bincount(pieces[of], values[of], minlength=top)
        rows = np.bincount(pieces[of], minlength=top)
        means = np.where(rows > 0, sums / np.maximum(rows, 1), values[of].mean())
        told[~of] = means[pieces[~of]]
    return float(1 - np.mean((values - told) ** 2) / np.var(values))
