"""Arms of the benchmark of tables on a few hundred rows, and what is stored of them."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.tables import command, exchange, measuring
from benchmarks.tables.arms import ARMS, Arm, arms_named, schema_of, veil_train, version_of
from benchmarks.tables.data import GROUPINGS, Table
from benchmarks.tables.exchange import Answer, Fit
from benchmarks.tables.measuring import Asked, measure
from benchmarks.tables.peers import PEERS
from benchmarks.tables.store import Cell, stored
from veil.errors import InputError

QUICK = replace(
    ARMS["dp-sgd"], fit=partial(veil_train, options=("--method", "dp-sgd", "--epochs", "2", "--model", "logistic"))
)


def asked(folder: Path, *arms: Arm, **changed: Any) -> Asked:
    whole = Asked(("tiny",), GROUPINGS, (1.0,), arms, (1, 2), "test", folder)
    return replace(whole, **changed)


@pytest.fixture
def _tiny(tiny_table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "load", lambda name: tiny_table)


@pytest.mark.parametrize("name", ["constant", "logistic", "logistic-weighted"])
@pytest.mark.parametrize("grouping", GROUPINGS)
def test_an_arm_without_privacy_gives_a_probability_per_row_and_class(
    name: str, grouping: Any, tiny_table: Table
) -> None:
    task = tiny_table.task(grouping)
    fit = ARMS[name].fit
    assert fit is not None
    found = fit(task, 0.0, 1)
    assert found.shape == (len(task.test), 2)
    assert found.sum(axis=1) == pytest.approx(1.0)


def test_weights_change_the_model_and_classes_keep_their_order(tiny_table: Table) -> None:
    task = tiny_table.task("label")
    plain, weighted = (ARMS[name].fit(task, 0.0, 1) for name in ("logistic", "logistic-weighted"))  # type: ignore[misc]
    assert not np.allclose(plain, weighted)
    right = np.array(task.classes)[plain.argmax(axis=1)] == task.test["approved"].to_numpy()
    assert right.mean() > 0.6


def test_veil_trains_by_its_command_and_never_sees_columns_that_only_make_groups(tiny_table: Table) -> None:
    task = tiny_table.task("crossed")
    assert QUICK.fit is not None
    found = QUICK.fit(task, 1.0, 1)
    assert found.shape == (len(task.test), 2)
    changed = replace(task, test=task.test.assign(part="old"))
    assert QUICK.fit(changed, 1.0, 1).tolist() == found.tolist()
    assert '[columns.part]\nkind = "group"\nvalues = ["old", "young"]\nfeature = false' in schema_of(task).to_toml()


def test_a_run_that_promises_less_than_was_asked_is_no_result(
    tiny_table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    from veil.cli import app as program

    def other(words: list[str], **_: Any) -> None:
        folder = Path(words[words.index("--out") + 1])
        folder.mkdir()
        (folder / "certificate.json").write_text(json.dumps({"epsilon": 1.2, "delta": 1e-5}), encoding="utf-8")

    monkeypatch.setattr(program, "app", other)
    assert QUICK.fit is not None
    with pytest.raises(InputError, match=r"ε = 1.2 and δ = 1e-05: more than was asked"):
        QUICK.fit(tiny_table.task("label"), 1.0, 1)


@pytest.mark.usefixtures("_tiny")
def test_what_is_stored_is_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure(asked(tmp_path, ARMS["constant"], QUICK, seeds=(1,)), "tiny")
    files = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.json"))
    assert len(files) == 2 * len(GROUPINGS)
    assert "test/tiny/label/dp-sgd-epsilon-1-seed-1.json" in files
    record = json.loads((tmp_path / files[0]).read_text(encoding="utf-8"))
    assert record["by_group"].keys() == {f"{s} × {p}" for s in ("female", "male") for p in ("old", "young")}

    def fail(*_: Any) -> None:
        raise AssertionError("measured again")

    again = [replace(arm, fit=fail) for arm in (ARMS["constant"], QUICK)]
    monkeypatch.setattr(measuring, "version_of", lambda arm: version_of(ARMS[arm.name]))
    measure(asked(tmp_path, *again, seeds=(1,)), "tiny")


@pytest.mark.usefixtures("_tiny")
def test_figures_of_veil_are_measured_again_after_its_code_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits: list[int] = []

    def fit(task: Any, epsilon: float, seed: int) -> Any:
        fits.append(seed)
        return np.full((len(task.test), 2), 0.5)

    arm = replace(QUICK, fit=fit)
    for code, expected in (("one", 1), ("one", 1), ("two", 2)):
        monkeypatch.setattr(measuring, "version_of", lambda arm, code=code: code)
        measure(asked(tmp_path, arm, groups=("label",), seeds=(1,)), "tiny")
        assert len(fits) == expected
    monkeypatch.setattr(measuring, "version_of", lambda arm: "three")
    measure(asked(tmp_path, arm, groups=("label",), seeds=(1,), any_version=True), "tiny")
    assert len(fits) == 2


@pytest.mark.usefixtures("_tiny")
def test_a_refusal_of_veil_is_stored_as_its_sentence(tmp_path: Path) -> None:
    def refuse(*_: Any) -> Any:
        raise InputError("group A has 1 row: merge it.")

    measure(asked(tmp_path, replace(QUICK, fit=refuse), seeds=(1,)), "tiny")
    found = stored(Cell("test", "tiny", "label", "dp-sgd", 1.0, 1), tmp_path)
    assert found is not None
    assert found["failed"] == "group A has 1 row: merge it."


@pytest.mark.usefixtures("_tiny")
def test_a_peer_that_knows_no_groups_is_fitted_once_for_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits: list[Fit] = []

    def answer(task: Any, listed: list[Fit]) -> Any:
        fits.extend(listed)
        for fit in listed:
            yield fit, Answer("peer 1", 1.0, np.full((len(task.test), 2), 0.5))

    monkeypatch.setattr(measuring, "ask_peers", answer)
    measure(asked(tmp_path, ARMS["dp-ebm"], ARMS["lightgbm"], ARMS["lightgbm-weighted"]), "tiny")
    assert [(fit.arm, fit.epsilon, fit.seed, fit.group_columns) for fit in fits] == [
        ("dp-ebm", 1.0, 1, ()),
        ("dp-ebm", 1.0, 2, ()),
        ("lightgbm", None, 1, ()),
        ("lightgbm-weighted", None, 1, ("sex",)),
        ("lightgbm-weighted", None, 1, ("sex", "part")),
        ("lightgbm-weighted", None, 1, ("sex", "approved")),
    ]
    assert len(list(tmp_path.rglob("*.json"))) == 4 * len(GROUPINGS)


def test_each_arm_of_the_peers_environment_is_one_that_it_knows() -> None:
    assert set(PEERS) == {arm.name for arm in ARMS.values() if arm.fit is None}


def test_files_for_peers_hold_no_label_of_a_measured_row(tiny_table: Table, tmp_path: Path) -> None:
    import pandas as pd

    task = tiny_table.task("protected")
    exchange._write(tmp_path, task, [Fit("dp-ebm", 1.0, 1)])
    assert task.target not in pd.read_parquet(tmp_path / "test.parquet")
    assert json.loads((tmp_path / "job.json").read_text(encoding="utf-8"))["fits"][0]["epsilon"] == 1.0


def test_a_missing_environment_of_peers_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(exchange, "PYTHON", tmp_path / "none")
    with pytest.raises(SystemExit) as ended:
        command.main(["--arms", "logistic,dp-ebm", "--store", str(tmp_path)])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("error: LightGBM and the peers need the environment .venv-peers, which is missing")
    assert "`make peers`" in said
    assert len(said.splitlines()) == 1


def test_a_missing_raw_file_is_one_sentence_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VEIL_DATA", str(tmp_path / "nowhere"))
    words = ["--tables", "law_school,generated_tiny_cells", "--arms", "constant", "--store", str(tmp_path / "store")]
    command.main([*words, "--results", str(tmp_path)])
    assert "law_school is left out: " in capsys.readouterr().err
    assert len(list((tmp_path / "store").rglob("*.json"))) == len(GROUPINGS)
    assert "generated_tiny_cells" in (tmp_path / "tables.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--arms", "dp-emb"], 'unknown arm "dp-emb"'),
        (["--tables", "adults"], 'unknown table "adults"'),
        (["--groups", "sex"], 'unknown groups "sex"'),
        (["--arms", "constant", "--epsilons", "one"], "--epsilons and --seeds take numbers"),
        (["--page-only", "--results", "nowhere"], "Nothing is stored in"),
    ],
)
def test_wrong_words_are_one_sentence(
    words: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command.main([*words, "--store", str(tmp_path)])
    assert sentence in capsys.readouterr().err


def test_a_method_that_this_version_does_not_have_is_left_out_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    import benchmarks.tables.arms as module

    (auto,) = arms_named(("auto",))
    monkeypatch.setattr(module, "_methods", lambda: ["dp-sgd"])
    assert auto.missing() == "This version of Veil has no method `auto`: it is left out."
    monkeypatch.setattr(module, "_methods", lambda: ["dp-sgd", "auto"])
    assert auto.missing() is None
