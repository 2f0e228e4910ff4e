"""Shared by all tests: one thread per test process, and where the raw data sets are."""

from __future__ import annotations

import os
from pathlib import Path

import torch

torch.set_num_threads(1)
os.environ.setdefault("VEIL_DATA", str(Path(__file__).parents[2] / "shared" / "data"))
