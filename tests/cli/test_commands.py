"""The command line as a person or a program uses it: results, JSON, and one clear sentence for wrong input."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.cli.people_cases import TRAIN, judged
from tests.program import Program
from veil.cli.console import results_table


def test_train_prints_one_json_object_with_the_agreed_keys(people: Path, tmp_path: Path, veil: Program) -> None:
    out = str(tmp_path / "run")
    code, text, _ = veil("train", *judged(people), *TRAIN, "--out", out, "--json")
    assert code == 0
    answer = json.loads(text)
    assert answer["method"] == "asc"
    assert set(answer["metrics"]["by_group"]) == {"f", "m"}
    assert answer["metrics"]["by_group"]["f"]["n"] > 0
    assert {"worst_group_accuracy", "average_group_accuracy", "accuracy", "worst_group"} <= set(answer["metrics"])
    assert answer["privacy"]["epsilon"] == pytest.approx(1.0, rel=0.01)
    assert set(answer["privacy"]["by_group"]) == {"f", "m"}
    names = {path.name for path in Path(out).iterdir()}
    assert {"config.toml", "model.safetensors", "ledger.jsonl", "certificate.json", "history.parquet"} <= names
    assert {"metrics.json", "report.html"} <= names
    code, text, _ = veil("verify", out, "--json")
    assert code == 0
    assert json.loads(text)["holds"] is True
    page = str(tmp_path / "page.html")
    code, text, _ = veil("report", out, "-o", page)
    assert code == 0
    assert Path(page).stat().st_size > 1000
    code, _, err = veil("report", out, "-o", str(tmp_path / "misspelt" / "page.html"))
    assert code == 2
    assert "there is no folder" in err
    assert not (tmp_path / "misspelt").exists()


def test_python_runs_the_command_line_by_its_package_name() -> None:
    words = ["account", "epsilon", "--rate", "2", "--noise-multiplier", "1", "--steps", "1", "--delta", "1e-5"]
    done = subprocess.run([sys.executable, "-m", "veil", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.strip() == "error: sampling rate is 2.0: it must be between 0 and 1"


def test_a_dry_run_shows_the_plan_and_writes_nothing(people: Path, tmp_path: Path, veil: Program) -> None:
    words = ("train", str(people), *TRAIN, "--out", str(tmp_path / "run"), "--dry-run")
    code, text, _ = veil(*words, "--json")
    assert code == 0
    plan = json.loads(text)
    assert plan["method"] == "asc"
    assert {row["group"] for row in plan["groups"]} == {"f", "m"}
    for row in plan["groups"]:
        assert row["epsilon"] == pytest.approx(1.0, rel=0.02)
        assert row["clip_range"][0] <= row["clip"] <= row["clip_range"][1]
        assert row["expected_rows"] > 0
    assert "Plan of asc: 16 steps" in veil(*words)[1]
    assert not (tmp_path / "run").exists()


def test_weaker_privacy_of_the_minority_must_be_said(people: Path, tmp_path: Path, veil: Program) -> None:
    words = ("train", str(people), *TRAIN, "--method", "azb-weak", "--out", str(tmp_path / "run"), "--json")
    code, _, err = veil(*words)
    assert code == 2
    assert "--allow-weaker-minority-privacy" in err
    code, text, _ = veil(*words, "--allow-weaker-minority-privacy")
    assert code == 0
    by_group = json.loads(text)["privacy"]["by_group"]
    assert by_group["f"] > 1.0
    assert by_group["m"] <= 1.0


def test_a_preset_brings_method_and_model_and_takes_no_other(people: Path, tmp_path: Path, veil: Program) -> None:
    own = ("--target", "rich", "--group", "sex", "--seed", "1")
    words = ("train", str(people), *own, "--preset", "best", "--out", str(tmp_path / "run"), "--json")
    code, text, _ = veil(*words)
    assert code == 0
    assert json.loads(text)["method"] == "group-gd"
    shown = results_table([json.loads(text)], {"f": 1, "m": 1}).columns[0]._cells[-1]
    assert shown == "ε (every group)", "rows held out pay the same in all groups"
    assert all(spent <= 1.0 for spent in json.loads(text)["privacy"]["by_group"].values())
    code, _, err = veil(*words[:-2], str(tmp_path / "other"), "--method", "asc")
    assert code == 2
    assert "omit --method" in err
    code, _, err = veil(*words[:-2], str(tmp_path / "other"), *TRAIN)
    assert code == 2
    assert "omit --epochs and --batch-size" in err


def test_every_row_may_have_a_budget_of_its_own(people: Path, tmp_path: Path, veil: Program) -> None:
    table = pd.read_csv(people)
    table["allowed"] = [0.5, 2.0] * (len(table) // 2)
    table.to_csv(people, index=False)
    words = ("train", str(people), *TRAIN, "--method", "idp-sgd", "--row-budgets", "allowed", "--json")
    code, text, _ = veil(*words, "--out", str(tmp_path / "run"))
    assert code == 0
    found = results_table([json.loads(text)], {"f": 1, "m": 1}).columns
    assert (found[0]._cells[-1], found[-1]._cells[-1]) == ("ε (smallest to largest)", "0.5 to 2")
    spent = json.loads(text)["privacy"]["by_owner"]
    assert spent["ε = 0.5"] == pytest.approx(0.5, rel=0.01)
    # The ε of an owner is never to be read as that of all its rows together.
    assert "each single row of an owner" in str(results_table([json.loads(text)], {"f": 1, "m": 1}).caption)
    card, page = ((tmp_path / "run" / name).read_text(encoding="utf-8") for name in ("MODEL_CARD.md", "report.html"))
    assert "ε for each single row of owner ε = 0.5" in card
    assert "ε of a single row, by owner" in page
    assert "For each single row of this owner" in page
    assert spent["ε = 2"] == pytest.approx(2.0, rel=0.01)
    certificate = json.loads((tmp_path / "run" / "certificate.json").read_text(encoding="utf-8"))
    assert any("taken from the rows and appear on this certificate" in line for line in certificate["not_covered"])
    assert "all rows of one owner together have no such ε" in certificate["statement"]
    code, _, err = veil(*words, "--owner", "town", "--out", str(tmp_path / "other"))
    assert code == 2
    assert "omit --owner and --budgets" in err
    code, _, err = veil(*words, "--epsilon", "1", "--out", str(tmp_path / "other"))
    assert code == 2
    assert "--row-budgets sets the ε of every owner or row: omit --epsilon" in err
    assert not (tmp_path / "other").exists()


def test_a_requirement_needs_rows_to_judge_by(people: Path, tmp_path: Path, veil: Program) -> None:
    words = ("train", str(people), *TRAIN, "--holdout", "0", "--out", str(tmp_path / "run"))
    code, _, err = veil(*words, "--require", "accuracy>=0.1")
    assert code == 2
    assert "--require needs rows to evaluate on" in err
    assert not (tmp_path / "run").exists()


def test_a_wrong_test_table_is_named(people: Path, tmp_path: Path, veil: Program) -> None:
    other = tmp_path / "other.csv"
    for change, sentence in (
        ({"rich": "perhaps"}, '--test: column "rich"'),
        ({"age": None}, '--test: column "age" is missing'),
    ):
        table = pd.read_csv(people).assign(**change)
        table.drop(columns=[name for name, value in change.items() if value is None]).to_csv(other, index=False)
        for command in (("train", str(people), *TRAIN), ("compare", str(people), *TRAIN[:4], "--seeds", "1")):
            code, _, err = veil(*command, "--test", str(other), "--out", str(tmp_path / "run"))
            assert code == 2
            assert sentence in err


def test_a_group_that_only_the_test_table_has_has_a_line_too() -> None:
    metrics = {
        "by_group": {"f": {"n": 9, "accuracy": 1.0}, "x": {"n": 1, "accuracy": None}},
        "worst_group_accuracy": 1.0,
        "average_group_accuracy": 1.0,
        "accuracy": 0.9,
    }
    summary = {
        "method": "dp-sgd",
        "metrics": metrics,
        "privacy": {"epsilon": 1.0, "by_group": {"f": 1.0}, "by_owner": {}},
    }
    columns = results_table([summary], {"f": 40}).columns
    assert [column._cells[1] for column in columns] == ["x", "0", "1", "–"]


def test_the_training_table_is_no_test_table(people: Path, tmp_path: Path, veil: Program) -> None:
    same = people.parent / "." / people.name
    code, _, err = veil("train", str(people), *TRAIN, "--test", str(same), "--out", str(tmp_path / "run"))
    assert code == 2
    assert "--test names the training table itself" in err


WRONG = {
    "unknown preset": (("--preset", "worst"), 'preset is "worst": known is best'),
    "unknown method": (("--method", "dp-sdg"), 'did you mean "dp-sgd"'),
    "unknown option": (("--option", "clap=1"), 'has no option "clap": did you mean "clip"'),
    "epsilon of zero": (("--epsilon", "0"), "epsilon is 0.0: it must be above 0"),
    "negative epsilon": (("--epsilon", "-1"), "it must be above 0"),
    "epsilon not a number": (("--epsilon", "nan"), "it must be above 0"),
    "delta of one": (("--delta", "1"), "delta is 1.0: it must be between 0 and 1"),
    "delta of a half": (("--delta", "0.5"), "delta is 0.5: with that probability nothing is promised"),
    "epsilon that hides all": (("--epsilon", "1e-9"), "epsilon is 1e-09: the noise would hide everything"),
    "epsilon that hides nothing": (("--epsilon", "1e6"), "epsilon is 1e+06: it would protect nobody"),
    "mistyped target": (("--target", "Ritch"), 'column "Ritch" is missing: did you mean "rich"?'),
    "mistyped group": (("--group", "sexx"), 'column "sexx" is missing: did you mean "sex"?'),
    "delta in words": (("--delta", "small"), 'delta is "small"'),
    "missing column": (("--target", "income"), 'column "income" is missing: the table has age, town, sex, rich'),
    "missing group column": (("--group", "race"), 'column "race" is missing'),
    "unknown model": (("--model", "forest"), 'unknown model "forest": known are'),
    "single target value": (("--target", "constant"), "the target has a single value"),
    "column of infinities": (("--ignore", ""), 'column "wealth" is not finite in row 3'),
    "missing group value": (("--group", "holes"), "the group of row 2 is missing"),
    "missing target value": (("--target", "holes"), "the target of row 2 is missing"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_gets_one_sentence_and_exit_code_two(
    case: str, people: Path, tmp_path: Path, veil: Program
) -> None:
    words, sentence = WRONG[case]
    table = pd.read_csv(people)
    table["wealth"], table["holes"] = np.arange(len(table)) % 7 + 0.5, np.where(np.arange(len(table)) % 2, "y", "z")
    if case == "single target value":
        table["constant"] = "x"
    if case == "column of infinities":
        table.loc[3, "wealth"] = np.inf
    table.loc[2, "holes"] = None
    if "column" not in case or case == "column of infinities" or "missing group" in case:
        table.to_csv(people, index=False)
    if case in ("single target value", "missing target value"):
        table.to_csv(people, index=False)
    code, out, err = veil("train", str(people), *TRAIN, "--out", str(tmp_path / "run"), *words)
    assert code == 2
    assert out == ""
    assert sentence in err.replace("\n", " ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert not (tmp_path / "run" / "ledger.jsonl").exists()


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("absent.csv", None, "file not found"),
        ("empty.csv", "", "not a readable table"),
        ("heading.csv", "a,b\n", "has no rows"),
        ("broken.parquet", "not parquet", "not a readable table"),
        ("sheet.csv", b"PK\x03\x04\x14\x00Huber", "is a spreadsheet or a ZIP archive: save it as CSV"),
        ("picture.csv", b"\x89PNG\r\n\x1a\nHuber", "is an image: save it as CSV"),
        ("people.json", '[{"name": "Huber"}]', "is not a supported table: save it as CSV"),
        ("people.csv", '[{"name": "Huber"}]', "is not a supported table: save it as CSV"),
        ("packed.csv", b"\x1f\x8b\x08Huber", "is a compressed file without its ending"),
        ("open.csv", 'a,b\n"Huber,1\n', "a quotation mark that opens in row 1 is not closed"),
        ("long.csv", "a,b\n1,2\nHuber,2,3\n", "line 3 has 3 values where 2 are expected"),
        ("latin.csv", "a,b\nHüber,1\n".encode("latin-1"), "is not UTF-8 text"),
    ],
)
def test_a_file_that_is_no_table_gets_one_sentence(
    name: str, content: str | bytes | None, sentence: str, tmp_path: Path, veil: Program
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    code, _, err = veil("train", str(tmp_path / name), "--target", "a", "--group", "b")
    assert code == 2
    assert sentence in err
    assert "Huber" not in err


def test_into_a_pipe_a_line_is_printed_every_few_seconds(
    people: Path, tmp_path: Path, veil: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("veil.cli.progress.SECONDS_BETWEEN_LINES", 0.02)
    code, out, err = veil("train", str(people), *TRAIN, "--epochs", "1", "--out", str(tmp_path / "run"))
    assert code == 0
    assert "] training: asc, " in err
    assert re.search(r"\[\d+ s\] step \d+ of \d+, ε .* a few seconds left", err), err
    assert "] step" not in out


def test_a_delta_above_one_over_rows_and_a_large_epsilon_are_remarked_on(people: Path, veil: Program) -> None:
    code, out, err = veil("train", str(people), *TRAIN, "--delta", "0.05", "--epsilon", "50", "--dry-run")
    assert code == 0
    assert "δ = 0.05 is above 1 / " in err
    assert "ε = 50 promises next to nothing" in err
    assert "Training takes " in out
    code, out, _ = veil("train", str(people), *TRAIN, "--dry-run", "--json")
    assert json.loads(out)["remarks"] == []
    assert json.loads(out)["estimated_time"] == "a few seconds"


def test_a_folder_that_holds_a_run_is_never_written_over(people: Path, tmp_path: Path, veil: Program) -> None:
    words = ("train", str(people), *TRAIN, "--out", str(tmp_path / "run"), "--quiet")
    assert veil(*words)[0] == 0
    code, _, err = veil(*words)
    assert code == 2
    assert "already contains a run" in err


ACCOUNT = {
    "epsilon": (
        "epsilon --rate 0.005 --noise-multiplier 1 --steps 10000 --delta 1e-5 --accountant pld",
        {"epsilon": 2.801, "relation": "add-remove", "accountant": "pld"},
    ),
    "epsilon by rdp": (
        "epsilon --rate 0.005 --noise-multiplier 1 --steps 10000 --delta 1e-5 --accountant rdp",
        {"epsilon": 3.060, "accountant": "rdp"},
    ),
    "noise of subsets": (
        "noise --sampling wor --size 49208 --batch 256 --steps 11580 --delta 1.02e-5 --epsilon 1 --accountant rdp",
        {"noise_multiplier": 9.22, "relation": "replace-one"},
    ),
    "rate": (
        "rate --epsilon 8 --noise-multiplier 4 --steps 1000 --accountant rdp",
        {"rate": 0.193, "epsilon": 8.0},
    ),
    "clip": ("clip --epsilon 0.5 --sigma 4 --rate 0.05 --steps 1000 --accountant rdp", {"clip": 0.328}),
}


def test_account_says_what_an_epsilon_means_for_people_with_several_rows(veil: Program) -> None:
    asked = ["account", "epsilon", "--rate", "0.005", "--noise-multiplier", "1", "--steps", "10000", "--delta", "1e-5"]
    answer = json.loads(veil(*asked, "--json")[1])
    assert answer["unit"] == "one row"
    assert answer["by_rows"] == pytest.approx({"2": 6.228, "5": 19.30, "10": 49.62}, rel=1e-3)
    assert "ε = 6.23 with 2 rows, ε = 19.3 with 5 rows, ε = 49.6 with 10 rows" in veil(*asked)[1]
    assert "by_rows" not in json.loads(veil(*asked, "--accountant", "gdp", "--json")[1])


@pytest.mark.parametrize("case", ACCOUNT)
def test_account_answers_with_the_golden_numbers(case: str, veil: Program) -> None:
    words, expected = ACCOUNT[case]
    code, out, _ = veil("account", *words.split(), "--json")
    assert code == 0
    answer = json.loads(out)
    for key, value in expected.items():
        assert answer[key] == (pytest.approx(value, rel=0.005) if isinstance(value, float) else value)
    assert veil("account", *words.split())[0] == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("epsilon --noise-multiplier 1 --steps 10", "sampling poisson needs --rate"),
        ("epsilon --noise-multiplier 0 --steps 10 --rate 0.1", "noise multiplier is 0.0"),
        ("epsilon --noise-multiplier 1 --steps 10 --rate 2", "sampling rate is 2.0"),
        ("epsilon --noise-multiplier 1 --steps 10 --rate x", 'rate is "x"'),
        ("epsilon --noise-multiplier 1 --steps 10 --rate 0.1 --delta 0", "delta is 0.0"),
        ("epsilon --noise-multiplier 1 --steps 10 --rate 0.1 --accountant moments", 'accountant is "moments"'),
        ("epsilon --noise-multiplier 1 --steps 10 --sampling wor", "needs --size and --batch"),
        ("noise --epsilon 0 --steps 10 --rate 0.1", "it must be above 0"),
        ("noise --epsilon 1 --steps 10 --rate 0.1 --plus 0.1x5", "cost"),
        ("epsilon --noise-multiplier 1 --steps 10 --rate 0.1 --plus many", 'plus is "many"'),
    ],
)
def test_account_refuses_what_makes_no_sense(words: str, sentence: str, veil: Program) -> None:
    code, out, err = veil("account", *words.split(), "--json")
    assert code == 2
    assert out == ""
    assert sentence in err


def test_rates_by_group_and_a_plot(veil: Program) -> None:
    words = ["account", "epsilon", "--rate", "0.01,0.09", "--noise-multiplier", "1.2", "--steps", "100"]
    answer = json.loads(veil(*words, "--json")[1])
    assert [group["rate"] for group in answer["by_group"]] == [0.01, 0.09]
    assert answer["epsilon"] == answer["by_group"][1]["epsilon"] > answer["by_group"][0]["epsilon"]
    assert "█" in veil(*words, "--plot")[1]


def test_methods_lists_every_method(veil: Program) -> None:
    rows = json.loads(veil("methods", "--json")[1])
    assert {"dp-sgd", "erm", "dp-is-sgd", "idp-sgd"} <= {row["name"] for row in rows}
    assert all(set(row) == {"name", "family", "private", "relation", "summary"} for row in rows)


def test_help_names_every_command(veil: Program) -> None:
    _, out, _ = veil("--help")
    for command in ("demo", "train", "account", "verify", "report", "methods"):
        assert command in out


def test_accounting_works_without_torch() -> None:
    program = "import sys, veil.accounting; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_look_at_no_table_says_what_to_give(veil: Program) -> None:
    code, _, said = veil("data", "check")
    assert code == 2
    assert said.strip() == "error: no table is named: give a file or a folder"
