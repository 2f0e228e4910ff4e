"""Several views of a row are one row: averaged, then bounded once; the same views come again in a resumed run."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

import veil
from veil.errors import InputError
from veil.foundation.nested import tensors
from veil.foundation.randomness import Seed
from veil.foundation.row_draws import begin_step, end_steps, fingerprints
from veil.gradients import GradientEngine, GradientError
from veil.plans.plan import OWN_DRAWS
from veil.problem import Problem
from veil.problem.rows import Collate, sequence_paths
from veil.training import Augmented
from veil.training.callbacks import Callback
from veil.training.losses import Compared, as_row_losses
from veil.training.run_folder import LEDGER

ROWS = 48
GENERATOR = torch.Generator().manual_seed(0)
PROBLEM = Problem.from_arrays(
    torch.rand(ROWS, 1, 6, 6, generator=GENERATOR), torch.randint(0, 2, (ROWS,), generator=GENERATOR)
)
SETTINGS: dict[str, Any] = {"method": "dp-sgd", "epsilon": 1.0, "steps": 6, "batch_size": 12, "seed": 2}


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 2))


def shaken(images: Tensor) -> Tensor:
    flipped = torch.where(torch.rand(len(images), 1, 1, 1) < 0.5, images.flip(-1), images)
    return flipped + 0.1 * torch.randn_like(images)


class Kept:
    """A transform that remembers the views it made, in order."""

    def __init__(self, transform: Callable[[Tensor], Tensor] = shaken) -> None:
        self.transform, self.views = transform, list[Tensor]()

    def __call__(self, images: Tensor) -> Tensor:
        self.views.append(self.transform(images))
        return self.views[-1]


@pytest.mark.parametrize("views", [1, 2, 4])
@pytest.mark.parametrize("rows", [1, 4, 6])
def test_the_gradient_of_a_row_is_the_mean_over_its_views(views: int, rows: int) -> None:
    model, batch, kept = small(), PROBLEM.batch(np.arange(rows)), Kept()
    loss = as_row_losses(Augmented(F.cross_entropy, kept, views), model, PROBLEM)
    kept.views.clear()
    found = GradientEngine(model, loss).gradients(batch)
    seen = torch.cat(kept.views)[: rows * views].view(rows, views, 1, 6, 6)
    assert len(seen.flatten(0, 1).unique(dim=0)) == rows * views, "every view is another one"
    for row in range(rows):
        targets = batch[1][row].expand(views)
        wanted = torch.autograd.grad(F.cross_entropy(model(seen[row]), targets), list(model.parameters()))
        for (name, _), gradient in zip(model.named_parameters(), wanted, strict=True):
            assert torch.allclose(found[name][row], gradient, atol=1e-6), name


def weights(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


class Stop(Callback):
    def on_step(self, report: Any) -> None:
        if report.step == 3:
            raise RuntimeError("cut short")


def test_views_differ_from_step_to_step_and_are_the_same_in_a_resumed_run(tmp_path: Path) -> None:
    loss, settings = Augmented(F.cross_entropy, shaken, views=3), {**SETTINGS, "checkpoint_every": 1}
    undisturbed, resumed = small(), small()
    veil.fit(undisturbed, PROBLEM, loss=loss, **settings)
    with pytest.raises(RuntimeError, match="cut short"):
        veil.fit(small(), PROBLEM, loss=loss, out=tmp_path / "run", callbacks=[Stop()], **settings)
    with pytest.raises(InputError, match="the loss differs"):
        veil.fit(
            small(), PROBLEM, loss=Augmented(F.cross_entropy, shaken, 2), out=tmp_path / "run", resume=True, **settings
        )
    veil.fit(resumed, PROBLEM, loss=loss, out=tmp_path / "run", resume=True, **settings)
    assert torch.equal(weights(undisturbed), weights(resumed))
    plain = small()
    veil.fit(plain, PROBLEM, loss=F.cross_entropy, **settings)
    assert not torch.allclose(weights(plain), weights(resumed))


class Shaken(Dataset[dict[str, Any]]):
    """A data set whose transform draws random numbers of torch for every item."""

    def __init__(self, by: float = 0.3) -> None:
        self.by = by

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"input": PROBLEM.batch(np.array([row]))[0][0] + self.by * torch.randn(()), "label": row % 2}


def test_random_transforms_of_a_data_set_are_the_same_in_a_resumed_run(tmp_path: Path) -> None:
    settings = {**SETTINGS, "loss": F.cross_entropy, "checkpoint_every": 1}
    undisturbed, resumed, plain = small(), small(), small()
    rows = Problem.from_dataset(Shaken())
    veil.fit(undisturbed, rows, **settings)
    with pytest.raises(RuntimeError, match="cut short"):
        veil.fit(small(), rows, out=tmp_path / "run", callbacks=[Stop()], **settings)
    veil.fit(resumed, Problem.from_dataset(Shaken()), out=tmp_path / "run", resume=True, **settings)
    assert torch.equal(weights(undisturbed), weights(resumed))
    veil.fit(plain, Problem.from_dataset(Shaken(0.0)), **settings)
    assert not torch.allclose(weights(plain), weights(resumed))


def of_all(images: Tensor) -> Tensor:
    """Random numbers of torch, numpy and Python."""
    of_numpy = float(np.random.rand())  # noqa: NPY002 (as transforms do)
    return images * (1 + 0.1 * random.random()) + 0.1 * of_numpy + 0.1 * torch.randn_like(images)


class Drawing(Dataset[tuple[Tensor, int]]):
    """A data set whose transform takes its random numbers from wherever it can."""

    def __init__(self, transform: Callable[[Tensor], Tensor] = of_all) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return self.transform(PROBLEM.batch(np.array([row]))[0])[0], row % 2


@pytest.mark.parametrize("method", ["dp-sgd", "ino-sgd"])
def test_micro_batches_have_the_views_of_the_whole_batch(method: str) -> None:
    """ino-sgd weighs rows by each other, so its micro-batches take two rounds."""
    trained = []
    for micro_batch in (None, 4):
        model, settings = small(), {**SETTINGS, "method": method, "micro_batch": micro_batch}
        veil.fit(model, Problem.from_dataset(Drawing()), loss=Augmented(F.cross_entropy, of_all, views=2), **settings)
        trained.append(weights(model))
    torch.testing.assert_close(trained[0], trained[1], rtol=1e-5, atol=1e-6)


def views_of(rows: NDArray[np.int64], problem: Problem, loss: Any) -> dict[int, Tensor]:
    """The inputs that a model is given for each row, by its number."""
    given: list[Tensor] = []

    class Watch(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            given.append(images.clone())
            return images.flatten(1)[:, :2]

    loss(Watch(), problem.batch(rows))
    return dict(zip(rows.tolist(), given[0].unflatten(0, (len(rows), -1)), strict=True))


SOURCES = {
    "tensor": PROBLEM,
    "data set": Problem.from_dataset(Drawing()),
    "function of an item": Problem.from_dataset(
        TensorDataset(PROBLEM.inputs, PROBLEM.targets), inputs=lambda item: of_all(item[0][None])[0]
    ),
}


@pytest.mark.parametrize("rows", SOURCES.values(), ids=SOURCES)
def test_a_row_that_is_taken_out_leaves_the_views_of_the_others_as_they_were(rows: Problem) -> None:
    loss = Augmented(Compared(partial(F.cross_entropy, reduction="none")), of_all, views=2)
    begin_step(Seed.from_int(3), 4)
    whole = views_of(np.arange(12), rows, loss)
    without = views_of(np.delete(np.arange(12), 5), rows, loss)
    begin_step(Seed.from_int(3), 5)
    later = views_of(np.arange(12), rows, loss)
    end_steps()
    assert sorted(without) == [row for row in whole if row != 5]
    for row, views in without.items():
        assert torch.equal(views, whole[row])
        assert not torch.equal(views, later[row])


def test_views_leave_the_generators_where_they_stood() -> None:
    batch = Problem.from_dataset(Drawing()).batch(np.arange(6))
    torch.manual_seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002 (as transforms do)
    Augmented(lambda model, batch: batch[0].flatten(1).sum(1), of_all, views=2)(nn.Identity(), batch)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (np.random.get_state()[1].tolist(), random.getstate())  # noqa: NPY002 (as transforms do)


class Hidden:
    """A transform with a generator of its own."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(0)

    def __call__(self, images: Tensor) -> Tensor:
        return images + float(self.generator.normal())


class HiddenModel(nn.Sequential):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images * (1 + np.random.rand()))  # noqa: NPY002 (as transforms do)


@pytest.mark.parametrize("transform", [Hidden(), of_all], ids=["own generator", "common generators"])
def test_a_data_set_with_a_generator_of_its_own_is_named_on_the_certificate(transform: Any) -> None:
    rows = Problem.from_dataset(Drawing(transform))
    run = veil.fit(small(), rows, loss=F.cross_entropy, **SETTINGS)
    assert (OWN_DRAWS in run.certificate.not_covered) == isinstance(transform, Hidden)


def test_a_data_set_that_draws_for_some_rows_alone_is_named_too() -> None:
    hidden = np.random.default_rng(0)
    items = Drawing(of_all)
    late = [row for row in range(len(items)) if row > 0.9 * len(items)]
    rows = Problem.from_dataset(Sometimes(items, late, hidden))
    assert rows.own_draws
    assert not Problem.from_dataset(items).own_draws


class Sometimes:
    """Draws from a generator of its own for some rows."""

    def __init__(self, items: Any, rows: list[int], hidden: np.random.Generator) -> None:
        self.items, self.rows, self.hidden = items, rows, hidden

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, row: int) -> Any:
        found = self.items[row]
        return (found[0] + float(self.hidden.normal()), *found[1:]) if row in self.rows else found


def test_a_run_over_a_data_set_with_a_generator_of_its_own_is_not_resumed(tmp_path: Path) -> None:
    settings = {**SETTINGS, "loss": F.cross_entropy, "checkpoint_every": 1, "out": tmp_path / "run"}
    with pytest.raises(RuntimeError, match="cut short"):
        veil.fit(small(), Problem.from_dataset(Drawing(Hidden())), callbacks=[Stop()], **settings)
    before = (tmp_path / "run" / LEDGER).read_bytes()
    with pytest.raises(InputError, match="the same noise on other values"):
        veil.fit(small(), Problem.from_dataset(Drawing(Hidden())), resume=True, **settings)
    assert (tmp_path / "run" / LEDGER).read_bytes() == before


class Subclass(TensorDataset):
    def __getitem__(self, row: int) -> tuple[Tensor, ...]:
        images, target = super().__getitem__(row)
        return of_all(images), target


class Lazy(dict[str, Any]):
    """An item that makes its values up when it is asked."""

    def __getitem__(self, key: str) -> Any:
        found = super().__getitem__(key)
        return of_all(found) if key == "input" else found


def drawn_together(items: list[Any]) -> Tensor:
    return of_all(torch.stack(items))


PAIRS = list(zip(PROBLEM.inputs, PROBLEM.targets.tolist(), strict=True))
RANDOM_SOURCES: dict[str, Callable[[], Problem]] = {
    "function of a pair": lambda: Problem.from_dataset(PAIRS, inputs=lambda item: of_all(item[0])),
    "subclass of TensorDataset": lambda: Problem.from_dataset(Subclass(PROBLEM.inputs, PROBLEM.targets)),
    "items that draw": lambda: Problem.from_dataset([Lazy(input=image, label=label) for image, label in PAIRS]),
    "collate": lambda: Problem.from_dataset(PAIRS, collate=drawn_together),
}


@pytest.mark.parametrize("source", RANDOM_SOURCES.values(), ids=RANDOM_SOURCES)
def test_whatever_draws_for_a_batch_draws_the_same_when_its_step_is_repeated(source: Callable[[], Problem]) -> None:
    rows, found = source(), []
    for step in (4, 4, 5):
        begin_step(Seed.from_int(3), step)
        found.append(next(tensors(rows.batch(np.arange(8))[0])))
        of_all(torch.zeros(1))  # the generators go on in between
    end_steps()
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


class Mean(nn.Module):
    """The scores of a mean over real places."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, inputs: tuple[Tensor, Tensor]) -> Tensor:
        places, real = inputs
        return self.layer((places * real[..., None]).sum(1) / real.sum(1, keepdim=True))


def by_length(inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Looks at the padded length, rarely."""
    return (inputs[0] * inputs[0].shape[1], inputs[1]) if random.random() < 0.25 else inputs


def cut(inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Leaves the last place out."""
    return inputs[0][:, :-1], inputs[1][:, :-1]


@pytest.mark.parametrize("transform", [by_length, cut])
@pytest.mark.parametrize("pad", [True, 70])
def test_a_transform_cannot_see_how_far_its_batch_is_padded(transform: Any, pad: bool | int) -> None:
    generator = torch.Generator().manual_seed(1)
    items = [(torch.randn(length, 3, generator=generator), int(length < 9)) for length in [4] * 60 + [60]]
    problem = Problem.from_dataset(items, pad=pad)
    torch.manual_seed(0)
    engine = GradientEngine(model := Mean(), as_row_losses(Augmented(F.cross_entropy, transform), model, problem))

    def total(rows: int) -> Tensor:
        begin_step(Seed.from_int(9), 0)
        found = engine.weighted_sum(problem.batch(np.arange(rows)), lambda part: (1 / part.norms).clamp(max=1)).sums[0]
        end_steps()
        return torch.cat([values.flatten() for values in found.values()])

    assert float((total(61) - total(60)).norm()) <= 1 + 1e-4


@pytest.mark.parametrize("session", [False, True])
def test_a_transform_inside_a_loss_of_ones_own_sees_no_padding_either(session: bool) -> None:
    items = [(torch.ones(length, 3), length % 2) for length in (2, 5, 3, 4) * 5]
    problem, seen = Problem.from_dataset(items, pad=True), list[tuple[int, int]]()

    def noted(row: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        if bool(((row[0] == 1) | (row[0] == 0)).all()):  # a row, not a synthetic one
            seen.append((row[0].shape[1], int(row[1].sum())))
        return row

    def compared(model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

    def own(model: nn.Module, batch: Any) -> Tensor:
        return Augmented(compared, noted)(model, batch)

    if session:
        batches = veil.session(Mean(), problem, **SETTINGS)
        for _ in batches:
            batches.step(own)
    else:
        veil.fit(Mean(), problem, loss=own, **SETTINGS)
    assert {length for length, _ in seen} >= {2, 3, 4, 5}
    assert all(length == real for length, real in seen)


@pytest.mark.parametrize("session", [False, True])
def test_padding_is_not_that_of_what_a_callback_trains(session: bool) -> None:
    """Beside a run on padded rows: a transform, a run and a session on rows that nobody pads."""
    flat = Problem.from_arrays(torch.randn(40, 3, generator=torch.Generator().manual_seed(0)), [0, 1] * 20)

    def compared(model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

    def own(model: nn.Module, batch: Any) -> Tensor:
        return Augmented(compared, lambda rows: rows + torch.randn_like(rows))(model, batch)

    def beside() -> None:
        own(nn.Linear(3, 2), (torch.ones(4, 3), torch.zeros(4, dtype=torch.long)))
        veil.fit(nn.Linear(3, 2), flat, loss=own, **SETTINGS)
        inner = veil.session(nn.Linear(3, 2), flat, **SETTINGS)
        for _ in inner:
            inner.step(own)

    class Beside(Callback):
        def on_step(self, report: Any) -> None:
            beside()

    items = [(torch.ones(length, 3), length % 2) for length in (2, 5, 3, 4) * 5]
    problem, settings = Problem.from_dataset(items, pad=True), {**SETTINGS, "steps": 2}
    if not session:
        veil.fit(Mean(), problem, callbacks=[Beside()], **settings)
        return
    lengths = list[tuple[int, int]]()

    def noted(row: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        lengths.append((row[0].shape[1], int(row[1].sum())))
        return row

    model = Mean()
    batches = veil.session(model, problem, callbacks=[Beside()], **settings)
    for batch in batches:
        batches.step(Augmented(compared, noted)(model, batch))
        beside()
    assert lengths
    assert all(length == real for length, real in lengths)


class Drawn(Dataset[tuple[Tensor, int]]):
    """Rows of random numbers."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return torch.rand(3) + row, row % 2


def test_a_run_between_two_parts_of_a_batch_leaves_the_draws_of_its_rows_alone() -> None:
    def weights(between: bool) -> Tensor:
        model = nn.Linear(3, 2)
        nn.init.zeros_(model.weight)
        nn.init.zeros_(model.bias)
        batches = veil.session(model, Problem.from_dataset(Drawn()), micro_batch=4, **SETTINGS)
        for rows, targets in batches:
            batches.step(F.cross_entropy(model(rows), targets, reduction="none"))
            if between and not batches.updated:
                veil.fit(nn.Linear(3, 2), Problem.from_dataset(Drawn()), **{**SETTINGS, "steps": 1})
        return model.weight.detach()

    assert torch.equal(weights(between=True), weights(between=False))


def test_a_transform_of_a_part_of_padded_inputs_inside_a_loss_is_refused() -> None:
    items = [(torch.ones(length, 3), length % 2) for length in (2, 5, 3, 4) * 5]

    def own(model: nn.Module, batch: Any) -> Tensor:
        (places, real), targets = batch
        views = Augmented(lambda layer, part: layer.layer(part[0].mean(1)).sum(1), of_all)
        return views(model, (places, targets)) * real.sum(1)

    with pytest.raises(InputError, match="see how far the batch is padded"):
        veil.fit(Mean(), Problem.from_dataset(items, pad=True), loss=own, **SETTINGS)


def test_a_row_alone_has_its_own_length_in_every_structure() -> None:
    ids = [torch.tensor([5, 0]), torch.tensor([1, 2, 3, 4]), torch.tensor([0])]
    seconds = [torch.ones(len(row), 2) for row in ids]
    for items in (
        ids,
        list(zip(ids, seconds, strict=True)),
        [{"ids": row, "more": more} for row, more in zip(ids, seconds, strict=True)],
        [{"ids": row, "attention_mask": torch.ones_like(row)} for row in ids],
    ):
        collate = Collate(sequence_paths(items[0]))
        batch = collate(items)
        alone = collate.alone(batch)
        for row, item in zip(alone, items, strict=True):
            for found, wanted in zip(tensors(row), tensors(collate([item])), strict=True):
                assert torch.equal(found, wanted)
        assert all(map(torch.equal, tensors(collate.together(alone, batch)), tensors(batch)))


def test_a_transform_that_moves_padded_parts_is_refused_before_anything_is_read() -> None:
    items = [(torch.ones(length, 3), length % 2) for length in (2, 5, 3, 4) * 5]
    with pytest.raises(InputError, match="so that they can be padded again"):
        veil.fit(
            Mean(),
            Problem.from_dataset(items, pad=True),
            loss=Augmented(F.cross_entropy, lambda row: row[0]),
            **SETTINGS,
        )


def test_no_rows_have_no_views() -> None:
    empty = torch.zeros(0, 1, 6, 6)
    assert fingerprints(empty) == []
    found = Augmented(lambda model, batch: batch[0].flatten(1).sum(1), of_all, views=2)(
        small(), (empty, empty[:, 0, 0, 0])
    )
    assert found.shape == (0,)


def test_a_model_or_a_transform_with_a_generator_of_its_own_is_refused() -> None:
    for model, transform in ((small(), Hidden()), (HiddenModel(*small()), of_all)):
        with pytest.raises(GradientError, match="draw random numbers from torch's own generator"):
            veil.fit(model, PROBLEM, loss=Augmented(F.cross_entropy, transform, 2), **SETTINGS)


def blended(images: Tensor) -> Tensor:
    return 0.5 * images + 0.5 * images.flip(0)


def test_a_transform_sees_one_row_at_a_time() -> None:
    """One that would mix the rows of a batch changes nothing."""
    mixing, plain = small(), small()
    veil.fit(mixing, PROBLEM, loss=Augmented(F.cross_entropy, blended), **SETTINGS)
    veil.fit(plain, PROBLEM, loss=F.cross_entropy, **SETTINGS)
    torch.testing.assert_close(weights(mixing), weights(plain))


def test_no_view_is_refused() -> None:
    with pytest.raises(InputError, match="at least one view"):
        Augmented(F.cross_entropy, shaken, views=0)


def test_a_transform_that_makes_other_numbers_of_rows_is_refused() -> None:
    with pytest.raises(InputError, match="it must keep their number"):
        veil.fit(small(), PROBLEM, loss=Augmented(F.cross_entropy, lambda rows: rows.repeat(2, 1, 1, 1)), **SETTINGS)
