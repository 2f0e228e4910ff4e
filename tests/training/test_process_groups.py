"""One process, two and four give the same run; a process that dies costs nothing and the run goes on with others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from fcntl import LOCK_EX, flock
from functools import cache
from pathlib import Path
from shutil import rmtree
from tempfile import gettempdir

import numpy as np
import pytest
import torch

from veil.training.process_group import ProcessGroup

METHODS = ("dp-sgd", "asc", "ino-sgd", "fdpg", "adaptive-clip", "dpsur", "text-dp-sgd", "text-asc")
ROOT = Path(__file__).parents[2]
WORKER = ["-m", "tests.training.process_group_worker"]


NO_CONNECTION = (b"connectFullMesh", b"EADDRINUSE", b"DistNetworkError", b"rendezvous")
# torch's own threads may abort a process at its very end; the other processes are then stopped wherever they are.
ABORTED = b"terminate called without an active exception"


def finish(out: Path, processes: int, methods: tuple[str, ...], resume: bool = False) -> None:
    """A run that ends well; once more where the machine gave no connection, or torch aborted a process at its end."""
    for _ in range(3):
        done = launched(out, processes, methods, resume=resume)
        if done.returncode == 0 or not any(sign in done.stderr for sign in (*NO_CONNECTION, ABORTED)):
            break
        if ABORTED in done.stderr and all((out / f"{name}-0.pt").exists() for name in methods):
            return
        if not resume:
            rmtree(out)
    assert done.returncode == 0, done.stderr.decode()[-8000:]


def launched(
    out: Path, processes: int, methods: tuple[str, ...], dying: int = -1, resume: bool = False, edited: int = -1
) -> subprocess.CompletedProcess[bytes]:
    out.mkdir(exist_ok=True)
    words = [str(out), ",".join(methods), str(dying), "resume" if resume else "start", str(edited)]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    if processes == 1:
        command = [sys.executable]
    # One group at a time: two that start at once may choose the same free port.
    with (Path(gettempdir()) / "veil-process-groups.lock").open("w") as lock:
        flock(lock, LOCK_EX)
        return subprocess.run(
            [*command, *WORKER, *words],
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
            cwd=ROOT,
            capture_output=True,
            timeout=240,
            check=False,
        )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    @cache
    def made(processes: int) -> Path:
        out: Path = tmp_path_factory.mktemp(f"of-{processes}")
        finish(out, processes, METHODS)
        return out

    return {processes: made(processes) for processes in (1, 2, 4)}


def weights(path: Path) -> torch.Tensor:
    state = torch.load(path, weights_only=True)
    return torch.cat([value.reshape(-1) for value in state.values()])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("processes", [2, 4])
def test_a_group_gives_the_same_model_and_the_same_promise(runs: dict[int, Path], method: str, processes: int) -> None:
    alone, together = runs[1], runs[processes]
    expected = weights(alone / f"{method}-0.pt")
    # Each process pads its own share: masked places change the order of sums, so the last bits.
    error = 1e-5 if method.startswith("text-") else 1e-6
    for rank in range(processes):
        torch.testing.assert_close(weights(together / f"{method}-{rank}.pt"), expected, rtol=error, atol=error)
    assert "certificate.json" in {path.name for path in (together / method).iterdir()}
    promise = [json.loads((place / method / "certificate.json").read_text()) for place in (alone, together)]
    # What fdpg spends follows released values, whose last bits depend on the order of a sum; its promise does not.
    spent = [one.pop("spent_by_group") for one in promise]
    assert spent[0] == pytest.approx(spent[1], rel=1e-6)
    checks = [one.pop("ledger_check") for one in promise]
    assert checks[0] == checks[1] or method == "fdpg"
    assert promise[0] == promise[1]


@pytest.mark.parametrize(("dying", "then"), [(0, 1), (1, 3)])
def test_a_process_that_dies_ends_the_run_and_it_goes_on_with_another_number(
    tmp_path: Path, runs: dict[int, Path], dying: int, then: int
) -> None:
    assert launched(tmp_path / "cut", 2, ("asc",), dying).returncode != 0
    assert not (tmp_path / "cut" / "asc" / "certificate.json").exists()
    finish(tmp_path / "cut", then, ("asc",), resume=True)
    found = weights(tmp_path / "cut" / "asc-0.pt")
    torch.testing.assert_close(found, weights(runs[1] / "asc-0.pt"), rtol=1e-6, atol=1e-6)
    ledgers = [(place / "asc" / "ledger.jsonl").read_bytes() for place in (runs[1], tmp_path / "cut")]
    assert ledgers[0] == ledgers[1]


@pytest.mark.parametrize("edited", [0, 1])
def test_a_process_with_other_rows_is_refused(tmp_path: Path, edited: int) -> None:
    """Each process reads its own share: one that has other rows would put them under the noise of the run."""
    found = launched(tmp_path / "start", 2, ("dp-sgd",), edited=edited)
    assert found.returncode != 0
    assert b"in process 1 the rows differ from process 0." in found.stderr
    assert not (tmp_path / "start" / "dp-sgd" / "ledger.jsonl").exists(), "nothing was reserved"
    said = b"Cannot resume: the rows differ from the original run"
    assert launched(tmp_path / "cut", 2, ("dp-sgd",), dying=1).returncode != 0
    found = launched(tmp_path / "cut", 2, ("dp-sgd",), resume=True, edited=edited)
    assert found.returncode != 0
    assert said in found.stderr
    finish(tmp_path / "cut", 2, ("dp-sgd",), resume=True)


def test_the_command_line_trains_in_a_process_group(tmp_path: Path) -> None:
    rows = "".join(f"{i % 7 - 3},{'fm'[i % 2]},{'no' if i % 7 < 3 else 'yes'}\n" for i in range(600))
    (tmp_path / "people.csv").write_text("a,sex,rich\n" + rows)
    words = [str(tmp_path / "people.csv"), "--target", "rich", "--group", "sex", "--model", "logistic", "--seed", "1"]
    words += ["--epochs", "2", "--batch-size", "50", "--private-preprocessing", "0.1", "--json"]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    answers = []
    for name, launcher in (("one", []), *[("two", torchrun)] * 3):
        if len(answers) == 2:
            break
        rmtree(tmp_path / name, ignore_errors=True)
        found = subprocess.run(
            [sys.executable, *launcher, "-m", "veil.cli", "train", *words, "--out", str(tmp_path / name)],
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        if ABORTED.decode() in found.stderr:
            continue
        assert found.returncode == 0, found.stderr
        answers.append(json.loads(found.stdout))
    assert answers[0]["metrics"] == answers[1]["metrics"]
    assert answers[0]["privacy"] == answers[1]["privacy"]
    for name in ("ledger.jsonl", "preprocessing.jsonl", "evaluation.jsonl", "certificate.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_process_alone_is_a_group_of_one_that_leads_and_agrees_with_itself() -> None:
    one = ProcessGroup.joined()
    assert (one.rank, one.size, one.alone, one.leads) == (0, 1, True, True)
    assert one.told(b"said") == b"said"
    assert one.told(None) is None
    assert [one.all(holds) for holds in (True, False)] == [True, False]
    assert one.own(np.array([0, 5, 9]), total=10).tolist() == [0, 1, 2]
