"""Rows that are kept out of training: their own ledger, their own budgets, and what is checked before."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.tables.table_cases import held_out_of, messy, with_value
from veil.accounting import Certificate, Ledger, Pld, certify
from veil.accounting.certificate import guarantees_by_account
from veil.accounting.verify import OF_TRAINED, Verdict, verify
from veil.auditing.rebuilding import rebuild_rows
from veil.errors import InputError
from veil.foundation.randomness import Seed
from veil.request import Request
from veil.tables import load_predictor
from veil.tables.splitting import Holdout, row_identities
from veil.tables.table_run import train_table
from veil.training.run import load
from veil.training.run_folder import EVALUATION


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


@pytest.fixture(scope="module")
def unequal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose groups pay unequally in training, and measures held-out rows of both."""
    rng = np.random.default_rng(4)
    sex = rng.choice(["f", "m"], 1200, p=[0.1, 0.9])
    table = tmp_path_factory.mktemp("unequal") / "people.csv"
    pd.DataFrame({"a": rng.normal(size=1200).round(3), "sex": sex, "ill": rng.integers(0, 2, 1200)}).to_csv(
        table, index=False
    )
    given = {"data": table, "target": "ill", "group": ("sex",), "method": "dp-is-sgd", "model": "logistic"}
    train_table(
        Request.checked(**given, settings={"epsilon": 1.0, "steps": 5, "batch_size": 40, "seed": 1}),
        out=table.parent / "run",
    )
    return table.parent / "run"


def changed(run: Path, to: Path, **fields: object) -> Verdict:
    """The verdict on a copy of the run whose certificate, and its copy in the record, say something else."""
    copytree(run, to)
    for name in ("certificate.json", "run.json"):
        whole = json.loads((to / name).read_text())
        (whole if name == "certificate.json" else whole["certificate"]).update(fields)
        (to / name).write_text(json.dumps(whole))
    return verify(to / "certificate.json")


def test_a_held_out_row_is_not_promised_the_smaller_epsilon_of_its_groups_training(unequal: Path) -> None:
    certificate = Certificate.load(unequal / "certificate.json")
    trained = certify(Ledger.open(unequal / "ledger.jsonl"), Pld()).by_group
    measured = Ledger.open(unequal / EVALUATION)
    paid = guarantees_by_account(measured, Pld())[0]
    assert min(trained.values()) < paid / 2, "else there is nothing to test"
    assert all(epsilon >= paid for epsilon in certificate.by_group.values())
    assert certificate.held_out == {EVALUATION: pytest.approx(paid)}
    assert any("the larger of two" in said for said in certificate.assumptions)
    assert verify(unequal / "certificate.json").holds


def test_a_certificate_that_leaves_held_out_rows_out_is_not_verified(unequal: Path, tmp_path: Path) -> None:
    certificate = Certificate.load(unequal / "certificate.json")
    trained = certify(Ledger.open(unequal / "ledger.jsonl"), Pld())
    small = {"by_group": trained.by_group, "spent_by_group": trained.spent_by_group, "epsilon": trained.epsilon}
    small |= {"by_owner": trained.by_owner, "statement": trained.statement}
    verdict = changed(unequal, tmp_path / "lower", **small)
    assert any("by_group does not follow" in fault for fault in verdict.faults)
    verdict = changed(unequal, tmp_path / "uncounted", **small, held_out={})
    assert any("held-out rows have ε = 1" in fault for fault in verdict.faults)
    said = [OF_TRAINED if "the larger of two" in one else one for one in certificate.assumptions]
    assert changed(unequal, tmp_path / "earlier", **small, held_out={}, assumptions=said).holds, "as it was said before"


def test_a_ledger_of_held_out_rows_that_is_gone_is_missed(unequal: Path, tmp_path: Path) -> None:
    copytree(unequal, tmp_path / "gone")
    (tmp_path / "gone" / EVALUATION).unlink()
    assert (
        f"{EVALUATION} is missing: the certificate counts what it records"
        in verify(tmp_path / "gone" / "certificate.json").faults
    )
