"""Tokenizers of other packages: texts into the ids that a pretrained model reads."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from veil.errors import InputError, require


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
