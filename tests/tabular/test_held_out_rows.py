"""Rows that are kept out of training: their own ledger, their own budgets, and what is checked before."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from table_cases import messy

from veil.accounting import Ledger, Pld
from veil.accounting.verify import verify
from veil.tabular import load_predictor
from veil.tabular.table import held_out


def test_the_evaluation_of_held_out_rows_is_reserved_in_a_ledger_of_its_own(train: Any, tmp_path: Path) -> None:
    assert train().code == 0
    ledger = Ledger.open(tmp_path / "run" / "evaluation.jsonl")
    [entry] = ledger.entries
    assert entry["purpose"] == "evaluation"
    from veil.accounting import Pld

    spent = Pld().epsilon(ledger.spent(0), ledger.terms.delta)
    assert 7.9 < spent <= 8.0
    assert verify(tmp_path / "run" / "certificate.json").holds


def test_public_test_rows_are_measured_exactly_and_no_row_is_held_out(train: Any, table_path: Path) -> None:
    outcome = train("--test", str(shutil.copy(table_path, table_path.with_name("public.csv"))))
    assert outcome.code == 0, outcome.err
    assert "released" not in outcome.answer["metrics"]
    assert sum(group["n"] for group in outcome.answer["metrics"]["by_group"].values()) == 500


def test_holdout_of_zero_gives_no_figures(train: Any) -> None:
    assert train("--holdout", "0").answer["metrics"] is None


@pytest.mark.parametrize("kind", ["row budgets", "owners"])
def test_no_held_out_row_is_charged_more_than_its_own_budget(train: Any, tmp_path: Path, kind: str) -> None:
    table = messy(600)
    apart = held_out(len(table), 0.2)
    careful = np.arange(len(table)) == np.flatnonzero(apart)[0]
    if kind == "owners":
        table["who"] = np.where(careful, "careful", "open")
        (tmp_path / "budgets.csv").write_text("owner,epsilon\ncareful,0.5\nopen,2\n")
        words = ["--owner", "who", "--budgets", str(tmp_path / "budgets.csv")]
    else:
        table["own ε"] = np.where(careful, 0.5, 2.0)
        words = ["--row-budgets", "own ε"]
    table.to_csv(tmp_path / "owned.csv", index=False)
    outcome = train(*words, data=tmp_path / "owned.csv")
    assert outcome.code == 0, outcome.err
    ledger = Ledger.open(tmp_path / "run" / "evaluation.jsonl")
    spent = [account.rule.guarantee(ledger.terms.delta, Pld()) for account in ledger.terms.accounts]
    assert max(spent) <= 0.5


def last_held_out(rows: int) -> int:
    """A row that is never trained on."""
    return int(np.flatnonzero(held_out(rows, 0.2))[-1])


@pytest.mark.parametrize("where", ["held out", "trained on"])
def test_a_wrong_row_budget_is_refused_before_training_by_its_row_and_not_its_value(
    where: str, train: Any, tmp_path: Path
) -> None:
    table = messy().assign(own=1.0)
    row = int(np.flatnonzero(held_out(len(table), 0.2) == (where == "held out"))[-1])
    table.loc[row, "own"] = -7.25
    table.to_csv(tmp_path / "owned.csv", index=False)
    outcome = train("--row-budgets", "own", data=tmp_path / "owned.csv")
    assert outcome.code == 2
    assert f"the budget of row {row} is not a finite number above 0" in outcome.err
    assert "7.25" not in outcome.err
    assert not (tmp_path / "run" / "ledger.jsonl").exists()


def test_an_owner_without_budget_is_refused_before_training_though_all_its_rows_are_held_out(
    train: Any, tmp_path: Path
) -> None:
    table = messy().assign(who="north")
    table.loc[last_held_out(len(table)), "who"] = "south"
    table.to_csv(tmp_path / "owned.csv", index=False)
    (tmp_path / "budgets.csv").write_text("owner,epsilon\nnorth,1\n")
    outcome = train("--owner", "who", "--budgets", str(tmp_path / "budgets.csv"), data=tmp_path / "owned.csv")
    assert outcome.code == 2
    assert 'owner "south" has no budget' in outcome.err
    assert not (tmp_path / "run" / "ledger.jsonl").exists()


def test_a_class_that_only_a_held_out_row_has_is_a_class_of_the_model(train: Any, tmp_path: Path) -> None:
    table = messy()
    table.loc[last_held_out(len(table)), "bought"] = "perhaps"
    table.to_csv(tmp_path / "rare.csv", index=False)
    outcome = train("--model", "logistic", data=tmp_path / "rare.csv")
    assert outcome.code == 0, outcome.err
    assert load_predictor(tmp_path / "run").classes == ("no", "perhaps", "yes")
    certificate = json.loads((tmp_path / "run" / "certificate.json").read_text())
    assert any("Which classes there are was read off" in sentence for sentence in certificate["assumptions"])


@pytest.mark.parametrize("words", [[], ["--private-preprocessing", "0.1"]])
def test_a_group_that_only_held_out_rows_have_is_refused_before_a_row_is_used(
    words: list[str], train: Any, tmp_path: Path
) -> None:
    table = messy()
    table.loc[last_held_out(len(table)), "region"] = "lagoon"
    table.to_csv(tmp_path / "rare.csv", index=False)
    outcome = train(*words, data=tmp_path / "rare.csv")
    assert outcome.code == 2
    assert 'group "lagoon" has no row to train on' in outcome.err
    assert not list((tmp_path / "run").glob("*.jsonl"))
