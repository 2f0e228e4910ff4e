"""Who may import whom: the contracts in pyproject.toml hold, and a forbidden import would be seen."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def linted(source: Path) -> subprocess.CompletedProcess[str]:
    """The contracts checked on a copy of the package."""
    program = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
    return subprocess.run(
        [sys.executable, "-c", program, "--config", str(ROOT / "pyproject.toml"), "--no-cache"],
        env={**os.environ, "PYTHONPATH": str(source)},
        cwd=source,
        capture_output=True,
        text=True,
        check=False,
    )


def test_packages_import_only_what_lies_below_them() -> None:
    found = linted(ROOT / "src")
    assert found.returncode == 0, found.stdout


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("accounting/events.py", "from veil.training import fit"),
        ("metrics/parity.py", "from veil.training.callbacks import Callback"),
        ("report/wording.py", "import torch"),
        ("stray.py", "VALUE = 1"),
    ],
)
def test_an_import_against_the_contracts_is_seen(file: str, line: str, tmp_path: Path) -> None:
    copy = tmp_path / "veil"
    shutil.copytree(ROOT / "src" / "veil", copy, ignore=shutil.ignore_patterns("__pycache__", "*.csv", "*.gz"))
    content = (copy / file).read_text() if (copy / file).exists() else ""
    (copy / file).write_text(f"{content}\n{line}\n")
    found = linted(tmp_path)
    assert found.returncode != 0
    assert "BROKEN" in found.stdout or "stray" in found.stdout + found.stderr


@pytest.mark.parametrize("module", ["veil", "veil.accounting", "veil.budget_store", "veil.report", "veil.ui.app"])
def test_what_needs_no_model_loads_no_torch(module: str) -> None:
    program = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_other_commands_start_without_the_web_framework() -> None:
    program = "import sys, veil.cli.app; sys.exit(bool({'flask', 'waitress', 'veil.ui'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_run_is_started_without_what_is_slow_to_load() -> None:
    slow = {"scipy.stats", "scipy.optimize", "joblib"}
    program = f"import sys, veil.tables.table_run, veil.methods; sys.exit(bool({slow} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
