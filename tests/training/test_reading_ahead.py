"""Rows are read ahead within what is reserved, and nobody could tell from the result."""

from __future__ import annotations

import multiprocessing
import os
import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import veil
from veil.accounting import Ledger
from veil.errors import InputError
from veil.foundation.randomness import Seed
from veil.problem import Problem
from veil.problem.rows import ItemRows
from veil.sampling import Sampler
from veil.tables.images import ImageFiles, image_problem
from veil.training import reading_ahead, reservations
from veil.training.callbacks import Callback, StepReport
from veil.training.reading_ahead import ReadAhead

ROWS = 60
CLASSES = [row % 2 for row in range(ROWS)]
SETTINGS: dict[str, Any] = {"method": "dp-sgd", "epsilon": 2.0, "steps": 8, "batch_size": 6, "seed": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pillow = pytest.importorskip("PIL.Image")
    place, pixels = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for row, kind in enumerate(CLASSES):
        path = place / f"class-{kind}" / f"{row}.png"
        path.parent.mkdir(exist_ok=True)
        pillow.fromarray(pixels.integers(0, 255, (6, 6, 3), dtype=np.uint8)).save(path)
    return place


class Shaken(Dataset[tuple[Tensor, int]]):
    """Items with random numbers of all kinds; one of them cannot be read, or kills who reads it."""

    def __init__(self, broken: int | None = None, deadly: int | None = None) -> None:
        self.broken, self.deadly, self.own = broken, deadly, os.getpid()

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        if row == self.broken:
            raise OSError("unreadable")
        if row == self.deadly and os.getpid() != self.own:
            os._exit(1)
        drawn = [random.random(), float(np.random.rand()), float(torch.rand(()))]  # noqa: NPY002
        return torch.tensor([float(row) / ROWS, *drawn]), CLASSES[row]


def images(folder: Path) -> Problem:
    return image_problem(folder, in_memory=False)


def shaken(workers: int, **how: int) -> Problem:
    return Problem.from_dataset(Shaken(**how), CLASSES, targets=CLASSES, workers=workers)


def weights(problem: Problem, inputs: int, **more: Any) -> Tensor:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(inputs, 4), nn.Dropout(), nn.Linear(4, 2))
    veil.fit(model, problem, **{**SETTINGS, **more})
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def left_over() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("veil-rows")] + [
        str(child) for child in multiprocessing.active_children()
    ]


@pytest.mark.parametrize("method", ["dp-sgd", "asc"])
def test_no_row_is_read_of_a_step_that_is_not_reserved(
    method: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserved, read, samplers = [0], list[tuple[int, int]](), list[Sampler]()
    reserve, read_file, follow = Ledger.reserve, ImageFiles.__getitem__, ReadAhead.follow

    def reserving(self: Ledger, purpose: str, first: int, count: int, events: Any) -> int:
        if purpose == "gradient":
            reserved[0] = first + count
        return reserve(self, purpose, first, count, events)

    def reading(self: ImageFiles, row: int) -> Tensor:
        read.append((reserved[0], row))
        return read_file(self, row)

    def following(self: ReadAhead, sampler: Sampler, step: int, until: int) -> None:
        samplers.append(sampler)
        follow(self, sampler, step, until)

    problem = images(folder)
    monkeypatch.setattr(reservations, "RESERVED_AT_ONCE", 3)
    monkeypatch.setattr(Ledger, "reserve", reserving)
    monkeypatch.setattr(ImageFiles, "__getitem__", reading)
    monkeypatch.setattr(ReadAhead, "follow", following)
    monkeypatch.setattr(reading_ahead, "_EACH", 100)  # as far as it may
    if method == "asc":  # which reads all rows for losses too
        monkeypatch.setattr("veil.training.loop.Loop._losses", lambda self, rows: torch.ones(len(rows)))
    weights(problem, 108, method=method, steps=9)
    seed, used, ahead = Seed.from_int(3), list[set[int]](), 0
    for step in range(9):
        used.append(set(samplers[step].draw(seed, step).tolist()))
    for until, row in read:
        assert row in set().union(*used[:until]), f"row {row} was read when {until} steps were reserved"
        ahead += row not in used[0]
    assert ahead
    assert len(read) == sum(map(len, used)), "each row of a step is read once, and none in vain"


def test_the_weights_are_the_same_with_and_without(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, plain = weights(images(folder), 108), weights(shaken(0), 4)
    assert torch.equal(weights(shaken(2), 4), plain)
    assert torch.equal(
        weights(shaken(1), 4, steps=8, micro_batch=2, method="asc"), weights(shaken(0), 4, method="asc", micro_batch=2)
    )
    monkeypatch.setattr("veil.training.loop.read_ahead", lambda *_: None)
    assert torch.equal(weights(images(folder), 108), files)


def test_a_session_reads_ahead_and_gives_what_fit_gives() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    session = veil.session(model, shaken(1), **SETTINGS)
    for rows, targets in session:
        session.step(nn.functional.cross_entropy(model(rows), targets, reduction="none"))
    torch.manual_seed(0)
    other = nn.Linear(4, 2)
    veil.fit(other, shaken(0), **SETTINGS)
    assert torch.equal(model.weight, other.weight)
    assert not left_over()


def test_a_row_that_cannot_be_read_ends_the_step_that_needs_it() -> None:
    steps = list[int]()

    class Note(Callback):
        def on_step(self, report: StepReport) -> None:
            steps.append(report.step)

    said = "Row 17 of the data set cannot be read"
    with pytest.raises(InputError, match=said):
        weights(shaken(0, broken=17), 4, steps=40, callbacks=[Note()])
    alone = steps[:]
    steps.clear()
    with pytest.raises(InputError, match=said):
        weights(shaken(2, broken=17), 4, steps=40, callbacks=[Note()])
    assert steps == alone
    assert not left_over()


def test_a_worker_that_dies_is_named() -> None:
    with pytest.raises(InputError, match="use fewer workers"):
        weights(shaken(1, deadly=17), 4, steps=40)
    assert not left_over()


@pytest.mark.parametrize("workers", [0, 1])
def test_an_interrupt_ends_what_reads_ahead(workers: int, folder: Path) -> None:
    class Stop(Callback):
        def on_step(self, report: StepReport) -> None:
            assert left_over()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        weights(shaken(1) if workers else images(folder), 4 if workers else 108, callbacks=[Stop()])
    assert not left_over()


def test_batches_for_a_gpu_are_pinned(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = list[Tensor]()
    monkeypatch.setattr(Tensor, "pin_memory", lambda part: pinned.append(part) or part)
    source, seed = images(folder).source, Seed.from_int(0)
    assert isinstance(source, ItemRows)
    ahead = reading_ahead.ReadAhead(source, seed, pinned=True)
    problem = images(folder)
    from veil.sampling import PoissonSampler

    sampler = PoissonSampler.uniform(problem.strata(), 0.3)
    ahead.follow(sampler, 0, 2)
    ahead.follow(sampler, 1, 2)
    rows = sampler.draw(seed, 1)
    assert torch.equal(ahead.take(rows), source.take(rows))
    assert len(pinned) == 1
    ahead.close()


def test_workers_are_for_rows_alone() -> None:
    with pytest.raises(InputError, match="workers is -1"):
        shaken(-1)
    with pytest.raises(InputError, match="rows of people are not read ahead"):
        Problem.from_dataset(Shaken(), CLASSES, people=list(range(ROWS)), workers=1)
