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
# The sign of fractions of a column of numbers; empty where they are plain, as Python reads them.
DecimalSign = Literal["", ".", ","]
_SPACES = "'\u2019 \u00a0\u202f"
_WRITTEN = {
    sign: re.compile(rf"([+-]?)(\d{{1,3}}(?:[{other}{_SPACES}]\d{{3}})+|\d+)(?:[{sign}](\d*))?")
    for sign, other in ((".", ","), (",", "."))
}
_WHOLE = 2**53


def plain_number(text: str, decimal: DecimalSign = "", unit: str = "") -> str:
    """A number of a table in Python's form: without its unit, thousands together, a point before the fraction.

    What does not fit stays as it is, except that a point is no sign of fractions where a comma is.

    >>> plain_number("$54,000", ".", "$"), plain_number("1.234,5 kg", ",", "kg"), plain_number("true")
    ('54000', '1234.5', '1')
    """
    found = text.strip()
    if unit:
        sign = found[:1] if found[:1] in ("+", "-") else ""
        bare = found[len(sign) :].strip()
        if bare.startswith(unit):
            found = sign + bare[len(unit) :].strip()
        elif bare.endswith(unit):
            found = sign + bare[: -len(unit)].strip()
    if decimal:
        parts = _WRITTEN[decimal].fullmatch(found)
        if parts is None:
            return "none" if decimal == "," and "." in found else found
        digits = "".join(character for character in parts[2] if character.isdigit())
        return f"{parts[1]}{digits}.{parts[3]}" if parts[3] else f"{parts[1]}{digits}"
    return {"true": "1", "false": "0"}.get(found.lower(), found)


def word_of(value: Any) -> str:
    """A value as a word: whole numbers look the same whatever their type, also beyond what a fraction holds.

    >>> word_of(5.0), word_of(5), word_of(True), word_of(2**53 + 1) == word_of(float(2**53 + 1))
    ('5', '5', 'True', True)
    """
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return str(int(float(value))) if whole and _WHOLE < abs(int(value)) < 2**1000 else str(value)


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


def renamed(names: Sequence[str]) -> list[str]:
    """Names of columns as pandas makes them: the second "age" is "age.1".

    >>> renamed(["age", "town", "age"])
    ['age', 'town', 'age.1']
    """
    given, taken, places = set(names), set[str](), dict[str, int]()
    found = list[str]()
    for name in names:
        new = name
        while new in taken or (new != name and new in given):
            places[name] = places.get(name, 0) + 1
            new = f"{name}.{places[name]}"
        taken.add(new)
        found.append(new)
    return found


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
