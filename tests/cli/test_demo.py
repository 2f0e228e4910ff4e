"""`veil demo` on the bundled data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.program import Program
from veil import datasets


def test_the_demo_ends_with_a_table_or_one_json_object_and_a_report_twice_in_a_row(
    tmp_path: Path, veil: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few rows are enough here: tests/packaging/test_wheel.py has the whole demo, and its figures."""
    out = tmp_path / "demo"
    whole = datasets.load_adult()
    few = tuple(frame.sample(1500, random_state=1).reset_index(drop=True) for frame in whole)
    monkeypatch.setattr(datasets, "load_adult", lambda: few)
    code, said, _ = veil("demo", "--out", str(out))
    assert code == 0
    assert "worst group" in said
    (out / "asc" / "of-the-first.txt").write_text("to be cleared")
    code, said, _ = veil("demo", "--json", "--out", str(out))
    assert code == 0
    check_demo(tmp_path, json.loads(said))
    assert not (out / "asc" / "of-the-first.txt").exists()


README = Path(__file__).parents[2] / "README.md"
SHOWN = ("erm", "dp-sgd", "asc", "auto")
# Sums of floating-point numbers differ between machines, and the small groups have few rows.
POINTS = 1.0


def stale(answer: dict[str, Any]) -> dict[str, list[float]]:
    """Lines of the table in README.md that are not what the demo found."""
    section = README.read_text(encoding="utf-8").split("## What `veil demo` prints")[1].split("\n## ")[0]
    cells = [[cell.strip(" *") for cell in line.split("|")[1:-1]] for line in section.splitlines() if line[:1] == "|"]
    shown = {line[0].replace("≤", "<="): [float(cell) for cell in line[2:]] for line in cells[2:]}
    metrics = {row["method"]: row["metrics"] for row in answer["rows"]}
    found = {
        group: [100 * metrics[method]["by_group"][group]["accuracy"] for method in SHOWN]
        for group in metrics["auto"]["by_group"]
    }
    found["worst group"] = [100 * metrics[method]["worst_group_accuracy"] for method in SHOWN]
    found["average of groups"] = [100 * metrics[method]["average_group_accuracy"] for method in SHOWN]
    assert found.keys() == shown.keys()
    return {
        name: found[name]
        for name in found
        if any(abs(a - b) > POINTS for a, b in zip(found[name], shown[name], strict=True))
    }


def check_demo(folder: Path, answer: dict[str, Any]) -> None:
    """What every demo says, and that its report is there."""
    assert {row["method"] for row in answer["rows"]} == {"erm", "dp-sgd", "asc", "auto"}
    assert answer["privacy"]["epsilon"] == pytest.approx(1.0, rel=0.01)
    assert (folder / answer["report"]).stat().st_size > 10_000


def test_the_demo_never_clears_a_folder_it_did_not_make(tmp_path: Path, veil: Program) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    code, _, said = veil("demo", "--out", str(tmp_path))
    assert code == 2
    assert "does not contain a demo" in " ".join(said.split())
    assert (tmp_path / "precious.txt").read_text() == "mine"
