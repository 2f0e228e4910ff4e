"""A table with several rows per person is noticed, and few others are."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.program import Program
from tests.tables.table_cases import messy
from veil.tables.repeated_people import named_like_people, repeated_people


def visits(ids: str = "number", people: int = 600, seed: int = 0) -> pd.DataFrame:
    """People with one to nine visits each, in random order."""
    generator = np.random.default_rng(seed)
    person = np.repeat(np.arange(people), generator.integers(1, 10, people))
    generator.shuffle(person)
    made = {
        "number": person + 1,
        "scattered": generator.permutation(10**6)[:people][person],
        "word": np.array([f"P{i:05}" for i in range(people)])[person],
        "mail": np.array([f"someone{i}@example.org" for i in range(people)])[person],
        "gaps": np.where(generator.random(len(person)) < 0.05, np.nan, person + 1),
    }
    age = generator.integers(20, 80, people)[person]
    table = pd.DataFrame({"patient": made[ids], "age": age, "pressure": generator.normal(120, 15, len(person)).round()})
    table["sex"] = np.array(["f", "m"])[generator.integers(0, 2, people)][person]
    table["ill"] = np.where(age + generator.normal(0, 9, len(person)) > 50, "yes", "no")
    return table


@pytest.mark.parametrize("ids", ["number", "scattered", "word", "mail", "gaps"])
@pytest.mark.parametrize("name", ["patient", "Patient ID", "userId", "customer_number", "PatientIDs"])
def test_people_with_several_rows_are_noticed_by_name(ids: str, name: str) -> None:
    assert repeated_people(visits(ids).rename(columns={"patient": name}), ("ill", "sex")) == [name]


@pytest.mark.parametrize("ids", ["number", "word", "mail", "gaps"])
def test_people_with_several_rows_are_noticed_by_the_shape_of_a_column_of_any_name(ids: str) -> None:
    assert repeated_people(visits(ids).rename(columns={"patient": "x1"}), ("ill", "sex")) == ["x1"]


def test_an_identifier_of_rows_is_no_identifier_of_people() -> None:
    table = visits().assign(patient=lambda rows: np.arange(len(rows)))
    assert repeated_people(table.rename(columns={"patient": "id"}), ()) == []
    assert repeated_people(table, ()) == []


def test_columns_that_repeat_without_naming_people_are_left_alone() -> None:
    generator = np.random.default_rng(1)
    rows = 20_000
    table = pd.DataFrame(
        {
            "occupation": generator.choice([f"job {i}" for i in range(40)], rows),
            "zip": generator.integers(10_000, 14_000, rows),
            "postcode": [f"PC{code:04d}" for code in generator.integers(0, 4000, rows)],
            "town": generator.choice([f"Town {i}" for i in range(3000)], rows),
            "customer_type": generator.choice([f"T{i:03}" for i in range(300)], rows),
            "client": generator.choice(["private", "business"], rows),
            "patient_age": generator.integers(0, 100, rows),
            "day": generator.integers(0, 3650, rows),
            "price": generator.lognormal(5, 1, rows).round(),
            "income": generator.normal(30_000, 9000, rows).round(),
            "weight": generator.integers(10_000, 40_000, rows),
            "member": generator.random(rows) < 0.5,
            "since": pd.Timestamp("2020-01-01") + pd.to_timedelta(generator.integers(0, 3000, rows), unit="D"),
        }
    )
    assert repeated_people(table, ()) == []
    assert repeated_people(messy(3000), ()) == []


TABLES = {
    "adult/adult.data": {"header": None},
    "bank_marketing/bank-full.csv": {},
    "credit_default/credit-card-clients.csv": {},
    "ctg/CTG.csv": {},
    "german_credit/german_data_credit.csv": {},
    "law_school/law_school_clean.csv": {},
    "dutch_census/dutch_census_2001.arff": {"header": None, "comment": "@"},
}


@pytest.mark.parametrize("name", TABLES)
def test_real_tables_of_one_row_per_person_cause_no_alarm(name: str) -> None:
    path = Path(os.environ.get("VEIL_DATA", ".")) / name
    if not path.exists():
        pytest.skip(f"{name} is not there")
    assert repeated_people(pd.read_csv(path, **TABLES[name]).rename(columns=str), ()) == []  # type: ignore[call-overload]


def test_names_alone_decide_where_nothing_is_read_off_the_rows() -> None:
    table = visits().assign(id=1, patient_age=2, zip_code=3)
    assert named_like_people(table, ("ill",)) == ["patient"]
    assert named_like_people(table.iloc[:0], ("ill",)) == ["patient"]


def train(veil: Program, folder: Path, table: pd.DataFrame, *options: str) -> tuple[str, list[str]]:
    table.to_csv(folder / "visits.csv", index=False)
    asked = (
        f"train {folder}/visits.csv --target ill --group sex --epsilon 1 --method dp-sgd --epochs 1 --out {folder}/run"
    )
    code, _, said = veil(*asked.split(), *options)
    assert code == 0, said
    return said, json.loads((folder / "run" / "certificate.json").read_text())["not_covered"]


def test_a_run_on_visits_says_that_it_protects_rows_and_not_people(veil: Program, tmp_path: Path) -> None:
    said, missing = train(veil, tmp_path, visits())
    assert 'Rows share "patient" with other rows: this run protects rows, not people.' in " ".join(said.split())
    assert 'All rows of one person together: rows share "patient", as was read off the rows.' in missing
    assert veil("verify", str(tmp_path / "run"))[0] == 0


def test_a_run_on_people_says_nothing_of_the_kind(veil: Program, tmp_path: Path) -> None:
    said, missing = train(veil, tmp_path, visits().drop_duplicates("patient").drop(columns="patient"))
    assert "not people" not in said
    assert not any("person" in sentence for sentence in missing)


def test_no_row_changes_what_is_said_where_preprocessing_is_private(veil: Program, tmp_path: Path) -> None:
    sentences = []
    for number, table in enumerate((visits(), visits().drop_duplicates("patient"))):
        folder = tmp_path / str(number)
        folder.mkdir()
        _, missing = train(veil, folder, table, "--private-preprocessing", "0.2")
        sentences.append([sentence for sentence in missing if "person" in sentence])
    assert sentences[0] == sentences[1]
    assert 'where rows share "patient"' in sentences[0][0]
