"""The table of batch sizes on docs/choosing-epsilon.md follows from the runs that are stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.tables import batches


def run(method: str, batch: int, seed: int, worst: float, table: str = "dutch") -> dict[str, Any]:
    setting = {"table": table, "method": method, "epsilon": 1.0, "batch": batch, "epochs": 20.0, "seed": seed}
    return {**setting, "worst_group_accuracy": worst, "auc": 0.8}


def test_the_table_has_means_over_seeds_and_a_dash_for_what_was_not_measured(tmp_path: Path) -> None:
    runs = [run("dp-sgd", 512, 1, 0.5), run("dp-sgd", 512, 2, 0.6), run("asc", 2048, 1, 0.7, table="adult")]
    lines = batches.table_of(runs).splitlines()
    assert lines[0] == "| ε | method | batch | epochs | adult: worst group / AUC | dutch: worst group / AUC |"
    assert lines[-1].endswith("in points on average: `dp-sgd` on dutch 10.0.")
    assert lines[2:4] == [
        "| 1 | `dp-sgd` | 512 | 20 | – | 55.0 / 80.0 |",
        "| 1 | `asc` | 2,048 | 20 | 70.0 / 80.0 | – |",
    ]
    page = tmp_path / "page.md"
    page.write_text(f"a\n{batches.BEGIN}\n{batches.END}\nb\n")
    batches.write_table(runs, page)
    assert page.read_text() == f"a\n{batches.BEGIN}\n{batches.table_of(runs)}\n{batches.END}\nb\n"


def test_the_figures_of_the_page_follow_from_the_stored_runs() -> None:
    text = batches.PAGE.read_text(encoding="utf-8").split(batches.BEGIN)[1].split(batches.END)[0]
    assert text.strip() == batches.table_of(batches.stored())


def test_stored_runs_are_on_validation_rows_with_the_seeds_of_the_study() -> None:
    assert {record["seed"] for record in batches.stored()} <= set(batches.SEEDS)
    assert len({batches.setting_of(record) for record in batches.stored()}) == len(batches.stored()) > 0
