"""Forecast: the accuracy of `auto` for each group, before anything is trained.

    worst group ≈ a + b·[groups are crossed with the target] + c·ln(n_min/κ)

n_min is the smallest group that can be measured, κ the noise of one release that costs the whole budget. The three
constants were fitted to stored results (`python -m benchmarks plan`; `calibration.json` holds them with their error on
tables that were left out of the fit). How far each group lies above the worst one comes from made-up rows.

How hard a table is cannot be known without reading it. So a forecast has an interval: in 8 of 10 cells of tables that
were left out of the fit the measured figure lay within it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from veil.problem import PublicFacts

MEASURABLE = 150
"""Groups of fewer training rows are left out of the worst group: their accuracy is known to nobody."""
_LOWEST, _HIGHEST = 0.0, 0.995


@dataclass(frozen=True)
class Span:
    """A forecast with its interval."""

    expected: float
    low: float
    high: float

    def as_json(self) -> dict[str, float]:
        """Shares with three digits."""
        return {name: round(getattr(self, name), 3) for name in ("expected", "low", "high")}


@dataclass(frozen=True)
class Calibration:
    """The constants of the forecast, its interval and its error, all as shares.

    `low` and `high` are what is added to a forecast; `error` is the mean absolute error on tables that were left out.
    """

    weights: tuple[float, float, float]
    low: float
    high: float
    error: float
    tables: int
    cells: int

    def worst(self, crossed: bool, signal: float) -> Span:
        """The forecast of the worst group."""
        features = (1.0, float(crossed), math.log(max(signal, 1e-3)))
        return self.around(sum(weight * feature for weight, feature in zip(self.weights, features, strict=True)))

    def around(self, expected: float) -> Span:
        """A value with its interval, within what a share can be."""
        middle = min(max(expected, _LOWEST), _HIGHEST)
        return Span(middle, max(middle + self.low, _LOWEST), min(middle + self.high, 1.0))

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Calibration:
        """From what `calibration.json` holds."""
        return cls(**{**record, "weights": tuple(record["weights"])})


@cache
def calibration() -> Calibration:
    """The constants that ship with Veil."""
    text = files("veil.advice").joinpath("calibration.json").read_text(encoding="utf-8")
    return Calibration.from_json(json.loads(text))


def measurable(facts: PublicFacts) -> list[int]:
    """The groups that count towards the worst one: those with enough rows to be measured, or else the largest."""
    sizes = facts.group_sizes
    large = [group for group, size in enumerate(sizes) if size >= MEASURABLE]
    return large or [max(range(len(sizes)), key=lambda group: sizes[group])]


def smallest_signal(facts: PublicFacts, kappa: float) -> float:
    """n_min/κ: how far the smallest measurable group stands out of the noise of one release."""
    return min(facts.group_sizes[group] for group in measurable(facts)) / kappa


def worst_of(by_group: Sequence[float], facts: PublicFacts) -> float:
    """The lowest accuracy among the groups that can be measured."""
    return min(by_group[group] for group in measurable(facts))


def spread_over_groups(worst: Span, simulated: Sequence[float], facts: PublicFacts) -> list[Span]:
    """The forecast of every group: as far above the worst one as on made-up rows."""
    known, lowest = calibration(), worst_of(simulated, facts)
    return [known.around(worst.expected + value - lowest) for value in simulated]
