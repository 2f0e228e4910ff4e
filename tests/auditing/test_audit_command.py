"""`veil audit`: the run's own plan is attacked, what was found is kept and shown, and the exit code tells."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from veil.accounting.events import AccountingError
from veil.auditing import read_audits
from veil.cli.app import app
from veil.errors import InputError

RUNNER = CliRunner()


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audited")
    generator = np.random.default_rng(0)
    x = generator.standard_normal((600, 2))
    frame = pd.DataFrame({"x0": x[:, 0], "x1": x[:, 1], "g": np.where(generator.random(600) < 0.2, "b", "a")})
    frame["who"] = np.where(np.arange(600) % 2 == 0, "careful", "open")
    frame["y"] = (x[:, 0] + generator.standard_normal(600) > 0).astype(int)
    frame.to_csv(folder / "rows.csv", index=False)
    (folder / "budgets.csv").write_text("owner,epsilon\ncareful,0.5\nopen,2\n", encoding="utf-8")
    return folder / "rows.csv"


def train(table: Path, name: str, *more: str) -> Path:
    out = table.with_name(name)
    fixed = ["--target", "y", "--group", "g", "--epochs", "1", "--batch-size", "60", "--model", "logistic"]
    result = RUNNER.invoke(app, ["train", str(table), *fixed, "--seed", "1", "--quiet", "--out", str(out), *more])
    assert result.exit_code == 0, result.output
    return out


@pytest.fixture(scope="module")
def run(table: Path) -> Path:
    return train(table, "dp-sgd", "--method", "dp-sgd", "--epsilon", "2", "--ignore", "who", "--option", "clip=0.7")


def audited(run: Path, *more: str) -> dict[str, object]:
    result = RUNNER.invoke(app, ["audit", str(run), "--canaries", "1000", "--seed", "2", "--json", *more])
    assert result.exit_code == 0, result.output
    found: dict[str, object] = json.loads(result.stdout)
    return found


def test_a_run_is_audited_with_its_own_options_and_shown_in_its_report(run: Path) -> None:
    found = audited(run)
    assert found["method"] == "dp-sgd"
    assert found["holds"] is True
    assert 0 < found["epsilon_lower"] <= found["epsilon"] == pytest.approx(2.0, rel=1e-2)  # type: ignore[operator]
    assert set(found["by_group"]) == {"a", "b"}  # type: ignore[call-overload]
    assert [one["attack"] for one in read_audits(run)] == ["canary"]
    page = (run / "report.html").read_text(encoding="utf-8")
    assert 'id="audit"' in page
    assert "What the attack canary found" in page
    assert "No bound exceeds its guarantee: each was tested at" in page
    assert "No bound exceeds its guarantee: each was tested at" in str(found["verdict"])


def test_a_report_made_later_has_the_audit_of_the_folder(run: Path, tmp_path: Path) -> None:
    audited(run)
    result = RUNNER.invoke(app, ["report", str(run), "-o", str(tmp_path / "page.html")])
    assert result.exit_code == 0, result.output
    assert "What the attack canary found" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_second_attack_stands_beside_the_first_and_the_same_attack_replaces_itself(run: Path) -> None:
    audited(run)
    audited(run, "--attack", "one-run")
    audited(run)
    assert sorted(one["attack"] for one in read_audits(run)) == ["canary", "one-run"]


def test_attacks_on_private_rows_need_a_word_and_are_marked(run: Path) -> None:
    with pytest.raises(InputError, match="--show-private"):
        RUNNER.invoke(app, ["audit", str(run), "--attack", "loss"], catch_exceptions=False)
    found = audited(run, "--attack", "loss", "--show-private")
    assert "not cover" in str(found["not_covered"])
    lira = audited(run, "--attack", "lira", "--show-private", "--shadows", "3")
    assert lira["shadows"] == 3
    assert (run / "audit_lira.svg").read_text(encoding="utf-8").startswith("<svg")
    assert len(list(run.with_name("dp-sgd-shadows").glob("shadow-*.npz"))) == 3


def test_runs_with_owners_are_audited_per_owner(table: Path) -> None:
    budgets = str(table.with_name("budgets.csv"))
    run = train(table, "idp", "--method", "idp-sgd", "--owner", "who", "--budgets", budgets)
    found = audited(run)
    by_owner: dict[str, dict[str, float]] = found["by_owner"]  # type: ignore[assignment]
    assert by_owner["careful"]["epsilon"] == pytest.approx(0.5, rel=0.02)
    assert by_owner["open"]["epsilon"] == pytest.approx(2.0, rel=0.02)
    assert by_owner["open"]["epsilon_lower"] > by_owner["careful"]["epsilon_lower"]


def test_runs_with_a_budget_of_its_own_for_every_row_are_audited_per_level(table: Path) -> None:
    rows = pd.read_csv(table).assign(allowed=lambda frame: np.where(frame["who"] == "careful", 0.5, 2.0))
    rows.drop(columns="who").to_csv(table.with_name("levels.csv"), index=False)
    run = train(table.with_name("levels.csv"), "levels", "--method", "idp-sgd", "--row-budgets", "allowed")
    found = audited(run)
    by_level: dict[str, dict[str, float]] = found["by_owner"]  # type: ignore[assignment]
    assert {level: values["epsilon"] for level, values in by_level.items()} == {
        "ε = 0.5": pytest.approx(0.5, rel=0.02),
        "ε = 2": pytest.approx(2.0, rel=0.02),
    }


def test_a_plan_that_is_not_the_ledger_s_is_refused(run: Path) -> None:
    facts = json.loads((run / "run.json").read_text(encoding="utf-8"))
    changed = run.with_name("changed")
    changed.mkdir()
    for file in run.iterdir():
        (changed / file.name).write_bytes(file.read_bytes())
    facts["settings"]["batch_size"] = 30
    (changed / "run.json").write_text(json.dumps(facts), encoding="utf-8")
    with pytest.raises((InputError, AccountingError), match="cannot be rebuilt"):
        RUNNER.invoke(app, ["audit", str(changed)], catch_exceptions=False)


def test_the_self_test_prints_every_check_and_its_false_alarm_rate() -> None:
    result = RUNNER.invoke(app, ["audit", "--self-test", "dp-sgd", "--seed", "1", "--json"])
    assert result.exit_code == 0
    verdict = json.loads(result.stdout)
    assert verdict["passed"] is True
    assert verdict["false_alarms"] == 1e-4
    assert len(verdict["checks"]) > 20


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "give the folder of a run"),
        (["nowhere"], "contains no finished run"),
        (["--self-test", "erm"], "not private"),
        (["somewhere", "--self-test", "dp-sgd"], "not both"),
        (["--self-test", "dp-sdg"], "did you mean"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_input_is_said_in_one_sentence(words: list[str], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        RUNNER.invoke(app, ["audit", *words], catch_exceptions=False)


def test_a_backend_that_joblib_does_not_know_is_refused_with_one_sentence(run: Path) -> None:
    words = ["audit", str(run), "--attack", "lira", "--show-private", "--backend", "foo"]
    with pytest.raises(InputError, match='backend is "foo": it must be one of'):
        RUNNER.invoke(app, words, catch_exceptions=False)
