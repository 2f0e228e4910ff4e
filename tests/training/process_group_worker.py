"""What each process of a group runs in the tests.

`torchrun -m tests.training.process_group_worker OUT METHODS DYING_RANK start|resume EDITED`.

METHODS are names, or `text-NAME` for sentences of different lengths and `people-NAME` for people with different numbers
of rows in place of a table.

EDITED is the rank whose copy of the rows has another number in it.
"""

from __future__ import annotations

import os
import sys
import weakref
from pathlib import Path

import torch
import torch.distributed as dist

from tests.methods.method_cases import small_problem
from tests.training.small_models import WORDS, Encoder
from veil.problem import Problem
from veil.training import Callback, StepReport, fit
from veil.training.process_group import ProcessGroup


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


def main() -> None:
    out, names, dying, resume = Path(sys.argv[1]), sys.argv[2].split(","), int(sys.argv[3]), sys.argv[4] == "resume"
    torch.set_num_threads(1)
    processes = ProcessGroup.joined()
    rank = processes.rank
    problem = small_problem(spread=1.0)
    if rank == int(sys.argv[5]):
        problem.inputs[200, 1] += 1.0
    for name in names:
        torch.manual_seed(rank)  # processes that begin with other weights must end with the same
        text = name.startswith("text-")
        of_people = name.startswith("people-")
        model = (
            Encoder() if text else torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
        )
        run = fit(
            model,
            sentences() if text else people() if of_people else problem,
            method=name.removeprefix("text-").removeprefix("people-"),
            out=out / name,
            resume=resume,
            callbacks=[Dies()] if rank == dying else [],
            epsilon=1.0,
            delta=1e-4,
            steps=24,
            # On one of four processes some batches have no row at all.
            batch_size=12,
            seed=5,
            checkpoint_every=5,
        )
        assert run.certificate.private
        torch.save(model.state_dict(), out / f"{name}-{rank}.pt")
    if not processes.alone:
        group = weakref.ref(dist.group.WORLD)
        dist.destroy_process_group()
        assert group() is None, "threads of a group that somebody still holds may abort the process at its end"


if __name__ == "__main__":
    main()
