"""Peers that predict numbers, in their own environment, which imports nothing of Veil; bounds of targets are public."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.tables.rows import group_weights

if TYPE_CHECKING:
    from benchmarks.tables.peers import Job


def lightgbm(job: Job, fit: dict[str, Any]) -> NDArray[np.float64]:
    """LightGBM with its defaults and categories as categories; weighted by group where columns are given."""
    from lightgbm import LGBMRegressor

    def table(frame: pd.DataFrame) -> pd.DataFrame:
        words = {n: pd.Categorical(frame[n], categories=list(v)) for n, v in job.categories.items()}
        return frame[[*job.numeric]].assign(**words)

    weights = group_weights(job.train, fit["group_columns"]) if fit["group_columns"] else None
    model = LGBMRegressor(random_state=fit["seed"], deterministic=True, n_jobs=1, verbosity=-1)
    model.fit(table(job.train), job.numbers, sample_weight=weights)
    return np.asarray(model.predict(table(job.test)))


def dp_ebm(job: Job, fit: dict[str, Any]) -> NDArray[np.float64]:
    """DP-EBM with its defaults; kinds and bounds of columns and target are given."""
    from interpret.privacy import DPExplainableBoostingRegressor

    assert job.target_bounds is not None
    names, (low, high) = [*job.numeric, *job.categories], job.target_bounds
    model = DPExplainableBoostingRegressor(
        feature_names=names,
        feature_types=["continuous"] * len(job.numeric) + ["nominal"] * len(job.categories),
        privacy_bounds={name: tuple(bounds) for name, bounds in job.numeric.items()},
        privacy_target_min=low,
        privacy_target_max=high,
        epsilon=fit["epsilon"],
        delta=job.delta,
        random_state=fit["seed"],
        n_jobs=1,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*fixed random_state.*")  # a benchmark is repeatable
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        model.fit(job.train[names], job.numbers)
    return np.asarray(model.predict(job.test[names]))


def diffprivlib(job: Job, fit: dict[str, Any]) -> NDArray[np.float64]:
    """Linear regression (functional mechanism) with its defaults; ε alone, without δ. Targets are scaled to ±1."""
    from diffprivlib.models import LinearRegression
    from diffprivlib.utils import PrivacyLeakWarning

    assert job.target_bounds is not None
    low, high = job.target_bounds
    rows = job.rows(job.train)
    least = np.where(np.arange(rows.shape[1]) < len(job.numeric), -1.0, 0.0)
    model = LinearRegression(
        epsilon=fit["epsilon"],
        bounds_X=(least, np.ones(rows.shape[1])),
        bounds_y=(-1.0, 1.0),
        random_state=fit["seed"],
    )
    scaled = np.clip(2 * (job.numbers - low) / (high - low) - 1, -1.0, 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("error", PrivacyLeakWarning)
        model.fit(rows, scaled)
    found: NDArray[np.float64] = np.asarray(model.predict(job.rows(job.test))).reshape(-1)
    return low + (found + 1) / 2 * (high - low)
