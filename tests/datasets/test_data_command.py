"""`veil data`: lists, facts, and a schema draft that marks what it read off private rows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from veil.cli.data import data_app
from veil.datasets import DATASETS
from veil.errors import InputError
from veil.tables import read_schema
from veil.tables.schema import PRIVATE_NOTE

RUNNER = CliRunner()


def test_the_list_names_every_data_set_and_whether_it_is_here() -> None:
    answer = json.loads(RUNNER.invoke(data_app, ["list", "--json"]).stdout)
    assert [row["name"] for row in answer["datasets"]] == list(DATASETS)
    assert next(row for row in answer["datasets"] if row["name"] == "adult")["present"] is True
    assert RUNNER.invoke(data_app, ["list"]).exit_code == 0


def test_the_list_works_without_a_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VEIL_DATA")
    answer = json.loads(RUNNER.invoke(data_app, ["list", "--json"]).stdout)
    assert [row["name"] for row in answer["datasets"] if row["present"]] == ["adult"]


@pytest.mark.parametrize("name", DATASETS)
def test_every_data_set_tells_its_files_groups_and_licence(name: str) -> None:
    answer = json.loads(RUNNER.invoke(data_app, ["info", name, "--json"]).stdout)
    assert answer["licence"]
    assert answer["groups"]
    assert name == "adult" or answer["files"]
    assert RUNNER.invoke(data_app, ["info", name]).exit_code == 0


def test_fetching_an_unknown_data_set_gets_a_sentence() -> None:
    outcome = RUNNER.invoke(data_app, ["fetch", "adlut"])
    assert isinstance(outcome.exception, InputError)
    assert RUNNER.invoke(data_app, ["fetch", "adult"]).exit_code == 0


def test_a_draft_can_be_read_back_and_marks_everything_it_read_off_rows(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "id": np.arange(100),
            "age": generator.integers(18, 90, 100),
            "joined": pd.date_range("2020-01-01", periods=100).strftime("%Y-%m-%d"),
            "town": generator.choice(["A", "B"], 100),
            "sex": generator.choice(["f", "m"], 100),
            "bought": generator.choice(["no", "yes"], 100),
        }
    )
    table.to_csv(tmp_path / "people.csv", index=False)
    words = ["schema", str(tmp_path / "people.csv"), "--target", "bought", "--group", "sex"]
    outcome = RUNNER.invoke(data_app, [*words, "--out", str(tmp_path / "schema.toml")])
    assert outcome.exit_code == 0
    text = (tmp_path / "schema.toml").read_text()
    for line in text.splitlines():
        if line.startswith(("low", "high", "values", "missing")):
            assert line.endswith(PRIVATE_NOTE)
    schema = read_schema(tmp_path / "schema.toml")
    assert {column.name: column.kind for column in schema.columns} == {
        "id": "ignore",
        "age": "numeric",
        "joined": "date",
        "town": "category",
        "sex": "group",
        "bought": "target",
    }
    assert text.count('missing = "middle"') == 2  # numbers and dates without gaps have no flag for them
    assert schema.encoding().encode(table).shape == (100, 1 + 1 + 2 + 2)
    outcome = RUNNER.invoke(data_app, [*words, "--out", str(tmp_path / "schema.toml")])
    assert "exists already" in str(outcome.exception)
    assert json.loads(RUNNER.invoke(data_app, [*words, "--json"]).stdout)["read_from_private_rows"] is True
