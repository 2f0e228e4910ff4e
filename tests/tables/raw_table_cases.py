"""Thirteen raw tables: eight of public data, and five made-up ones with all that goes wrong.

Of the public ones, german_credit, ctg and law_school are the files as they are handed out; of the others some rows.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

ROWS = 600


@dataclass(frozen=True)
class Raw:
    """How a table is written, what is asked of it, and what a look at it must find."""

    write: Callable[[Path], Path]
    target: str
    group: str
    words: tuple[str, ...] = ()
    found: tuple[str, ...] = ()


def _csv(name: str) -> Callable[[Path], Path]:
    """The first rows of a file of VEIL_DATA."""

    def write(folder: Path) -> Path:
        source = Path(os.environ["VEIL_DATA"]) / name
        if not source.exists():
            pytest.skip(f"VEIL_DATA holds no {name}")
        table = pd.read_csv(source)
        table.sample(min(ROWS, len(table)), random_state=1).to_csv(folder / "table.csv", index=False)
        return folder / "table.csv"

    return write


def _whole(name: str) -> Callable[[Path], Path]:
    """A file of VEIL_DATA, byte for byte."""

    def write(folder: Path) -> Path:
        source = Path(os.environ["VEIL_DATA"]) / name
        if not source.exists():
            pytest.skip(f"VEIL_DATA holds no {name}")
        return Path(shutil.copy(source, folder / source.name))

    return write


def _adult(folder: Path) -> Path:
    from veil.datasets import load_adult

    load_adult()[0].sample(ROWS, random_state=1).to_csv(folder / "table.tsv", index=False, sep="\t")
    return folder / "table.tsv"


def _dutch(folder: Path) -> Path:
    from veil.datasets.dutch import read_dutch

    if not (Path(os.environ["VEIL_DATA"]) / "dutch_census").exists():
        pytest.skip("VEIL_DATA holds no dutch_census")
    table = read_dutch()[0].astype({"household_position": int, "country_birth": int})
    table.sample(ROWS, random_state=1).to_parquet(folder / "table.parquet")
    return folder / "table.parquet"


def _names(folder: Path) -> Path:
    source = Path(os.environ["VEIL_DATA"]) / "names"
    if not source.exists():
        pytest.skip("VEIL_DATA holds no names")
    languages = {name: (source / f"{name}.txt").read_text(encoding="utf-8").split() for name in ("Czech", "Italian")}
    table = pd.DataFrame([(word, name) for name, words in languages.items() for word in words[:300]])
    table = table.set_axis(["surname", "language"], axis=1)
    table["letters"], table["vowels"] = table["surname"].str.len(), table["surname"].str.count("[aeiou]")
    table.to_csv(folder / "table.csv", index=False)
    return folder / "table.csv"


def clinic() -> pd.DataFrame:
    """Visits: several rows of a person, dates with the day first, gaps in words, a column written down afterwards."""
    draw = np.random.default_rng(0)
    ill = draw.integers(0, 2, ROWS)
    came = pd.to_datetime("2020-01-01") + pd.to_timedelta(draw.integers(0, 900, ROWS), unit="D")
    return pd.DataFrame(
        {
            "patient_id": [f"P{row // 3:05}" for row in range(ROWS)],
            "last_name": draw.choice(["Huber", "Maier", "Gruber", "Berger"], ROWS),
            "came": came.strftime("%d/%m/%Y"),
            "remark": [" ".join(draw.choice(["again", "with", "fever", "cough", "tired", "fine"], 7)) for _ in ill],
            "temperature": np.where(
                draw.random(ROWS) < 0.1, "?", (36 + 2 * ill + draw.random(ROWS)).round(1).astype(str)
            ),
            "discharged_as": np.where(ill == 1, "treated", "sent home"),
            "zip_code": draw.choice([1010, 4020, 8010, 8020], ROWS),
            "sex": draw.choice(["f", "m"], ROWS),
            "ill": np.where(ill == 1, "yes", "no"),
        }
    )


def survey() -> pd.DataFrame:
    """Two columns of one name, codes, tiny groups, constant and empty columns, rows that stand there twice."""
    draw = np.random.default_rng(1)
    rows = ROWS - 60
    table = pd.DataFrame(
        {
            "age": draw.integers(18, 90, rows),
            "age_of_house": draw.integers(0, 200, rows),
            "occupation": draw.integers(1, 9, rows),
            "wave": 3,
            "comment": np.nan,
            "income": draw.lognormal(10, 1, rows).round(2),
            "region": draw.choice(["north", "south", "east", "islands"], rows, p=[0.5, 0.3, 0.19, 0.01]),
            "votes": draw.choice(["yes", "no"], rows),
        }
    )
    table.columns = ["age", "age", *table.columns[2:]]
    return pd.concat([table, table.iloc[:60]])


def _clinic(folder: Path) -> Path:
    clinic().to_csv(folder / "visits.csv", index=False)
    return folder / "visits.csv"


def _survey(folder: Path) -> Path:
    survey().to_csv(folder / "survey.csv.gz", index=False)
    return folder / "survey.csv.gz"


def _prices(folder: Path) -> Path:
    """Semicolons and decimal commas, a number to predict."""
    draw = np.random.default_rng(2)
    size = draw.uniform(20, 200, ROWS)
    table = pd.DataFrame({"size": size, "rooms": (size // 25).astype(int), "district": draw.choice(list("abc"), ROWS)})
    table["price"] = 1000 * size + draw.normal(0, 20_000, ROWS)
    table.round(2).to_csv(folder / "prices.csv", index=False, sep=";", decimal=",")
    return folder / "prices.csv"


def _wide(folder: Path) -> Path:
    """More than a hundred columns, some of them the same in every row, in an Arrow file."""
    draw = np.random.default_rng(3)
    columns = {f"measure {place}": draw.normal(size=ROWS) for place in range(100)}
    columns |= {f"same {place}": np.ones(ROWS) for place in range(20)}
    table = pd.DataFrame(columns).assign(arm=draw.choice(["a", "b"], ROWS), flag=draw.random(ROWS) < 0.5)
    table["better"] = table["measure 3"] + draw.normal(size=ROWS) > 0
    table.to_feather(folder / "wide.feather")
    return folder / "wide.feather"


def _loans(folder: Path) -> Path:
    """A file of Excel in UTF-16: currency, per cent, thousands, mixed units, columns of one name."""
    draw = np.random.default_rng(4)
    income, rate = draw.lognormal(11, 0.4, ROWS), draw.uniform(2, 25, ROWS)
    weights = draw.uniform(50, 99, ROWS)
    table = pd.DataFrame(
        {
            "Loan ID": [f"LN-{row:06}" for row in draw.permutation(ROWS)],
            "Income": [f"${value:,.0f}" for value in income],
            "Interest": [f"{value:.2f}%" for value in rate],
            "Paid": np.where(draw.random(ROWS) < 0.1, "?", [f"{value:.2f}".replace(".", ",") for value in rate]),
            "Weight": [f"{w:.1f} kg" if place % 3 else f"{1000 * w:.0f} g" for place, w in enumerate(weights)],
            "Branch": draw.choice(["Köln", "Wien"], ROWS),
            "Again": draw.integers(0, 9, ROWS),
            "Default": np.where(rate + draw.normal(0, 5, ROWS) > 13, "yes", "no"),
        }
    )
    table.columns = [*table.columns[:6], "Branch", "Default"]
    table.to_csv(folder / "loans.csv", index=False, sep=";", encoding="utf-16")
    return folder / "loans.csv"


RAW = {
    "adult": Raw(_adult, "income", "sex"),
    "bank": Raw(_csv("bank_marketing/bank-full.csv"), "y", "marital"),
    "credit": Raw(_csv("credit_default/credit-card-clients.csv"), "default payment", "SEX", found=("codes",)),
    "german": Raw(_whole("german_credit/german_data_credit.csv"), "class-label", "sex"),
    "law": Raw(
        _whole("law_school/law_school_clean.csv"),
        "pass_bar",
        "race,tier",
        ("--merge-groups-below", "200"),
    ),
    "ctg": Raw(
        _whole("ctg/CTG.csv"),
        "NSP",
        "Tendency",
        found=("numeric target", "tells the target", "repeated rows"),
        words=("--ignore", "CLASS"),
    ),
    "dutch": Raw(_dutch, "occupation", "sex", ("--category", "country_birth")),
    "names": Raw(_names, "language", "language", ("--ignore", "surname")),
    "clinic": Raw(
        _clinic,
        "ill",
        "sex",
        ("--person", "patient_id", "--ignore", "last_name,discharged_as", "--category", "zip_code"),
        ("name or address", "tells the target", "codes", "date", "free text", "several rows of a person"),
    ),
    "survey": Raw(
        _survey,
        "votes",
        "region",
        ("--merge-groups-below", "50"),
        ("duplicate heading", "codes", "tiny group", "repeated rows"),
    ),
    "prices": Raw(_prices, "price", "district", ("--target-bounds", "0,300000"), ("numeric target",)),
    "wide": Raw(_wide, "better", "arm"),
    "loans": Raw(_loans, "Default", "Branch", found=("written numbers", "duplicate heading")),
}
