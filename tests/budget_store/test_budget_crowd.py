"""Many processes at one budget, with kills and a server that restarts: never overspent, nothing lost."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from tests.budget_store.postgres_server import Server
from veil.budget_store import BudgetStore, Cost, DataSet, Spending
from veil.budget_store.store import new_claim
from veil.errors import InputError

ROOT = Path(__file__).parents[2]
CROWD = ["-m", "tests.budget_store.crowd"]


def promised(notes: Path) -> set[str]:
    return {run for note in notes.iterdir() if not note.suffix for run in note.read_text().split("\n")[:-1]}


def run_crowd(
    place: str, notes: Path, processes: int, runs: int, kills: int, halfway: Callable[[], None] | None = None
) -> None:
    """Let the crowd spend a budget of `runs` runs; kill processes on the way and do `halfway` in the middle."""
    notes.mkdir()
    epsilon = 0.01
    store = BudgetStore.create(place)
    store.add_dataset(DataSet("people"), epsilon=runs * epsilon, delta=runs * epsilon * 1e-6)
    crowd = subprocess.Popen(
        [sys.executable, *CROWD, place, "people", str(processes), str(epsilon), str(notes)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
    )
    assert crowd.stdout is not None
    with crowd.stdout as output:
        alive = [int(word) for word in output.readline().split()]
    try:
        killed, halfway = _disturb(store, crowd, alive, notes, runs, kills, halfway)
    finally:
        for process in [*alive, crowd.pid] if crowd.poll() is None else []:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        crowd.wait()
    assert killed == kills
    assert halfway is None
    assert not [path.read_text() for path in notes.glob("*.error")]
    history = {entry.run: entry for entry in store.history("people")}
    assert len(history) == runs, "the budget must be used up and not overspent"
    assert all(history[run].state == "running" for run in promised(notes)), "a promised run was lost"
    assert len(history) - len(promised(notes)) <= kills
    (balance,) = store.balances("people")
    assert balance.left_epsilon == pytest.approx(0, abs=1e-9)


def _disturb(
    store: BudgetStore,
    crowd: subprocess.Popen[str],
    alive: list[int],
    notes: Path,
    runs: int,
    kills: int,
    halfway: Callable[[], None] | None,
) -> tuple[int, Callable[[], None] | None]:
    """Kill and restart until the crowd has ended; at every moment the budget is not overspent."""
    killed, chance = 0, random.Random(7)
    while crowd.poll() is None:
        done = len(promised(notes))
        if killed < kills and done >= (killed + 1) * runs // (kills + 2):
            with suppress(ProcessLookupError):  # it may have ended by itself
                os.kill(alive.pop(chance.randrange(len(alive))), signal.SIGKILL)
            killed += 1
        if halfway is not None and done >= runs // 2:
            halfway()
            halfway = None
        (balance,) = store.balances("people")
        assert balance.spent_epsilon <= balance.limit.epsilon * (1 + 1e-6)
        time.sleep(0.05)
    return killed, halfway


def test_four_processes_cannot_overspend_a_file(tmp_path: Path) -> None:
    run_crowd(str(tmp_path / "budget.sqlite"), tmp_path / "notes", processes=4, runs=24, kills=1)


@pytest.mark.slow
def test_twenty_processes_with_kills_cannot_overspend_a_file(tmp_path: Path) -> None:
    run_crowd(str(tmp_path / "budget.sqlite"), tmp_path / "notes", processes=20, runs=80, kills=10)


@pytest.mark.slow
def test_twenty_processes_with_kills_and_a_restart_cannot_overspend_a_server(server: Server, tmp_path: Path) -> None:
    run_crowd(server.url, tmp_path / "notes", processes=20, runs=100, kills=10, halfway=server.restart)


def test_a_run_is_either_begun_or_cancelled_whoever_is_faster(tmp_path: Path) -> None:
    place = str(tmp_path / "budget.sqlite")
    store = BudgetStore.create(place)
    store.add_dataset(DataSet("people"), epsilon=1.0, delta=1e-5)

    def tried(action: Callable[[], None]) -> bool:
        try:
            action()
        except InputError:
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        for turn in range(10):
            claim = new_claim()
            store.reserve("people", Spending(f"run {turn}", Cost(0.01, 0.0)), claim)
            other = BudgetStore.open(place)
            begun = pool.submit(tried, lambda claim=claim: store.begin("people", claim))  # type: ignore[misc]
            gone = pool.submit(tried, lambda turn=turn, other=other: other.cancel("people", f"run {turn}"))  # type: ignore[misc]
            assert begun.result() != gone.result()


def test_the_same_run_asking_from_many_sides_is_charged_once(tmp_path: Path) -> None:
    place = str(tmp_path / "budget.sqlite")
    BudgetStore.create(place).add_dataset(DataSet("people"), epsilon=1.0, delta=1e-5)
    claim = new_claim()
    with ThreadPoolExecutor(8) as pool:
        asked = [
            pool.submit(lambda: BudgetStore.open(place).reserve("people", Spending("one", Cost(0.9, 1e-6)), claim))
            for _ in range(8)
        ]
        assert {entry.result().run for entry in asked} == {"one"}
    assert len(BudgetStore.open(place).history("people")) == 1
