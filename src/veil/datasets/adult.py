"""UCI Adult: 48,842 people from the 1994 US census; does a person earn more than $50,000 a year?

Bundled with the package (made by `scripts/bundle_adult.py`). Becker & Kohavi (1996), UCI Machine Learning Repository,
doi 10.24432/C5XW20, CC BY 4.0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib import resources
from io import BytesIO
from typing import Literal

import numpy as np
import pandas as pd

from veil.datasets.split import Split, set_apart, shuffled
from veil.errors import InputError, require
from veil.tables.encoding import Category, Encoding, Numeric
from veil.tables.table import Columns, table_problem

SHA256 = "591152acc8709f10dec0227b16acc95ddedc04c78b5ac40c8cc8425e1a1073d5"
TARGET = "income"
# Values and ranges as the description that comes with the data gives them: public, not read off the rows.
NUMBERS = {
    "age": (17, 90),
    "education-num": (1, 16),
    "capital-gain": (0, 99999),
    "capital-loss": (0, 4356),
    "hours-per-week": (1, 99),
}
VALUES = {
    "workclass": "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay Never-worked",
    "education": "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th 12th Masters "
    "1st-4th 10th Doctorate 5th-6th Preschool",
    "marital-status": "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent "
    "Married-AF-spouse",
    "occupation": "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty Handlers-cleaners "
    "Machine-op-inspct Adm-clerical Farming-fishing Transport-moving Priv-house-serv Protective-serv "
    "Armed-Forces",
    "relationship": "Wife Own-child Husband Not-in-family Other-relative Unmarried",
    "race": "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black",
    "sex": "Female Male",
    "native-country": "United-States Cambodia England Puerto-Rico Canada Germany Outlying-US(Guam-USVI-etc) India "
    "Japan Greece South China Cuba Iran Honduras Philippines Italy Poland Jamaica Vietnam Mexico Portugal "
    "Ireland France Dominican-Republic Laos Ecuador Taiwan Haiti Columbia Hungary Guatemala Nicaragua "
    "Scotland Thailand Yugoslavia El-Salvador Trinadad&Tobago Peru Hong Holand-Netherlands",
}


def load_adult() -> tuple[pd.DataFrame, pd.DataFrame]:
    """The official training and test tables.

    Returns:
        The table to train on (32,561 rows) and the one to test on (16,281 rows).

    Raises:
        InputError: The bundled file does not match its checksum.

    >>> train, test = load_adult()
    >>> len(train), len(test)
    (32561, 16281)
    """
    content = resources.files("veil.datasets").joinpath("adult.parquet").read_bytes()
    if hashlib.sha256(content).hexdigest() != SHA256:
        raise InputError("the bundled adult.parquet does not match its checksum: reinstall the package")
    table = pd.read_parquet(BytesIO(content))
    train = table["split"] == "train"
    return (
        table[train].drop(columns="split").reset_index(drop=True),
        table[~train].drop(columns="split").reset_index(drop=True),
    )


def adult_encoding() -> Encoding:
    """Bounds and categories from the data's description; `fnlwgt` is a survey weight and is left out.

    >>> adult_encoding().width()
    109
    """
    numbers = tuple(Numeric(name, float(low), float(high)) for name, (low, high) in NUMBERS.items())
    categories = tuple(Category(name, tuple(sorted(values.split()))) for name, values in VALUES.items())
    return Encoding((*numbers, *categories), from_rows=False)


def load_adult_split(
    *, groups: Sequence[str] = ("sex",), variant: Literal["official", "fdpg"] = "official", seed: int = 0
) -> Split:
    """Rows of numbers with groups.

    `official`: the official split (n = 32,561). `fdpg`: rows without missing values, as many men as women, 80 % of
    them train (n = 23,512, as in the FDPG paper); which men stay depends on the public seed alone.

    Args:
        groups: The columns that make the groups, crossed.
        variant: `official` or `fdpg`.
        seed: Public: which men stay, and which rows test, in `fdpg`.

    Returns:
        Training and test rows as problems.

    Raises:
        InputError: The variant is unknown.

    >>> load_adult_split().train.public.groups
    ('Female', 'Male')
    """
    require(variant in ("official", "fdpg"), f'variant is "{variant}": it must be official or fdpg')
    train, test = load_adult()
    if variant == "fdpg":
        both = pd.concat([train, test], ignore_index=True).dropna().reset_index(drop=True)
        order = shuffled(len(both), seed, "adult/balance")
        women = order[both["sex"].to_numpy()[order] == "Female"]
        men = order[both["sex"].to_numpy()[order] == "Male"][: len(women)]
        both = both.iloc[np.sort(np.concatenate([women, men]))]
        stay, apart = set_apart(len(both), 0.2, seed, "adult/test")
        train, test = both.iloc[stay], both.iloc[apart]
    encoding, columns = adult_encoding(), Columns(TARGET, tuple(groups))
    problem = table_problem(train, encoding, columns)
    return Split(problem, table_problem(test, encoding, columns, problem.public))
