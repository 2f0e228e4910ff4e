"""Values as words, characters and hashed tokens as codes or bags, by fixed public rules that look at no other row.

This file needs numpy alone: it travels with exported models, so that a value means the same wherever they predict.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

TextForm = Literal["characters", "tokens"]
# A fixed alphabet, so that it says nothing about the rows: 0 fills up, 1 is any other character.
ALPHABET = string.ascii_letters + " ',-."
VOCABULARY = len(ALPHABET) + 2
_POSITION = {character: index + 2 for index, character in enumerate(ALPHABET)}
_TOKEN = re.compile(r"\w+", re.UNICODE)


# Day and month, their sign, the year, and the rest.
DAY_AND_MONTH = r"^\s*(\d{1,2})([./-])(\d{1,2})[./-](\d{4}|\d{2})(?!\d)(.*)$"
CENTURY_FROM = 70  # two digits of a year: 70 to 99 are in the last century, whatever today's date is


def word_of(value: Any) -> str:
    """A value as a word: whole numbers look the same whatever their type.

    >>> word_of(5.0), word_of(5), word_of(True)
    ('5', '5', 'True')
    """
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def word_as_read(text: str, known: frozenset[str] | None) -> str:
    """A word of a CSV file, as if pandas had seen what its column is: 5.0 is 5, true is True. `known` words stay.

    >>> word_as_read("7.0", frozenset(["05"])), word_as_read("05", frozenset(["05"])), word_as_read("true", None)
    ('7', '05', 'True')
    """
    if (known and text in known) or "_" in text:
        return text
    if text.lower() in ("true", "false"):
        return text.capitalize() if known is None or text.capitalize() in known else text
    try:
        return word_of(float(text))
    except ValueError:
        return text


def word_hash(name: str, word: str, buckets: int) -> int:
    """The public hash of a word of a column; −1 where it is missing."""
    return hash_of(f"{name}={word}", buckets) if word else -1


@lru_cache(maxsize=1 << 18)
def hash_of(word: str, buckets: int) -> int:
    """A number below `buckets`, the same on every machine.

    >>> hash_of("veil", 1000) == hash_of("veil", 1000)
    True
    """
    return int.from_bytes(blake2b(word.encode(), digest_size=8).digest(), "little") % buckets


def character_codes(texts: Sequence[str], length: int) -> NDArray[np.int64]:
    """Each text as `length` character codes; short ones are filled up on the left, accents are dropped.

    The last character stands last, where a recurrent model has just read it.

    >>> character_codes(["Li", "Ödén"], 5).tolist()
    [[0, 0, 0, 39, 10], [0, 42, 5, 6, 15]]
    """
    return _filled([[_POSITION.get(c, 1) for c in _plain(text)[:length]] for text in texts], length)


def token_codes(texts: Sequence[str], length: int, buckets: int) -> NDArray[np.int64]:
    """Each text as `length` hashed words between 1 and `buckets`; 0 fills up on the left.

    >>> token_codes(["to be", ""], 3, 100)[:, 0].tolist()
    [0, 0]
    """
    return _filled([[1 + hash_of(token, buckets) for token in tokens(text)[:length]] for text in texts], length)


def text_codes(texts: Sequence[str], form: TextForm, length: int, buckets: int) -> NDArray[np.int64]:
    """Characters or hashed tokens as codes."""
    return character_codes(texts, length) if form == "characters" else token_codes(texts, length, buckets)


def vocabulary_of(form: TextForm, buckets: int) -> int:
    """How many codes there are."""
    return VOCABULARY if form == "characters" else buckets + 1


def bag_of_tokens(texts: Sequence[str], form: TextForm, buckets: int) -> NDArray[np.float32]:
    """Counts of hashed tokens (or of three characters each) per text, scaled to length 1; an empty text is zeros."""
    bags = np.zeros((len(texts), buckets), dtype=np.float32)
    for row, text in enumerate(texts):
        for piece in tokens(text) if form == "tokens" else _triples(_plain(text)):
            bags[row, hash_of(piece, buckets)] += 1.0
    return np.asarray(bags / np.maximum(np.linalg.norm(bags, axis=1, keepdims=True), 1.0), dtype=np.float32)


def tokens(text: str) -> list[str]:
    """Words in small letters.

    >>> tokens("It's 5 o'clock.")
    ['it', 's', '5', 'o', 'clock']
    """
    return [token.lower() for token in _TOKEN.findall(text)]


def _triples(text: str) -> list[str]:
    framed = f" {text.lower()} "
    return [framed[start : start + 3] for start in range(len(framed) - 2)]


def _plain(text: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))


def _filled(codes: Sequence[Sequence[int]], length: int) -> NDArray[np.int64]:
    rows = np.zeros((len(codes), length), dtype=np.int64)
    for row, found in enumerate(codes):
        if found:
            rows[row, length - len(found) :] = found
    return rows
