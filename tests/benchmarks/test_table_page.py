"""The page of the benchmark of tables: every number follows from its JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.tables.page import Figures, page_of
from benchmarks.tables.store import collect, with_published

ROOT = Path(__file__).parents[2]
ABOUT = {
    "test_share": 0.25,
    "least_rows": 50,
    "groupings": {"protected": "attributes alone", "label": "crossed with the label"},
    "opacus": {"epochs": 20, "batch_size": 512, "learning_rate": 0.001, "max_grad_norm": 1.2, "hidden": 64},
    "tables": {
        name: {"train": 3000, "test": 1000, "delta": 3e-5, "target": "y", "groups": {"label": ["sex", "y"]}}
        for name in ("first", "second")
    },
    "arms": {
        "logistic": {"title": "logistic", "family": "not private"},
        "lightgbm": {"title": "LightGBM", "family": "not private"},
        "dp-ebm": {"title": "DP-EBM", "family": "peer"},
        "best": {"title": "Veil `best`", "family": "veil"},
    },
}


def record(table: str, arm: str, epsilon: float | None, seed: int, worst: float, **more: Any) -> dict[str, Any]:
    return {
        "table": table,
        "groups": "label",
        "epsilon": epsilon,
        "arm": arm,
        "seed": seed,
        "worst_group_accuracy": worst,
        "average_group_accuracy": 0.7,
        "accuracy": 0.8,
        "auc": 0.9,
        "worst_group": "f × yes",
        "groups_scored": 4,
        "seconds": 2.0,
        "delta": 3e-5,
        "version": f"{arm} 1.0",
        **more,
    }


RECORDS = [
    record("first", "logistic", None, 1, 0.60, accuracy=0.85),
    record("first", "lightgbm", None, 1, 0.70, seconds=4.0),
    record("first", "dp-ebm", 1.0, 1, 0.40),
    record("first", "dp-ebm", 1.0, 2, 0.50),
    record("first", "best", 1.0, 1, 0.72, seconds=10.0),
    record("second", "logistic", None, 1, 0.50),
    record("second", "lightgbm", None, 1, 0.40),
    {
        "table": "second",
        "groups": "label",
        "epsilon": 1.0,
        "arm": "dp-ebm",
        "seed": 1,
        "version": "dp-ebm 1.0",
        "failed": "Two classes only.",
    },
    record("second", "best", 1.0, 1, 0.40),
]


@pytest.fixture
def page(tmp_path: Path) -> str:
    collect(RECORDS, ABOUT, tmp_path / "tables.json")
    return page_of(Figures.read(tmp_path / "tables.json"))


def test_regret_comes_first_and_is_to_the_best_model_without_privacy(page: str) -> None:
    first = page.split("\n## ")[1]
    assert first.startswith("Regret to the best model without privacy")
    assert "### ε = 1 (1 task)" in first
    # Best worst group 0.70, best overall 0.85; DP-EBM has 0.45 and 0.8, the preset 0.72 and 0.8.
    assert "| DP-EBM | 25.0 | 0.0 | 5.0 | 0.0 |" in first
    assert "| Veil `best` | −2.0 | 0.0 | 5.0 | 0.0 |" in first
    assert "| logistic | 10.0 | 0.0 | 0.0 | 0.0 |" in first


def test_tasks_that_one_arm_cannot_do_are_in_no_mean_and_are_listed(page: str) -> None:
    assert "- DP-EBM: Two classes only. (second, label)" in page


def test_every_table_shows_means_and_spread_over_seeds(page: str) -> None:
    second = page.split("\n### second\n")[1].split("\n## ")[0]
    assert "| Veil `best` | 40.0 / 70.0 / 80.0 / 90.0 |" in second
    assert "DP-EBM" not in second
    first = page.split("\n### first\n")[1].split("\n### ")[0]
    assert "| DP-EBM | 45.0 ± 7.1 / 70.0 / 80.0 / 90.0 |" in first
    assert "label: sex × y (4 groups counted)" in first
    assert "3,000 training and 1,000 test rows, δ = 3e-05" in first


def test_times_are_ratios_and_versions_are_said(page: str) -> None:
    # 10 s over 4 s on the first table, 2 s over 2 s on the second.
    assert "| Veil `best` | 1.8 |" in page
    assert "best 1.0; dp-ebm 1.0; lightgbm 1.0; logistic 1.0." in page


def test_settings_of_jax_privacy_are_said_where_it_was_measured(page: str, tmp_path: Path) -> None:
    assert "JAX-Privacy" not in page
    title = {"title": "JAX-Privacy MLP", "family": "peer"}
    settings = {"iterations": 400, "batch_size": 900, "learning_rate": 0.25, "clip_norm": 2.0}
    about = {**ABOUT, "arms": {**ABOUT["arms"], "jax-privacy": title}, "jax_privacy": settings}
    collect([*RECORDS, record("first", "jax-privacy", 1.0, 1, 0.65)], about, tmp_path / "more.json")
    found = page_of(Figures.read(tmp_path / "more.json"))
    assert "| JAX-Privacy MLP | 5.0 | 0.0 | 5.0 | 0.0 |" in found
    assert "400 steps, 900 rows per step on average" in found
    assert "SGD with learning rate 0.25, clipping at 2, Poisson" in found


def test_the_collected_file_keeps_every_cell(tmp_path: Path) -> None:
    collect(RECORDS, ABOUT, tmp_path / "tables.json")
    found = json.loads((tmp_path / "tables.json").read_text(encoding="utf-8"))
    assert len(found["rows"]) == len(RECORDS) - 1
    whole = dict(zip(found["columns"], found["rows"][0], strict=True))
    assert whole == {name: value for name, value in RECORDS[4].items() if name != "version"}


def test_figures_that_were_published_are_kept_where_nothing_newer_is_stored(tmp_path: Path) -> None:
    """A machine that measured one cell would otherwise write a page of one cell over that of all."""
    path = tmp_path / "tables.json"
    collect(RECORDS, ABOUT, path)
    before = path.read_text(encoding="utf-8")
    collect(with_published([], path), ABOUT, path)
    assert path.read_text(encoding="utf-8") == before
    newer = {**RECORDS[4], "accuracy": 0.123, "version": "2.0"}
    collect(with_published([newer], path), ABOUT, path)
    found = json.loads(path.read_text(encoding="utf-8"))
    assert len(found["rows"]) == len(RECORDS) - 1
    assert sum(row[found["columns"].index("accuracy")] == 0.123 for row in found["rows"]) == 1
    assert sorted(found["versions"]["best"]) == ["2.0", "best 1.0"]


def test_the_page_in_the_documentation_is_what_its_json_gives() -> None:
    stored = ROOT / "docs" / "results" / "tables.json"
    if not stored.exists():
        pytest.skip("docs/results/tables.json has not been measured")
    assert stored.with_suffix(".md").read_text(encoding="utf-8") == page_of(Figures.read(stored))


def test_an_arm_of_few_tasks_takes_no_task_from_the_means_and_stands_beside_dp_sgd(tmp_path: Path) -> None:
    arms = {name: {"title": f"Veil `{name}`", "family": "veil"} for name in ("auto-overall", "dp-sgd")}
    both = [record("first", "dp-sgd", 1.0, 1, 0.5, accuracy=0.81), record("second", "dp-sgd", 1.0, 1, 0.5)]
    few = [record("first", "auto-overall", 1.0, 1, 0.5, accuracy=0.83)]
    collect([*RECORDS, *both, *few], {**ABOUT, "arms": {**ABOUT["arms"], **arms}}, tmp_path / "tables.json")  # type: ignore[dict-item]
    collect([*RECORDS, *both], {**ABOUT, "arms": {**ABOUT["arms"], **arms}}, tmp_path / "less.json")  # type: ignore[dict-item]
    page, without = (page_of(Figures.read(tmp_path / name)) for name in ("tables.json", "less.json"))
    start, end = "## Regret to the best", "## The aim"
    assert page[page.index(start) : page.index(end)].strip() in without
    assert "tuned" not in page
    assert "| first, label | 81.0 | 83.0 | 90.0 | 90.0 |" in page


def test_tuned_dp_sgd_stands_between_dp_sgd_and_the_aim_overall_and_in_no_mean(tmp_path: Path) -> None:
    arms = {name: {"title": name, "family": "veil"} for name in ("dp-sgd", "dp-sgd-tuned", "auto-overall")}
    more = [record("first", name, 1.0, 1, 0.5, accuracy=0.8 + at / 100) for at, name in enumerate(arms)]
    about = {**ABOUT, "arms": {**ABOUT["arms"], **arms}, "tuned": "How it was tuned."}  # type: ignore[dict-item]
    collect([*RECORDS, *more], about, tmp_path / "tables.json")
    page = page_of(Figures.read(tmp_path / "tables.json"))
    assert "How it was tuned." in page
    assert "| first, label | 80.0 | 81.0 | 82.0 | 90.0 | 90.0 | 90.0 |" in page
    assert "dp-sgd-tuned" not in page[: page.index("## The aim")]
