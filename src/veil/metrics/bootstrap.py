"""Bootstrap intervals: rows are resampled within each group, and every figure is recomputed.

A figure that depends on a group's confusion counts only needs no rows to be drawn: the counts of a resample are
multinomial. That makes a thousand resamples cost less than one pass over the rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from veil.metrics.definitions import BY_COUNTS, Floats, all_across

RESAMPLES = 1000
CONFIDENCE = 0.95
MOST_CELLS = 400
SEED = 20240229  # resampling is a calculation: the same counts always give the same interval

Span = list[float] | None


@dataclass(frozen=True)
class Intervals:
    """`by_group`: the interval of each group's accuracy; `across`: of each figure across groups."""

    by_group: list[Span] = field(default_factory=list)
    across: dict[str, Span] = field(default_factory=dict)


def intervals(counts: Floats, noise: float = 0.0, resamples: int = RESAMPLES) -> Intervals:
    """Percentile intervals from confusion counts `[group, true class, predicted class]`.

    `noise` is the standard deviation that counts were released with; resamples get as much again. Groups are drawn
    independently. With very many classes only right and wrong are counted.

    >>> intervals(np.array([[[50.0, 0.0], [0.0, 50.0]]])).by_group
    [[1.0, 1.0]]
    """
    used = counts
    if counts[0].size > MOST_CELLS:
        right = np.trace(counts, axis1=-2, axis2=-1)
        wrong = counts.sum((-2, -1)) - right
        used = np.stack([np.stack([right, wrong], -1), np.zeros((len(counts), 2))], axis=-2)
    generator = np.random.default_rng(SEED)
    drawn = np.stack([_redrawn(group, noise, resamples, generator) for group in used], axis=1)
    two = counts.shape[-1] == 2
    values = {f.name: f.of(drawn) for f in BY_COUNTS if two or not f.two_classes}
    found = {name: _span(resampled) for name, resampled in all_across(values).items()}
    return Intervals([_span(column) for column in values["accuracy"].T], found)


def _redrawn(group: Floats, noise: float, resamples: int, generator: np.random.Generator) -> Floats:
    flat = np.maximum(group, 0.0).ravel()
    total = round(float(flat.sum()))
    if total <= 0:
        return np.zeros((resamples, *group.shape))
    drawn = generator.multinomial(total, flat / flat.sum(), size=resamples).astype(np.float64)
    if noise > 0:
        drawn = np.maximum(drawn + noise * generator.standard_normal(drawn.shape), 0.0)
    return drawn.reshape(resamples, *group.shape)


def _span(values: Floats) -> Span:
    known = values[~np.isnan(values)]
    if len(known) < 0.9 * len(values) or not len(known):
        return None
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(known, [tail, 100 - tail])
    return [float(low), float(high)]
