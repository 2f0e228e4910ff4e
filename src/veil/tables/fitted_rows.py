"""Fitted rows: on which rows this process has fitted private models, so that another fit on the same rows is noticed.

Nothing of it leaves the memory of the process: rows are known by a sample of their hashes, under a secret that is drawn
when the process starts. Other processes (workers of joblib that were not forked) have a memory of their own.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from veil.accounting import Relation
from veil.foundation.randomness import Seed
from veil.tables.encoding import words

# Hashes kept of one table, and of all tables together (32 MB): beyond, the largest samples are halved.
SAMPLE = 1 << 16
_ALL_TOGETHER = 1 << 22
# Two tables have rows in common if the smaller one shares this part of its rows with the other.
SHARE = 0.3
# A row that is expected so often in an unrelated table by chance says nothing: such tables are compared as a whole.
_CHANCE = 0.01
# Tables have a few equal rows of their own; resampling copies far more.
_COPIED = 0.2
_LOOKED_AT = 20_000
_SECRET = Seed.from_system()
_LOCK = threading.Lock()


@dataclass(frozen=True)
class Rows:
    """A table's fingerprint: a mark of the whole, and all row hashes below a limit, if single rows tell anything.

    `copies` is how often one row stands in the table, beyond chance: 1 where no row was copied on purpose.
    """

    whole: bytes
    hashes: NDArray[np.float64]
    limit: float
    copies: int = 1

    def shared_with(self, other: Rows) -> bool:
        """Whether the same rows stand in both tables: all of them, or a part that chance does not explain."""
        if self.whole == other.whole:
            return True
        limit = min(self.limit, other.limit)
        mine, theirs = (one.hashes[one.hashes < limit] for one in (self, other))
        fewer = min(len(mine), len(theirs))
        return fewer > 0 and len(np.intersect1d(mine, theirs, assume_unique=True)) >= SHARE * fewer

    def thinned(self) -> Rows:
        """The same with half of the hashes."""
        limit = self.limit / 2
        return replace(self, hashes=self.hashes[self.hashes < limit], limit=limit)


@dataclass(frozen=True)
class Fitted:
    """One private model: its rows, what it may cost each of them, and a mark that an exact repetition shares."""

    rows: Rows
    epsilon: float
    delta: float
    relation: Relation
    mark: bytes | None = None


_FITTED: list[Fitted] = []


def rows_of(table: pd.DataFrame) -> Rows:
    """The fingerprint of a table, whatever its columns are called and whether its numbers are whole or not.

    >>> table = pd.DataFrame({"a": [1.5, 2.5, 3.5], "b": ["x", "y", "z"]})
    >>> rows_of(table).shared_with(rows_of(table.iloc[1:])), rows_of(table).shared_with(rows_of(table.assign(a=9.0)))
    (True, False)
    """
    plain = pd.DataFrame({place: _plain(table.iloc[:, place]) for place in range(table.shape[1])})
    ids = pd.util.hash_pandas_object(plain, index=False).to_numpy().view(np.int64)
    hashes = _SECRET.uniforms("fitted rows", 0, ids)
    whole = _mark(hashes.tobytes())
    if not _telling(plain):
        return Rows(whole, np.empty(0), 1.0)
    distinct, times = np.unique(hashes, return_counts=True)
    copies = int(times.max()) if len(distinct) < (1 - _COPIED) * len(hashes) else 1
    if len(distinct) <= SAMPLE:
        return Rows(whole, distinct, 1.0, copies)
    return Rows(whole, distinct[:SAMPLE].copy(), float(distinct[SAMPLE]), copies)


def mark_of(*parts: object) -> bytes:
    """A mark of all that makes a fit what it is; equal parts have equal marks."""
    return _mark(repr(parts).encode())


def fitted_before(rows: Rows, mark: bytes | None = None) -> list[Fitted]:
    """Private models that this process has fitted on these rows; a repetition of one (equal marks) is none of them."""
    with _LOCK:
        found = [one for one in _FITTED if one.rows.shared_with(rows)]
    return [] if mark is not None and any(one.mark == mark for one in found) else found


def remember(fitted: Fitted) -> None:
    """Record that a private model was fitted."""
    with _LOCK:
        if fitted.mark is not None and any(one.mark == fitted.mark for one in _FITTED):
            return
        _FITTED.append(fitted)
        while sum(len(one.rows.hashes) for one in _FITTED) > _ALL_TOGETHER:
            most = max(range(len(_FITTED)), key=lambda place: len(_FITTED[place].rows.hashes))
            _FITTED[most] = replace(_FITTED[most], rows=_FITTED[most].rows.thinned())


def forget() -> None:
    """Forget all fits, for rows that are public or synthetic."""
    with _LOCK:
        _FITTED.clear()


def added_up(models: Sequence[Fitted]) -> tuple[float, float]:
    """ε and δ of all together, by sums, which hold however later models were chosen; of two relations the wider.

    >>> one = Fitted(Rows(b"", np.empty(0), 1.0), 0.5, 1e-6, Relation.ADD_REMOVE)
    >>> added_up([one, one])
    (1.0, 2e-06)
    """
    mixed = len({one.relation for one in models}) > 1
    epsilon = delta = 0.0
    for one in models:
        # Replacing a row is removing one and adding one.
        twice = mixed and one.relation is Relation.ADD_REMOVE
        epsilon += 2 * one.epsilon if twice else one.epsilon
        delta += (1 + math.exp(min(one.epsilon, 700.0))) * one.delta if twice else one.delta
    return epsilon, min(delta, 1.0)


def _plain(column: pd.Series) -> pd.Series:
    """Numbers and dates as such, all else as words: what a table from another library holds looks the same."""
    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_complex_dtype(column):
        # Adding 0 makes −0 and 0 alike.
        return pd.Series(column.to_numpy(dtype=np.float64, na_value=np.nan) + 0.0)
    if pd.api.types.is_datetime64_any_dtype(column):
        return column.reset_index(drop=True)
    return pd.Series(words(column), dtype=object)


def _telling(table: pd.DataFrame) -> bool:
    """Whether a row is unlikely to stand in an unrelated table: by how often two rows agree in each column."""
    head = table.iloc[:_LOOKED_AT]
    rows = len(head)
    agree = float(len(table))
    for name in head.columns:
        counts = head[name].value_counts(dropna=False).to_numpy(dtype=np.float64)
        agree *= float(np.sum(counts * (counts - 1))) / max(rows * (rows - 1), 1)
    return agree <= _CHANCE


def _mark(content: bytes) -> bytes:
    return blake2b(content, key=_SECRET.secret, digest_size=16).digest()
