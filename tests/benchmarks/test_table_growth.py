"""The page of growth: a function of its JSON, which names every step that is lower than noise explains."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.tables.growth import SEEDS, SIZES, TABLES, falls, page_of
from benchmarks.tables.page import Figures

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def test_the_page_is_what_its_figures_say() -> None:
    record = json.loads((RESULTS / "growth.json").read_text(encoding="utf-8"))
    assert len(record["rows"]) == len(TABLES) * len(SIZES) * len(SEEDS)
    written = (RESULTS / "growth.md").read_text(encoding="utf-8")
    assert page_of(record, Figures.read(RESULTS / "tables.json")) == written


def test_a_step_that_falls_is_named() -> None:
    record = json.loads((RESULTS / "growth.json").read_text(encoding="utf-8"))
    for row in record["rows"]:
        row["auc"] += 1 - row["size"] / max(SIZES)
    page = page_of(record, Figures.read(RESULTS / "tables.json"))
    assert "adult, label from 1,000 rows to 3,000 rows by" in page


def test_noise_is_not_a_fall_and_a_fall_is() -> None:
    assert not falls([0.80, 0.70, 0.75], [0.74, 0.72, 0.76])
    assert falls([0.80, 0.81, 0.80], [0.75, 0.76, 0.75])
