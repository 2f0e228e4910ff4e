"""`--require`: refused before training where it is wrong, exit code 1 where it is not met, and shown on the page."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from tests.cli.people_cases import TRAIN, judged
from tests.program import Program
from veil.errors import InputError
from veil.report import parse_requirement

WRONG = {
    "worst_group_acuracy>=0.6": 'did you mean "worst_group_accuracy"',
    "worst_group_accuracy": "not of the form METRIC>=VALUE",
    "worst_group_accuracy>=high": "which is not a number",
    "worst_group_accuracy>=nan": "give a finite number",
    "happiness>=1": "known are worst_group_accuracy",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_requirement_is_refused_with_one_sentence(text: str) -> None:
    with pytest.raises(InputError, match=WRONG[text].replace("(", r"\(")):
        parse_requirement(text)


@pytest.mark.parametrize("command", ["train", "compare"])
def test_a_wrong_requirement_stops_before_anything_is_trained(
    command: str, people: Path, tmp_path: Path, veil: Program
) -> None:
    words = [command, *judged(people), "--target", "rich", "--group", "sex"]
    code, _, err = veil(*words, "--require", "acuracy>=1", "--out", str(tmp_path / "run"))
    assert code == 2
    assert 'did you mean "accuracy"' in err
    assert not (tmp_path / "run").exists()


def test_the_exit_code_of_train_and_report_says_whether_the_requirement_is_met(
    people: Path, tmp_path: Path, veil: Program
) -> None:
    out = tmp_path / "run"
    words = ("train", *judged(people), *TRAIN, "--out", str(out), "--quiet")
    required = ("--require", "worst_group_accuracy>=1.01", "--require", "epsilon<=1.01")
    code, text, _ = veil(*words, *required)
    assert code == 1
    assert "not met: Worst-group accuracy" in text
    assert "met: ε" in text
    twin = json.loads((out / "report.json").read_text())
    assert [check["met"] for check in twin["verdict"]["requirements"]] == [False, True]
    assert twin["verdict"]["met"] is False
    assert "NOT met: Worst-group accuracy" in (out / "MODEL_CARD.md").read_text()
    page = str(tmp_path / "page.html")
    for threshold, expected in (("1.01", 1), ("0", 0)):
        asked = ("--require", f"worst_group_accuracy>={threshold}")
        code, text, _ = veil("report", str(out), "-o", page, *asked, "--json")
        assert code == expected
        answer = json.loads(text)
        assert answer["met"] is (expected == 0)
        assert answer["requirements"][0]["threshold"] == float(threshold)
        assert ("✓" in Path(page).read_text()) is (expected == 0)


def test_a_comparison_judges_its_best_private_method(people: Path, tmp_path: Path, veil: Program) -> None:
    words = ["compare", *judged(people), "--target", "rich", "--group", "sex", "--batch-size", "40"]
    words += ["--epochs", "1", "--out", str(tmp_path / "all"), "--jobs", "1", "--backend", "threading", "--json"]
    words += ["--methods", "erm,dp-sgd", "--seeds", "1"]
    code, text, _ = veil(*words, "--require", "worst_group_accuracy>=1.01")
    assert code == 1
    answer = json.loads(text)
    assert answer["judged"] == "dp-sgd"
    assert answer["met"] is False
    code, text, _ = veil(*words, "--require", "privacy_cost_gap<=1")
    assert code == 0
    assert json.loads(text)["requirements"][0]["value"] is not None


def test_a_figure_over_groups_is_not_met_where_a_group_was_not_measured(
    people: Path, tmp_path: Path, veil: Program
) -> None:
    table = pd.read_csv(people)
    few = pd.concat([table[table["sex"] == "m"], table[table["sex"] == "f"].head(2)])
    few.to_csv(tmp_path / "few.csv", index=False)
    required = ("--require", "worst_group_accuracy>=0", "--require", "accuracy>=0")
    words = ("train", str(people), *TRAIN, "--method", "dp-sgd", "--test", str(tmp_path / "few.csv"), "--quiet")
    code, text, _ = veil(*words, *required, "--out", str(tmp_path / "run"))
    text = " ".join(text.split())
    assert code == 1
    assert "✕ not met: Worst-group accuracy" in text
    assert "not measured, with too few rows: f (dp-sgd)" in text
    assert "✓ met: Overall accuracy" in text
    assert "1 of 2 groups: too few rows to measure" in text
    code, text, _ = veil("report", str(tmp_path / "run"), "-o", str(tmp_path / "p.html"), "--json")
    assert code == 1
    assert [check["not_measured"] for check in json.loads(text)["requirements"]] == [["f"], []]
    assert "not measured, with too few rows: f" in (tmp_path / "p.html").read_text(encoding="utf-8")
