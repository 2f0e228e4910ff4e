"""Dutch census 2001: 60,420 people; is an occupation prestigious? Groups by sex.

Statistics Netherlands / IPUMS, as prepared by Le Quy et al. (2022). All columns are categories whose values stand in
the file's heading. The original requires registration: the file is not redistributed here.
"""

from __future__ import annotations

import re
from io import StringIO

import numpy as np
import pandas as pd

from veil.datasets.files import DataFile, read_verified
from veil.datasets.split import Split, set_apart
from veil.errors import require
from veil.problem import Problem

_ADDRESS = "https://raw.githubusercontent.com/tailequy/fairness_dataset/abb5a18b822ba56a221c5311082e192e85000b95/"
FILES = (
    DataFile(
        "dutch_census/dutch_census_2001.arff",
        "0e7e3f32668919c239db820f625815e1ea834c71402cdea595e03ef08c8616ef",
        _ADDRESS + "Dutch_census/dutch_census_2001.arff",
    ),
)
SEX = {"1": "male", "2": "female"}
OCCUPATION = {"5_4_9": "low", "2_1": "high"}


def read_dutch() -> tuple[pd.DataFrame, dict[str, tuple[str, ...]]]:
    """The rows, and the values that each column may have."""
    text = read_verified(FILES[0], "dutch").decode("ascii")
    heading, _, body = text.partition("@data")
    found = re.findall(r"@attribute\s+(\S+)\s+\{([^}]*)\}", heading)
    values = {name: tuple(sorted(part.strip() for part in listed.split(","))) for name, listed in found}
    require(len(values) == 12, f"dutch_census_2001.arff has {len(values)} columns: it should have 12")
    return pd.read_csv(StringIO(body.strip()), names=list(values), dtype=str), values


def load_dutch(*, test_share: float = 0.2, seed: int = 0) -> Split:
    """One column per value of each category (sex included); 80 % of the rows train (n = 48,336, as in FDPG).

    Args:
        test_share: The share of the rows that is set apart for testing.
        seed: Public: the same seed gives the same split.

    Returns:
        Training and test rows as problems. The groups are the sexes.

    Raises:
        InputError: The raw files are not in VEIL_DATA or do not match their checksums.
    """
    table, values = read_dutch()
    parts = [
        table[name].to_numpy()[:, None] == np.array(listed)[None, :]
        for name, listed in values.items()
        if name != "occupation"
    ]
    features = np.concatenate(parts, axis=1).astype(np.float32)
    labels = table["occupation"].map(OCCUPATION).to_numpy()
    groups = table["sex"].map(SEX).to_numpy()
    train, test = set_apart(len(table), test_share, seed, "dutch")
    classes = tuple(OCCUPATION.values())
    return Split(
        Problem.from_arrays(features[train], labels[train], groups[train], classes=classes),
        Problem.from_arrays(features[test], labels[test], groups[test], classes=classes),
    )
