"""The forecast: fitted as it says, honest about its error, and from nothing but the shape of a table."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.tables.arms import ROOT
from benchmarks.tables.forecasting import CALIBRATION, RESULTS, left_out_errors, report_of, stored_points
from veil.advice.forecast import Calibration, calibration, measurable
from veil.advice.made_up import Difficulty, Shape, World
from veil.foundation.randomness import Seed
from veil.methods.auto import noise_of_one
from veil.plans import Settings
from veil.problem import Cell, PublicFacts

POINTS = stored_points(RESULTS / "plan.json")


def test_the_forecast_is_within_six_points_on_tables_that_were_left_out() -> None:
    found = report_of(POINTS)
    assert found["mean_absolute_error"] < 6.0
    assert len(POINTS) == calibration().cells > 100


def test_the_constants_that_ship_are_those_of_the_stored_results() -> None:
    assert json.loads(CALIBRATION.read_text(encoding="utf-8")) == report_of(POINTS)["calibration"]


def test_the_page_on_choosing_epsilon_has_the_error_as_it_is() -> None:
    page = (ROOT / "docs" / "choosing-epsilon.md").read_text(encoding="utf-8")
    found = report_of(POINTS)
    by_groups, by_epsilon = found["by"]["groups"], found["by"]["epsilon"]
    assert f"it is {found['mean_absolute_error']:.1f} points off on average" in page
    assert f"{found['median_absolute_error']:.1f} in the median" in page
    assert f"{by_groups['protected']} with protected attributes alone, {by_groups['crossed']} with" in page
    assert f"{by_groups['label']} with groups crossed with the" in page
    above = [by_epsilon[name] for name in ("1.0", "3.0", "8.0")]
    assert f"{by_epsilon['0.3']} at ε = 0.3, {min(above)} to {max(above)} above" in page


def test_the_noise_on_the_page_on_choosing_epsilon_is_what_the_accountant_finds() -> None:
    page = (ROOT / "docs" / "choosing-epsilon.md").read_text(encoding="utf-8")
    facts = shape((1000,)).facts
    for epsilon in (0.3, 1.0, 3.0, 8.0):
        kappa = noise_of_one(facts, Settings.checked(epsilon=epsilon, delta=1e-5))
        assert re.search(rf"^\| {epsilon:g} \| [\d.]+ % \| {round(kappa, 2):g} \|", page, re.MULTILINE), epsilon


def test_a_table_does_not_help_to_forecast_itself() -> None:
    """Whatever was measured on a table, its own forecast stays the same."""
    other = [replace(p, measured=p.measured / 2) if p.table == "adult" else p for p in POINTS]
    own = np.array([p.table == "adult" for p in POINTS])
    before = left_out_errors(POINTS)[own] + [p.measured for p in POINTS if p.table == "adult"]
    after = left_out_errors(other)[own] + [p.measured for p in other if p.table == "adult"]
    assert np.allclose(before, after)


def test_eight_of_ten_measured_figures_lie_in_the_interval() -> None:
    known, errors = calibration(), left_out_errors(POINTS)
    inside = np.mean((-errors >= known.low - 1e-3) & (-errors <= known.high + 1e-3))
    assert 0.75 < inside < 0.85


def test_a_forecast_is_a_share() -> None:
    wild = Calibration((5.0, 0.0, 1.0), -0.1, 0.1, 0.05, 1, 1)
    span = wild.worst(crossed=False, signal=1e9)
    assert 0 <= span.low <= span.expected <= span.high <= 1


def shape(sizes: tuple[int, ...], classes: int = 2, of_group: tuple[int, ...] | None = None) -> Shape:
    names = tuple(f"g{index}" for index in range(len(sizes)))
    cells = tuple(Cell(index, 0, rows) for index, rows in enumerate(sizes))
    facts = PublicFacts(names, ("all",), cells, (9,), classes=tuple("abcdefghij"[:classes]))
    return Shape(facts, (1, 1, 1, 1, 5), (True, True, True, True, False), {}, of_group)


@pytest.mark.parametrize("classes", [2, 3])
def test_made_up_rows_are_as_hard_as_stated(classes: int) -> None:
    """The nearest centre, which is the best answer, is right for the stated share (1.5 points is five errors)."""
    made = World.made(shape((30_000,), classes), Difficulty(0.8, 0.0, 0.0), Seed.from_int(3))
    centres = made.centres[0]
    draw = np.random.default_rng(0)
    target = draw.integers(classes, size=30_000)
    rows = centres[target] + draw.normal(size=(30_000, 5))
    nearest = ((rows[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
    assert np.mean(nearest == target) == pytest.approx(0.8, abs=0.015 if classes == 2 else 0.05)


def test_made_up_groups_have_the_given_sizes_and_classes() -> None:
    world = World.made(shape((40, 60), of_group=(1, 0)), Difficulty(0.8, 0.4, 0.4), Seed.from_int(1))
    rows, target, group = world.rows((40, 60), Seed.from_int(2))
    assert rows.shape == (100, 9)
    assert np.bincount(group).tolist() == [40, 60]
    assert set(target[group == 0]) == {1}
    assert set(target[group == 1]) == {0}
    assert np.abs(rows).max() <= 1


def test_groups_that_nobody_could_measure_do_not_decide_the_worst() -> None:
    assert measurable(shape((500, 20, 300)).facts) == [0, 2]
    assert measurable(shape((20, 40)).facts) == [1]
