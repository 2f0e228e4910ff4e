"""Groups of processes, one after another, forked from one process that has imported everything once.

`python -m tests.training.process_group_worker`: each line of standard input is a `Start` as JSON, answered by one line
of JSON: the exit code of each process and what they wrote to standard error. How a user starts a group is torchrun,
which the test of the command line and the examples use.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import sys
import tempfile
import time
import weakref
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import Dataset

from tests.methods.method_cases import small_problem
from tests.training.small_models import WORDS, Encoder
from veil.plans import Settings
from veil.problem import Problem
from veil.training import Augmented, Callback, StepReport, fit
from veil.training.losses import row_losses
from veil.training.process_group import ProcessGroup

METHODS = (
    "dp-sgd",
    "asc",
    "ino-sgd",
    "fdpg",
    "adaptive-clip",
    "dpsur",
    "text-dp-sgd",
    "text-asc",
    "people-dp-sgd",
    "views-dp-sgd",
)
SETTINGS = Settings.checked(
    epsilon=1.0,
    delta=1e-4,
    steps=24,
    # On one of four processes some batches have no row at all.
    batch_size=12,
    seed=5,
    checkpoint_every=5,
)
# What the others may take to notice that one has died.
NOTICE = 20.0


@dataclass(frozen=True)
class Start:
    """What a group does.

    `methods` are names, or `text-NAME` for sentences of different lengths, `people-NAME` for people with different
    numbers of rows and `views-NAME` for random views of a data set with random transforms, in place of a table.

    `dying` is the rank that ends without a word; `edited` the rank whose copy of the rows has another number in it.
    """

    out: str
    methods: tuple[str, ...]
    processes: int
    dying: int = -1
    edited: int = -1
    resume: bool = False


class Dies(Callback):
    """Ends the process without a word."""

    def on_step(self, report: StepReport) -> None:
        if report.step == 13:
            os._exit(9)


def sentences() -> Problem:
    """Rows of words of different lengths."""
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(1, WORDS, (2 + row % 6,), generator=generator) for row in range(120)]
    return Problem.from_arrays({"input_ids": rows}, [int(row[0]) % 2 for row in rows], ["a", "b", "b"] * 40)


def people() -> Problem:
    """People with one to twelve rows each, of two groups."""
    rows, generator = small_problem(rows=480, spread=1.0), torch.Generator().manual_seed(1)
    names = torch.repeat_interleave(torch.arange(480), torch.randint(1, 13, (480,), generator=generator))[:480]
    groups = ["b" if name % 3 else "a" for name in names.tolist()]
    return Problem.from_arrays(rows.inputs, rows.targets, groups, people=names, rows_per_person=12)


def shaken(rows: torch.Tensor) -> torch.Tensor:
    """Random views, by generators of torch, numpy and Python."""
    of_numpy = float(np.random.rand())  # noqa: NPY002 (as transforms do)
    return rows * (1 + 0.3 * random.random()) + 0.3 * of_numpy + 0.3 * torch.randn_like(rows)


class Shaken(Dataset[tuple[torch.Tensor, int]]):
    """The rows of a table, each somewhat different whenever it is read."""

    def __init__(self, rows: Problem) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        return shaken(self.rows.inputs[row]), int(self.rows.targets[row])


def train(start: Start) -> None:
    """What each process of the group does."""
    out = Path(start.out)
    processes = ProcessGroup.joined()
    rank = processes.rank
    problem = small_problem(spread=1.0)
    if rank == start.edited:
        problem.inputs[200, 1] += 1.0
    for name in start.methods:
        torch.manual_seed(rank)  # processes that begin with other weights must end with the same
        text = name.startswith("text-")
        views = name.startswith("views-")
        rows = {"text": sentences, "people": people, "views": lambda: Problem.from_dataset(Shaken(problem))}
        model = (
            Encoder() if text else torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
        )
        run = fit(
            model,
            rows.get(name.partition("-")[0], lambda: problem)(),
            method=name.removeprefix("text-").removeprefix("people-").removeprefix("views-"),
            loss=Augmented(row_losses, shaken, views=2) if views else row_losses,
            out=out / name,
            resume=start.resume,
            callbacks=[Dies()] if rank == start.dying else [],
            **SETTINGS.model_dump(),
        )
        assert run.certificate.private
        torch.save(model.state_dict(), out / f"{name}-{rank}.pt")
    if not processes.alone:
        group = weakref.ref(dist.group.WORLD)
        dist.destroy_process_group()
        assert group() is None, "threads of a group that somebody still holds may abort the process at its end"


def forked(start: Start, rank: int, port: int, errors: int) -> int:
    """One process of the group; its standard error goes to the file `errors`."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.dup2(errors, 2)
            if start.processes > 1:
                about = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": start.processes, "MASTER_PORT": port}
                os.environ.update({name: str(value) for name, value in about.items()}, MASTER_ADDR="localhost")
            train(start)
            code = 0
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(code)
    return pid


def answered(start: Start) -> dict[str, object]:
    """Exit codes of the processes; those that run on some time after one has failed are ended, as torchrun does."""
    Path(start.out).mkdir(exist_ok=True)
    with socket.socket() as asked:
        asked.bind(("localhost", 0))
        port = asked.getsockname()[1]
    with tempfile.TemporaryFile() as errors:
        alive = {forked(start, rank, port, errors.fileno()): rank for rank in range(start.processes)}
        codes, limit = [0] * start.processes, float("inf")
        while alive:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid:
                rank = alive.pop(pid)
                codes[rank] = os.waitstatus_to_exitcode(status)
                limit = min(limit, time.monotonic() + NOTICE) if codes[rank] else limit
            elif time.monotonic() > limit:
                limit = float("inf")
                for left in alive:
                    os.kill(left, signal.SIGKILL)
            else:
                time.sleep(0.01)
        errors.seek(0)
        return {"codes": codes, "errors": errors.read().decode()}


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        # What it imports and accounts is then there for every process that is forked.
        train(Start(folder, METHODS, 1))
    for line in sys.stdin:
        print(json.dumps(answered(Start(**json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()
