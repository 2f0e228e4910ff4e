"""Targets of `auto` on the page: a target is met only if the figures say so, and tables that are below are named."""

from __future__ import annotations

from benchmarks.tables.page import Figures
from benchmarks.tables.targets import AUC, WORST, Target

ARMS = {"auto": "veil", "best": "veil", "lightgbm-weighted": "not private"}


def figures_of(worst: dict[str, dict[str, float]]) -> Figures:
    """Figures with these worst groups by table and arm; the AUC is the same number."""
    rows = [
        {
            "table": table,
            "groups": "label",
            "arm": arm,
            "epsilon": None if ARMS[arm] == "not private" else 1.0,
            WORST: value,
            AUC: value + (0.1 if arm == "best" else 0.0),
        }
        for table, by_arm in worst.items()
        for arm, value in by_arm.items()
    ]
    sizes = {"large": 40_000, "small": 900}
    about = {
        "tables": {name: {"train": size, "test": 100} for name, size in sizes.items()},
        "arms": {arm: {"title": arm, "family": family} for arm, family in ARMS.items()},
    }
    return Figures(about, {}, [], rows)


BELOW = figures_of(
    {"large": {"auto": 0.60, "lightgbm-weighted": 0.65}, "small": {"auto": 0.9, "lightgbm-weighted": 0.8}}
)


def test_a_table_that_is_below_is_named_and_the_target_missed() -> None:
    target = Target("worst", "label", 0, (WORST,), ("lightgbm-weighted",), -4.0)
    assert target.line(BELOW) == ["worst", "-4", "-5.00 (large)", "no: large -5.00"]


def test_a_mean_hides_no_table_that_is_too_small_to_count() -> None:
    everywhere, large = (Target("w", "label", n, (WORST,), ("lightgbm-weighted",), 0.0, True) for n in (0, 15_000))
    assert everywhere.line(BELOW) == ["w", "+0", "+2.50", "yes"]
    assert large.line(BELOW) == ["w", "+0", "-5.00", "no"]


def test_below_in_both_metrics_is_below_and_in_one_is_not() -> None:
    found = figures_of({"large": {"auto": 0.60, "best": 0.58}, "small": {"auto": 0.60, "best": 0.63}})
    both = Target("b", "label", 0, (WORST, AUC), ("best",), -1.0)
    assert both.line(found) == ["b", "-1", "-3.00 (small)", "no: small -3.00"]


def test_an_arm_without_figures_gives_no_line() -> None:
    assert Target("e", "label", 0, (WORST,), ("best",), 0.0).line(BELOW) is None
