"""Loading: image files that are decoded ahead by a thread, or when they are drawn; whole runs, interleaved.

A small convolutional network on one thread, as on one core of a server; the reading thread has another.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import nn

import veil
from veil.problem import Problem
from veil.tables.images import image_problem

SIZE, BATCH = 64, 64


def generate(folder: Path, rows: int) -> None:
    """Smooth random pictures of 128 × 128 as JPEG files, one folder for each of two classes."""
    from PIL import Image

    random = np.random.default_rng(0)
    for row in range(rows):
        small = Image.fromarray(random.integers(0, 255, (16, 16, 3), dtype=np.uint8))
        place = folder / str(row % 2)
        place.mkdir(exist_ok=True)
        small.resize((128, 128), Image.Resampling.BILINEAR).save(place / f"{row}.jpg", quality=90)


def network() -> nn.Module:
    """Two convolutions with GroupNorm."""
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 5, stride=2), nn.GroupNorm(4, 32), nn.ReLU()),
        *(nn.Conv2d(32, 64, 5, stride=2), nn.GroupNorm(4, 64), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(1024, 2)),
    )


def run(repeats: int, quick: bool) -> list[dict[str, Any]]:
    """Seconds of a run of each way, and the ratio to reading rows when they are drawn."""
    rows, steps = (256, 4) if quick else (2000, 30)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as place:
            generate(Path(place), rows)
            return _compared(Path(place), steps, min(repeats, 5))
    finally:
        torch.set_num_threads(before)


def _compared(folder: Path, steps: int, repeats: int) -> list[dict[str, Any]]:
    problem = image_problem(folder, size=(SIZE, SIZE), in_memory=False)
    ways = ("files, when drawn", "files, read ahead by a thread")
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name in ways:
            times[name].append(_seconds(problem, steps, ahead="when drawn" not in name))
    found, usual = [], 0.0
    for name, taken in times.items():
        seconds = float(np.median(taken))
        usual = seconds if "when drawn" in name else usual
        found.append({"rows": name, "ms_per_step": 1e3 * seconds / steps, "ratio": round(seconds / usual, 3)})
    return found


def _seconds(problem: Problem, steps: int, ahead: bool) -> float:
    settings: dict[str, Any] = {"method": "dp-sgd", "epsilon": 1.0, "steps": steps, "batch_size": BATCH, "seed": 1}
    model = network()
    start = time.perf_counter()
    if ahead:
        veil.fit(model, problem, **settings)
    else:
        with patch("veil.training.loop.read_ahead", lambda *_: None):
            veil.fit(model, problem, **settings)
    return time.perf_counter() - start
