"""LiRA, the likelihood-ratio attack: is this row's score one of a model that saw it, or of one that did not?

Every model in turn is the target and all others are its shadows, so that M models give M attacks on every row.

    online:   log N(s; μ_in, σ_in) − log N(s; μ_out, σ_out), with both fitted to the row's scores under the shadows
    offline:  (s − μ_out)/σ_out, how far above the models without the row: needs no shadow that saw it

With few shadows a row's own standard deviation is mostly noise, so one is taken for all rows (Carlini et al. 2022).
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from veil.errors import require

Floats = NDArray[np.float64]
Inside = NDArray[np.bool_]
Mode = Literal["online", "offline"]

ENOUGH_FOR_OWN_SPREAD = 64


def lira(scores: Floats, inside: Inside, mode: Mode = "online") -> Floats:
    """The attack's score of every row under every target, (models, rows): larger means "was inside".

    A row that is on one side only among a target's shadows has no fit there, and gets 0 (online) or is compared with
    the mean of all rows (offline).

    >>> scores = np.array([[5.0], [5.2], [1.0], [1.1], [5.1], [0.9]])
    >>> inside = np.array([[True], [True], [False], [False], [True], [False]])
    >>> (lira(scores, inside)[:, 0] > 0).tolist()
    [True, True, False, False, True, False]
    """
    require(mode in ("online", "offline"), f'mode is "{mode}": it must be online or offline')
    require(scores.ndim == 2 and scores.shape == inside.shape, "scores and membership must both be (models, rows)")
    require(len(scores) >= 3, f"{len(scores)} models: the attack needs a target and at least 2 shadows")
    values = np.nan_to_num(scores, nan=0.0, posinf=50.0, neginf=-50.0)
    mean_out, spread_out, known_out = _fits(values, ~inside)
    if mode == "offline":
        centre = np.where(known_out, mean_out, values.mean())
        return np.asarray((values - centre) / spread_out)
    mean_in, spread_in, known_in = _fits(values, inside)
    ratio = stats.norm.logpdf(values, mean_in, spread_in) - stats.norm.logpdf(values, mean_out, spread_out)
    return np.where(known_in & known_out, ratio, 0.0)


def _fits(values: Floats, chosen: Inside) -> tuple[Floats, Floats, Inside]:
    """Mean and standard deviation of a row's scores under the chosen models other than the target, for all targets."""
    mask = chosen.astype(np.float64)
    count = mask.sum(axis=0) - mask
    total = (values * mask).sum(axis=0) - values * mask
    squares = (values**2 * mask).sum(axis=0) - values**2 * mask
    safe = np.maximum(count, 1.0)
    mean = total / safe
    left = np.maximum(squares - count * mean**2, 0.0)
    if len(values) >= ENOUGH_FOR_OWN_SPREAD:
        variance = left / np.maximum(count - 1.0, 1.0)
    else:
        freedom = np.maximum(count - 1.0, 0.0).sum(axis=1, keepdims=True)
        variance = np.broadcast_to(left.sum(axis=1, keepdims=True) / np.maximum(freedom, 1.0), values.shape)
    return mean, np.sqrt(np.maximum(variance, 1e-12)), count >= 1
