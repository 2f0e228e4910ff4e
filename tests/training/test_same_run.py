"""A resumed run is the same run: the same noise never meets other rows, another model or another loss.

If one of these were accepted, the two releases of a repeated step would differ by what was changed, without noise.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from method_cases import small_problem
from torch import Tensor, nn

from veil.errors import InputError
from veil.problem import Memberships, Problem
from veil.randomness import Seed
from veil.tabular.mapped import MappedRows, dataset_problem
from veil.training import Callback, EarlyStopping, Run, StepReport, fit, session
from veil.training.fitting import row_losses
from veil.training.run_folder import RunFolder

BASE: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-4, "steps": 12, "batch_size": 24, "checkpoint_every": 4}
Batch = tuple[Tensor, Tensor]


class Crash(Exception):
    """Stands for anything that ends a process."""


class CrashAt(Callback):
    def __init__(self, step: int = 6) -> None:
        self.step = step

    def on_step(self, report: StepReport) -> None:
        if report.step == self.step:
            raise Crash


def small_model(drop: float = 0.1) -> nn.Module:
    """Other weights each time: those of the run are in its checkpoint."""
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Dropout(drop), nn.Linear(5, 2))


def train(out: Path, **given: Any) -> Run:
    model = given.pop("model", None)
    return fit(
        small_model() if model is None else model, given.pop("problem", small_problem()), out=out, **BASE, **given
    )


def cut_short(out: Path, **given: Any) -> None:
    with pytest.raises(Crash):
        train(out, callbacks=[*given.pop("callbacks", ()), CrashAt()], **given)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def refused(folder: Path, named: str, resume: Callable[[], object]) -> None:
    """The sentence names what differs, and nothing in the folder has changed."""
    before = files(folder)
    with pytest.raises(InputError, match=f"^Cannot resume: {named}") as refusal:
        resume()
    assert str(refusal.value).endswith("or a new --out.")
    assert files(folder) == before


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("runs") / "cut"
    cut_short(folder)
    return folder


def test_the_same_call_resumes(tmp_path: Path) -> None:
    cut_short(tmp_path / "run")
    assert train(tmp_path / "run", resume=True).certificate.private


def edited(problem: Problem) -> Problem:
    inputs = problem.inputs.clone()
    inputs[3, 1] += 1e-3
    return replace(problem, inputs=inputs)


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


def answered(out: Path, loss: Callable[[Tensor, Tensor], Tensor], crash: bool = False, **given: Any) -> Run:
    model = small_model(0.0)
    rows = session(model, given.pop("problem", small_problem()), method="dp-sgd", out=out, **BASE, **given)
    for number, (inputs, targets) in enumerate(rows):
        rows.step(loss(model(inputs), targets))
        if crash and number == 6:
            rows.close()
            raise Crash
    return rows.finish()


def plain_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def test_a_session_with_another_loop_is_refused_before_its_first_release(tmp_path: Path) -> None:
    """Its loss is nowhere to be compared, so the first step that is repeated must give the same sum."""
    out = tmp_path / "run"
    with pytest.raises(Crash):
        answered(out, plain_loss, crash=True)
    refused(
        out, "step 4 gives another gradient", lambda: answered(out, lambda o, t: plain_loss(1.1 * o, t), resume=True)
    )
    refused(out, "the rows differ", lambda: answered(out, plain_loss, problem=edited(small_problem()), resume=True))
    refused(out, "`epsilon` was 1.0", lambda: _session(out, epsilon=2.0))
    answered(out, plain_loss, resume=True)
    assert not (out / "seed.key").exists()


def _session(out: Path, **change: Any) -> object:
    return session(small_model(0.0), small_problem(), method="dp-sgd", out=out, resume=True, **(BASE | change))


def test_an_older_checkpoint_does_not_let_a_session_repeat_other_steps(tmp_path: Path) -> None:
    out, kept = tmp_path / "run", []
    model = small_model(0.0)
    rows = session(model, small_problem(), method="dp-sgd", out=out, **BASE)
    for inputs, targets in rows:
        kept.append((out / "checkpoint.safetensors").read_bytes())
        rows.step(plain_loss(model(inputs), targets))
        if len(kept) == 7:
            rows.close()
            break
    (out / "checkpoint.safetensors").write_bytes(kept[0])
    with pytest.raises(InputError, match="its checkpoint is not the last one"):
        answered(out, plain_loss, resume=True)


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    """Equal in every setting and every row; only the secret seed differs, and with it the weights."""
    for name in ("run", "other"):
        cut_short(tmp_path / name)
    (tmp_path / "run" / "checkpoint.safetensors").write_bytes(
        (tmp_path / "other" / "checkpoint.safetensors").read_bytes()
    )
    with pytest.raises(InputError, match="damaged or belongs to another run"):
        train(tmp_path / "run", resume=True)


def test_a_record_that_was_taken_away_does_not_open_the_run(started: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    folder.mkdir()
    for name, content in files(started).items():
        (folder / name).write_bytes(content)
    record = json.loads((folder / "seed.key").read_text())
    del record["noted"]["run"]
    (folder / "seed.key").write_text(json.dumps(record))
    with pytest.raises(InputError, match="does not say what the run began with"):
        train(folder, problem=edited(small_problem()), resume=True)


def rows_on_disk(path: Path, rows: Tensor) -> Problem:
    np.save(path, rows.numpy())
    whole = small_problem()
    return replace(whole, inputs=torch.empty((0, rows.shape[1])), source=MappedRows(path))


def test_every_row_of_a_source_that_is_not_in_memory_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veil.digests._AT_ONCE", 512)  # many pieces
    whole = small_problem().inputs
    cut_short(tmp_path / "run", problem=rows_on_disk(tmp_path / "rows.npy", whole))
    for row in (0, 100, 239):
        other = whole.clone()
        other[row, 3] = -other[row, 3]
        problem = rows_on_disk(tmp_path / "other.npy", other)
        refused(
            tmp_path / "run",
            "the rows differ",
            lambda problem=problem: train(tmp_path / "run", problem=problem, resume=True),  # type: ignore[misc]
        )
    assert train(tmp_path / "run", problem=small_problem(), resume=True).stopped is None, "the same rows in memory"


@pytest.mark.parametrize("start", [0, 17])
def test_a_long_piece_of_mapped_rows_is_what_its_rows_are(tmp_path: Path, start: int) -> None:
    values = torch.randn(3000, 5, generator=torch.Generator().manual_seed(1))
    np.save(tmp_path / "rows.npy", values.numpy())
    source = MappedRows(tmp_path / "rows.npy")
    assert torch.equal(source.take(np.arange(start, 2900)), values[start:2900])


def test_rows_that_are_made_when_they_are_drawn_resume(tmp_path: Path) -> None:
    class Jittered(torch.utils.data.Dataset[tuple[Tensor, int]]):
        def __len__(self) -> int:
            return 240

        def __getitem__(self, row: int) -> tuple[Tensor, int]:
            return small_problem().inputs[row] + torch.randn(4), row % 2

    def problem() -> Problem:
        return dataset_problem(Jittered(), ["a", "b"] * 120)

    cut_short(tmp_path / "run", problem=problem())
    assert train(tmp_path / "run", problem=problem(), resume=True).stopped is None


def notes(folder: Path) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads((folder / "seed.key").read_text())["noted"]
    return found


def test_digests_say_nothing_without_the_seed(tmp_path: Path) -> None:
    """The same rows under another seed have other digests, all of them."""
    found = []
    for name in ("one", "two"):
        cut_short(tmp_path / name)
        found.append(notes(tmp_path / name)["run"]["digests"])
    assert found[0].keys() == found[1].keys()
    alike = {name for name in found[0] if found[0][name] == found[1][name]}
    assert alike == {"evaluation rows"}, "there are none"


@pytest.mark.parametrize("way", ["fit", "resumed", "session", "early", "not private", "crash while saving"])
def test_digests_are_gone_when_a_run_is_complete(tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: set[str] = set()
    keep = RunFolder._keep_seed

    def watched(self: RunFolder) -> None:
        keep(self)
        for stage in self._noted.values():
            kept.update(stage["digests"].values() if isinstance(stage, dict) else [stage[1]])
        kept.add(self.seed.secret.hex())

    monkeypatch.setattr(RunFolder, "_keep_seed", watched)
    out = tmp_path / "run"
    if way == "fit":
        train(out)
    elif way == "resumed":
        cut_short(out)
        (out / ".seed.key.part").write_bytes((out / "seed.key").read_bytes())  # as a kill while it is written leaves it
        train(out, resume=True)
    elif way == "session":
        answered(out, plain_loss)
    elif way == "early":
        train(out, evaluation=small_problem(), callbacks=[EarlyStopping(patience=1)], evaluate_every=1)
    elif way == "not private":
        train(out, method="iw-sgd")
    else:
        monkeypatch.setattr(Run, "report", _fails)
        with pytest.raises(Crash):
            train(out)
        monkeypatch.undo()
        train(out, resume=True)
    kept -= {"none"}
    assert len(kept) > 5
    for path in out.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        assert not [digest for digest in kept if digest.encode() in content or bytes.fromhex(digest) in content]
    assert not {"seed.key", ".seed.key.part", "checkpoint.safetensors"} & set(files(out))


def _fails(*_: object) -> None:
    raise Crash


def test_a_run_without_a_folder_reads_no_row_for_a_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("there is nothing to compare with")

    monkeypatch.setattr(Problem, "in_order", never)
    fit(small_model(), small_problem(), **BASE)


def test_the_key_of_the_digests_is_not_the_key_of_a_draw() -> None:
    seed = Seed.from_int(1)
    assert seed.key("identity", 0) != seed.key("gradient", 0)
