"""Rows are read ahead within what is reserved, and nobody could tell from the result."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import veil
from veil.accounting import Ledger
from veil.errors import InputError
from veil.foundation import row_draws
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


def images(folder: Path) -> Problem:
    return image_problem(folder, in_memory=False)


def weights(problem: Problem, inputs: int, **more: Any) -> Tensor:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(inputs, 4), nn.Dropout(), nn.Linear(4, 2))
    veil.fit(model, problem, **{**SETTINGS, **more})
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def left_over() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("veil-rows")]


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
    monkeypatch.setattr(reading_ahead, "_DEPTH", 100)  # as far as it may
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
    ways: list[dict[str, Any]] = [{}, {"method": "asc", "micro_batch": 2}]
    ahead = [weights(images(folder), 108, **how) for how in ways]
    monkeypatch.setattr("veil.training.loop.read_ahead", lambda *_: None)
    assert all(torch.equal(weights(images(folder), 108, **how), one) for how, one in zip(ways, ahead, strict=True))


def own_loop(problem: Problem, held: bool = False) -> Tensor:
    """The weights of a loop of one's own that writes into its batches; an iterator may be left behind."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(108, 2))
    session = veil.session(model, problem, **SETTINGS)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")

    old = iter(session) if held else None
    if old is not None:
        next(old)[0].mul_(0.5)
        session.step(loss)
    for step, (rows, _) in enumerate(session):
        if old is not None and step == 2:
            old.close()
            assert row_draws._STEP.get()()
        rows.mul_(0.5)
        session.step(loss)
    session.finish()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_a_batch_that_is_changed_in_place_is_read_again_as_it_was(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = own_loop(images(folder))
    monkeypatch.setattr("veil.training.loop.read_ahead", lambda *_: None)
    assert torch.equal(own_loop(images(folder)), ahead)


def test_an_old_iterator_takes_nothing_from_the_new_one(folder: Path) -> None:
    assert torch.equal(own_loop(images(folder), held=True), own_loop(images(folder)))


@pytest.mark.parametrize("end", ["finish", "close"])
def test_a_session_that_ends_reads_no_more_though_its_iterator_is_held(end: str, folder: Path) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(108, 2))
    session = veil.session(model, images(folder), **SETTINGS)
    batches = iter(session)
    rows, targets = next(batches)
    session.step(nn.functional.cross_entropy(model(rows), targets, reduction="none"))
    assert left_over()
    assert row_draws._STEP.get()()
    getattr(session, end)()
    assert not left_over()
    assert not row_draws._STEP.get()()
    assert next(batches, None) is None


def test_an_interrupt_ends_what_reads_ahead(folder: Path) -> None:
    class Stop(Callback):
        def on_step(self, report: StepReport) -> None:
            assert left_over()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        weights(images(folder), 108, callbacks=[Stop()])
    assert not left_over()


def test_a_file_that_cannot_be_read_ends_the_step_that_needs_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, read_file = list[int](), ImageFiles.__getitem__

    class Note(Callback):
        def on_step(self, report: StepReport) -> None:
            steps.append(report.step)

    def broken(self: ImageFiles, row: int) -> Tensor:
        if row == 17:
            raise OSError("unreadable")
        return read_file(self, row)

    problem = images(folder)
    monkeypatch.setattr(ImageFiles, "__getitem__", broken)
    found = []
    for _ in range(2):
        with pytest.raises(InputError, match="Row 17 of the data set cannot be read"):
            weights(problem, 108, steps=40, callbacks=[Note()])
        found.append(steps[:])
        steps.clear()
        assert not left_over()
        monkeypatch.setattr("veil.training.loop.read_ahead", lambda *_: None)
    assert found[0] == found[1]


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


def test_items_of_a_data_set_of_others_are_not_read_ahead() -> None:
    items = [(torch.ones(3) * row, kind) for row, kind in enumerate(CLASSES)]
    assert reading_ahead.read_ahead(Problem.from_dataset(items), Seed.from_int(0)) is None
