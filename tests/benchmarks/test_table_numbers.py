"""The benchmark of numbers to predict: its tables, scores, arms, and the page that follows from its JSON."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from benchmarks.tables import generated, number_page, numbers, regression
from benchmarks.tables.arms import schema_of, veil_train
from benchmarks.tables.data import Table, TableSpec
from benchmarks.tables.measuring import Asked, measure
from benchmarks.tables.number_scoring import METRICS, score_numbers
from benchmarks.tables.store import all_stored, collect, columns_of

PAGE = Path(__file__).parents[2] / "docs" / "results" / "regression.md"
BOUNDS = {name: bounds for name, bounds in generated.CURVES_BOUNDS.items() if name != "tenure"}


@pytest.fixture(scope="module")
def incomes() -> Table:
    frame = generated.curves(800, seed=1).drop(columns=["approved"])
    spec = TableSpec(
        lambda: frame, "tenure", {"protected": ("sex",), "crossed": ("sex", "housing")}, BOUNDS, (), (0.0, 60.0)
    )
    return Table("tiny", spec, frame)


def test_errors_are_in_standard_deviations_and_the_worst_group_has_the_largest() -> None:
    numbers_ = np.array([0.0, 2.0, 0.0, 2.0])
    found = score_numbers(np.ones(4), numbers_, np.array(["a", "a", "b", "b"]), (0.0, 2.0), least=1)
    assert (found.error, found.r2, found.worst_group_absolute) == (1.0, 0.0, 1.0)
    better = score_numbers(np.array([0.0, 2.0, 1.0, 5.0]), numbers_, np.array(["a", "a", "b", "b"]), (0.0, 2.0), 1)
    assert better.worst_group == "b"
    # What lies outside the public bounds is cut: 5 counts as 2.
    assert better.worst_group_error == pytest.approx(0.5**0.5)
    assert better.average_group_error == pytest.approx(0.5**0.5 / 2)
    with pytest.raises(ValueError, match="one finite number per row"):
        score_numbers(np.full(4, np.nan), numbers_, np.array(["a"] * 4), (0.0, 2.0))


def test_no_table_has_its_target_or_what_repeats_it_among_its_features() -> None:
    for name, spec in numbers.NUMBERS.items():
        assert spec.target not in spec.bounds, name
        assert spec.target_bounds is not None
    assert not {"zgpa", "decile3"} & set(numbers.NUMBERS["law_school_grades"].bounds)


def test_arms_predict_numbers_and_a_page_follows_from_what_is_stored(incomes: Table, tmp_path: Path) -> None:
    task = incomes.task("crossed")
    assert 'kind = "target"\nlow = 0.0\nhigh = 60.0' in schema_of(task).to_toml()
    quick = ("--task", "regression", "--method", "dp-sgd", "--epochs", "2", "--model", "logistic")
    arms = [regression.ARMS[name] for name in ("constant", "ridge", "ridge-weighted")]
    arms.append(replace(regression.ARMS["dp-sgd"], fit=partial(veil_train, options=quick)))
    asked = Asked(("tiny",), numbers.GROUPINGS, (1.0,), tuple(arms), (1,), "test", tmp_path, False, lambda _: incomes)
    measure(asked, "tiny")
    records = list(all_stored(tmp_path, "test"))
    assert len(records) == 8
    assert not [record for record in records if "failed" in record]
    by_arm = {record["arm"]: record for record in records if record["groups"] == "protected"}
    assert by_arm["constant"]["r2"] == pytest.approx(0.0, abs=0.05)
    about = regression._about()
    facts = {**about["tables"]["adult_hours"], "bounds": [0, 60]}
    collect(records, {**about, "tables": {"tiny": facts}}, tmp_path / "r.json", columns_of(METRICS))
    page = number_page.page_of(number_page.Errors.read(tmp_path / "r.json"))
    regret = page.split("### ε = 1 (2 tasks)")[1].split("## ")[0]
    assert "| constant answer | " in regret
    assert "| ridge | " in regret
    assert "−" not in regret.split("Veil")[0].replace("−0.0", "")  # nothing without privacy beats the best


def test_the_page_in_the_documentation_is_what_its_json_gives() -> None:
    if not PAGE.exists():
        pytest.skip("docs/results/regression.json has not been measured")
    assert PAGE.read_text(encoding="utf-8") == number_page.page_of(number_page.Errors.read(PAGE.with_suffix(".json")))
