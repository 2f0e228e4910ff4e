"""Cautions on the command line: one plain line on standard error, and JSON stays JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROWS = "\n".join(["owner,x,y", *(f"{'shy' if i % 2 else 'open'},{i % 7},{i % 3 == 0}" for i in range(400))])


def dry_run(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    (folder / "people.csv").write_text(ROWS)
    (folder / "budgets.csv").write_text("owner,epsilon\nshy,0.01\nopen,8\n")
    asked = [
        "people.csv",
        "--target",
        "y",
        "--group",
        "owner",
        "--owner",
        "owner",
        "--budgets",
        "budgets.csv",
        "--method",
        "idp-sgd",
    ]
    settings = ["--epochs", "2", "--batch-size", "8", "--delta", "1e-5", "--dry-run"]
    return subprocess.run(
        [sys.executable, "-m", "veil.cli", "train", *asked, *settings, *more],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_an_owner_who_is_hardly_drawn_is_one_plain_line_and_the_advice_has_numbers(tmp_path: Path) -> None:
    done = dry_run(tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if "shy" in line]
    assert len(said) == 1
    assert said[0].startswith('warning: Owner "shy" with ε = 0.01 is drawn')
    assert "Caution" not in done.stderr
    assert "warnings.warn" not in done.stderr
    advice = json.loads(done.stdout)["budget_advice"]
    assert [part["owner"] for part in advice["now"]["owners"]] == ["shy", "open"]
    assert advice["sentences"][0].startswith('Owner "shy" (ε = 0.01) has ')
