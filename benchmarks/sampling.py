"""Speed of drawing batches and noise: per drawn row from ten million rows, and per coordinate beside torch.randn."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks._timing import interleaved
from veil.foundation.randomness import Seed
from veil.noise import GaussianNoise, TreeNoise
from veil.problem import Strata
from veil.sampling import OneGroupSampler, PoissonSampler, SubsetSampler

SEED = Seed.from_int(0)


def _seconds(task: Callable[[int], object], repeats: int) -> float:
    """Median time of one call, after one call to warm up; the argument is the step."""
    task(0)
    times = []
    for step in range(1, repeats + 1):
        start = time.perf_counter()
        task(step)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _row(name: str, seconds: float, count: float, unit: str) -> dict[str, Any]:
    return {
        "name": name,
        "seconds": seconds,
        "count": count,
        "unit": unit,
        "microseconds_per_unit": 1e6 * seconds / max(count, 1.0),
    }


def _samplers(repeats: int, rows: int) -> list[dict[str, Any]]:
    results = []
    one, eight = Strata.of_size(rows), Strata.from_labels(np.arange(rows) % 8)
    for rate in (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 0.5):
        for label, strata in (("1 stratum", one), ("8 strata", eight)):
            sampler = PoissonSampler.uniform(strata, rate)
            seconds = _seconds(lambda step, sampler=sampler: sampler.draw(SEED, step), repeats)
            results.append(
                _row(f"poisson, {rows:,} rows, {label}, rate {rate:g}", seconds, sampler.expected_batch(), "drawn row")
            )
    for batch in (256, 8192, rows // 100):
        subset = SubsetSampler(eight, (batch // 8,) * 8)
        seconds = _seconds(lambda step, subset=subset: subset.draw(SEED, step), repeats)
        results.append(
            _row(f"without replacement, {rows:,} rows, 8 strata, batch {batch}", seconds, batch, "drawn row")
        )
    lottery = OneGroupSampler(SubsetSampler(eight, (256,) * 8), (0.125,) * 8)
    seconds = _seconds(lambda step: lottery.draw(SEED, step), repeats)
    results.append(_row(f"one group of 8, {rows:,} rows, batch 256", seconds, 256, "drawn row"))
    return results


def _noise(repeats: int, size: int) -> list[dict[str, Any]]:
    values, wide = {"w": torch.zeros(size)}, {"w": torch.zeros(size, dtype=torch.float64)}
    fast, secure, steps = GaussianNoise(SEED), GaussianNoise(SEED, secure=True), itertools.count()
    tasks: dict[str, Callable[[], object]] = {
        "torch.randn": lambda: torch.randn(size),
        "Gaussian noise": lambda: fast.add(next(steps), values, 1.0),
        "Gaussian noise, float64": lambda: fast.add(next(steps), wide, 1.0),
        "secure Gaussian release": lambda: secure.add(next(steps), values, 1.0),
    }
    results = [
        _row(f"{name}, {size:,} coordinates", seconds, size, "coordinate")
        for name, seconds in interleaved(tasks, repeats, clock=time.process_time).items()
    ]
    for row in results:
        row["times_torch_randn"] = row["seconds"] / results[0]["seconds"]
        row["times_fast_noise"] = row["seconds"] / results[1]["seconds"]
    return results


def run(repeats: int, quick: bool) -> list[dict[str, Any]]:
    """One record per measurement; `quick` shrinks the table and the vectors tenfold."""
    rows, size = (1_000_000, 100_000) if quick else (10_000_000, 1_000_000)
    results = _samplers(repeats, rows)
    results += _noise(repeats, 10_000 if quick else 82_000) + _noise(repeats, size)
    steps = 100_000 if quick else 1_000_000
    tree = TreeNoise(SEED, dimension=1, std=1.0, leaves=steps)
    results.append(_row("tree noise, dimension 1", _seconds(lambda _: tree.prefixes(1, steps + 1), 1), steps, "step"))
    draw = _seconds(lambda step: [SEED.generator("bench", step, name) for name in range(1000)], repeats)
    results.append(_row("a generator for a new stream", draw, 1000, "generator"))
    ids = np.arange(size)
    uniforms = _seconds(lambda step: SEED.uniforms("bench", step, ids), repeats)
    results.append(_row("uniforms by row id", uniforms, size, "row"))
    return results
