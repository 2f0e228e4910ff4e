"""Rows that are kept out of training: their own ledger, their own budgets, and what is checked before."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tables.table_cases import held_out_of, messy, with_value
from veil.accounting import Ledger, Pld
from veil.accounting.verify import verify
from veil.auditing.rebuilding import rebuild_rows
from veil.errors import InputError
from veil.foundation.randomness import Seed
from veil.tables import load_predictor
from veil.tables.splitting import Holdout, row_identities
from veil.training.run import load


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
    column, careful, free = ("who", "careful", "open") if kind == "owners" else ("own ε", 0.5, 2.0)
    table = messy(600).assign(**{column: free})
    with_value(table, column, careful)
    if kind == "owners":
        (tmp_path / "budgets.csv").write_text("owner,epsilon\ncareful,0.5\nopen,2\n")
        words = ["--owner", "who", "--budgets", str(tmp_path / "budgets.csv")]
    else:
        words = ["--row-budgets", "own ε"]
    table.to_csv(tmp_path / "owned.csv", index=False)
    outcome = train(*words, data=tmp_path / "owned.csv")
    assert outcome.code == 0, outcome.err
    ledger = Ledger.open(tmp_path / "run" / "evaluation.jsonl")
    spent = [account.rule.guarantee(ledger.terms.delta, Pld()) for account in ledger.terms.accounts]
    assert max(spent) <= 0.5


@pytest.mark.parametrize("where", ["held out", "trained on"])
def test_a_wrong_row_budget_is_refused_before_training_by_its_row_and_not_its_value(
    where: str, train: Any, tmp_path: Path
) -> None:
    table = messy().assign(own=1.0)
    row = with_value(table, "own", -7.25, where == "held out")
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
    with_value(table, "who", "south")
    table.to_csv(tmp_path / "owned.csv", index=False)
    (tmp_path / "budgets.csv").write_text("owner,epsilon\nnorth,1\n")
    outcome = train("--owner", "who", "--budgets", str(tmp_path / "budgets.csv"), data=tmp_path / "owned.csv")
    assert outcome.code == 2
    assert 'owner "south" has no budget' in outcome.err
    assert not (tmp_path / "run" / "ledger.jsonl").exists()


def test_a_class_that_only_a_held_out_row_has_is_a_class_of_the_model(train: Any, tmp_path: Path) -> None:
    table = messy()
    with_value(table, "bought", "perhaps")
    table.to_csv(tmp_path / "rare.csv", index=False)
    outcome = train("--model", "logistic", data=tmp_path / "rare.csv")
    assert outcome.code == 0, outcome.err
    assert load_predictor(tmp_path / "run").classes == ("no", "perhaps", "yes")
    certificate = json.loads((tmp_path / "run" / "certificate.json").read_text())
    assert any("The set of classes was taken from" in sentence for sentence in certificate["assumptions"])


@pytest.mark.parametrize("seed", [[], ["--seed", "7"]])
def test_the_held_out_rows_of_a_finished_run_can_be_told_again_though_its_seed_is_gone(
    seed: list[str], train: Any, tmp_path: Path
) -> None:
    assert train("--method", "dp-sgd", *seed).code == 0
    run = load(tmp_path / "run")
    rows = rebuild_rows(run)
    assert rows.others is not None
    assert len(rows.problem) + len(rows.others) == 500
    assert [group["rows"] for group in run.record["groups"]] == list(rows.problem.public.group_sizes)
    key = bytes.fromhex(run.record["config"]["holdout_key"])
    assert np.array_equal(
        Holdout(0.2, Seed(key)).sparing(row_identities(messy()), messy()["region"]).sum(), len(rows.others)
    )
    other = json.loads((tmp_path / "run" / "run.json").read_text())
    del other["config"]["holdout_key"]
    (tmp_path / "run" / "run.json").write_text(json.dumps(other))
    with pytest.raises(InputError, match="does not record which rows were held out"):
        rebuild_rows(load(tmp_path / "run"))


def test_a_row_that_is_replaced_keeps_its_part_under_replace_one(train: Any, tmp_path: Path) -> None:
    """By what it says, it could go from one part to the other, which replacing a row within each does not pay for."""
    held = []
    for code in ("PC0001", "PC0002", "PC0003", "PC0004"):
        table = messy()
        table.loc[3, "postcode"] = code
        table.to_csv(tmp_path / "shop.csv", index=False)
        assert train("--method", "dp-sgd", "--option", "sampling=wor", "--out", str(tmp_path / code)).code == 0
        others = rebuild_rows(load(tmp_path / code)).others
        assert others is not None
        held.append(len(others))
        said = json.loads((tmp_path / code / "certificate.json").read_text())["assumptions"]
        assert any("by a coin on each row's place" in sentence for sentence in said)
    assert len(set(held)) == 1


@pytest.mark.parametrize("words", [[], ["--private-preprocessing", "0.1"]])
def test_no_row_of_a_small_group_is_held_out_so_that_every_group_is_trained_on(
    words: list[str], train: Any, tmp_path: Path
) -> None:
    table = messy()
    for row in range(8):
        table.loc[row, "region"] = "lagoon"
    assert not held_out_of(table)[:8].any()
    table.to_csv(tmp_path / "rare.csv", index=False)
    outcome = train(*words, data=tmp_path / "rare.csv")
    assert outcome.code == 0, outcome.err
    sizes = {
        group["name"]: group["rows"] for group in json.loads((tmp_path / "run" / "run.json").read_text())["groups"]
    }
    assert sizes["lagoon"] == 8
