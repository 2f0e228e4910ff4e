"""`veil demo` on the bundled data."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_demo_ends_with_one_json_object_and_a_report_twice_in_a_row(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "veil.cli", "demo", "--json", "--out", str(tmp_path / "demo")]
    for _ in range(2):
        done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=tmp_path)
        answer = json.loads(done.stdout)
        assert {row["method"] for row in answer["rows"]} == {"erm", "dp-sgd", "asc", "auto"}
        assert answer["privacy"]["epsilon"] == pytest.approx(1.0, rel=0.01)
        assert answer["metrics"]["worst_group_accuracy"] > 0.6
        assert Path(answer["report"]).stat().st_size > 10_000


def test_the_demo_never_clears_a_folder_it_did_not_make(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    words = [sys.executable, "-m", "veil.cli", "demo", "--out", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "does not contain a demo" in done.stderr
    assert (tmp_path / "precious.txt").read_text() == "mine"
