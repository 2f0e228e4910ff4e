"""The pages in docs/results are what their JSON files give, and nothing else stands there."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest

from experiments.runner import Asked, Spec, figure_index, index, read_spec, rewrite_page
from experiments.runner import findings as findings_module
from experiments.runner.columns import TWIN
from experiments.runner.findings import open_findings, read_findings
from experiments.runner.results import Results
from experiments.runner.store import read_store
from experiments.tv_bounds import bounds_at
from tests.experiments.experiment_cases import NAMES, RESULTS, ROOT, SPECS
from veil.errors import InputError
from veil.report import build_twin

# Made by `python -m benchmarks`; tests/benchmarks and tests/advice compare them with what stands on pages.
BENCHMARKS = ["tables", "regression", "growth", "plan", "tune", "architectures"]
INDEXES = [Path(index.NAME).stem, Path(figure_index.NAME).stem]
STORED = [name for name in NAMES if (RESULTS / f"{name}.json").exists()]


@pytest.mark.parametrize("name", STORED)
def test_a_page_and_its_figures_agree_with_the_stored_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    spec = read_spec(name, SPECS)
    copy = tmp_path / f"{name}.json"
    shutil.copy(RESULTS / copy.name, copy)
    rewrite_page(spec, Asked(name, "paper", tmp_path))
    written = [path.name for path in tmp_path.iterdir()]
    assert f"{name}.md" in written
    for file in written:
        assert (tmp_path / file).read_bytes() == (RESULTS / file).read_bytes(), file


def test_every_file_of_results_belongs_to_an_experiment_or_a_benchmark() -> None:
    strange = [path.name for path in RESULTS.glob("*.json") if path.stem not in [*NAMES, *BENCHMARKS]]
    strange += [path.name for path in RESULTS.glob("*.md") if path.stem not in [*STORED, *BENCHMARKS, *INDEXES]]
    assert strange == []


def test_the_first_page_is_what_the_stored_runs_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert (RESULTS / index.NAME).read_text(encoding="utf-8") == index.index_of(SPECS, RESULTS)


def test_the_page_of_figures_is_what_the_pages_give() -> None:
    assert (RESULTS / figure_index.NAME).read_text(encoding="utf-8") == figure_index.figures_of(RESULTS)


def test_every_figure_of_ino_sgd_has_claims_and_every_failing_one_says_why() -> None:
    for figure, _, pages in figure_index.FIGURES:
        for page, words in pages:
            found = figure_index.claims_of((RESULTS / f"{page}.md").read_text(encoding="utf-8"), words)
            assert found, (figure, page, words)
            assert [one.text for one in found if not one.verdict.startswith("holds") and not one.why] == [], page


@pytest.mark.parametrize("name", STORED)
def test_every_page_names_the_command_that_makes_it(name: str) -> None:
    assert f"veil reproduce {name}" in (RESULTS / f"{name}.md").read_text(encoding="utf-8")


def test_findings_made_with_other_settings_or_at_another_scale_are_refused(tmp_path: Path) -> None:
    asked = Asked("study", "small", tmp_path)
    first = open_findings(asked)
    first.part("a", {"rows": 10}, {})["found"]["x"] = 1
    first.keep(asked)
    again = open_findings(asked)
    assert again.part("a", {"rows": 10}, {})["found"] == {"x": 1}
    assert json.loads((tmp_path / "study.json").read_text(encoding="utf-8"))["command"] == asked.command
    with pytest.raises(InputError, match="a with rows = 10, now it is 20"):
        again.part("a", {"rows": 20}, {})
    with pytest.raises(InputError, match="at scale small"):
        open_findings(Asked("study", "paper", tmp_path))


def test_what_needs_no_training_leaves_how_findings_were_made_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked("study", "small", tmp_path)
    first = open_findings(asked)
    first.keep(asked)
    monkeypatch.setattr(findings_module, "code_digest", lambda: "a later version")
    first.found["constant"] = 1
    first.keep(asked, trained=False)
    again = open_findings(asked)
    assert again.found == {"constant": 1}
    assert "a later version" not in again.made["code"]


# Formulas and attacks: no line of theirs has a constant answer's counterpart.
WITHOUT_CONSTANT = ["audit", "dp-is-bounds"]


@pytest.mark.parametrize("name", STORED)
def test_every_page_of_accuracies_has_the_constant_answer(name: str) -> None:
    page = (RESULTS / f"{name}.md").read_text(encoding="utf-8")
    assert ("constant answer" in page) == (name not in WITHOUT_CONSTANT)


@pytest.mark.parametrize("name", ["fdpg-crossed", "overview-adult"])
def test_a_page_and_a_report_of_the_same_runs_have_the_same_privacy_cost_gap(name: str) -> None:
    spec = read_spec(name, SPECS)
    assert isinstance(spec, Spec)
    results = Results.of(spec, read_store(RESULTS / f"{name}.json", name, "paper"))
    records = [
        {
            "method": spec.arm(label).method,
            "config": {"label": label, "seed": seed, "model": spec.arm(label).model or spec.model},
            "privacy": {"epsilon": run["epsilon"]},
            "metrics": {"by_group": run["by_group"], **run["figures"]},
        }
        for (label, _), runs in results.runs.items()
        for seed, run in runs.items()
    ]
    told = {row["name"]: row["privacy_cost_gap"] for row in build_twin(records)["summary"]}
    assert sum(gap is not None for gap in told.values()) > 3
    for label, gap in told.items():
        own = list(results.figure(label, None, TWIN).values())
        assert (gap is None) == (not own)
        assert gap is None or gap == pytest.approx(sum(own) / len(own))


def test_a_study_says_when_versions_of_the_code_stand_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked("dp-is-bounds", "small", tmp_path)
    for code, said in (("a1", False), ("a1", False), ("b2", True)):
        monkeypatch.setattr(findings_module, "code_digest", lambda code=code: code)
        open_findings(asked).keep(asked)
        assert ("side by side" in read_findings(tmp_path / "dp-is-bounds.json").made_by()) is said
    assert "a1, b2" in read_findings(tmp_path / "dp-is-bounds.json").made_by()
    path = tmp_path / "dp-is-bounds.json"
    old = {key: value for key, value in json.loads(path.read_text(encoding="utf-8")).items() if key != "code"}
    path.write_text(json.dumps(old), encoding="utf-8")
    open_findings(asked).keep(asked)
    assert "an unknown version, b2" in read_findings(tmp_path / "dp-is-bounds.json").made_by()


def test_no_bound_from_epsilon_alone_lies_below_what_randomised_response_attains() -> None:
    """A row's bit is told with probability e^ε/(1 + e^ε): on the row it is known, on a new row it is a coin."""
    for epsilon in (0.01, 0.3, 1.0, 2.5, 6.0):
        attained = math.exp(epsilon) / (1 + math.exp(epsilon)) - 1 / (1 + math.exp(epsilon))
        bounds = bounds_at(epsilon)
        assert bounds["Proposition 2.6"] == pytest.approx(attained, rel=1e-12)
        assert min(bounds.values()) >= attained * (1 - 1e-12)
