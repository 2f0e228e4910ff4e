"""Text: characters and hashed tokens as codes or bags, by fixed public rules that look at no other row."""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from veil.errors import InputError, require

TextForm = Literal["characters", "tokens"]
# A fixed alphabet, so that it says nothing about the rows: 0 fills up, 1 is any other character.
ALPHABET = string.ascii_letters + " ',-."
VOCABULARY = len(ALPHABET) + 2
_POSITION = {character: index + 2 for index, character in enumerate(ALPHABET)}
_TOKEN = re.compile(r"\w+", re.UNICODE)


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


def tokenizer_codes(texts: Sequence[str], folder: str, length: int) -> NDArray[np.int64]:
    """Each text as `length` ids of a tokenizer that lies on this disk; nothing is downloaded."""
    require(Path(folder).is_dir(), f"{folder} is not a folder: give the folder of model and tokenizer on this disk")
    try:
        tokenizer = import_module("transformers").AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except ImportError as error:
        raise InputError('reading a tokenizer needs transformers: pip install "veil-dp[hf]"') from error
    except (OSError, ValueError) as error:
        raise InputError(f"{folder} holds no tokenizer: save it there with save_pretrained") from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "right"
    found = tokenizer(list(texts), padding="max_length", truncation=True, max_length=length)["input_ids"]
    return np.asarray(found, dtype=np.int64).reshape(len(texts), length)


def vocabulary_of(form: TextForm, buckets: int) -> int:
    """How many codes there are."""
    return VOCABULARY if form == "characters" else buckets + 1


def bag_of_tokens(texts: Sequence[str], form: TextForm, buckets: int) -> NDArray[np.float32]:
    """Counts of hashed tokens (or of three characters each) per text, scaled to length 1; an empty text is zeros."""
    require(buckets > 0, f"buckets is {buckets}: it must be above 0")
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
