"""A resumed run is the same run: the same noise never meets other rows, another model or another loss.

If one of these were accepted, the two releases of a repeated step would differ by what was changed, without noise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.methods.method_cases import small_problem
from tests.training.same_run_cases import CrashAt, cut_short, edited, files, refused, small_model, train
from veil.problem import Memberships, Problem
from veil.training import EarlyStopping
from veil.training.fitting import row_losses

Batch = tuple[Tensor, Tensor]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("runs") / "cut"
    cut_short(folder)
    return folder


def test_the_same_call_resumes(tmp_path: Path) -> None:
    cut_short(tmp_path / "run")
    assert train(tmp_path / "run", resume=True).certificate.private


def reordered(problem: Problem) -> Problem:
    """Two rows of one cell and one class change places: every public fact is the same."""
    alike = (problem.cell_of == problem.cell_of[0]) & (problem.targets == problem.targets[0]).numpy()
    first, second = np.flatnonzero(alike)[:2]
    inputs = problem.inputs.clone()
    inputs[[first, second]] = inputs[[second, first]]
    return replace(problem, inputs=inputs)


def swapped_targets(problem: Problem) -> Problem:
    targets = problem.targets.clone()
    first, second = int((targets == 0).nonzero()[0]), int((targets == 1).nonzero()[0])
    targets[[first, second]] = targets[[second, first]]
    return replace(problem, targets=targets)


def swapped_cells(problem: Problem, cells: tuple[int, int]) -> Problem:
    of = problem.cell_of.copy()
    first, second = (int(np.flatnonzero(of == cell)[0]) for cell in cells)
    of[[first, second]] = of[[second, first]]
    return replace(problem, cell_of=of)


def cell(group: str, owner: str) -> int:
    facts = small_problem().public
    pairs = [(facts.groups[c.group], facts.owners[c.owner]) for c in facts.cells]
    return pairs.index((group, owner))


def with_facts(problem: Problem, **changes: Any) -> Problem:
    return replace(problem, public=replace(problem.public, **changes))


def with_memberships(problem: Problem) -> Problem:
    return replace(problem, memberships=Memberships(("a",), np.ones((len(problem), 1), dtype=bool)))


OTHER_DATA: dict[str, tuple[Callable[[Problem], Problem], str]] = {
    "an edited row": (edited, "the rows differ"),
    "reordered rows": (reordered, "the rows differ"),
    "a row taken out": (lambda p: p.without(7), "the rows differ"),
    "swapped targets": (swapped_targets, "the targets differ"),
    "renamed classes": (lambda p: with_facts(p, classes=("no", "yes")), "the targets differ"),
    "rows of another group": (
        lambda p: swapped_cells(p, (cell("majority", "careful"), cell("minority", "careful"))),
        "the groups differ",
    ),
    "rows of another owner": (
        lambda p: swapped_cells(p, (cell("majority", "careful"), cell("majority", "open"))),
        "the owners differ",
    ),
    "overlapping groups": (with_memberships, "the groups differ"),
    "other budgets": (lambda p: with_facts(p, budgets=(0.5, 3.0)), "the budgets differ"),
    "other rows altogether": (
        lambda _: small_problem(rows=246),
        "the rows, the targets, the groups and the owners differ",
    ),
}


@pytest.mark.parametrize("name", OTHER_DATA)
def test_the_same_noise_never_meets_other_data(started: Path, name: str) -> None:
    change, named = OTHER_DATA[name]
    refused(started, named, lambda: train(started, problem=change(small_problem()), resume=True))


class Cast(nn.Module):
    def forward(self, rows: Tensor) -> Tensor:
        return rows.float()


def test_the_same_numbers_of_another_type_are_other_rows(tmp_path: Path) -> None:
    def problem(kind: torch.dtype) -> Problem:
        return replace(small_problem(), inputs=small_problem().inputs.round().to(kind))

    def given(kind: torch.dtype) -> dict[str, Any]:
        return {"model": nn.Sequential(Cast(), nn.Linear(4, 2)), "problem": problem(kind)}

    cut_short(tmp_path / "run", **given(torch.float32))
    refused(tmp_path / "run", "the rows differ", lambda: train(tmp_path / "run", **given(torch.float64), resume=True))
    assert train(tmp_path / "run", **given(torch.float32), resume=True).stopped is None


def test_evaluation_rows_of_one_history_are_the_same(tmp_path: Path) -> None:
    cut_short(tmp_path / "run", evaluation=small_problem())
    for other in (edited(small_problem()), None):
        refused(
            tmp_path / "run",
            "the evaluation rows differ",
            lambda other=other: train(tmp_path / "run", evaluation=other, resume=True),  # type: ignore[misc]
        )


def halved(model: nn.Module, batch: Batch) -> Tensor:
    return row_losses(model, batch) / 2


def of_factor(factor: float) -> Callable[[nn.Module, Batch], Tensor]:
    return lambda model, batch: factor * row_losses(model, batch)


def with_default(factor: float) -> Callable[[nn.Module, Batch], Tensor]:
    def loss(model: nn.Module, batch: Batch, by: float = factor) -> Tensor:
        return by * row_losses(model, batch)

    return loss


def scaled(factor: float, model: nn.Module, batch: Batch) -> Tensor:
    return factor * row_losses(model, batch)


FACTOR = 1.0


def by_a_global(model: nn.Module, batch: Batch) -> Tensor:
    return FACTOR * row_losses(model, batch)


class Scaled:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        return self.factor * row_losses(model, batch)

    def method(self, model: nn.Module, batch: Batch) -> Tensor:
        return self(model, batch)


class Weighted(nn.Module):
    def __init__(self, second: float) -> None:
        super().__init__()
        self.inner = nn.CrossEntropyLoss(weight=torch.tensor([1.0, second]), reduction="none")

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        losses: Tensor = self.inner(model(batch[0]), batch[1])
        return losses


def disguised(factor: float) -> Callable[[nn.Module, Batch], Tensor]:
    """It says that it is a function of Veil."""

    @functools.wraps(row_losses)
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return factor * row_losses(model, batch)

    return loss


OTHER_LOSSES: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "another function": (row_losses, halved),
    "another lambda": (lambda m, b: row_losses(m, b) / 2, lambda m, b: row_losses(m, b) / 3),
    "another closure": (of_factor(1.0), of_factor(0.5)),
    "another default": (with_default(1.0), with_default(0.5)),
    "another partial": (functools.partial(scaled, 1.0), functools.partial(scaled, 0.5)),
    "another attribute": (Scaled(1.0), Scaled(0.5)),
    "another bound method": (Scaled(1.0).method, Scaled(0.5).method),
    "other class weights": (Weighted(1.0), Weighted(2.0)),
    "a disguise": (disguised(1.0), disguised(0.5)),
}


@pytest.mark.parametrize("name", OTHER_LOSSES)
def test_the_same_noise_never_meets_another_loss(tmp_path: Path, name: str) -> None:
    loss, other = OTHER_LOSSES[name]
    cut_short(tmp_path / "run", loss=loss)
    refused(tmp_path / "run", "the loss differs", lambda: train(tmp_path / "run", loss=other, resume=True))
    assert train(tmp_path / "run", loss=loss, resume=True).stopped is None


def test_a_global_that_the_loss_reads_is_part_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_short(tmp_path / "run", loss=by_a_global)
    monkeypatch.setitem(by_a_global.__globals__, "FACTOR", 0.5)
    refused(tmp_path / "run", "the loss differs", lambda: train(tmp_path / "run", loss=by_a_global, resume=True))


def test_a_loss_that_holds_the_model_resumes_with_fresh_weights(tmp_path: Path) -> None:
    """The weights of a resumed run come from its checkpoint, also for a loss that reaches the model by itself."""

    def loss_of(model: nn.Module) -> Callable[[nn.Module, Batch], Tensor]:
        return lambda given, batch: row_losses(given, batch) * (1.0 if given is model else 2.0)

    first, second = small_model(), small_model()
    cut_short(tmp_path / "run", model=first, loss=loss_of(first))
    assert train(tmp_path / "run", model=second, loss=loss_of(second), resume=True).stopped is None


class Scaling(nn.Module):
    def __init__(self, factor: float, table: float = 1.0) -> None:
        super().__init__()
        self.factor = factor
        self.register_buffer("table", torch.tensor([table]), persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        return rows * self.factor


def two_layers(middle: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), middle, nn.Linear(5, 2))


def hooked(model: nn.Module) -> nn.Module:
    model.register_forward_hook(lambda module, given, outputs: 2 * outputs)
    return model


def other_forward(model: nn.Module) -> nn.Module:
    class Scaling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = 1.0
            self.register_buffer("table", torch.tensor([1.0]), persistent=False)

        def forward(self, rows: Tensor) -> Tensor:
            return rows + self.factor

    Scaling.__qualname__ = "Scaling"
    model[1] = Scaling()  # type: ignore[operator]
    return model


def without_gradient(model: nn.Module) -> nn.Module:
    next(model.parameters()).requires_grad_(False)
    return model


OTHER_MODELS: dict[str, Callable[[], nn.Module]] = {
    "another layer of the same shape": lambda: two_layers(nn.Tanh()),
    "another attribute": lambda: two_layers(Scaling(2.0)),
    "another constant that no checkpoint keeps": lambda: two_layers(Scaling(1.0, table=2.0)),
    "another forward": lambda: other_forward(two_layers(Scaling(1.0))),
    "a hook": lambda: hooked(two_layers(Scaling(1.0))),
    "a layer that is not trained": lambda: without_gradient(two_layers(Scaling(1.0))),
    "without dropout": lambda: two_layers(Scaling(1.0)).eval(),
}


@pytest.mark.parametrize("name", OTHER_MODELS)
def test_the_same_noise_never_meets_another_model(tmp_path: Path, name: str) -> None:
    cut_short(tmp_path / "run", model=two_layers(Scaling(1.0)))
    refused(
        tmp_path / "run", "the model differs", lambda: train(tmp_path / "run", model=OTHER_MODELS[name](), resume=True)
    )
    assert train(tmp_path / "run", model=two_layers(Scaling(1.0)), resume=True).stopped is None


def test_another_rate_of_dropout_is_another_model(started: Path) -> None:
    refused(started, "the model differs", lambda: train(started, model=small_model(drop=0.2), resume=True))


def test_what_steers_a_run_stays(tmp_path: Path) -> None:
    cut_short(tmp_path / "run", evaluation=small_problem(), callbacks=[EarlyStopping(patience=50)])
    for others in ([], [EarlyStopping(patience=3)]):
        refused(
            tmp_path / "run",
            "the callbacks differ",
            lambda others=others: train(  # type: ignore[misc]
                tmp_path / "run", evaluation=small_problem(), callbacks=others, resume=True
            ),
        )
    # One that only watches may come and go, and every state finds its callback.
    watching = [CrashAt(99), EarlyStopping(patience=50)]
    assert train(tmp_path / "run", evaluation=small_problem(), callbacks=watching, resume=True).stopped is None


def test_another_configuration_is_named(tmp_path: Path) -> None:
    cut_short(tmp_path / "run", config={"label": "first", "command": "typed so"})
    before = (tmp_path / "run" / "config.toml").read_bytes()
    refused(
        tmp_path / "run",
        "`label` was first and is now second. Use the original settings",
        lambda: train(tmp_path / "run", config={"label": "second"}, resume=True),
    )
    train(tmp_path / "run", config={"label": "first", "command": "typed otherwise"}, resume=True)
    assert (tmp_path / "run" / "config.toml").read_bytes() == before, "it says what the run was started with"


def test_a_saved_copy_has_a_configuration(tmp_path: Path) -> None:
    run = train(tmp_path / "run", config={"label": "mine"})
    run.save(tmp_path / "copy")
    assert files(tmp_path / "copy")["config.toml"] == files(tmp_path / "run")["config.toml"]
