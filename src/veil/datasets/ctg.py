"""UCI Cardiotocography: 2,126 fetal heart traces; is the fetus healthy? Each diagnosis is a group and an owner.

Campos & Bernardes (2000), doi 10.24432/C51S4N. Bounds are the ranges that the data set's description publishes.
"""

from __future__ import annotations

from io import BytesIO
from typing import Literal

import numpy as np
import pandas as pd

from veil.datasets.files import DataFile, read_verified
from veil.datasets.split import Split, set_apart
from veil.errors import require
from veil.problem import Problem

FILES = (DataFile("ctg/CTG.csv", "526d82586fb8c66e4be82e92ee997e892a9c07ea05aba7837280012db4b6b620"),)
BOUNDS = {
    "LB": (106.0, 160.0),
    "AC": (0.0, 0.019),
    "FM": (0.0, 0.481),
    "UC": (0.0, 0.015),
    "DL": (0.0, 0.015),
    "DS": (0.0, 0.001),
    "DP": (0.0, 0.005),
    "ASTV": (12.0, 87.0),
    "MSTV": (0.2, 7.0),
    "ALTV": (0.0, 91.0),
    "MLTV": (0.0, 50.7),
    "Width": (3.0, 180.0),
    "Min": (50.0, 159.0),
    "Max": (122.0, 238.0),
    "Nmax": (0.0, 18.0),
    "Nzeros": (0.0, 10.0),
    "Mode": (60.0, 187.0),
    "Mean": (73.0, 182.0),
    "Median": (77.0, 186.0),
    "Variance": (0.0, 269.0),
    "Tendency": (-1.0, 1.0),
}
DIAGNOSES = ("normal", "suspicious", "pathological")
BUDGETS = {"normal": 5.0, "suspicious": 4.0, "pathological": 3.0}


def load_ctg(
    *, owners: Literal["diagnosis", "everybody"] = "diagnosis", test_share: float = 0.2, seed: int = 0
) -> Split:
    """21 features in [−1, 1]. `owners="diagnosis"`: ε is 5 for normal, 4 for suspicious, 3 for pathological traces.

    Args:
        owners: Who owns a row: one owner per `diagnosis`, or `everybody`.
        test_share: The share of the rows that is set apart for testing.
        seed: Public: the same seed gives the same split.

    Returns:
        Training and test rows as problems.

    Raises:
        InputError: An option is unknown, or the raw files are not in VEIL_DATA or do not match their checksums.
    """
    require(owners in ("diagnosis", "everybody"), f'owners is "{owners}": it must be diagnosis or everybody')
    table = pd.read_csv(BytesIO(read_verified(FILES[0], "ctg")))
    low, high = (np.array([bounds[side] for bounds in BOUNDS.values()]) for side in (0, 1))
    features = np.clip(2 * (table[list(BOUNDS)].to_numpy(float) - low) / (high - low) - 1, -1, 1).astype(np.float32)
    labels = np.array(DIAGNOSES)[table["NSP"].to_numpy(int) - 1]
    train, test = set_apart(len(table), test_share, seed, "ctg")
    who = labels[train] if owners == "diagnosis" else None
    return Split(
        Problem.from_arrays(
            features[train],
            labels[train],
            labels[train],
            owners=who,
            budgets=BUDGETS if who is not None else None,
            classes=DIAGNOSES,
        ),
        Problem.from_arrays(features[test], labels[test], labels[test], classes=DIAGNOSES),
    )
