"""Numbers to predict, from a table to a report: bounds, figures of every group, predictions in the target's unit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from veil.errors import InputError
from veil.report import judge_requirements
from veil.report.requirements import parse_requirements
from veil.request import Request
from veil.tables.predictor import load_predictor
from veil.tables.preparing import TARGET_BOUNDS
from veil.tables.table_run import train_table


@pytest.fixture(scope="module")
def wages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random = np.random.default_rng(0)
    rows = 3000
    years, sex = random.integers(0, 40, rows), random.choice(["f", "m"], rows, p=[0.3, 0.7])
    wage = 20 + 1.5 * years - 0.02 * years**2 + 3.0 * (sex == "m") + random.normal(0, 2.0, rows)
    path = tmp_path_factory.mktemp("wages") / "wages.csv"
    pd.DataFrame({"years": years, "sex": sex, "wage": wage.round(2)}).to_csv(path, index=False)
    return path


def asked(path: Path, **more: object) -> Request:
    settings = {"seed": 1, "epsilon": 2.0}
    return Request.checked(**{"data": path, "target": "wage", "group": ("sex",), "settings": settings} | more)


def test_a_target_of_many_numbers_is_learned_as_a_number_and_everything_is_in_its_unit(
    wages: Path, tmp_path: Path
) -> None:
    said: list[str] = []
    run = train_table(asked(wages), out=tmp_path / "run", say=said.append)
    assert any("learned as a number" in line and "--task classification" in line for line in said)
    assert TARGET_BOUNDS in run.certificate.not_covered
    assert any("counts of their errors and targets" in line for line in run.certificate.assumptions)
    metrics = run.as_json()["metrics"]
    assert metrics["released"] is True
    table = pd.read_csv(wages)
    predicted = load_predictor(tmp_path / "run").predict(table)
    for name, rows in table.groupby("sex"):
        true = float(np.sqrt(np.mean((predicted[rows.index] - rows["wage"]) ** 2)))
        assert true < 4.0
        assert metrics["by_group"][name]["root_mean_squared_error"] == pytest.approx(true, rel=0.5)
    assert metrics["error_of_the_mean"] == pytest.approx(table["wage"].std(), rel=0.2)
    effects = json.loads((tmp_path / "run" / "effects.json").read_text())
    years = next(column for column in effects["columns"] if column["column"] == "years")
    curve = dict(zip(years["at"], years["effects"][0], strict=True))
    assert curve[max(curve)] - curve[min(curve)] == pytest.approx(1.5 * 39 - 0.02 * 39**2, rel=0.3)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Root mean squared error" in page
    assert "predictions are off by" in page
    card = (tmp_path / "run" / "MODEL_CARD.md").read_text()
    assert "Always answering the group" in card


def test_stated_bounds_are_public_and_cut_what_lies_outside(wages: Path) -> None:
    run = train_table(asked(wages, target_bounds="0,60"))
    assert TARGET_BOUNDS not in run.certificate.not_covered
    assert run.plan.facts.target_range == (0.0, 60.0)


def test_bounds_may_stand_in_the_schema(wages: Path, tmp_path: Path) -> None:
    (tmp_path / "schema.toml").write_text(
        "[columns.years]\nkind = 'numeric'\nlow = 0\nhigh = 40\n"
        "[columns.sex]\nkind = 'group'\nvalues = ['f', 'm']\n"
        "[columns.wage]\nkind = 'target'\nlow = 0\nhigh = 80\n"
    )
    run = train_table(asked(wages, schema=tmp_path / "schema.toml"))
    assert run.plan.facts.target_range == (0.0, 80.0)
    assert TARGET_BOUNDS not in run.certificate.not_covered


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"target_bounds": "60,0"}, "give two numbers, the smaller one first"),
        ({"target_bounds": "a,b"}, "give a number, or several separated by commas"),
        ({"target_bounds": "0,60", "task": "classification"}, "is for numbers"),
        ({"task": "classification"}, "choose a column of classes, or learn a number with --task regression"),
        ({"private_preprocessing": 0.1}, "give --target-bounds"),
        ({"task": "regression", "target": "sex", "group": ("years",)}, "is not a number in row"),
    ],
)
def test_what_does_not_fit_is_said_in_one_sentence(wages: Path, more: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        train_table(asked(wages, **more))


def test_codes_of_few_classes_stay_classes(wages: Path, tmp_path: Path) -> None:
    table = pd.read_csv(wages)
    table["wage"] = (table["wage"] > 40).astype(int)
    table.to_csv(tmp_path / "codes.csv", index=False)
    assert train_table(asked(tmp_path / "codes.csv")).plan.facts.task == "classification"


def test_a_requirement_may_name_an_error(wages: Path, tmp_path: Path) -> None:
    run = train_table(asked(wages, require=["worst_group_error<=10", "r2>=0.99"]))
    _, checks = judge_requirements([run.as_json()], parsed(["worst_group_error<=10", "r2>=0.99"]))
    assert [check["met"] for check in checks] == [True, False]


def parsed(texts: list[str]) -> list[dict[str, object]]:
    return [requirement.as_json() for requirement in parse_requirements(texts)]


def test_a_run_that_predicts_numbers_goes_on_by_the_loop_methods_too(wages: Path) -> None:
    settings = {"seed": 1, "epsilon": 2.0, "epochs": 3}
    run = train_table(asked(wages, method="dp-sgd", model="logistic", settings=settings))
    assert run.as_json()["metrics"]["worst_group_error"] > 0
