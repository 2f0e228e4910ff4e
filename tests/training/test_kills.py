"""Kill test: runs that are killed at random moments and go on end byte for byte like undisturbed ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORKER = ["-m", "tests.training.kill_worker"]


def killed(folder: Path, kills: int, seed: int) -> dict[str, object]:
    found = subprocess.run(
        [sys.executable, *WORKER, str(folder), str(kills), str(seed)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        check=True,
    )
    answer: dict[str, object] = json.loads(found.stdout)
    return answer


def test_fifteen_kills_lose_nothing_and_leave_nothing_unreserved(tmp_path: Path) -> None:
    outcome = killed(tmp_path, 15, seed=1)
    assert outcome["faults"] == []
    assert int(str(outcome["kills"])) >= 15


@pytest.mark.long
def test_fifty_kills_lose_nothing_and_leave_nothing_unreserved(tmp_path: Path) -> None:
    outcome = killed(tmp_path, 50, seed=2)
    assert outcome["faults"] == []
    assert int(str(outcome["kills"])) >= 50
