"""Files to and from the peers' environment: rows as Parquet, fits as JSON, probabilities as npz."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.tables.data import Task
from veil.errors import InputError

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-peers" / "bin" / "python"


@dataclass(frozen=True)
class Fit:
    """One fit that a peer is asked for; `group_columns` are given to arms that weight by group."""

    arm: str
    epsilon: float | None
    seed: int
    group_columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """Probabilities and seconds, or one sentence that says why there are none."""

    version: str
    seconds: float | None = None
    probabilities: NDArray[np.float64] | None = None
    failed: str | None = None


def check_peers() -> None:
    """The peers' environment is there."""
    if not PYTHON.exists():
        raise InputError(
            "LightGBM and the peers need the environment .venv-peers, which is missing: make it with `make peers`, or "
            "leave them out with --arms."
        )


def ask_peers(task: Task, fits: Sequence[Fit]) -> Iterator[tuple[Fit, Answer]]:
    """Answers as they come. A process that dies leaves the other fits unanswered, and that is an error."""
    check_peers()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        _write(folder, task, fits)
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        words = [str(PYTHON), "-m", "benchmarks.tables.peers", str(folder)]
        with (folder / "errors.txt").open("w+", encoding="utf-8") as errors:
            process = subprocess.Popen(
                words, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
            )
            try:
                for line in process.stdout or ():
                    record = json.loads(line)
                    yield fits[record["id"]], _answer(folder, record)
                code = process.wait()
            finally:
                process.kill()
                process.wait()
            if code != 0:
                errors.seek(0)
                last = (errors.read().strip().splitlines() or ["no message"])[-1]
                raise InputError(f"The peers' environment ended with exit code {code}: {last}")


def _write(folder: Path, task: Task, fits: Sequence[Fit]) -> None:
    task.train.to_parquet(folder / "train.parquet", index=False)
    task.test.drop(columns=task.target).to_parquet(folder / "test.parquet", index=False)
    job: dict[str, Any] = {
        "target": task.target,
        "classes": task.classes,
        "numeric": dict(task.numeric),
        "categories": dict(task.categories),
        "delta": task.delta,
        "target_bounds": task.target_bounds,
        "fits": [{"id": number, **vars(fit)} for number, fit in enumerate(fits)],
    }
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")


def _answer(folder: Path, record: dict[str, Any]) -> Answer:
    if "failed" in record:
        return Answer(record["version"], failed=record["failed"])
    with np.load(folder / f"{record['id']}.npz") as file:
        return Answer(record["version"], record["seconds"], file["probabilities"])
