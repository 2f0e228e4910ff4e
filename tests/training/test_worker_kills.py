"""Load: a comparison of many small runs whose workers are killed on the way ends with every run done."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
import torch

from tests.methods.method_cases import small_problem
from veil.foundation.randomness import Seed
from veil.problem import Problem
from veil.training.comparing import Comparison, compare


def linear(problem: Problem, seed: Seed) -> torch.nn.Module:
    return torch.nn.Linear(4, 2)


def workers() -> list[int]:
    """The processes that joblib has started for this one."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                parent = int((path / "stat").read_text().rsplit(")", 1)[1].split()[1])
                if parent == os.getpid() and b"popen_loky" in (path / "cmdline").read_bytes():
                    found.append(int(path.name))
            except OSError:
                continue
    return found


class Killer(threading.Thread):
    """Kills one worker whenever a further share of the runs is done."""

    def __init__(self, folder: Path, marks: list[int]) -> None:
        super().__init__(daemon=True)
        self.folder, self.marks, self.kills, self.over = folder, marks, 0, False

    def run(self) -> None:
        while self.marks and not self.over:
            done = len(list(self.folder.glob("*/certificate.json")))
            alive = workers()
            if done >= self.marks[0] and alive:
                os.kill(alive[0], signal.SIGKILL)
                self.marks.pop(0)
                self.kills += 1
            time.sleep(0.02)


def compared_under_fire(folder: Path, seeds: int) -> tuple[Comparison, int]:
    killer = Killer(folder, [seeds // 4, seeds // 2, 3 * seeds // 4])
    killer.start()
    problem = small_problem()
    found = compare(
        problem, problem, methods=["dp-sgd"], out=folder, model=linear, seeds=seeds, workers=2, steps=5, batch_size=24
    )
    killer.over = True
    killer.join()
    return found, killer.kills


@pytest.mark.slow
def test_a_comparison_survives_three_kills_of_its_workers(tmp_path: Path) -> None:
    found, kills = compared_under_fire(tmp_path, seeds=24)
    assert kills == 3
    assert found.failures == {}
    assert sorted(row["seed"] for row in found.rows) == list(range(1, 25))


@pytest.mark.long
def test_two_hundred_runs_survive_three_kills_of_their_workers(tmp_path: Path) -> None:
    found, kills = compared_under_fire(tmp_path, seeds=200)
    assert kills == 3
    assert found.failures == {}
    assert sorted(row["seed"] for row in found.rows) == list(range(1, 201))
