"""One process, two and four give the same run; a process that dies costs nothing and the run goes on with others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from shutil import rmtree
from subprocess import PIPE
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from tests.launching import NO_CONNECTION, ROOT, TRIES, finished
from tests.methods.method_cases import small_problem
from tests.program import Program
from tests.training.process_group_worker import METHODS, Start
from veil import methods
from veil.accounting import Relation
from veil.bounding import Clip
from veil.foundation.randomness import Seed
from veil.foundation.row_draws import end_steps
from veil.gradients import GradientEngine
from veil.problem import Problem
from veil.releases import GradientRelease
from veil.sampling.draws import Poisson
from veil.training import process_group
from veil.training.loop import Loop
from veil.training.losses import row_losses
from veil.training.process_group import ProcessGroup

Group = Callable[..., tuple[list[int], str]]


@pytest.fixture(scope="module")
def group() -> Iterator[Group]:
    """Start a group of processes: their exit codes, and what they said."""
    words = [sys.executable, "-m", "tests.training.process_group_worker"]
    about = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with subprocess.Popen(words, stdin=PIPE, stdout=PIPE, text=True, cwd=ROOT, env=about) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None

        def started(out: Path, methods: tuple[str, ...], processes: int, **more: Any) -> tuple[list[int], str]:
            for _ in range(TRIES):
                print(json.dumps(asdict(Start(str(out), methods, processes, **more))), file=worker.stdin, flush=True)
                answer = json.loads(worker.stdout.readline())
                if not any(sign in answer["errors"] for sign in NO_CONNECTION):
                    break
                if not more.get("resume"):
                    rmtree(out, ignore_errors=True)
            return answer["codes"], answer["errors"]

        yield started
        worker.stdin.close()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, group: Group) -> dict[int, Path]:
    made = {processes: tmp_path_factory.mktemp(f"of-{processes}") for processes in (1, 2, 4)}
    for processes, out in made.items():
        codes, said = group(out, METHODS, processes)
        assert codes == [0] * processes, said
    return made


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
    # The certificate names the exact weights, whose last bits depend on the order of a sum.
    assert all(one.pop("model")["weights"].startswith("sha256:") for one in promise)
    assert promise[0] == promise[1]


@pytest.mark.parametrize(("dying", "then"), [(0, 1), (1, 3)])
def test_a_process_that_dies_ends_the_run_and_it_goes_on_with_another_number(
    tmp_path: Path, runs: dict[int, Path], group: Group, dying: int, then: int
) -> None:
    codes, said = group(tmp_path / "cut", ("asc",), 2, dying=dying)
    assert codes[dying] == 9, said
    assert codes[1 - dying] != 0
    assert not (tmp_path / "cut" / "asc" / "certificate.json").exists()
    codes, said = group(tmp_path / "cut", ("asc",), then, resume=True)
    assert codes == [0] * then, said
    found = weights(tmp_path / "cut" / "asc-0.pt")
    torch.testing.assert_close(found, weights(runs[1] / "asc-0.pt"), rtol=1e-6, atol=1e-6)
    ledgers = [(place / "asc" / "ledger.jsonl").read_bytes() for place in (runs[1], tmp_path / "cut")]
    assert ledgers[0] == ledgers[1]


@pytest.mark.parametrize("edited", [0, 1])
def test_a_process_with_other_rows_is_refused(tmp_path: Path, group: Group, edited: int) -> None:
    """Each process reads its own share: one that has other rows would put them under the noise of the run."""
    codes, said = group(tmp_path / "start", ("dp-sgd",), 2, edited=edited)
    assert 0 not in codes
    assert "in process 1 the rows differ from process 0." in said
    assert not (tmp_path / "start" / "dp-sgd" / "ledger.jsonl").exists(), "nothing was reserved"
    codes, said = group(tmp_path / "cut", ("dp-sgd",), 2, dying=1)
    assert codes[1] == 9, said
    codes, said = group(tmp_path / "cut", ("dp-sgd",), 2, resume=True, edited=edited)
    assert 0 not in codes
    assert "Cannot resume: the rows differ from the original run" in said
    codes, said = group(tmp_path / "cut", ("dp-sgd",), 2, resume=True)
    assert codes == [0, 0], said


def test_the_command_line_trains_in_a_process_group(tmp_path: Path, veil: Program) -> None:
    rows = "".join(f"{i % 7 - 3},{'fm'[i % 2]},{'no' if i % 7 < 3 else 'yes'}\n" for i in range(600))
    (tmp_path / "people.csv").write_text("a,sex,rich\n" + rows)
    asked = ["train", str(tmp_path / "people.csv"), "--target", "rich", "--group", "sex"]
    asked += ["--model", "logistic", "--seed", "1", "--epochs", "2", "--batch-size", "50", "--json"]
    asked += ["--private-preprocessing", "0.1"]
    code, alone, said = veil(*asked, "--out", str(tmp_path / "one"))
    assert code == 0, said
    two = tmp_path / "two"
    done = finished(["-m", "veil.cli", *asked, "--out", str(two)], 2, lambda: rmtree(two, ignore_errors=True))
    answers = [json.loads(alone), json.loads(done.stdout)]
    assert answers[0]["metrics"] == answers[1]["metrics"]
    assert answers[0]["privacy"] == answers[1]["privacy"]
    for name in ("ledger.jsonl", "preprocessing.jsonl", "evaluation.jsonl"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    promise = [json.loads((tmp_path / place / "certificate.json").read_text()) for place in ("one", "two")]
    assert [set(one.pop("model")) for one in promise] == [{"weights", "preprocessing"}] * 2
    assert promise[0] == promise[1]


def test_a_process_reads_no_more_places_than_its_peoples_rows_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """One person with a hundred rows must not make a hundred places of everybody else."""
    monkeypatch.setattr(dist, "all_reduce", lambda values: None)
    monkeypatch.setattr(process_group, "_meeting_place", lambda: torch.device("cpu"))
    names = [*range(60), *[60] * 100]
    problem = Problem.from_arrays([[0.1]] * 160, [0, 1] * 80, people=names, rows_per_person=100).together()
    read: list[int] = []

    def loss(model: torch.nn.Module, batch: Any) -> torch.Tensor:
        (inputs, shares), targets = batch
        read.append(shares.numel())
        found = torch.nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), reduction="none")
        return (found.view(shares.shape) * shares).sum(1)

    release = GradientRelease(Poisson((1.0,)), Clip((1.0,)), 1.0, 1.0, Relation.ADD_REMOVE)
    engine, everybody = GradientEngine(torch.nn.Linear(1, 2), loss), np.arange(61)
    found = ProcessGroup(1, 2).bounded_sum(release, engine, problem, everybody)
    assert sum(read) <= 2 * 160
    assert len(found.weights) == 61


def test_processes_with_and_without_rows_exchange_numbers_of_one_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss in double precision: a process whose share of a batch is empty has never seen one."""
    sent: list[torch.Tensor] = []
    monkeypatch.setattr(dist, "all_reduce", lambda values: sent.append(values))
    monkeypatch.setattr(process_group, "_meeting_place", lambda: torch.device("cpu"))
    problem = Problem.from_arrays([[0.1]] * 20, [0, 1] * 10)

    def loss(model: torch.nn.Module, batch: Any) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none").double()

    release = GradientRelease(Poisson((1.0,)), Clip((1.0,)), 1.0, 1.0, Relation.ADD_REMOVE)
    engine = GradientEngine(torch.nn.Linear(1, 2), loss)
    found = [ProcessGroup(rank, 2).bounded_sum(release, engine, problem, np.arange(5)) for rank in (0, 1)]
    assert sent[0].dtype == sent[1].dtype
    assert found[0].per_row.losses.dtype == found[1].per_row.losses.dtype


def test_processes_draw_dropout_apart() -> None:
    """Rows at equal places of two processes would share a mask, and a removed row would change which rows do."""
    problem = small_problem()
    plan = methods.plan(problem, "dp-sgd", epsilon=1.0, steps=2, batch_size=12)
    drawn = []
    for group in (process_group.ALONE, ProcessGroup(0, 2), ProcessGroup(1, 2)):
        loop = Loop(torch.nn.Linear(4, 2), problem, plan, row_losses, Seed.from_int(1), None, processes=group)
        with torch.random.fork_rng(devices=[]):
            loop.prepare(0)
            drawn.append(torch.nn.functional.dropout(torch.ones(64)))
    end_steps()
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[1], drawn[2])


def test_a_process_alone_is_a_group_of_one_that_leads_and_agrees_with_itself() -> None:
    one = ProcessGroup.joined()
    assert (one.rank, one.size, one.alone, one.leads) == (0, 1, True, True)
    assert one.told(b"said") == b"said"
    assert one.told(None) is None
    assert [one.all(holds) for holds in (True, False)] == [True, False]
    assert one.own(np.array([0, 5, 9]), total=10).tolist() == [0, 1, 2]
