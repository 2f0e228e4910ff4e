"""The model card, audits from a run's folder, expected excess risk, notebooks, and pages from real runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import veil
from tests.report.run_records import SEX_INCOME, make_audit, make_run
from tests.report.test_report_twin import unknown_numbers
from veil.cli.report import _run_folders
from veil.datasets import GroupSpec, generate
from veil.errors import InputError
from veil.report import build_twin, judge_requirements, read_audits, render_card, render_page, write_report
from veil.report.model_card import plain_markdown
from veil.report.wording import number, percent
from veil.training.fitting import Job, execute

GROUPS = [GroupSpec("large", 300), GroupSpec("small", 80, angle=1.0)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> veil.Run:
    asked = {"require": ["worst_group_accuracy>=0.99"], "data": "made up"}
    job = Job(torch.nn.Linear(10, 2), generate(GROUPS), generate(GROUPS, seed=1), config=asked)
    plan = veil.plan(job.problem, "dp-sgd", steps=20, batch_size=40, seed=1)
    return execute(job, plan, tmp_path_factory.mktemp("runs") / "run")


def test_the_card_has_the_figures_of_the_report() -> None:
    record = make_run("asc", extras=True)
    exact = "These figures were computed from private rows without noise"
    card, twin = render_card(record, audits=[{**make_audit(), "not_covered": exact}]), build_twin([record])
    assert exact in card
    rows = [line for line in card.splitlines() if " × " in line and line.startswith("| ") and line.count("|") == 7]
    for group, row in zip(twin["groups"], rows, strict=True):
        assert row.startswith(f"| {plain_markdown(group['name'])} | {percent(group['accuracy'])} |")
        assert f"{percent(group['low'])} to {percent(group['high'])}" in row
    assert record["certificate"]["statement"].split("(")[0].strip() in card
    assert "Demographic parity" in card
    assert "ε ≥ 0.73" in card
    for line in record["certificate"]["not_covered"]:
        assert line in card


def test_card_and_page_say_what_the_guarantee_means_for_people_with_several_rows(run: veil.Run) -> None:
    curve = run.certificate.by_rows
    assert list(curve) == ["2", "5", "10"]
    card, page = render_card(run.as_json()), render_page([run.as_json()])
    for rows, epsilon in curve.items():
        assert f"| ε for a person with {rows} rows | {number(epsilon)} |" in card
        assert f"ε = {number(epsilon)} with {rows} rows" in page
    assert "ε of one row" in page
    old = {
        **run.as_json(),
        "privacy": {k: v for k, v in run.summary()["privacy"].items() if k not in ("unit", "by_rows")},
    }
    assert "person with" not in render_card(old) + render_page([old])


@pytest.mark.parametrize(("together", "who"), [(1, "each person joins"), (5, "each row joins")])
def test_the_page_says_whether_people_or_rows_are_drawn(run: veil.Run, together: int, who: str) -> None:
    record = run.as_json()
    record["privacy"] |= {"unit": "one person", "rows_together": together}
    record["details"] |= {"sampling": "poisson"}
    assert f"Poisson: {who} a batch" in render_page([record])


def test_card_and_page_say_how_far_training_rows_may_be_from_new_ones(run: veil.Run) -> None:
    said = run.certificate.generalisation_statement
    assert "points" in said
    card, page = render_card(run.as_json()), render_page([run.as_json()])
    assert plain_markdown(said) in card
    assert said.replace("'", "&#39;").replace('"', "&#34;") in page
    for bound in run.certificate.generalisation.values():
        assert 0 < bound < 1
    old = run.as_json()
    old["certificate"] = {k: v for k, v in old["certificate"].items() if not k.startswith("generalisation")}
    assert "new rows" not in render_card(old) + render_page([old])


def test_hostile_names_stay_text_in_the_card() -> None:
    names = ("<script>alert(1)</script> × a|b", "*x* × [y](javascript:1)", "plain × one", "plain × two")
    card = render_card(make_run("asc", groups=names))
    assert "<script>" not in card
    assert r"\*x\* × \[y\](javascript:1)" in card
    table = [line for line in card.splitlines() if line.startswith("| ") and "plain × one" in line]
    assert all(re.sub(r"\\\|", "", line).count("|") == 7 for line in table)


def test_the_card_says_the_name_of_the_table_and_not_where_it_lies() -> None:
    run = make_run("asc")
    command = "veil train /srv/clinic/people.csv --test=/srv/clinic/public.csv --target a"
    run["config"] |= {"data": "/srv/clinic/people.csv", "command": command}
    card = render_card(run)
    assert "asc on people.csv" in card
    assert "veil train people.csv --test=public.csv --target a" in card
    assert "clinic" not in card


def test_a_run_without_figures_or_privacy_still_has_a_card() -> None:
    assert "not private" in render_card(make_run("erm"))
    assert "There were no rows to measure on" in render_card(make_run("dp-sgd", evaluated=False))
    assert render_card({"method": "dp-sgd"}).startswith("# Model card")


def test_a_run_writes_its_card_and_judges_what_was_required_of_it(run: veil.Run) -> None:
    assert run.folder is not None
    assert "NOT met: Worst-group accuracy" in (run.folder / "MODEL_CARD.md").read_text(encoding="utf-8")
    twin = json.loads((run.folder / "report.json").read_text(encoding="utf-8"))
    assert twin["verdict"]["met"] is False


def test_what_a_real_run_says_fills_the_panels(run: veil.Run) -> None:
    twin = build_twin([run.as_json()])
    assert {"parity-run0", "calibration-run0", "roc-run0", "confusion-0-run0", "confusion-1-run0"} <= set(
        twin["figures"]
    )
    assert twin["interval"]["kind"] == "by bootstrap"
    own = run.as_json()["metrics"]["by_group"]["small"]
    assert {"auroc", "ece", "loss", "balanced_accuracy", "confusion", "roc", "calibration"} <= set(own)
    shown = next(group for group in twin["groups"] if group["name"] == "small")
    assert [shown["low"], shown["high"]] == own["accuracy_interval"]


def test_every_number_on_the_page_of_a_real_run_is_in_the_twin(run: veil.Run) -> None:
    assert unknown_numbers([run.as_json()], audits=[make_audit(("large", "small"))]) == {}


def test_history_is_a_table_and_a_run_shows_itself_in_a_notebook(run: veil.Run) -> None:
    assert run.folder is not None
    assert isinstance(run.history, pd.DataFrame)
    assert list(run.history["step"]) == list(range(20))
    loaded = veil.load(run.folder)
    assert isinstance(loaded.history, pd.DataFrame)
    for shown in (run._repr_html_(), loaded._repr_html_()):
        assert "small" in shown
        assert "<script" not in shown


def test_audits_of_the_folder_are_on_the_page(run: veil.Run, tmp_path: Path) -> None:
    assert run.folder is not None
    (run.folder / "audit.json").write_text(json.dumps([make_audit(("large", "small"))]))
    try:
        assert "audit-0" in json.loads(run.report(tmp_path / "a.html").with_suffix(".json").read_text())["figures"]
        audits = read_audits([run.folder])
        assert "What the attack canary found" in render_page([run.as_json()], audits=audits)
        assert read_audits([run.folder, tmp_path])[0]["run"] == "run"
        (run.folder / "audit.json").write_text("{")
        with pytest.raises(InputError, match="not a JSON file"):
            read_audits([run.folder])
    finally:
        (run.folder / "audit.json").unlink()


SAID = {
    "value": 0.125,
    "sentence": "By the theorem. Not compared with a model that needs no rows: it may say nothing.",
    "says": None,
    "population": None,
    "at_least": None,
}


@pytest.mark.parametrize(
    "change",
    [
        {"details": {"expected_excess_risk": 0.125, "expected_excess_risk_sentence": "By the theorem."}},
        {"details": {"expected_excess_risk": {"value": 0.125, "sentence": "By the theorem."}}},
        {"findings": {"bound": {"expected_excess_risk": 0.125, "expected_excess_risk_sentence": "By the theorem."}}},
        {"findings": {"expected_excess_risk": {"value": 0.125, "sentence": "By the theorem."}}},
    ],
)
def test_expected_excess_risk_is_shown_with_its_sentence(change: dict[str, Any]) -> None:
    record = {**make_run("dp-sgd"), **change}
    assert build_twin([record])["verdict"]["expected_excess_risk"] == SAID
    for text in (render_page([record]), render_card(record)):
        assert SAID["sentence"] in text
    assert build_twin([make_run()])["verdict"]["expected_excess_risk"] is None


def test_several_requirements_stand_on_one_card_with_each_verdict() -> None:
    asked = [
        {"metric": "worst_group_accuracy", "op": ">=", "threshold": 0.1},
        {"metric": "demographic_parity", "op": "<=", "threshold": 0.1},
    ]
    subject, checks = judge_requirements([make_run("asc", extras=True)], asked)
    assert subject == "asc"
    assert [check["met"] for check in checks] == [True, False]
    page = render_page([make_run("asc", extras=True)], requirements=asked)
    assert page.count('class="card check') == 1
    assert "not met" in page


def test_the_privacy_cost_gap_is_the_range_of_losses_against_erm() -> None:
    erm, asc = make_run("erm"), make_run("asc")
    costs = [erm["metrics"]["by_group"][n]["accuracy"] - asc["metrics"]["by_group"][n]["accuracy"] for n in SEX_INCOME]
    row = next(row for row in build_twin([erm, asc])["summary"] if row["name"] == "asc")
    assert row["privacy_cost_gap"] == pytest.approx(max(costs) - min(costs))
    assert build_twin([asc])["summary"][0]["privacy_cost_gap"] is None


def test_a_tiny_group_is_named_with_its_rows() -> None:
    record = make_run("asc")
    record["metrics"]["by_group"][SEX_INCOME[3]] = {"n": 3, "accuracy": None}
    record["metrics"]["tiny_groups"] = {SEX_INCOME[3]: 3}
    page = render_page([record])
    assert "Too few evaluation rows for a reliable figure: Male × &gt;50K (3)" in page


def test_the_folder_of_a_comparison_stands_for_its_runs(tmp_path: Path) -> None:
    rows = [{"run": "elsewhere/b"}, {"run": "elsewhere/a"}]
    (tmp_path / "comparison.json").write_text(json.dumps({"rows": rows}))
    assert _run_folders(tmp_path) == [tmp_path / "b", tmp_path / "a"]
    write_report([make_run()], tmp_path / "c" / "report.html")
    assert _run_folders(tmp_path / "c") == [tmp_path / "c"]
