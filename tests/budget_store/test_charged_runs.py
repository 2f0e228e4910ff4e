"""A run that is charged to a data set's budget: refused when it overruns, charged once however often it goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from veil.budget_store import BudgetStore, DataSet
from veil.budget_store.store import BudgetExceeded
from veil.cli.app import app
from veil.errors import InputError
from veil.plans import Plan, Settings
from veil.request import Request
from veil.tables.table_run import train_table
from veil.training import Callback, StepReport
from veil.training.run_folder import RunFolder


@pytest.fixture
def place(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    frame = pd.DataFrame({"a": generator.normal(size=600), "sex": ["f", "m"] * 300})
    frame["rich"] = np.where(frame["a"] > 0, "yes", "no")
    frame.to_csv(tmp_path / "people.csv", index=False)
    store = BudgetStore.create(str(tmp_path / "budget.sqlite"))
    store.add_dataset(DataSet("people", groups=("sex",)), epsilon=1.5, delta=1e-3)
    return tmp_path


class Crash(Callback):
    def on_step(self, report: StepReport) -> None:
        raise RuntimeError("cut short")


def train(place: Path, out: str, method: str = "dp-sgd", share: float | None = None, **more: Any) -> Any:
    request = Request.checked(
        data=place / "people.csv",
        target="rich",
        group="sex",
        method=method,
        model=more.pop("model", "logistic"),
        private_preprocessing=share,
        dataset="people",
        store=str(place / "budget.sqlite"),
        settings=Settings.checked(epsilon=1.0, delta=1e-5, steps=5, batch_size=50, seed=1),
    )
    return train_table(request, out=place / out, **more)


def spent(place: Path) -> float:
    return BudgetStore.open(str(place / "budget.sqlite")).balances("people")[0].spent_epsilon


def test_what_overruns_the_budget_is_refused_before_a_row_is_drawn(place: Path) -> None:
    run = train(place, "first")
    assert spent(place) == pytest.approx(1.0, rel=1e-3)
    assert run.as_json()["budget"]["limits"][0]["epsilon"] == 1.5
    assert "budget after this run" in (place / "first" / "report.html").read_text()
    with pytest.raises(BudgetExceeded, match="does not allow this"):
        train(place, "second")
    assert spent(place) == pytest.approx(1.0, rel=1e-3)
    assert not (place / "second" / "ledger.jsonl").exists()


def test_a_run_that_goes_on_is_charged_once(place: Path) -> None:
    with pytest.raises(RuntimeError, match="cut short"):
        train(place, "run", callbacks=[Crash()])
    assert spent(place) == pytest.approx(1.0, rel=1e-3)
    train(place, "run", resume=True)
    assert spent(place) == pytest.approx(1.0, rel=1e-3)
    assert json.loads((place / "run" / "budget.json").read_text())["state"] == "finished"


def test_private_preprocessing_is_paid_for_before_it_reads_a_row(place: Path) -> None:
    train(place, "run", share=0.2)
    assert spent(place) == pytest.approx(1.0, rel=1e-3)


def test_a_run_that_never_read_a_row_gives_its_reservation_back(place: Path) -> None:
    class Refuses(Callback):
        def on_start(self, plan: Plan) -> None:
            raise RuntimeError("not today")

    with pytest.raises(RuntimeError, match="not today"):
        train(place, "run", callbacks=[Refuses()])
    assert spent(place) == 0.0
    train(place, "run", resume=True)
    assert spent(place) == pytest.approx(1.0, rel=1e-3)


def test_a_method_without_privacy_has_no_budget(place: Path) -> None:
    with pytest.raises(InputError, match="no budget allows it"):
        train(place, "run", method="erm")


def test_bounds_that_were_read_off_rows_are_noted_beside_a_total_that_leaves_them_out(place: Path) -> None:
    train(place, "open")
    (entry,) = BudgetStore.open(str(place / "budget.sqlite")).history("people")
    assert entry.note == "Not charged: bounds and categories taken from the rows"
    asked = ["budget", "show", "--store", str(place / "budget.sqlite")]
    assert "1 run also read something from the rows" in CliRunner().invoke(app, asked).stdout
    shown = json.loads(CliRunner().invoke(app, [*asked, "--json"]).stdout)
    assert shown["datasets"][0]["runs_not_fully_charged"] == [entry.run]


def test_a_run_with_a_schema_or_private_preprocessing_is_charged_for_all_that_it_reads(place: Path) -> None:
    train(place, "private", share=0.2)
    (entry,) = BudgetStore.open(str(place / "budget.sqlite")).history("people")
    assert entry.note == ""
    assert not entry.reads_more


def test_a_new_run_does_not_pay_by_the_charge_of_one_that_was_cut_short(place: Path) -> None:
    with pytest.raises(RuntimeError, match="cut short"):
        train(place, "run", callbacks=[Crash()])
    for name in ("ledger.jsonl", "seed.key", "checkpoint.safetensors"):
        (place / "run" / name).unlink()
    with pytest.raises(InputError, match="belongs to another run"):
        train(place, "run")
    assert spent(place) == pytest.approx(1.0, rel=1e-3)


def test_a_run_that_is_killed_before_its_seed_is_destroyed_can_still_be_completed(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(folder: RunFolder) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(RunFolder, "complete", killed)
        train(place, "run")
    train(place, "run", resume=True)
    assert not (place / "run" / "seed.key").exists()
    assert spent(place) == pytest.approx(1.0, rel=1e-3)
