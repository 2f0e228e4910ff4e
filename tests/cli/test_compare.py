"""`veil compare`: parallel, resumable, and one failing run does not stop the others."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cli.people_cases import ROLES, judged
from tests.program import Program


def compared(veil: Program, *words: str) -> tuple[int, dict]:  # type: ignore[type-arg]
    code, out, err = veil("compare", *words, "--json")
    assert out, err
    return code, json.loads(out)


@pytest.mark.slow
def test_methods_are_compared_over_seeds_and_a_second_call_goes_on(people: Path, tmp_path: Path, veil: Program) -> None:
    base = [*judged(people), "--target", "rich", "--group", "sex", "--batch-size", "40"]
    base += ["--epochs", "2", "--out", str(tmp_path / "all"), "--jobs", "2"]
    code, answer = compared(veil, *base, "--methods", "erm,dp-sgd", "--seeds", "2")
    assert code == 0
    assert len(answer["rows"]) == 4
    assert {row["method"]: row["seeds"] for row in answer["summary"]} == {"erm": 2, "dp-sgd": 2}
    assert sum(row["best"] for row in answer["summary"]) == 1
    assert Path(answer["report"]).exists()
    stamp = (tmp_path / "all" / "erm-eps1-seed1" / "certificate.json").stat().st_mtime_ns
    code, answer = compared(veil, *base, "--methods", "erm,dp-sgd,dp-is-sgd", "--seeds", "2")
    assert len(answer["rows"]) == 6
    assert (tmp_path / "all" / "erm-eps1-seed1" / "certificate.json").stat().st_mtime_ns == stamp


def test_a_failing_run_is_named_and_the_others_go_on(people: Path, tmp_path: Path, veil: Program) -> None:
    words = [*judged(people), "--target", "rich", "--group", "sex", "--batch-size", "400"]
    words += ["--epochs", "1", "--out", str(tmp_path / "all"), "--jobs", "1", "--backend", "threading"]
    code, answer = compared(veil, *words, "--methods", "dp-is-sgd,erm", "--seeds", "1")
    assert code == 1
    assert "fewer than the batch share" in answer["failures"]["dp-is-sgd-eps1-seed1"]
    assert [row["method"] for row in answer["rows"]] == ["erm"]


def test_an_unknown_method_is_refused_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, veil: Program
) -> None:
    monkeypatch.setattr(sys, "argv", ["veil"])
    code, _, err = veil("compare", "adult", "--methods", "dp-sdg", "--out", str(tmp_path / "x"))
    assert code == 2
    assert 'did you mean "dp-sgd"' in err


def test_the_ledger_of_a_run_that_was_cut_short_is_kept(people: Path, tmp_path: Path, veil: Program) -> None:
    folder = tmp_path / "all" / "dp-sgd-eps1-seed1"
    folder.mkdir(parents=True)
    (folder / "ledger.jsonl").write_text("costs of the first try")
    words = [*judged(people), "--target", "rich", "--group", "sex", "--batch-size", "40"]
    words += ["--epochs", "1", "--out", str(tmp_path / "all"), "--jobs", "1", "--backend", "threading"]
    code, _ = compared(veil, *words, "--methods", "dp-sgd", "--seeds", "1")
    assert code == 0
    assert (folder / "ledger.interrupted-1.jsonl").read_text() == "costs of the first try"
    assert (folder / "certificate.json").exists()


ASKED = ("compare", "--methods", "dp-sgd", "--seeds", "1", "--target", "rich", "--group", "sex")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("PEOPLE", "--option", "asc.step_size=0.1"), "asc is not among the methods: dp-sgd"),
        (("adultt",), 'there is no file or data set "adultt": did you mean "adult"'),
        (("PEOPLE", "--backend", "foo"), 'backend is "foo": it must be one of'),
        (("PEOPLE", "--jobs", "0"), "jobs is 0"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_one_sentence(
    words: tuple[str, ...], sentence: str, people: Path, tmp_path: Path, veil: Program
) -> None:
    given = [str(people) if word == "PEOPLE" else word for word in words]
    code, _, err = veil(*ASKED, *given, *judged(people)[1:], "--out", str(tmp_path / "all"))
    assert code == 2
    assert sentence in err
    assert err.count("\n") == 1
    assert not (tmp_path / "all").exists()


def test_screen_and_certificates_say_what_a_comparison_leaves_out(people: Path, tmp_path: Path, veil: Program) -> None:
    words = (*ASKED, *judged(people), "--epochs", "1", "--jobs", "1", "--backend", "threading")
    words = (*words, "--methods", "dp-sgd,auto-s", "--model", "logistic", "--out", str(tmp_path / "all"))
    code, text, _ = veil(*words)
    assert code == 0
    said = " ".join(text.split())
    assert "they were taken from the training rows" in said
    assert "their ε add up" in said
    assert "seeds 1, 2, … are public" in said
    certificate = (tmp_path / "all" / "dp-sgd-eps1-seed1" / "certificate.json").read_text(encoding="utf-8")
    missing = " ".join(json.loads(certificate)["not_covered"])
    assert "they were taken from the training rows" in missing
    assert "their ε add up" in missing


SCHEMA = f"""
[columns.age]
kind = "numeric"
low = 18
high = 90
[columns.town]
kind = "category"
values = ["A", "B", "C"]
{ROLES}"""


def test_a_schema_covers_the_columns_of_a_comparison(people: Path, tmp_path: Path, veil: Program) -> None:
    schema = tmp_path / "schema.toml"
    schema.write_text(SCHEMA, encoding="utf-8")
    words = ("compare", *judged(people), "--schema", str(schema), "--methods", "dp-sgd", "--seeds", "1")
    words = (*words, "--epochs", "1", "--jobs", "1", "--backend", "threading", "--out", str(tmp_path / "all"))
    code, text, _ = veil(*words)
    assert code == 0
    assert "taken from" not in text
    certificate = (tmp_path / "all" / "dp-sgd-eps1-seed1" / "certificate.json").read_text(encoding="utf-8")
    assert not any("Kinds, bounds" in sentence for sentence in json.loads(certificate)["not_covered"])


def test_every_budget_is_compared_and_no_option_is_passed_over(people: Path, tmp_path: Path, veil: Program) -> None:
    words = [*judged(people), *ASKED[1:], "--epochs", "1", "--model", "logistic", "--out", str(tmp_path / "both")]
    code, answer = compared(veil, *words, "--epsilon", "0.5,1", "--delta", "1e-4")
    assert code == 0
    assert sorted(row["privacy"]["epsilon"] for row in answer["rows"]) == pytest.approx([0.5, 1.0], rel=0.01)
    assert {row["privacy"]["delta"] for row in answer["rows"]} == {1e-4}
    code, _, err = veil("compare", *words, "--seed", "3")
    assert code == 2
    assert "No such option: --seed" in err


def test_a_comparison_draws_what_the_additive_model_learned(people: Path, tmp_path: Path, veil: Program) -> None:
    words = [*judged(people), "--target", "rich", "--group", "sex", "--batch-size", "40", "--epochs", "1"]
    words += ["--out", str(tmp_path / "all"), "--jobs", "1", "--backend", "threading"]
    code, answer = compared(veil, *words, "--methods", "auto,dp-sgd", "--seeds", "1")
    assert code == 0
    twin = json.loads(Path(answer["report"]).with_suffix(".json").read_text(encoding="utf-8"))
    drawn = {run["method"]: run["effects"] is not None for run in twin["runs"]}
    assert drawn == {"auto": True, "dp-sgd": False}
    assert any(name.startswith("effect-0") for name in twin["figures"])
