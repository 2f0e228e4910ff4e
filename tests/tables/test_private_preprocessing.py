"""Private preprocessing: no row moves a release by more than it is charged for, and what it finds is useful."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from veil import methods
from veil.accounting import Gaussian, Pld, Rdp, Relation, RenyiFilter, Repeated, TokenBucket
from veil.errors import InputError
from veil.foundation.randomness import Seed
from veil.noise import GaussianNoise
from veil.plans import Settings
from veil.problem import Cell, PublicFacts
from veil.releases import Allowance
from veil.tables.encoding import HashedCategory, Numeric
from veil.tables.histograms import HistogramRelease, octave_bins, octave_edges, step_bins
from veil.tables.private import Preprocessing, WithPreprocessing, find_encoding, relation_of
from veil.tables.schema import Schema, SchemaColumn

SCHEMA = Schema(
    (
        SchemaColumn("income", "numeric"),
        SchemaColumn("born", "date"),
        SchemaColumn("town", "category"),
        SchemaColumn("sex", "group"),
        SchemaColumn("age", "numeric", 0, 120),
    )
)


def table(rows: int = 4000) -> pd.DataFrame:
    generator = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "income": generator.normal(2000, 200, rows),
            "born": pd.to_datetime("1950-01-01") + pd.to_timedelta(generator.integers(0, 18000, rows), unit="D"),
            "town": generator.choice(["A", "B", "C"], rows, p=[0.6, 0.39, 0.01]),
            "sex": generator.choice(["f", "m"], rows, p=[0.3, 0.7]),
            "age": generator.integers(0, 100, rows),
        }
    )


class Recorded:
    """Stands in for the noise: keeps the exact counts and says what noise was asked for."""

    def __init__(self) -> None:
        self.counts: list[np.ndarray[Any, Any]] = []
        self.sigmas: list[float] = []

    def add(self, step: int, values: Mapping[str, Any], std: float, purpose: str) -> dict[str, Any]:
        self.counts.append(np.concatenate([value.numpy() for value in values.values()]))
        self.sigmas.append(std)
        return dict(values)


def found(
    rows: pd.DataFrame,
    noise: Any,
    relation: Relation = Relation.ADD_REMOVE,
    share: float = 0.2,
    schema: Schema = SCHEMA,
) -> Preprocessing:
    return find_encoding(
        rows,
        schema,
        Allowance(1.0, 1e-5, relation, Rdp(), noise),
        share=share,
        groups=["f", "m"],
        group_of=rows["sex"].tolist() if "sex" in rows else None,
    )


def test_too_few_rows_for_the_budget_are_a_sentence_with_numbers_and_no_bounds_made_of_noise() -> None:
    """80 rows where hundreds must agree: noise alone nearly stands out in some of twelve columns."""
    rows = table(80)
    wide = rows[["sex"]].assign(**{f"income {place}": rows["income"] for place in range(12)})
    schema = Schema((SchemaColumn("sex", "group"), *(SchemaColumn(name, "numeric") for name in wide.columns[1:])))
    for seed in range(20):  # without a look at the noisy number of rows, two of these are refused
        with pytest.raises(InputError, match=r"must be in about [\d,]+ rows .* and there are about [\d,]+: "):
            found(wide, GaussianNoise(Seed.from_int(seed)), share=0.1, schema=schema)


@pytest.mark.parametrize("relation", list(Relation))
def test_no_row_moves_the_counts_by_more_than_the_ledger_is_told(relation: Relation) -> None:
    rows = table(300)
    ours = Recorded()
    event = found(rows, ours, relation).event
    assert isinstance(event, Gaussian)
    moved = []
    for row in range(0, 300, 17):
        theirs = Recorded()
        if relation is Relation.ADD_REMOVE:
            found(rows.drop(index=row), theirs)
        else:
            other = rows.copy()
            other.loc[row, ["income", "born", "town"]] = [-7.0, pd.Timestamp("2020-02-02"), "nowhere"]
            found(other, theirs, relation)
        for mine, yours, sigma in zip(ours.counts[:1], theirs.counts[:1], ours.sigmas, strict=False):
            gap = float(np.linalg.norm(mine - yours))
            assert gap <= sigma / event.noise_multiplier * (1 + 1e-12)
            moved.append(gap * event.noise_multiplier / sigma)
    assert max(moved) > 0.7, "no row came near its bound: the test shows nothing"


@pytest.mark.parametrize("relation", list(Relation))
def test_the_second_release_is_bounded_too(relation: Relation) -> None:
    """Its bins depend on the first release alone, so the same bins are used on neighbouring tables."""
    values = {"a": np.array([1.0, 2.0, 3.0]), "b": np.array([5.0, 6.0, 7.0])}
    release = HistogramRelease("test", 1, 2, 3.0, relation)

    def counts(keep: slice) -> np.ndarray[Any, Any]:
        recorded = Recorded()
        release.make({name: step_bins(v[keep], 0.0, 10.0, 8) for name, v in values.items()}, recorded)  # type: ignore[arg-type]
        return recorded.counts[0]

    gap = np.linalg.norm(counts(slice(0, 3)) - counts(slice(0, 2)))
    assert gap == pytest.approx(math.sqrt(2))
    assert release.sigma / release.event().noise_multiplier >= gap


def test_what_it_finds_holds_nearly_all_rows_and_no_rare_value() -> None:
    rows = table()
    result = found(rows, GaussianNoise(Seed.from_int(1)), share=0.8)
    columns = {column.name: column for column in result.encoding.columns}
    income, town = columns["income"], columns["town"]
    assert isinstance(income, Numeric)
    assert 1000 < income.low < 1700
    assert 2300 < income.high < 3000
    assert isinstance(town, HashedCategory)
    assert len(town.kept) == 2, "C has 40 rows, which the noise hides"
    assert town.encode(pd.Series(["A", "C", "Z", None])).sum(axis=1).tolist() == [1, 1, 1, 0], "C and Z are pooled"
    assert columns["age"] == Numeric("age", 0.0, 120.0)
    assert result.group_sizes is not None
    assert result.group_sizes["f"] == pytest.approx((rows["sex"] == "f").sum(), abs=100)


def test_what_is_not_of_its_columns_kind_counts_as_missing_and_is_no_error() -> None:
    rows = table(500)
    rows["income"] = rows["income"].astype(object)
    rows.loc[3, "income"], rows.loc[4, "income"] = "a secret", np.inf
    encoding = found(rows, GaussianNoise(Seed.from_int(1)), share=0.8).encoding
    assert np.isfinite(encoding.encode(rows)).all()


@settings(deadline=None, derandomize=True)
@given(st.floats(-1e12, 1e12))
def test_every_number_lies_in_its_octave(value: float) -> None:
    [which], total = octave_bins(np.array([value]))
    low, high = octave_edges()[which]
    assert 0 <= which < total
    assert low - 1e-6 <= value <= high + 1e-6


FACTS = PublicFacts(
    ("f", "m"), ("everybody",), (Cell(0, 0, 3000), Cell(1, 0, 7000)), (5,), classes=("a", "b"), sizes="declared"
)


@pytest.mark.parametrize("sizes_released", [False, True])
@pytest.mark.parametrize("name", ["dp-sgd", "dp-is-sgd", "adaptive-clip"])
def test_training_and_preprocessing_together_stay_within_the_budget_and_use_it_up(
    name: str, sizes_released: bool
) -> None:
    tokens = (Repeated(Gaussian(20.0, one_sided=True), 2),)
    wanted = Settings.checked(epsilon=1.0, delta=1e-5, epochs=2, batch_size=500, accountant="rdp")
    plan = WithPreprocessing(methods.create(name), tokens, 0.2, sizes_released).plan(FACTS, wanted)
    assert plan.rules is not None
    for rule in plan.rules:
        guarantee = rule.guarantee(1e-5, Rdp())
        assert guarantee <= 1.0
        if isinstance(rule, TokenBucket):
            assert not sizes_released
            assert guarantee >= 0.9 or name == "dp-is-sgd"
        else:
            assert isinstance(rule, RenyiFilter)
    events = plan.controller.release(plan.controller.start(), 0).events(FACTS)
    for cell, rule in enumerate(plan.rules):
        spent = {tokens[0].event: 2}
        assert rule.refusal(spent, Repeated(events[cell], plan.steps)) is None
        if cell == 0 or name != "dp-is-sgd":
            assert rule.refusal(spent, Repeated(events[cell], 3 * plan.steps)) is not None


def test_a_share_that_leaves_nothing_is_refused() -> None:
    tokens = (Repeated(Gaussian(3.7, one_sided=True), 2),)
    wanted = Settings.checked(epsilon=1.0, delta=1e-5, epochs=2, batch_size=500, accountant="rdp")
    assert Pld().epsilon(tokens, 1e-5) > 1.0
    with pytest.raises(ValueError, match="leaves too little"):
        WithPreprocessing(methods.create("dp-sgd"), tokens, 0.9, True).plan(FACTS, wanted)


def test_the_relation_is_the_methods_own() -> None:
    assert relation_of(methods.create("dp-sgd"), ["a"]) == (Relation.ADD_REMOVE, True)
    assert relation_of(methods.create("dp-sgd", {"sampling": "wor"}), ["a"])[0] is Relation.REPLACE_ONE


def test_bounds_hold_most_rows_also_where_noise_hides_most_bins() -> None:
    """With few rows only a bin or two stand out of the noise: they are no range of the column."""
    ages = pd.DataFrame({"age": np.random.default_rng(1).integers(18, 90, 1200)})
    schema = Schema((SchemaColumn("age", "numeric"),))
    for seed in range(25):
        (age,) = found(ages, GaussianNoise(Seed.from_int(seed)), share=0.1, schema=schema).encoding.columns
        assert isinstance(age, Numeric)
        assert ages["age"].between(age.low, age.high).mean() > 0.5


def test_a_schema_that_leaves_nothing_open_is_not_paid_for() -> None:
    closed = Schema((SchemaColumn("age", "numeric", 0, 120),))
    with pytest.raises(InputError, match="already states everything"):
        found(pd.DataFrame({"age": [20.0, 30.0]}), GaussianNoise(Seed.from_int(0)), schema=closed)


def small_table(rows: int = 1000) -> pd.DataFrame:
    """As many columns as a census has: six numbers, eight categories, two groups of which one is small."""
    generator = np.random.default_rng(7)
    numbers = {f"n{k}": generator.normal(40 * (k + 1), 12, rows) for k in range(6)}
    words = {f"c{k}": generator.choice(list("abcdefgh")[: k + 2], rows) for k in range(8)}
    return pd.DataFrame({**numbers, **words, "sex": generator.choice(["f", "m"], rows, p=[0.3, 0.7])})


SMALL = Schema(
    (
        *(SchemaColumn(f"n{k}", "numeric") for k in range(6)),
        *(SchemaColumn(f"c{k}", "category") for k in range(8)),
        SchemaColumn("sex", "group", values=("f", "m")),
    )
)


def test_a_thousand_rows_keep_their_categories_and_group_sizes_at_a_tenth_of_epsilon() -> None:
    """Ten seeds: every category column is learned, no group shrinks to a row, most numbers have bounds."""
    rows = small_table()
    small = float((rows["sex"] == "f").sum())
    for seed in range(10):
        result = find_encoding(
            rows,
            SMALL,
            Allowance(1.0, 5e-4, Relation.ADD_REMOVE, Rdp(), GaussianNoise(Seed.from_int(seed))),
            share=0.1,
            groups=["f", "m"],
            group_of=rows["sex"].tolist(),
        )
        names = [column.name for column in result.encoding.columns]
        assert {f"c{k}" for k in range(8)} <= set(names)
        assert sum(name.startswith("n") for name in names) >= 3
        assert result.group_sizes is not None
        assert 0.3 * small < result.group_sizes["f"] < 2 * small


def test_more_noise_than_rows_is_refused_with_numbers_before_anything_is_spent() -> None:
    noise = Recorded()
    with pytest.raises(InputError, match=r"must be in about [\d,]+ rows .* there are about 60.*--schema"):
        find_encoding(
            small_table(60),
            SMALL,
            Allowance(1.0, 1e-3, Relation.ADD_REMOVE, Rdp(), noise),  # type: ignore[arg-type]
            share=0.1,
            groups=["f", "m"],
            group_of=None,
            rows=60,
        )
    assert noise.counts == []


@pytest.mark.parametrize("relation", list(Relation))
def test_a_weighted_column_has_less_noise_and_no_row_moves_more_than_is_charged(relation: Relation) -> None:
    release = HistogramRelease("test", 0, 7, 2.0, relation, {"sizes": math.sqrt(2)})
    recorded, bins = Recorded(), {f"n{k}": (np.zeros(1, np.int64), 3) for k in range(6)}
    release.make({**bins, "sizes": (np.ones(1, np.int64), 3)}, recorded)  # type: ignore[arg-type]
    gap = float(np.linalg.norm(recorded.counts[0])) * (1 if relation is Relation.ADD_REMOVE else math.sqrt(2))
    assert gap == pytest.approx(release.distance)
    assert release.sigma / release.event().noise_multiplier == pytest.approx(release.distance)
