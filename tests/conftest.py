"""Shared by all tests: one thread per test process, and where the raw data sets are."""

from __future__ import annotations

import os
from pathlib import Path

import torch

torch.set_num_threads(1)
# Programs that tests start, and fixtures: there is nothing to collect in them.
collect_ignore_glob = ["*/*_worker.py", "*/coverage_guided.py", "conftest.py", "*/conftest.py"]
os.environ.setdefault("VEIL_DATA", str(Path(__file__).parents[2] / "shared" / "data"))
