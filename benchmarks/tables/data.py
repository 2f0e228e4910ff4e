"""Tables with targets and group definitions: raw columns, cleaned and never encoded, and what is public about them.

    load("adult").task("label").train

A column that exists for groups only (an age band) is no feature; the column it was made from is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from io import BytesIO
from typing import Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.tables import generated, splits
from benchmarks.tables.splits import Rows
from veil.datasets.adult import NUMBERS, load_adult
from veil.datasets.ctg import BOUNDS as CTG_BOUNDS
from veil.datasets.ctg import DIAGNOSES
from veil.datasets.ctg import FILES as CTG_FILES
from veil.datasets.dutch import OCCUPATION, SEX, read_dutch
from veil.datasets.files import DataFile, read_verified
from veil.errors import InputError, require

Grouping = Literal["protected", "crossed", "label"]
GROUPINGS: tuple[Grouping, ...] = get_args(Grouping)
GROUPING_WORDS: Mapping[Grouping, str] = {
    "protected": "protected attributes alone",
    "crossed": "several attributes crossed, so that cells of a few rows occur",
    "label": "crossed with the label",
}
BETWEEN = " × "


@dataclass(frozen=True)
class TableSpec:
    """One table: how it is read, what is predicted, which columns make groups, and bounds that everybody may know."""

    read: Callable[[], pd.DataFrame]
    target: str
    groups: Mapping[Grouping, tuple[str, ...]]
    bounds: Mapping[str, tuple[float, float]]
    groups_only: tuple[str, ...] = ()
    target_bounds: tuple[float, float] | None = None
    """Where the target is a number: its public bounds."""


@dataclass(frozen=True)
class Task:
    """What one arm is given: rows to train on, rows to predict, and public facts, which are the same for all arms."""

    table: str
    grouping: Grouping
    target: str
    group_columns: tuple[str, ...]
    classes: tuple[str, ...]
    numeric: Mapping[str, tuple[float, float]]
    categories: Mapping[str, tuple[str, ...]]
    train: pd.DataFrame = field(repr=False)
    test: pd.DataFrame = field(repr=False)
    target_bounds: tuple[float, float] | None = None

    @property
    def features(self) -> tuple[str, ...]:
        """Columns to learn from, in the order of the table."""
        return tuple(name for name in self.train.columns if name in self.numeric or name in self.categories)

    @property
    def delta(self) -> float:
        """The same for every private arm."""
        return splits.delta_for(len(self.train))

    def groups_of(self, frame: pd.DataFrame) -> NDArray[np.str_]:
        """The group of each row, as one word."""
        parts = [frame[name].astype(str).to_numpy() for name in self.group_columns]
        return np.array([BETWEEN.join(words) for words in zip(*parts, strict=True)])


@dataclass(frozen=True)
class Table:
    """A table in memory. `frame` has features, columns that only make groups, and the target."""

    name: str
    spec: TableSpec
    frame: pd.DataFrame = field(repr=False)

    def task(self, grouping: Grouping, rows: Rows = "test", seed: int = splits.VALIDATION_SEEDS[0]) -> Task:
        """The rows of one split with one definition of groups; `seed` chooses validation rows, never test rows."""
        require(grouping in GROUPINGS, f'groups are "{grouping}": known are {", ".join(GROUPINGS)}')
        train, test = splits.split(self.name, len(self.frame), rows, seed)
        spec = self.spec
        words = [n for n in self.frame if n not in spec.bounds and n not in (spec.target, *spec.groups_only)]
        return Task(
            table=self.name,
            grouping=grouping,
            target=spec.target,
            group_columns=spec.groups[grouping],
            classes=_values(self.frame[spec.target]) if spec.target_bounds is None else (),
            numeric=spec.bounds,
            categories={name: _values(self.frame[name]) for name in words},
            train=self.frame.iloc[train].reset_index(drop=True),
            test=self.frame.iloc[test].reset_index(drop=True),
            target_bounds=spec.target_bounds,
        )

    def tasks(self, rows: Rows = "test", seed: int = splits.VALIDATION_SEEDS[0]) -> Iterator[Task]:
        """One task per definition of groups."""
        return (self.task(grouping, rows, seed) for grouping in self.spec.groups)


@lru_cache(maxsize=2)
def load(name: str) -> Table:
    """One table by its name, checked against `splits.json`."""
    require(name in TABLES, f'table is "{name}": known are {", ".join(TABLES)}')
    return checked(name, TABLES[name])


def checked(name: str, spec: TableSpec) -> Table:
    """A table whose rows and splits are those of `splits.json`."""
    table = read(name, spec)
    splits.check(name, labels_of(table))
    return table


def labels_of(table: Table) -> list[str]:
    """The target of every row as a word, to know the rows again."""
    return [str(label) for label in table.frame[table.spec.target].tolist()]


def read(name: str, spec: TableSpec) -> Table:
    """A table as it is, its columns checked."""
    frame = spec.read()
    known = {*spec.bounds, spec.target} if spec.target_bounds is not None else {*spec.bounds}
    undeclared = [n for n in frame if n not in known and not pd.api.types.is_string_dtype(frame[n])]
    if undeclared or frame.isna().any(axis=None):
        raise InputError(f'table "{name}": {undeclared or "a cell"} is neither a word nor a number within bounds')
    return Table(name, spec, frame)


def _values(column: pd.Series) -> tuple[str, ...]:
    """The words of a column, as its public code book would list them."""
    return tuple(sorted(column.unique().tolist()))


def _bands(numbers: pd.Series, starts: Mapping[float, str]) -> pd.Series:
    """Numbers as bands that begin at `starts`."""
    edges, names = list(starts), np.array(list(starts.values()), dtype=object)
    return pd.Series(names[np.searchsorted(edges, numbers.to_numpy(), side="right") - 1], dtype="str")


def _csv(folder: str, file: str, sha256: str) -> pd.DataFrame:
    return pd.read_csv(BytesIO(read_verified(DataFile(f"{folder}/{file}", sha256), folder)))


def _adult() -> pd.DataFrame:
    """Both official parts as one table; `fnlwgt` is a survey weight and is left out."""
    frame = pd.concat(load_adult(), ignore_index=True).drop(columns="fnlwgt")
    words = [name for name in frame if name not in NUMBERS]
    frame = frame.astype({**dict.fromkeys(words, "str"), **dict.fromkeys(NUMBERS, "int64")})
    frame[words] = frame[words].fillna("?")
    frame["age_band"] = _bands(frame["age"], {17: "17-24", 25: "25-39", 40: "40-59", 60: "60+"})
    return frame


def _dutch() -> pd.DataFrame:
    """Codes stay words; age is the number of a five-year band, of which the first begins at birth."""
    frame = read_dutch()[0].astype("str")
    frame["sex"], frame["occupation"] = frame["sex"].map(SEX), frame["occupation"].map(OCCUPATION)
    frame["age"] = frame["age"].astype(int)
    frame["age_band"] = _bands(frame["age"], {1: "below 30", 7: "30-49", 11: "50-64", 14: "65+"})
    return frame


def _bank_marketing() -> pd.DataFrame:
    digest = "03e78e93396e664a079dff3e1df1b40b6359b1f9945adfb9a09ceabd0fb79193"
    frame = _csv("bank_marketing", "bank-full.csv", digest)
    frame["age_band"] = _bands(frame["age"], {0: "below 25", 25: "25-39", 40: "40-59", 60: "60+"})
    return frame


def _credit_default() -> pd.DataFrame:
    """Sex, education and marriage are codes in the file and words here, as its description has them."""
    digest = "7cfc3bb35b6986be40cccb5d490806f082b46f93afafdce27fd7f409eb5abb02"
    frame = _csv("credit_default", "credit-card-clients.csv", digest).rename(columns={"default payment": "default"})
    education = {
        0: "unknown 0",
        1: "graduate",
        2: "university",
        3: "school",
        4: "other",
        5: "unknown 5",
        6: "unknown 6",
    }
    frame["SEX"] = frame["SEX"].map({1: "male", 2: "female"}).astype("str")
    frame["EDUCATION"] = frame["EDUCATION"].map(education).astype("str")
    frame["MARRIAGE"] = frame["MARRIAGE"].map({0: "unknown", 1: "married", 2: "single", 3: "other"}).astype("str")
    frame["default"] = frame["default"].map({0: "no", 1: "yes"}).astype("str")
    return frame


def _law_school() -> pd.DataFrame:
    digest = "23c1b173f3480beb7afc4957b107a9917dfc4a8dc9d87ea6034ec35222152452"
    frame = _csv("law_school", "law_school_clean.csv", digest)
    frame["sex"] = frame.pop("male").map({0.0: "female", 1.0: "male"}).astype("str")
    frame["fulltime"] = frame["fulltime"].map({1.0: "full", 2.0: "part"}).astype("str")
    frame["family_income"] = frame["fam_inc"].map(lambda level: f"income {level:.0f}").astype("str")
    frame["pass_bar"] = frame.pop("pass_bar").map({0.0: "no", 1.0: "yes"}).astype("str")
    return frame


def _german_credit() -> pd.DataFrame:
    digest = "61effc34f9ef78ffeeb350141608c2e8ec9bf8978b64c29dbd16bb7a19bf763f"
    frame = _csv("german_credit", "german_data_credit.csv", digest)
    frame["age_band"] = _bands(frame["age"], {0: "below 26", 26: "26-49", 50: "50+"})
    frame["class-label"] = frame["class-label"].map({0: "bad", 1: "good"}).astype("str")
    return frame


def _ctg() -> pd.DataFrame:
    """Three diagnoses; `CLASS`, a second coding of them, is left out. Groups are shapes of traces, not of people."""
    frame = pd.read_csv(BytesIO(read_verified(CTG_FILES[0], "ctg"))).drop(columns="CLASS")
    frame["Tendency"] = frame["Tendency"].map({-1: "left", 0: "symmetric", 1: "right"}).astype("str")
    frame["baseline"] = _bands(frame["LB"], {0: "below 125", 125: "125-139", 140: "140+"})
    frame["diagnosis"] = frame.pop("NSP").map(dict(enumerate(DIAGNOSES, 1))).astype("str")
    return frame


def _worded(frame: pd.DataFrame) -> pd.DataFrame:
    """A generated table with a band of ages for groups."""
    frame["age_band"] = _bands(frame["age"], {0: "below 30", 30: "30-49", 50: "50-69", 70: "70+"})
    return frame


_BANK_BOUNDS = {
    "age": (18.0, 100.0),
    "balance": (-10_000.0, 110_000.0),
    "day": (1.0, 31.0),
    "duration": (0.0, 5_000.0),
    "campaign": (1.0, 65.0),
    "pdays": (-1.0, 900.0),
    "previous": (0.0, 300.0),
}
_CREDIT_BOUNDS = {
    "LIMIT_BAL": (0.0, 1_000_000.0),
    "AGE": (18.0, 80.0),
    **{f"PAY_{month}": (-2.0, 8.0) for month in (0, 2, 3, 4, 5, 6)},
    **{f"BILL_AMT{month}": (-350_000.0, 1_700_000.0) for month in range(1, 7)},
    **{f"PAY_AMT{month}": (0.0, 1_700_000.0) for month in range(1, 7)},
}
_LAW_BOUNDS = {
    "decile1b": (1.0, 10.0),
    "decile3": (1.0, 10.0),
    "lsat": (10.0, 48.0),
    "ugpa": (0.0, 4.0),
    "zfygpa": (-4.0, 4.0),
    "zgpa": (-7.0, 5.0),
    "fam_inc": (1.0, 5.0),
    "tier": (1.0, 6.0),
}
_GERMAN_BOUNDS = {
    "duration": (4.0, 72.0),
    "credit-amount": (0.0, 20_000.0),
    "installment-rate": (1.0, 4.0),
    "residence-since": (1.0, 4.0),
    "age": (18.0, 80.0),
    "existing-credits": (1.0, 4.0),
    "numner-people-provide-maintenance-for": (1.0, 2.0),
}


def _groups(protected: tuple[str, ...], crossed: tuple[str, ...], target: str) -> Mapping[Grouping, tuple[str, ...]]:
    return {"protected": protected, "crossed": crossed, "label": (*protected, target)}


TABLES: Mapping[str, TableSpec] = {
    "adult": TableSpec(
        _adult,
        "income",
        _groups(("sex",), ("sex", "race", "age_band"), "income"),
        {name: (float(low), float(high)) for name, (low, high) in NUMBERS.items()},
        ("age_band",),
    ),
    "dutch": TableSpec(
        _dutch,
        "occupation",
        _groups(("sex",), ("sex", "age_band", "country_birth"), "occupation"),
        {"age": (1.0, 17.0)},
        ("age_band",),
    ),
    "bank_marketing": TableSpec(
        _bank_marketing,
        "y",
        _groups(("marital",), ("marital", "age_band", "education"), "y"),
        _BANK_BOUNDS,
        ("age_band",),
    ),
    "credit_default": TableSpec(
        _credit_default, "default", _groups(("SEX",), ("SEX", "EDUCATION", "MARRIAGE"), "default"), _CREDIT_BOUNDS
    ),
    "law_school": TableSpec(
        _law_school,
        "pass_bar",
        _groups(("race",), ("race", "sex", "family_income"), "pass_bar"),
        _LAW_BOUNDS,
        ("family_income",),
    ),
    "german_credit": TableSpec(
        _german_credit,
        "class-label",
        # Crossed with sex, no group of bad risks would have enough test rows to be scored.
        {"protected": ("sex",), "crossed": ("sex", "age_band", "foreign-worker"), "label": ("class-label",)},
        _GERMAN_BOUNDS,
        ("age_band",),
    ),
    "ctg": TableSpec(
        _ctg,
        "diagnosis",
        {"protected": ("baseline",), "crossed": ("baseline", "Tendency"), "label": ("diagnosis",)},
        {name: bounds for name, bounds in CTG_BOUNDS.items() if name != "Tendency"},
        ("baseline",),
    ),
    "generated_curves": TableSpec(
        lambda: _worded(generated.curves(60_000, seed=60)),
        "approved",
        _groups(("origin",), ("origin", "sex", "age_band"), "approved"),
        generated.CURVES_BOUNDS,
        ("age_band",),
    ),
    "generated_rules": TableSpec(
        lambda: _worded(generated.rules(90_000, seed=90)),
        "relapse",
        _groups(("clinic",), ("clinic", "language", "age_band"), "relapse"),
        generated.RULES_BOUNDS,
        ("age_band",),
    ),
    "generated_tiny_cells": TableSpec(
        lambda: generated.tiny_cells(seed=54),
        "approved",
        _groups(("origin",), ("origin", "sex"), "approved"),
        generated.CURVES_BOUNDS,
    ),
}


def main() -> None:
    """Write the splits of every table that is here."""
    found = {}
    for name in TABLES:
        found[name] = splits.fixed(name, labels_of(read(name, TABLES[name])))
    splits.write(found)


if __name__ == "__main__":
    main()
