"""People of a table larger than memory are those of the same table in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from tests.tables.test_people_tables import asked, opened
from veil.errors import InputError
from veil.problem import Problem
from veil.tables import mapped
from veil.tables.table_run import train_table


def visits(rows: int = 3_000, people: int = 600) -> pd.DataFrame:
    """Visits in no order: rows of a person lie in several files and pieces."""
    generator = np.random.default_rng(0)
    who = generator.integers(0, people, rows)
    age = generator.integers(20, 90, people)[who]
    return pd.DataFrame(
        {
            "patient": who + 10_000,
            "sex": np.array(["f", "m"])[generator.integers(0, 2, people)][who],
            "age": age,
            "pulse": generator.normal(75, 9, rows).round(),
            "ill": np.where(age + 10 * generator.standard_normal(rows) > 55, "yes", "no"),
        }
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(mapped, "ROWS_AT_ONCE", 700)
    monkeypatch.setenv("VEIL_CACHE", str(tmp_path / "cache"))
    place, table = tmp_path / "big", visits()
    place.mkdir()
    table.iloc[:1_000].to_parquet(place / "part-0.parquet", index=False)
    table.iloc[1_000:].to_parquet(place / "part-1.parquet", index=False)
    (tmp_path / "schema.toml").write_text(
        "[columns.age]\nkind = 'numeric'\nlow = 20\nhigh = 90\n"
        "[columns.pulse]\nkind = 'numeric'\nlow = 40\nhigh = 120\n"
        "[columns.sex]\nkind = 'group'\nvalues = ['f', 'm']\n"
        "[columns.ill]\nkind = 'target'\n[columns.patient]\nkind = 'person'\n"
    )
    return place


def inputs_of(problem: Problem) -> torch.Tensor:
    """Everything that the problem would train on, person by person."""
    rows = problem.apart()[0]
    return torch.cat([torch.as_tensor(piece) for piece in rows.in_order(500)])


@pytest.mark.parametrize("way", [{}, {"rows_per_person": 1}, {"person_rows": "each", "rows_per_person": 3}], ids=str)
def test_people_on_disk_are_those_in_memory(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: dict[str, object]
) -> None:
    request = asked(folder, schema=tmp_path / "schema.toml", method="dp-sgd", **way)
    small = opened(request)
    monkeypatch.setattr(mapped, "LARGE", 2_000)
    big = opened(request)
    assert big.problem.public == small.problem.public
    assert np.array_equal(big.problem.cell_of, small.problem.cell_of)
    assert inputs_of(big.problem).equal(inputs_of(small.problem))
    rows = np.array([5, 0, 40])
    for one, other in zip(big.problem.together().batch(rows), small.problem.together().batch(rows), strict=True):
        torch.testing.assert_close(one, other, check_dtype=False)
    assert big.held_out is not None
    assert small.held_out is not None
    assert big.held_out.inputs.equal(small.held_out.inputs)


@pytest.mark.parametrize("way", ["mean", "each"])
def test_people_on_disk_are_certified(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    monkeypatch.setattr(mapped, "LARGE", 2_000)
    settings = {"seed": 1, "epochs": 1.0, "batch_size": 200}
    more = {"schema": tmp_path / "schema.toml", "method": "dp-sgd", "person_rows": way, "settings": settings}
    run = train_table(asked(folder, **more), out=tmp_path / "run")
    assert run.certificate.unit == "one person"
    assert not any("share" in said for said in run.certificate.not_covered)


def test_a_missing_name_and_a_person_in_both_tables_are_one_sentence(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped, "LARGE", 2_000)
    table = visits()
    table.iloc[:50].to_csv(tmp_path / "test.csv", index=False)
    with pytest.raises(InputError, match='--test: the "patient" of row 0 is in the training table too'):
        opened(asked(folder, schema=tmp_path / "schema.toml", method="dp-sgd", test=tmp_path / "test.csv"))
    table["patient"] = table["patient"].astype("Int64")
    table.loc[1_234, "patient"] = pd.NA
    table.iloc[1_000:].to_parquet(folder / "part-1.parquet", index=False)
    with pytest.raises(InputError, match='"patient" is missing in row 1234: fill it in or remove the row'):
        opened(asked(folder, schema=tmp_path / "schema.toml", method="dp-sgd"))


def test_names_of_several_kinds_are_the_same_people(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped, "LARGE", 2_000)
    request = asked(folder, schema=tmp_path / "schema.toml", method="dp-sgd")
    numbers = inputs_of(opened(request).problem)
    table = visits().iloc[1_000:]
    table.assign(patient=table["patient"].astype(str)).to_parquet(folder / "part-1.parquet", index=False)
    assert inputs_of(opened(request).problem).equal(numbers)
