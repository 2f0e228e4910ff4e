"""Hashes of a model: of its weights, and of how columns become numbers; the certificate holds them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, deserialize

from veil.accounting.events import AccountingError

WEIGHTS, PREPROCESSING = "weights", "preprocessing"
WEIGHTS_FILE, PREPROCESSING_FILE = "model.safetensors", "preprocessing.json"
Weight = tuple[str, str, Sequence[int], bytes]
"""Name, kind of number as safetensors writes it (F32, I64, …), shape, and bytes in row order, little-endian."""
NO_HASH = (
    "The certificate has no hash of a model, as those of earlier versions: nothing tells whether this model is the "
    "certified one."
)


def model_hashes(weights: Iterable[Weight], preprocessing: Mapping[str, Any] | None) -> dict[str, str]:
    """What a certificate says about its model; a model that takes no table has no preprocessing.

    >>> list(model_hashes([("bias", "F32", (1,), bytes(4))], None))
    ['weights']
    """
    found = {WEIGHTS: weights_hash(weights)}
    return found if preprocessing is None else found | {PREPROCESSING: preprocessing_hash(preprocessing)}


def weights_hash(weights: Iterable[Weight]) -> str:
    """SHA-256 of names, kinds, shapes and bytes, in the order of names.

    >>> one = ("bias", "F32", (1,), bytes(4))
    >>> weights_hash([one]) == weights_hash([("bias", "F32", (1, 1), bytes(4))])
    False
    """
    found = hashlib.sha256()
    for name, kind, shape, content in sorted(weights, key=lambda weight: weight[0]):
        heading = json.dumps([name, kind, [int(size) for size in shape], len(content)])
        found.update(heading.encode())
        found.update(content)
    return f"sha256:{found.hexdigest()}"


def preprocessing_hash(record: Mapping[str, Any]) -> str:
    """SHA-256 of the record as JSON with sorted keys.

    >>> preprocessing_hash({"a": 1, "b": (2, 3)}) == preprocessing_hash({"b": [2, 3], "a": 1})
    True
    """
    text = json.dumps(record, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def stored_weights(content: bytes) -> list[Weight]:
    """The weights in a safetensors file.

    Raises:
        AccountingError: It is none.
    """
    try:
        entries = deserialize(content)  # type: ignore[no-untyped-call]
        return [(name, entry["dtype"], entry["shape"], bytes(entry["data"])) for name, entry in entries]
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise AccountingError(f"{WEIGHTS_FILE} holds no readable weights: the file is damaged") from error


def stored_preprocessing(content: bytes) -> dict[str, Any]:
    """The record of how columns become numbers.

    Raises:
        AccountingError: It is none.
    """
    try:
        record = json.loads(content)
        if isinstance(record, dict):
            return record
    except (ValueError, RecursionError) as error:
        raise AccountingError(f"{PREPROCESSING_FILE} is not readable: the file is damaged") from error
    raise AccountingError(f"{PREPROCESSING_FILE} is not readable: it must be a JSON object")


def faults_of_model(certified: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """What of a model is not what the certificate was made for; empty where the certificate has no hashes."""
    if not certified:
        return []
    others = [name for name in (WEIGHTS, PREPROCESSING) if certified.get(name) != found.get(name)]
    return [f"the model is not the certified one: its {name} {_VERB[name]} hash" for name in others]


_VERB = {WEIGHTS: "have another", PREPROCESSING: "has another"}


def hashes_in(folder: Path) -> dict[str, str] | None:
    """The hashes of the model in a run's folder; None where there is no model."""
    weights, preprocessing = folder / WEIGHTS_FILE, folder / PREPROCESSING_FILE
    if not weights.exists():
        return None
    record = stored_preprocessing(preprocessing.read_bytes()) if preprocessing.exists() else None
    return model_hashes(stored_weights(weights.read_bytes()), record)
