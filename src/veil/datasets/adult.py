"""UCI Adult: 48,842 people from the 1994 US census; does a person earn more than $50,000 a year?

Bundled with the package (made by `scripts/bundle_adult.py`). Becker & Kohavi (1996), UCI Machine Learning Repository,
doi 10.24432/C5XW20, CC BY 4.0.
"""

from __future__ import annotations

import hashlib
from importlib import resources
from io import BytesIO

import pandas as pd

from veil.errors import InputError

SHA256 = "591152acc8709f10dec0227b16acc95ddedc04c78b5ac40c8cc8425e1a1073d5"
TARGET = "income"


def load_adult() -> tuple[pd.DataFrame, pd.DataFrame]:
    """The official training and test tables.

    >>> train, test = load_adult()
    >>> len(train), len(test)
    (32561, 16281)
    """
    content = resources.files("veil.datasets").joinpath("adult.parquet").read_bytes()
    if hashlib.sha256(content).hexdigest() != SHA256:
        raise InputError("the bundled adult.parquet does not fit its checksum: install the package again")
    table = pd.read_parquet(BytesIO(content))
    train = table["split"] == "train"
    return (
        table[train].drop(columns="split").reset_index(drop=True),
        table[~train].drop(columns="split").reset_index(drop=True),
    )
