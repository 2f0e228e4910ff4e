"""Rows as numbers, for models that take no words; free of Veil, so that the peers' environment can import it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray


def one_hot(frame: pd.DataFrame, categories: Mapping[str, Sequence[str]]) -> NDArray[np.float64]:
    """One column per value of the code book; a value outside it is all zeros."""
    parts = [frame[name].to_numpy(dtype=object)[:, None] == np.array(v, object) for name, v in categories.items()]
    return np.concatenate([np.zeros((len(frame), 0)), *parts], axis=1).astype(np.float64)


def bounded(frame: pd.DataFrame, numeric: Mapping[str, Sequence[float]]) -> NDArray[np.float64]:
    """Numbers between −1 and 1 by their public bounds."""
    low, high = (np.array([bounds[side] for bounds in numeric.values()], dtype=np.float64) for side in (0, 1))
    values = frame[list(numeric)].to_numpy(dtype=np.float64)
    return np.clip(2 * (values - low) / (high - low) - 1, -1.0, 1.0)


def group_weights(frame: pd.DataFrame, columns: Sequence[str]) -> NDArray[np.float64]:
    """Weights inverse to the size of a row's group, 1 on average: every group counts alike."""
    sizes = frame.groupby(list(columns))[columns[0]].transform("size").to_numpy(dtype=np.float64)
    weights = 1.0 / sizes
    return np.asarray(weights / weights.mean())
