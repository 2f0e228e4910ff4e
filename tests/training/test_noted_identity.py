"""What a run notes of itself: it is compared in sessions and sources too, belongs to the seed and goes with it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.methods.method_cases import small_problem
from tests.training.same_run_cases import BASE, Crash, cut_short, edited, files, refused, small_model, train
from veil.errors import InputError
from veil.foundation.randomness import Seed
from veil.problem import Problem
from veil.tables.mapped import MappedRows
from veil.training import EarlyStopping, Run, fit, session
from veil.training.run_folder import RunFolder


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
        out,
        "step 4 gives a different gradient",
        lambda: answered(out, lambda o, t: plain_loss(1.1 * o, t), resume=True),
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
    with pytest.raises(InputError, match="its checkpoint is not the latest"):
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


def test_a_record_that_was_taken_away_does_not_open_the_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    cut_short(folder)
    record = json.loads((folder / "seed.key").read_text())
    del record["noted"]["run"]
    (folder / "seed.key").write_text(json.dumps(record))
    with pytest.raises(InputError, match="does not record how the run started"):
        train(folder, problem=edited(small_problem()), resume=True)


def rows_on_disk(path: Path, rows: Tensor) -> Problem:
    np.save(path, rows.numpy())
    whole = small_problem()
    return replace(whole, inputs=torch.empty((0, rows.shape[1])), source=MappedRows(path))


def test_every_row_of_a_source_that_is_not_in_memory_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veil.training.digests._AT_ONCE", 512)  # many pieces
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
        return Problem.from_dataset(Jittered(), ["a", "b"] * 120)

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


def test_a_run_without_a_folder_reads_rows_once_for_a_digest_by_which_budgets_may_be_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passes, read = [], Problem.in_order
    monkeypatch.setattr(Problem, "in_order", lambda problem, size: passes.append(size) or read(problem, size))
    fit(small_model(), small_problem(), method="dp-sgd", **BASE)
    assert len(passes) == 1


def test_the_key_of_the_digests_is_not_the_key_of_a_draw() -> None:
    seed = Seed.from_int(1)
    assert seed.key("identity", 0) != seed.key("gradient", 0)
