"""A run on a table resumes with the request, the table, the schema and the held-out rows that it began with."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from veil import methods
from veil.budget_store import BudgetStore, DataSet
from veil.cli.app import main
from veil.errors import InputError
from veil.methods import Method
from veil.plans import Plan, Settings
from veil.request import Request
from veil.tables import mapped, measuring, opening
from veil.tables.measuring import HeldOutFigures
from veil.tables.table_run import train_table
from veil.training import Callback, Run, StepReport
from veil.training.fitting import Measured

SETTINGS: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-4, "steps": 10, "batch_size": 40, "checkpoint_every": 4}
SCHEMA = """
[columns.a]
kind = "numeric"
low = -3
high = 3
[columns.b]
kind = "numeric"
low = -3
high = 3
[columns.sex]
kind = "group"
values = ["f", "m"]
feature = false
[columns.who]
kind = "ignore"
[columns.rich]
kind = "target"
values = ["no", "yes"]
[group_sizes]
f = 100
m = 150
"""


class Crash(Exception):
    """Stands for anything that ends a process."""


class CrashAt(Callback):
    def __init__(self, step: int) -> None:
        self.step, self.seen = step, 0

    def on_step(self, report: StepReport) -> None:
        self.seen += 1
        if report.step == self.step:
            raise Crash


def people() -> pd.DataFrame:
    generator = np.random.default_rng(3)
    frame = pd.DataFrame(generator.normal(size=(300, 2)).round(3), columns=["a", "b"])
    frame["sex"] = np.where(generator.random(300) < 0.4, "f", "m")
    frame["who"] = np.where(generator.random(300) < 0.3, "careful", "open")
    frame["rich"] = np.where(frame["a"] + generator.normal(size=300) > 0, "yes", "no")
    return frame


@pytest.fixture
def place(tmp_path: Path) -> Path:
    people().to_csv(tmp_path / "people.csv", index=False)
    people().assign(a=0.5).to_csv(tmp_path / "public.csv", index=False)
    (tmp_path / "schema.toml").write_text(SCHEMA)
    (tmp_path / "budgets.csv").write_text("owner,epsilon\ncareful,1\nopen,2\n")
    return tmp_path


def asked(place: Path, **more: Any) -> Request:
    roles: dict[str, Any] = {"target": "rich", "group": "sex", "method": "dp-sgd", "model": "logistic", "ignore": "a"}
    return Request.checked(data=place / "people.csv", **(roles | more))


def train(
    place: Path, request: Request, method: Method | None = None, settings: dict[str, Any] | None = None, **more: Any
) -> Run:
    request = request.model_copy(update={"settings": Settings.checked(**(SETTINGS | (settings or {})))})
    return train_table(request, method=method, out=place / "run", **more)


def cut_short(place: Path, request: Request, step: int = 6, **more: Any) -> None:
    with pytest.raises(Crash):
        train(place, request, callbacks=[CrashAt(step)], **more)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def refused(place: Path, named: str, request: Request, **more: Any) -> str:
    before = files(place / "run")
    with pytest.raises(InputError, match=f"^Cannot resume: {named}") as refusal:
        train(place, request, resume=True, **more)
    assert files(place / "run") == before
    return str(refusal.value)


OTHER_REQUESTS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "ignore": ({}, {"ignore": "b"}, "`ignore` was a and is now b"),
    "holdout": ({}, {"holdout": 0.3}, "`holdout` was not set and is now 0.3"),
    "train only": ({}, {"train_only": ("*.bias",)}, r"`train_only` was not set and is now \*\.bias"),
    "model": ({}, {"model": "mlp"}, "`model` was logistic and is now mlp"),
    "model option": (
        {"model": "mlp", "model_option": {"width": 4}},
        {"model": "mlp", "model_option": {"width": 5}},
        "`model_option.width` was 4 and is now 5",
    ),
    "group": ({}, {"group": ("who",)}, "`group` was sex and is now who"),
    "exact figures": ({}, {"show_private": True}, "`show_private` was False and is now True"),
    "share of preprocessing": (
        {"private_preprocessing": 0.5},  # with less, the noise of one attempt in six hides the bounds of 300 rows
        {"private_preprocessing": 0.6},
        "`private_preprocessing` was 0.5 and is now 0.6",
    ),
}


@pytest.mark.parametrize("name", OTHER_REQUESTS)
def test_another_request_is_named(place: Path, name: str) -> None:
    first, other, named = OTHER_REQUESTS[name]
    cut_short(place, asked(place, **first))
    said = refused(place, named, asked(place, **other))
    assert said.endswith(". Use the original settings or a new --out.")
    train(place, asked(place, **first), resume=True)


def test_every_field_of_a_request_is_compared(place: Path) -> None:
    """One that were left out could change what is released under the same noise."""
    cut_short(place, asked(place))
    record = json.loads((place / "run" / "seed.key").read_text())["noted"]["request"]["settings"]
    names = {field.alias or name for name, field in Request.model_fields.items()}
    elsewhere = {"settings": "one by one", "preset": "by method and model"}
    elsewhere |= dict.fromkeys(("option", "model_option", "require"), "empty")
    elsewhere |= {"workers": "the same sums, whoever adds them up: tests/tables/test_partitions.py"}
    assert names - set(record) == set(elsewhere)


def test_other_options_of_the_method_and_other_settings_are_named(place: Path) -> None:
    cut_short(place, asked(place))
    refused(place, "the method differs", asked(place), method=methods.create("dp-sgd", {"clip": 2.0}))
    refused(place, "`learning_rate` was not set and is now 0.1", asked(place), settings={"learning_rate": 0.1})


def test_a_path_is_the_same_from_wherever_it_is_given(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_short(place, asked(place))
    monkeypatch.chdir(place)
    train(place, asked(place).model_copy(update={"data": Path("people.csv")}), resume=True)


def edit(path: Path, row: int, column: str, value: Any) -> None:
    frame = pd.read_csv(path)
    frame.loc[row, column] = value
    frame.to_csv(path, index=False)


def test_an_edited_row_is_refused_whether_it_is_trained_on_or_held_out(place: Path) -> None:
    """Both are released with the same noise: the held-out rows as counts, at the very end."""
    cut_short(place, asked(place))
    whole, found = (place / "people.csv").read_bytes(), set()
    for row in range(300):
        edit(place / "people.csv", row, "b", 1.234)
        found.add("held-out" in refused(place, "the (held-out )?rows", asked(place)))
        (place / "people.csv").write_bytes(whole)
        if len(found) == 2:
            break
    assert found == {True, False}
    train(place, asked(place), resume=True)


def test_an_edited_group_or_target_is_refused_where_sizes_are_declared(place: Path) -> None:
    """The plan and every public fact are the same."""
    request = asked(place, schema=place / "schema.toml", holdout=0.0, ignore="")
    cut_short(place, request)
    whole = (place / "people.csv").read_bytes()
    for column, named in (("sex", "the groups differ"), ("rich", "the targets differ")):
        before = people().loc[5, column]
        edit(place / "people.csv", 5, column, next(v for v in people()[column].unique() if v != before))
        refused(place, named, request)
        (place / "people.csv").write_bytes(whole)
    refused(place, "`holdout` was 0.0 and is now 0.2", request.model_copy(update={"holdout": 0.2}))
    train(place, request, resume=True)


def test_an_edited_schema_is_refused(place: Path) -> None:
    request = asked(place, schema=place / "schema.toml", ignore="")
    cut_short(place, request)
    (place / "schema.toml").write_text(SCHEMA.replace("high = 3", "high = 4", 1))
    refused(place, "the schema differs", request)


def test_edited_budgets_are_refused(place: Path) -> None:
    request = asked(place, owner="who", budgets=place / "budgets.csv")
    cut_short(place, request)
    (place / "budgets.csv").write_text("owner,epsilon\ncareful,1\nopen,3\n")
    refused(place, "the (held-out rows|budgets) differ", request)


def test_an_edited_test_table_is_refused(place: Path) -> None:
    request = asked(place, test=place / "public.csv")
    cut_short(place, request)
    edit(place / "public.csv", 0, "b", 2.5)
    refused(place, "the evaluation rows differ", request)


def test_another_data_set_or_store_does_not_pay(place: Path) -> None:
    for name in ("budget", "other"):
        store = BudgetStore.create(str(place / f"{name}.sqlite"))
        for dataset in ("people", "others"):
            store.add_dataset(DataSet(dataset, groups=("sex",)), epsilon=5.0, delta=1e-3)
    request = asked(place, dataset="people", store=str(place / "budget.sqlite"))
    cut_short(place, request)
    refused(place, "`dataset` was people and is now others", request.model_copy(update={"dataset": "others"}))
    refused(
        place,
        "`store` was .*budget.sqlite and is now .*other.sqlite",
        request.model_copy(update={"store": str(place / "other.sqlite")}),
    )
    assert BudgetStore.open(str(place / "other.sqlite")).balances("people")[0].spent_epsilon == 0


def test_a_charged_run_that_is_refused_stays_charged_and_says_why(place: Path) -> None:
    store = BudgetStore.create(str(place / "budget.sqlite"))
    store.add_dataset(DataSet("people", groups=("sex",)), epsilon=5.0, delta=1e-3)
    request = asked(place, dataset="people", store=str(place / "budget.sqlite"), holdout=0.0)
    cut_short(place, request)
    edit(place / "people.csv", 5, "b", 1.234)
    with pytest.raises(InputError, match="Cannot resume: the rows differ"):
        train(place, request, resume=True)
    assert store.balances("people")[0].spent_epsilon == pytest.approx(2.0, rel=1e-3)


@pytest.mark.parametrize("column", ["b", "who", "rich", "sex"])
def test_private_preprocessing_is_not_repeated_on_another_table(
    place: Path, column: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is cut short after its releases, before there is a checkpoint or an encoded row to compare."""
    request = asked(place, private_preprocessing=0.2, holdout=0.0)
    monkeypatch.setattr(opening, "table_problem", _crash)
    with pytest.raises(Crash):
        train(place, request)
    monkeypatch.undo()
    assert not (place / "run" / "checkpoint.safetensors").exists()
    whole = (place / "people.csv").read_bytes()
    before = people().loc[5, column]
    other = 100.0 if column == "b" else next(value for value in people()[column].unique() if value != before)
    edit(place / "people.csv", 5, column, other)
    named = {"b": "the rows", "who": "the rows", "rich": "the targets", "sex": "the groups"}[column]
    refused(place, f"{named} differ", request)
    (place / "people.csv").write_bytes(whole)
    train(place, request, resume=True)


def _crash(*_: Any, **__: Any) -> None:
    raise Crash


@pytest.fixture
def measured(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that was cut short after its held-out rows were measured."""
    made = measuring.noisy_metrics

    def then_crash(*given: Any, **more: Any) -> None:
        made(*given, **more)
        raise Crash

    monkeypatch.setattr(measuring, "noisy_metrics", then_crash)
    with pytest.raises(Crash):
        train(place, asked(place))
    monkeypatch.undo()
    assert (place / "run" / "evaluation.jsonl").exists()
    return place


def test_a_run_that_was_trained_is_not_trained_again(measured: Path) -> None:
    """Ten steps, checkpoints after four and eight: without one after the last, two steps would be repeated."""
    watch = CrashAt(-1)
    train(measured, asked(measured), callbacks=[watch], resume=True)
    assert watch.seen == 0


def test_held_out_rows_are_not_measured_again_by_another_model(measured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The counts of two models under the same noise would differ by exact counts."""
    measure = HeldOutFigures.__call__

    def other(self: HeldOutFigures, model: nn.Module, plan: Plan) -> Measured:
        with torch.no_grad():
            next(model.parameters()).add_(0.01)
        return measure(self, model, plan)

    monkeypatch.setattr(HeldOutFigures, "__call__", other)
    with pytest.raises(InputError, match="Cannot resume: the trained weights differ"):
        train(measured, asked(measured), resume=True)
    monkeypatch.undo()
    assert train(measured, asked(measured), resume=True).metrics is not None


def as_folder(place: Path, frame: pd.DataFrame) -> Path:
    (place / "big").mkdir(exist_ok=True)
    frame.to_parquet(place / "big" / "part-0.parquet", index=False)
    return place / "big"


def test_tables_larger_than_memory_are_compared_row_by_row(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped, "LARGE", 100)
    monkeypatch.setenv("VEIL_CACHE", str(place / "cache"))
    request = asked(place, holdout=0.2).model_copy(update={"data": as_folder(place, people())})
    cut_short(place, request)
    found = set()
    for row in range(1, 300):
        frame = people()
        frame.loc[row, "b"] = 0.777
        as_folder(place, frame)
        found.add("held-out" in refused(place, "the (held-out )?rows", request))
        if len(found) == 2:
            break
    assert found == {True, False}
    as_folder(place, people())
    train(place, request, resume=True)


def test_images_are_compared(place: Path) -> None:
    from PIL import Image

    generator = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (place / "images" / name).mkdir(parents=True)
        for number in range(60):
            pixels = generator.integers(0, 255, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(place / "images" / name / f"{number:02d}.png")
    request = Request.checked(data=place / "images", method="dp-sgd", model="logistic")
    cut_short(place, request)
    path = place / "images" / "cat" / "07.png"
    whole = path.read_bytes()
    Image.fromarray(np.zeros((8, 8, 3), dtype=np.uint8)).save(path)
    refused(place, "the (held-out )?rows", request)
    path.write_bytes(whole)
    train(place, request, resume=True)


def command(place: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    fixed = [str(place / "people.csv"), "--target", "rich", "--group", "sex", "--model", "logistic", "--quiet"]
    fixed += ["--epochs", "2", "--batch-size", "64", "--out", str(place / "run")]
    monkeypatch.setattr(sys, "argv", ["veil", "train", *fixed, *words])
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let runs end in their third step."""

    def crash() -> None:
        def fails(self: Any, report: StepReport) -> None:
            if report.step == 2:
                raise InputError("cut short")

        monkeypatch.setattr("veil.cli.progress.ProgressBar.on_step", fails)

    return crash


def test_the_command_line_names_what_differs_and_keeps_the_configuration(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], once: Callable[[], None]
) -> None:
    once()
    assert command(place, monkeypatch, "--ignore", "a", "--option", "clip=2") == 2
    before = (place / "run" / "config.toml").read_bytes()
    for words, named in (
        (("--ignore", "b", "--option", "clip=2"), "`ignore` was a and is now b."),
        (("--ignore", "a", "--option", "clip=3"), "`option.clip` was 2 and is now 3."),
        (("--ignore", "a", "--option", "clip=2", "--epsilon", "3"), "`epsilon` was 1.0 and is now 3.0."),
        (("--ignore", "a"), "`option.clip` was 2 and is now not set."),
    ):
        capsys.readouterr()
        assert command(place, monkeypatch, *words, "--resume") == 2
        assert f"Cannot resume: {named}" in " ".join(capsys.readouterr().err.split())
    monkeypatch.undo()
    assert command(place, monkeypatch, "--ignore", "a", "--option", "clip=2", "--resume") == 0
    assert (place / "run" / "config.toml").read_bytes() == before, "it says what was typed first"


def test_a_run_resumes_from_its_own_configuration(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], once: Callable[[], None]
) -> None:
    """Every option comes back from the file as it was typed."""
    words = ["--owner", "who", "--budgets", str(place / "budgets.csv"), "--ignore", "a", "--holdout", "0.25"]
    words += ["--option", "clip=2", "--train-only", "1.*", "--delta", "1e-4", "--require", "accuracy > 0.01"]
    once()
    assert command(place, monkeypatch, *words) == 2
    monkeypatch.undo()
    capsys.readouterr()
    run = str(place / "run")
    monkeypatch.setattr(sys, "argv", ["veil", "train", "--config", f"{run}/config.toml", "--out", run, "--resume"])
    with suppress(SystemExit):
        main()
    assert (place / "run" / "certificate.json").exists(), capsys.readouterr().err
