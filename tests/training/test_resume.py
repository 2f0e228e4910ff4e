"""A run that was cut short goes on bit by bit, costs nothing twice, and refuses to become another run."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.methods.method_cases import CASES, small_problem
from veil import methods
from veil.accounting import Ledger
from veil.errors import InputError
from veil.foundation.files import write_whole
from veil.foundation.randomness import Seed
from veil.models import build_model
from veil.noise import GaussianNoise
from veil.problem import Problem, Strata
from veil.sampling import PoissonSampler, SubsetSampler
from veil.training import Callback, EarlyStopping, StepReport, fit, load, session
from veil.training.checkpoints import MEANING
from veil.training.run_folder import RunFolder

FILES = ("model.safetensors", "ledger.jsonl", "certificate.json")
SOLVED = ("phased-erm", "dp-oco")  # they report as they like, not after every step
BASE: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-4, "steps": 23, "batch_size": 24, "seed": 5, "checkpoint_every": 4}


class Crash(Exception):
    """Stands for anything that ends a process."""


class CrashAt(Callback):
    """Ends the run after some step, once the step is whole or, with `early`, before the step is reported."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, report: StepReport) -> None:
        if report.step == self.step:
            raise Crash


def small_model() -> torch.nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))


def linear_model() -> torch.nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return torch.nn.Linear(4, 2)


def whitened_model() -> torch.nn.Module:
    return build_model("whitened", small_problem().public, Seed.from_int(0))


MODELS = dict.fromkeys(("phased-erm", "dp-oco", "noisy-sgd-mgr", "noisy-sgd-ags"), linear_model)
MODELS["group-gd"], MODELS["auto"] = whitened_model, linear_model


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in FILES if (folder / name).exists()}


def disturbed(folder: Path, at: tuple[int, ...], train: Callable[..., Any]) -> None:
    for number, step in enumerate(at):
        with pytest.raises(Crash):
            train(out=folder, callbacks=[CrashAt(step)], resume=number > 0)
    train(out=folder, resume=True)


def check_same(tmp_path: Path, train: Callable[..., Any], at: tuple[int, ...] = (2, 9, 10, 21)) -> None:
    train(out=tmp_path / "whole")
    disturbed(tmp_path / "cut", at, train)
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")
    histories = [json.loads((tmp_path / name / "run.json").read_text())["history"] for name in ("whole", "cut")]
    assert json.dumps(histories[0]) == json.dumps(histories[1])


ALL = [*CASES, *((name, {}) for name in MODELS)]


@pytest.mark.parametrize(
    ("method", "options"), ALL, ids=[f"{name}-{'-'.join(o) or 'plain'}-{i}" for i, (name, o) in enumerate(ALL)]
)
def test_a_run_cut_short_anywhere_ends_like_an_undisturbed_one(
    tmp_path: Path, method: str, options: dict[str, object]
) -> None:
    problem = small_problem()

    def train(**more: Any) -> Any:
        model = MODELS.get(method, small_model)()
        return fit(model, problem, method=methods.create(method, options), **BASE, **more)

    check_same(tmp_path, train, at=(0,) if method in SOLVED else (2, 9, 10, 21))


@pytest.mark.parametrize(
    "settings",
    [{"optimizer": "adam"}, {"ema": 0.9}, {"noise_filter": "disk"}, {"schedule": "cosine", "secure_noise": True}],
    ids=["adam", "ema", "disk", "secure"],
)
def test_whatever_an_update_remembers_goes_on(tmp_path: Path, settings: dict[str, Any]) -> None:
    problem = small_problem()

    def train(**more: Any) -> Any:
        return fit(small_model(), problem, method="asc", evaluation=problem, **BASE, **settings, **more)

    check_same(tmp_path, train)


def test_weights_that_lie_otherwise_in_memory_go_on(tmp_path: Path) -> None:
    """An image model has its channels last; a checkpoint knows nothing of that."""
    images = torch.randn(80, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    problem = Problem.from_arrays(images, np.arange(80) % 2, np.repeat(["a", "b"], 40))

    def train(**more: Any) -> Any:
        model = build_model("asc-cnn", problem.public, Seed.from_int(0), channels=[4, 5], pool=1)
        assert any(not parameter.is_contiguous() for parameter in model.parameters())
        return fit(model, problem, method="dp-sgd", **BASE, **more)

    check_same(tmp_path, train)


def test_early_stopping_counts_on(tmp_path: Path) -> None:
    problem = small_problem()

    def train(callbacks: tuple[Callback, ...] = (), **more: Any) -> Any:
        watch = EarlyStopping(patience=3)
        chosen = BASE | {"evaluate_every": 3}
        return fit(
            small_model(), problem, method="dp-sgd", evaluation=problem, callbacks=[watch, *callbacks], **chosen, **more
        )

    check_same(tmp_path, train, at=(2, 5))


def test_a_session_goes_on(tmp_path: Path) -> None:
    problem = small_problem()

    def train(callbacks: Any = (), **more: Any) -> Any:
        model = small_model()
        with_rows = session(model, problem, method="asc", callbacks=callbacks, **BASE, **more)
        for inputs, targets in with_rows:
            with_rows.step(torch.nn.functional.cross_entropy(model(inputs), targets, reduction="none"))
        return with_rows.finish()

    check_same(tmp_path, train, at=(7, 13))


@pytest.fixture
def cut(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    with pytest.raises(Crash):
        fit(small_model(), small_problem(), method="dp-sgd", out=folder, callbacks=[CrashAt(9)], **BASE)
    return folder


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"learning_rate": 0.1}, "`learning_rate` was not set and is now 0.1"),
        ({"epsilon": 2.0}, "`epsilon` was 1.0 and is now 2.0"),
        ({"seed": 6}, "`seed` was 5 and is now 6"),
        ({"micro_batch": 8}, "`micro_batch` was not set and is now 8"),
    ],
    ids=["learning-rate", "epsilon", "seed", "micro-batch"],
)
def test_another_configuration_is_refused(cut: Path, change: dict[str, Any], named: str) -> None:
    before = {path.name: path.read_bytes() for path in cut.iterdir()}
    with pytest.raises(InputError, match=rf"^Cannot resume: {named}\. Use the original settings or a new --out\.$"):
        fit(small_model(), small_problem(), method="dp-sgd", out=cut, resume=True, **(BASE | change))
    assert {path.name: path.read_bytes() for path in cut.iterdir()} == before


OTHER_OPTIONS = [
    ("dp-sgd", {"clip": 2.0}),
    ("asc", {"step_size": 0.3}),
    ("adaptive-clip", {"quantile": 0.4}),
    ("fdpg", {"memory": 0.7}),
    ("azb", {"step_size": 0.3}),
    ("dpsgd-f", {"memory": 0.7}),
    ("global-adapt", {"rate": 0.3}),
    ("dpsur", {"threshold": 0.1}),
    ("group-gd", {"whitening": 0.5}),
]


@pytest.mark.parametrize(("method", "options"), OTHER_OPTIONS, ids=[name for name, _ in OTHER_OPTIONS])
def test_another_option_is_refused(tmp_path: Path, method: str, options: dict[str, Any]) -> None:
    """The same noise on other sums would give the difference of the sums away."""
    build = MODELS.get(method, small_model)
    with pytest.raises(Crash):
        fit(build(), small_problem(), method=method, out=tmp_path / "run", callbacks=[CrashAt(2)], **BASE)
    [(name, value)] = options.items()
    with pytest.raises(InputError, match=rf"Cannot resume: .*`options\.{name}` was .* and is now {value}\. Use"):
        fit(build(), small_problem(), method=methods.create(method, options), out=tmp_path / "run", resume=True, **BASE)


def digest_of_draws() -> str:
    """What a seed gives: noise of both kinds, both samplers, uniforms."""
    seed, strata = Seed.from_int(1), Strata.of_size(500)
    shapes = {"w": torch.zeros(7, 3), "b": torch.zeros(5, dtype=torch.float64)}
    found = hashlib.blake2b(digest_size=8)
    for secure in (False, True):
        for value in GaussianNoise(seed, secure=secure).draw(3, shapes, 1.5).values():
            # Rounded, as libraries differ in the last bit of a logarithm.
            found.update(np.round(value.double().numpy(), 2).tobytes())
    for sampler in (PoissonSampler(strata, (0.1,)), SubsetSampler(strata, (40,))):
        found.update(sampler.draw(seed, 3).tobytes())
    found.update(seed.uniforms("coin", 3, np.arange(9)).tobytes())
    return found.hexdigest()


def test_other_draws_are_another_meaning() -> None:
    """Whoever changes what a seed gives counts MEANING up: a run begun before must not go on with other noise."""
    assert (MEANING, digest_of_draws()) == (10, "0d8a7d5414e7d675")


def test_another_version_is_refused(cut: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veil.training.checkpoints.MEANING", 99)
    with pytest.raises(InputError, match="started by a version of Veil that draws or updates differently"):
        fit(small_model(), small_problem(), method="dp-sgd", out=cut, resume=True, **BASE)
    monkeypatch.undo()
    before, versions = torch.__version__, torch.torch_version.TorchVersion("9.9")
    monkeypatch.setattr(torch, "__version__", versions)
    with pytest.raises(InputError, match=f"`torch` was {re.escape(before)} and is now 9.9"):
        fit(small_model(), small_problem(), method="dp-sgd", out=cut, resume=True, **BASE)


def test_a_run_begun_by_an_earlier_version_is_refused(cut: Path) -> None:
    """Its file of the seed says nothing about rows or loss."""
    record = json.loads((cut / "seed.key").read_text())
    (cut / "seed.key").write_text(json.dumps({name: record[name] for name in ("secret", "given")}))
    with pytest.raises(InputError, match="started by a version of Veil"):
        fit(small_model(), small_problem(), method="dp-sgd", out=cut, resume=True, **BASE)


def test_a_checkpoint_never_forgets_what_was_spent(cut: Path) -> None:
    """The ledger, not the checkpoint, says what was spent: an older checkpoint gives no budget back."""
    spent = Ledger.open(cut / "ledger.jsonl").spent(0)
    fit(small_model(), small_problem(), method="dp-sgd", out=cut, resume=True, **BASE)
    assert Ledger.open(cut / "ledger.jsonl").spent(0) >= spent


def test_a_ledger_that_lost_lines_is_refused(cut: Path) -> None:
    lines = (cut / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (cut / "ledger.jsonl").write_bytes(lines[0])
    with pytest.raises(InputError, match="behind its checkpoint"):
        fit(small_model(), small_problem(), method="dp-sgd", out=cut, resume=True, **BASE)


def test_a_damaged_or_missing_checkpoint_is_refused(cut: Path) -> None:
    path = cut / "checkpoint.safetensors"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(InputError, match="is damaged"):
        fit(small_model(), small_problem(), method="dp-sgd", out=cut, resume=True, **BASE)
    path.unlink()
    with pytest.raises(InputError, match="is missing"):
        fit(small_model(), small_problem(), method="dp-sgd", out=cut, resume=True, **BASE)


def test_a_second_process_is_told_that_the_folder_is_in_use(tmp_path: Path) -> None:
    plan_settings = methods.create("dp-sgd", {}).plan(small_problem().public, _settings()).settings
    held = RunFolder.start(tmp_path / "run", plan_settings)
    with pytest.raises(InputError, match="another process is using"):
        fit(small_model(), small_problem(), method="dp-sgd", out=tmp_path / "run", **BASE)
    held.close()


def test_a_lock_that_its_holder_deletes_locks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flock, deleted = fcntl.flock, []

    def deletes_first(file: Any, how: int) -> None:
        if not deleted:
            deleted.append((tmp_path / "run" / ".lock").unlink())
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", deletes_first)
    held = RunFolder.start(tmp_path / "run", _settings())
    with pytest.raises(InputError, match="another process is using"):
        RunFolder.start(tmp_path / "run", _settings())
    held.close()


def test_seed_and_checkpoint_are_for_their_owner_and_go_with_the_end(cut: Path) -> None:
    for name in ("seed.key", "checkpoint.safetensors"):
        assert stat.S_IMODE((cut / name).stat().st_mode) == 0o600
    fit(small_model(), small_problem(), method="dp-sgd", out=cut, resume=True, **BASE)
    assert not (cut / "seed.key").exists()
    assert not (cut / "checkpoint.safetensors").exists()
    with pytest.raises(InputError, match="is finished: there is nothing to resume"):
        fit(small_model(), small_problem(), method="dp-sgd", out=cut, resume=True, **BASE)


def test_an_unfinished_run_is_never_written_over(cut: Path) -> None:
    with pytest.raises(InputError, match="interrupted run"):
        fit(small_model(), small_problem(), method="dp-sgd", out=cut, **BASE)


def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problem: Problem = small_problem()

    def train(**more: Any) -> Any:
        return fit(small_model(), problem, method="asc", **BASE, **more)

    train(out=tmp_path / "whole")
    calls = 0

    def full(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 12:
            raise OSError(28, "No space left on device")
        fsync(descriptor)

    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        train(out=tmp_path / "cut")
    monkeypatch.setattr(os, "fsync", fsync)
    train(out=tmp_path / "cut", resume=True)
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def test_a_write_that_fails_leaves_the_file_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_whole(tmp_path / "file", b"before")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(tmp_path / "file", b"after")
    assert (tmp_path / "file").read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def _settings() -> Any:
    from veil.plans import Settings

    return Settings.checked(**BASE)


def test_a_file_that_the_user_keeps_in_the_folder_stays(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("mine")
    folder = RunFolder.start(tmp_path, _settings(), {"method": "dp-sgd"})
    folder.abandon()
    folder.close()
    assert (tmp_path / "config.toml").read_text() == "mine"
    assert not (tmp_path / "seed.key").exists()


def test_a_run_that_was_cut_short_while_it_was_saved_is_not_loaded(cut: Path) -> None:
    (cut / "certificate.json").write_text("{}")
    with pytest.raises(InputError, match="is not finished"):
        load(cut)
