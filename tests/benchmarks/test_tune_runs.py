"""The figures of docs/tuning.md follow from the runs that are stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.tables import tuning


def run(table: str, arm: str, seed: int, worst: float, **more: Any) -> dict[str, Any]:
    cell = {"table": table, "groups": "label", "rows": "test", "epsilon": 1.0, "arm": arm, "seed": seed}
    return {**cell, "worst_group_accuracy": worst, "version": "v", **more}


RUNS = [
    *(run("adult", "auto", seed, 0.78 + seed / 1000) for seed in (11, 12, 13)),
    *(run("adult", "tune", seed, 0.78 + (seed + gap) / 1000) for seed, gap in ((11, 4), (12, 1), (13, 1))),
    run("adult", "tune", 14, 0.5, rows="validation"),
]


def test_the_table_has_means_over_seeds_and_paired_differences_with_their_errors() -> None:
    lines = tuning.table_of(RUNS).splitlines()
    assert lines[0] == "| seeds 11 to 13 | Adult | bank marketing |"
    assert "| `auto`, no search | 79.2 | – |" in lines
    assert "| `veil tune` | 79.4 | – |" in lines
    assert "| `veil tune` − `auto`, seed by seed (standard error) | +0.2 (0.1) | – |" in lines


def test_stored_runs_come_back_and_the_table_stands_between_its_marks(tmp_path: Path) -> None:
    kept = tuning.keep(list(reversed(RUNS)), tmp_path / "tune.json")
    assert tuning.stored_runs(tmp_path / "tune.json") == kept
    assert [one["seed"] for one in kept[:3]] == [11, 12, 13]
    page = tmp_path / "page.md"
    page.write_text(f"before\n{tuning.BEGIN}\nold\n{tuning.END}\nafter\n")
    tuning.write_table(kept, page)
    assert page.read_text() == f"before\n{tuning.BEGIN}\n{tuning.table_of(kept)}\n{tuning.END}\nafter\n"


def test_the_page_has_the_marks_of_its_table() -> None:
    text = tuning.PAGE.read_text(encoding="utf-8")
    assert text.count(tuning.BEGIN) == text.count(tuning.END) == 1


@pytest.mark.skipif(not tuning.STORE.exists(), reason="no runs are stored yet: python -m benchmarks tune --store")
def test_the_figures_of_the_page_follow_from_the_stored_runs() -> None:
    text = tuning.PAGE.read_text(encoding="utf-8").split(tuning.BEGIN)[1].split(tuning.END)[0]
    assert text.strip() == tuning.table_of(tuning.stored_runs())
