"""Splitting: which rows are held out, so that no row's part changes when a neighbouring table lacks or replaces one.

Under add-remove a row is known by what it says: a hash of its own values, and its number among the rows that are equal
to it. Taking one of k equal rows away then leaves k − 1 of the same parts, and every other row where it was. Under
replace-one, where places stay and one row's values change, a row is known by its place. A coin keyed for the run
decides by that identity; each row is held out on its own, so no number of rows enters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from pandas.util import hash_array

from veil.accounting import Relation
from veil.errors import require
from veil.foundation.randomness import Seed
from veil.tables.encoding import words

Lanes = NDArray[np.uint64]
FEW_ROWS = 100
# Where a run's record keeps the key of its coin.
HOLDOUT_KEY = "holdout_key"
# A group all of whose rows are held out is as unlikely as this, or none of its rows is held out.
_CHANCE = 1e-6
_MISSING = np.uint64(0x9E3779B97F4A7C15)
_FRACTION = np.uint64(0xD1B54A32D192ED03)


@dataclass(frozen=True)
class Holdout:
    """The share of rows that is held out, and the key of the run's coin.

    Whoever knows the key and a row can tell which part such a row would be in, and nothing about whether it is there.
    """

    share: float
    key: Seed

    def __post_init__(self) -> None:
        require(0 <= self.share < 1, f"holdout is {self.share}: it must be at least 0 and below 1")

    def chosen(self, identities: Lanes) -> NDArray[np.bool_]:
        """Which rows are held out: one coin per row, whatever other rows there are.

        >>> rows = row_identities(pd.DataFrame({"age": np.arange(1000)}))
        >>> int(Holdout(0.2, Seed.from_int(1)).chosen(rows).sum())
        178
        """
        return self.key.uniforms("holdout", 0, identities.view(np.int64)) < self.share

    def sparing(
        self, identities: Lanes, groups: ArrayLike, sizes: Mapping[str, int] | None = None
    ) -> NDArray[np.bool_]:
        """The same, but none of a small group or a small table, so that each has rows to train on.

        `groups` has a name or a number per row. `sizes` are declared ones; else those counted here are public.
        """
        codes, names = pd.factorize(np.asarray(groups))
        public = np.bincount(codes) if sizes is None else np.array([sizes.get(str(name), 0) for name in names])
        total = int(public.sum()) if sizes is None else sum(sizes.values())
        if self.share == 0 or total < FEW_ROWS:
            return np.zeros(len(identities), dtype=bool)
        return self.chosen(identities) & (public >= fewest_rows(self.share))[codes]


@dataclass(frozen=True)
class Split:
    """The run's seed, and which rows are held out, chosen so that neighbours under a relation agree on it.

    `choosing` is the share of all rows, among those held out, by which a search chooses its model.
    """

    seed: Seed
    holdout: Holdout
    relation: Relation | None
    choosing: float = 0.0


def holdout_key(seed: Seed) -> Seed:
    """The key of a run's coin: it follows from the seed by a one-way function, so it tells nothing about the noise."""
    return Seed(seed.key("holdout key", 0), seed.given)


def fewest_rows(share: float) -> int:
    """The rows that a group must have for some of them to be held out.

    >>> fewest_rows(0.2), fewest_rows(0.5)
    (9, 20)
    """
    return math.ceil(math.log(_CHANCE) / math.log(share))


def identities_for(relation: Relation | None, table: pd.DataFrame) -> Lanes:
    """The identity of a row between neighbours: its place under replace-one, else its values."""
    if relation is Relation.REPLACE_ONE:
        return np.arange(len(table), dtype=np.uint64)
    return row_identities(table)


def row_identities(table: pd.DataFrame) -> Lanes:
    """A number per row, from its own values and from how many rows before it are equal."""
    return numbered(*row_hashes(table))


def numbered(content: Lanes, exact: Lanes) -> Lanes:
    """One number from a row's hash and how many earlier rows agree with it exactly."""
    order = np.argsort(exact, kind="stable")
    listed = exact[order]
    first = np.ones(len(listed), dtype=bool)
    np.not_equal(listed[1:], listed[:-1], out=first[1:])
    places = np.arange(len(listed))
    earlier = np.empty(len(listed), dtype=np.uint64)
    earlier[order] = places - np.maximum.accumulate(np.where(first, places, 0))
    return hash_array(content + hash_array(earlier))


def row_hashes(table: pd.DataFrame) -> tuple[Lanes, Lanes]:
    """Two hashes per row: of what it means, and of how it was read. The order of the columns does not matter.

    How a column is read depends on all its rows: one word among numbers makes texts of them, one gap makes fractions.
    The first hash does not follow that, so the coin does not either: 5, 5.0 and "5" are one number. The second tells
    apart what was read differently ("05" and "5" among texts): rows are equal only where that agrees.
    """
    content, exact = (np.zeros(len(table), dtype=np.uint64) for _ in range(2))
    for name in table.columns:
        [salt] = hash_array(np.array([str(name)], dtype=object))
        meant, read = _column_hashes(table[name])
        meant_mixed = hash_array(meant + salt)
        content += meant_mixed
        exact += meant_mixed if read is meant else hash_array(read + salt)
    return content, exact


def _column_hashes(column: pd.Series) -> tuple[Lanes, Lanes]:
    """A hash per value, twice as in `row_hashes`."""
    kind = column.dtype
    if pd.api.types.is_integer_dtype(kind) or pd.api.types.is_float_dtype(kind):
        lanes = _number_hashes(column)
        return lanes, lanes
    if pd.api.types.is_object_dtype(kind) and pd.api.types.infer_dtype(column, skipna=True) != "string":
        column = pd.Series(words(column), dtype="str")
    codes, values = pd.factorize(column, use_na_sentinel=True)
    # str of one value at a time: a format that is chosen for a whole column depends on all its rows.
    texts = np.array([*map(str, values), ""], dtype=object)
    plain = np.array([text.strip().removesuffix(" 00:00:00") for text in texts], dtype=object)
    read, meant = (hash_array(listed, categorize=False) for listed in (texts, plain))
    read[texts == ""] = meant[plain == ""] = _MISSING
    special = [index for index, text in enumerate(plain) if text[:1] in _SPECIAL]
    meant[special] = _meanings([str(plain[index]) for index in special], meant[special])
    return meant[codes], read[codes]


def _meanings(texts: Sequence[str], otherwise: Lanes) -> Lanes:
    """Of texts that are numbers or truth values what those would have; of others what they have."""
    values = np.array([_number_in(text) for text in texts], dtype=np.float64)
    found = np.where(np.isnan(values), otherwise, _number_hashes(pd.Series(values)))
    for index, text in enumerate(texts):
        if len(text) > _DIGITS and text.isdecimal():  # more digits than a fraction holds
            [found[index]] = _through_fractions(np.array([float(text[:_HUGE])]))
        elif len(text) <= len("false"):
            found[index] = _TRUTH.get(text.lower(), found[index])
    return found


def _number_hashes(column: pd.Series) -> Lanes:
    """Whole numbers by their value whatever their type, fractions by their bits."""
    missing = column.isna().to_numpy()
    if pd.api.types.is_integer_dtype(column):
        unsigned = pd.api.types.is_unsigned_integer_dtype(column)
        filled = column.fillna(0) if missing.any() else column
        whole = filled.to_numpy(dtype=np.uint64 if unsigned else np.int64)
        # As one gap in the column would make it: a fraction, which holds no more than 53 bits.
        large = np.abs(whole.astype(np.float64)) >= 2.0**53
        lanes = np.where(large, _through_fractions(whole), whole.view(np.uint64))
    else:
        values = column.to_numpy(dtype=np.float64, na_value=np.nan)
        whole = (np.abs(values) < 2.0**63) & (values == np.floor(values))
        lanes = np.where(
            whole,
            np.where(whole, values, 0.0).astype(np.int64).view(np.uint64),
            values.view(np.uint64) ^ _FRACTION,
        )
    lanes[missing] = _MISSING
    return lanes


def _through_fractions(whole: NDArray[Any]) -> Lanes:
    """Whole numbers after they were fractions, as the other way of reading them has them."""
    values = whole.astype(np.float64)
    inside = np.abs(values) < 2.0**63
    rounded = np.where(inside, values, 0.0).astype(np.int64).view(np.uint64)
    return np.where(inside, rounded, values.view(np.uint64) ^ _FRACTION)


def _number_in(text: str) -> float:
    """The number that a text is, with a point or a comma; NaN where it is none."""
    try:
        return float(text.replace(",", "."))
    except ValueError:
        return math.nan


_DIGITS = 15
_HUGE = 300
# Signs that a number or a truth value begins with.
_SPECIAL = frozenset("0123456789+-.tTfF")
# A column of these is read as truth values, unless another word stands in it.
_TRUTH = {"true": np.uint64(0xA0761D6478BD642F), "false": np.uint64(0xE7037ED1A0B428DB)}


def image_identities(images: NDArray[np.uint8], labels: Sequence[str]) -> Lanes:
    """The same for images: a row is what its pixels and its class say."""
    hashes = np.empty(len(images), dtype=np.uint64)
    for row, (image, label) in enumerate(zip(images, labels, strict=True)):
        digest = blake2b(image.tobytes(), digest_size=8, person=b"image", salt=b"veil")
        digest.update(str(label).encode())
        hashes[row] = int.from_bytes(digest.digest(), "little")
    return numbered(hashes, hashes)
