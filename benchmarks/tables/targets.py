"""What `auto` shall reach at ε = 1, beside what it does: computed from the figures, with every table that is below."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.tables.page import Figures

OWN, EPSILON, MERGED = "auto", 1.0, "auto-merged"
WORST, AVERAGE, AUC = "worst_group_accuracy", "average_group_accuracy", "auc"
WEIGHTED = ("lightgbm-weighted", "logistic-weighted")
MANY, MOST = 15_000, 30_000


@dataclass(frozen=True)
class Target:
    """Points above the best of some arms, on tables of at least so many rows: on every table, or on average.

    With several metrics the one that is most above counts: a table is below only if all of them are.
    """

    said: str
    groups: str
    rows: int
    metrics: tuple[str, ...]
    beside: tuple[str, ...]
    asked: float
    on_average: bool = False

    def above(self, figures: Figures) -> dict[str, float]:
        """By table, points above; tables on which an arm has no figure are left out."""
        found: dict[str, float] = {}
        if not {OWN, *self.beside} <= set(figures.arms("not private", "peer", "veil")):
            return found
        for table in figures.tables():
            facts, task = figures.about["tables"][table], (table, self.groups)
            if facts["train"] + facts["test"] < self.rows:
                continue
            points = []
            for metric in self.metrics:
                own = figures.mean(task, OWN, EPSILON, metric)
                others = [figures.mean(task, arm, EPSILON, metric) for arm in self.beside]
                known = [value for value in others if value is not None]
                if own is not None and len(known) == len(others):
                    points.append(100 * (own - max(known)))
            if points:
                found[table] = max(points)
        return found

    def line(self, figures: Figures) -> list[str] | None:
        """What was asked, what was found, and whether it is met; None where nothing was measured."""
        found = self.above(figures)
        if not found:
            return None
        below = {table: points for table, points in found.items() if points < self.asked}
        least = min(found, key=lambda table: found[table])
        mean = statistics.mean(found.values())
        if self.on_average:
            return [self.said, f"{self.asked:+g}", f"{mean:+.2f}", "yes" if mean >= self.asked else "no"]
        missed = ", ".join(f"{table} {points:+.2f}" for table, points in below.items())
        return [self.said, f"{self.asked:+g}", f"{found[least]:+.2f} ({least})", f"no: {missed}" if below else "yes"]


_CROSSED = f"groups crossed with the label, {MANY:,} rows or more"
_ALONE = "protected attributes alone"
_TINY = "a table with cells of 2, 3 and 13 rows"
TARGETS: Sequence[Target] = (
    Target(f"{_CROSSED}: worst group over weighted LightGBM", "label", MANY, (WORST,), WEIGHTED[:1], 0.0, True),
    Target(f"{_CROSSED}: the same on every table", "label", MANY, (WORST,), WEIGHTED[:1], -4.0),
    Target(f"{_CROSSED}: worst group over weighted logistic", "label", MANY, (WORST,), WEIGHTED[1:], -2.0),
    Target(f"{_CROSSED}: average over the better of the two", "label", MANY, (AVERAGE,), WEIGHTED, -2.0),
    Target(f"{_ALONE}: worst group over DP-EBM", "protected", 0, (WORST,), ("dp-ebm",), -0.5),
    Target(f"{_ALONE}: AUC over DP-EBM", "protected", 0, (AUC,), ("dp-ebm",), -0.5),
    Target(f"{_ALONE}: the same on average", "protected", 0, (AUC,), ("dp-ebm",), 1.5, True),
    Target(f"{_ALONE}: worst group or AUC over `best`", "protected", 0, (WORST, AUC), ("best",), -1.0),
    Target(f"{_ALONE}: worst group or AUC over `dp-sgd`", "protected", 0, (WORST, AUC), ("dp-sgd",), -1.0),
    Target(f"{_ALONE}, {MOST:,} rows or more: AUC over LightGBM", "protected", MOST, (AUC,), ("lightgbm",), -2.5),
    Target(f"{_TINY}, {_ALONE}: AUC over that with these cells merged", "protected", 0, (AUC,), (MERGED,), -1.0),
    Target(f"{_TINY}, several attributes crossed: the same", "crossed", 0, (AUC,), (MERGED,), -1.0),
    Target(f"{_TINY}, crossed with the label: the same", "label", 0, (AUC,), (MERGED,), -1.0),
)


def lines_of(figures: Figures) -> list[list[str]]:
    """One line for each target with figures."""
    return [line for target in TARGETS if (line := target.line(figures)) is not None]
