"""A comparison and shadow models on a local Ray are those of the local workers, bit by bit."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORKER = ["-m", "tests.training.ray_worker"]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed: pip install 'veil-dp[ray]'")
def test_a_local_ray_gives_the_same_runs(tmp_path: Path) -> None:
    for backend in ("loky", "ray"):
        found = subprocess.run(
            [sys.executable, *WORKER, str(tmp_path / backend), backend],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert found.returncode == 0, found.stderr[-2000:]
    names = sorted(path.relative_to(tmp_path / "loky") for path in (tmp_path / "loky").glob("*/model.safetensors"))
    assert len(names) == 4
    for name in names:
        for file in (name, name.with_name("ledger.jsonl"), name.with_name("certificate.json")):
            assert (tmp_path / "ray" / file).read_bytes() == (tmp_path / "loky" / file).read_bytes()
