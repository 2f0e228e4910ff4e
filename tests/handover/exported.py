"""Running what was exported in a process that has neither Veil nor torch nor pandas."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

WITHOUT = (
    "import runpy, sys\n"
    "for name in ('veil', 'torch', 'pandas', 'onnx', 'sklearn'): sys.modules[name] = None\n"
    "script, sys.argv = sys.argv[1], sys.argv[1:]\n"
    "sys.path.insert(0, script.rpartition('/')[0])\n"
    "runpy.run_path(script, run_name='__main__')\n"
)


def elsewhere(script: Path, *words: str) -> list[str]:
    """The command that runs a script of an exported model without Veil."""
    return [sys.executable, "-I", "-c", WITHOUT, str(script), *words]


def run_elsewhere(script: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    return subprocess.run(elsewhere(script, *words), capture_output=True, text=True, check=False, timeout=120)
