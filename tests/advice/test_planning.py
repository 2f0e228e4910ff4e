"""`veil plan`: nothing is trained on the rows, nothing beyond the stated facts is read, and nothing is spent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.advice.advice_cases import asked, people
from tests.program import Program
from veil.advice.planning import EPSILONS, advise
from veil.errors import InputError


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The plan of a small table."""
    return advise(asked(tmp_path_factory.mktemp("plan") / "0.csv", people(0))).record


def without_time(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in ("data", "cost")}


def test_other_rows_of_the_same_shape_have_the_same_plan(tmp_path: Path, record: dict[str, Any]) -> None:
    """Values, and which row has which class, are not read: only kinds, bounds, categories, sizes and classes."""
    other = people(1)
    other["y"] = np.random.default_rng(5).permutation(other["y"])
    assert without_time(advise(asked(tmp_path / "1.csv", other)).record) == without_time(record)


def test_every_budget_has_every_group_and_larger_budgets_need_fewer_rows(record: dict[str, Any]) -> None:
    assert [budget["epsilon"] for budget in record["budgets"]] == list(EPSILONS)
    assert [[group["rows"] for group in budget["groups"]] for budget in record["budgets"]] == [[150, 450]] * 4
    needed = [budget["rows_to_be_heard"] for budget in record["budgets"]]
    assert needed == sorted(needed, reverse=True)
    for budget in record["budgets"]:
        for group in budget["groups"]:
            assert group["heard"] is (group["rows"] >= budget["rows_to_be_heard"])
            assert group["missing_rows"] == max(0, budget["rows_to_be_heard"] - group["rows"])
    worst = [budget["worst_group_accuracy"]["expected"] for budget in record["budgets"]]
    assert worst == sorted(worst)


def test_a_plan_says_what_it_read(record: dict[str, Any]) -> None:
    read = " ".join(record["read"])
    assert "Group sizes were counted in the rows" in read
    assert "The set of classes was taken from the rows" in read
    assert "Kinds, bounds and categories of the columns" in read


def test_people_with_several_rows_are_promised_less(record: dict[str, Any]) -> None:
    several = record["people"]["several"]
    assert [one["rows"] for one in several] == [2, 5, 10]
    assert 1.0 < several[0]["epsilon"] < several[1]["epsilon"] < several[2]["epsilon"]
    assert several[0]["worst_group_accuracy"]["expected"] > several[2]["worst_group_accuracy"]["expected"]


def test_a_delta_above_one_row_is_called_too_large(tmp_path: Path) -> None:
    large = advise(asked(tmp_path / "t.csv", people(), settings={"delta": 0.01})).record["delta"]
    assert large["too_large"] is True
    assert "publishes a row at random" in large["sentence"]


def test_owners_and_numbers_and_other_methods_have_a_plan_too(tmp_path: Path) -> None:
    table = people()
    table["clinic"] = np.where(np.arange(len(table)) % 3 == 0, "north", "south")
    (tmp_path / "budgets.csv").write_text("owner,epsilon\nnorth,0.5\nsouth,2\n")
    record = advise(
        asked(tmp_path / "t.csv", table, owner="clinic", budgets=tmp_path / "budgets.csv", method="idp-sgd")
    ).record
    assert record["owners"]["tightest"] == "north"
    assert "ε = 0.5" in record["owners"]["sentence"]
    assert record["owners"]["advice"][0].startswith('Owner "north" (ε = 0.5) has')
    assert "% of the way down" in record["owners"]["advice"][1]
    table["y"] = np.arange(len(table)) / 10
    numbers = advise(asked(tmp_path / "n.csv", table.drop(columns="clinic"), target_bounds="0,60")).record
    assert numbers["forecast"]["made"] is False
    assert numbers["budgets"][0]["worst_group_accuracy"] is None
    noises = advise(asked(tmp_path / "s.csv", people(), method="dp-sgd")).record["method_noise"]
    assert noises[0]["noise_multiplier"] > noises[-1]["noise_multiplier"]


def test_private_preprocessing_would_release_something(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="releases nothing"):
        advise(asked(tmp_path / "t.csv", people(), private_preprocessing=0.1))


def test_the_command_prints_one_object_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, veil: Program
) -> None:
    path = tmp_path / "t.csv"
    people().to_csv(path, index=False)
    monkeypatch.chdir(tmp_path)
    words = ("plan", str(path), "--target", "y", "--group", "sex,y")
    code, said, _ = veil(*words, "--json")
    assert code == 0
    assert json.loads(said)["budgets"][0]["groups"][0]["group"] == "f × no"
    code, said, _ = veil(*words)
    assert code == 0
    assert "Nothing was trained and nothing is spent" in said
    assert "too small" in said
    assert [found.name for found in tmp_path.iterdir()] == ["t.csv"]
    code, _, wrong = veil("plan", str(path), "--target", "z", "--group", "sex")
    assert code == 2
    assert 'column "z" is missing' in wrong
