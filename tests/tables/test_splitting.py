"""Which rows are held out: no other row's part changes when a row is deleted, or replaced."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from tests.tables.table_cases import messy
from veil import methods
from veil.accounting import Relation
from veil.foundation.randomness import Seed
from veil.methods import relation_asked
from veil.plans import Settings
from veil.problem import Cell, PublicFacts
from veil.tables import read_table
from veil.tables.splitting import Holdout, fewest_rows, identities_for, image_identities, row_identities

COIN = Holdout(0.2, Seed.from_int(5))


def parts(table: pd.DataFrame, words: list[str] | None = None) -> Counter[tuple[str, bool]]:
    """How often each row is in each part; rows go by their own text."""
    listed = words if words is not None else [repr(row) for row in table.itertuples(index=False)]
    return Counter(zip(listed, COIN.chosen(row_identities(table)).tolist(), strict=True))


def test_deleting_the_first_row_moves_no_other_row() -> None:
    table = pd.DataFrame({"age": np.arange(10_000)})
    whole, shorter = (COIN.chosen(row_identities(rows)) for rows in (table, table.iloc[1:]))
    assert np.array_equal(whole[1:], shorter)


def test_deleting_one_of_equal_rows_takes_one_row_from_one_part_and_leaves_all_else() -> None:
    generator = np.random.default_rng(0)
    table = pd.DataFrame({"sex": generator.choice(["f", "m"], 200), "age": generator.integers(0, 4, 200)})
    words, whole = [repr(row) for row in table.itertuples(index=False)], parts(table)
    for row in range(0, 200, 7):
        missing = whole - parts(table.drop(index=row))
        assert [found for found, _ in missing.elements()] == [words[row]]


@pytest.mark.parametrize("values", [1, 2, 50])
def test_the_share_is_as_asked_also_where_most_rows_are_equal(values: int) -> None:
    rows = row_identities(pd.DataFrame({"a": np.arange(20_000) % values}))
    assert len(np.unique(rows)) == 20_000
    # Six standard deviations: a false alarm in 10⁹.
    assert abs(COIN.chosen(rows).mean() - 0.2) < 6 * np.sqrt(0.16 / 20_000)


ODD_ROWS = {
    "a word among whole numbers": ("5,1.25,yes,2020-01-31", "unknown,1.25,yes,2020-01-31"),
    "a gap among whole numbers": ("5,1.25,yes,2020-01-31", ",1.25,yes,2020-01-31"),
    "a word among fractions": ("5,1.25,yes,2020-01-31", "5,much,yes,2020-01-31"),
    "a word among truth values": ("5,1.25,TRUE,2020-01-31", "5,1.25,perhaps,2020-01-31"),
    "a number written otherwise": ("5,1.250,no,2020-01-31", "5,x,no,2020-01-31"),
    "a long number": ("12345678901234567,0.1,no,2020-01-31", "none at all,0.1,no,2020-01-31"),
}


@pytest.mark.parametrize("case", list(ODD_ROWS))
def test_how_other_rows_make_a_column_read_does_not_move_a_row(case: str, tmp_path: Path) -> None:
    """One word among numbers makes texts of them all: the coin of a row must not follow."""
    usual, odd = ODD_ROWS[case]
    generator = np.random.default_rng(1)
    number, *others = usual.split(",")
    lines = [usual] + [
        ",".join([str(int(number) + int(i)), f"{generator.integers(10**6) / 2**7:.5f}", *others[1:]])
        for i in generator.integers(0, 99, 300)
    ]
    heading = "age,weight,member,joined"
    whole, shorter = tmp_path / "whole.csv", tmp_path / "shorter.csv"
    whole.write_text("\n".join([heading, *lines, odd]) + "\n")
    shorter.write_text("\n".join([heading, *lines]) + "\n")
    assert parts(read_table(whole), [*lines, odd]) - parts(read_table(shorter), lines) == parts_of_last(whole, odd)


def parts_of_last(path: Path, line: str) -> Counter[tuple[str, bool]]:
    return Counter([(line, bool(COIN.chosen(row_identities(read_table(path)))[-1]))])


def test_the_same_table_is_split_alike_from_csv_and_from_parquet(tmp_path: Path) -> None:
    table = messy().assign(joined=lambda rows: pd.to_datetime(rows["joined"]))
    table.to_csv(tmp_path / "a.csv", index=False)
    table.to_parquet(tmp_path / "a.parquet", index=False)
    found = [row_identities(read_table(tmp_path / name)) for name in ("a.csv", "a.parquet")]
    assert np.array_equal(*found)
    assert np.array_equal(found[0], row_identities(table[table.columns[::-1]])), "the order of columns counts"


def test_rows_that_differ_in_writing_alone_are_not_taken_for_equal() -> None:
    """Else the part of one would depend on whether the other is there."""
    table = pd.DataFrame({"code": ["5", "05", "5.0", "five", " 5"]})
    whole = COIN.chosen(row_identities(table))
    for row in range(5):
        rest = table.drop(index=row)
        assert np.array_equal(COIN.chosen(row_identities(rest)), np.delete(whole, row))


def test_a_replaced_row_stays_in_its_part_where_neighbours_replace() -> None:
    table = messy()
    other = table.copy()
    other.loc[17, "postcode"] = "PC9999"
    first, second = (COIN.chosen(identities_for(Relation.REPLACE_ONE, rows)) for rows in (table, other))
    assert np.array_equal(first, second)


def variants() -> list[tuple[str, dict[str, Any]]]:
    """Every method, and with each option that may change its relation."""
    found = []
    for name in methods.names():
        needed = {"allow_weaker_minority_privacy": True} if name == "azb-weak" else {}
        known = {field.name for field in fields(methods.create(name, needed))}  # type: ignore[arg-type]
        asked = [{}, {"sampling": "wor"}, {"neighbours": "replace-one"}, {"neighbours": "add-remove"}]
        found += [(name, needed | options) for options in asked if set(options) <= known]
    return found


@pytest.mark.parametrize(("name", "options"), variants())
def test_rows_are_held_out_for_the_relation_that_the_plan_will_have(name: str, options: dict[str, Any]) -> None:
    method = methods.create(name, options)
    facts = PublicFacts(("a", "b"), ("all",), (Cell(0, 0, 4000), Cell(1, 0, 6000)), (3,), classes=("0", "1"))
    wanted = Settings.checked(epsilon=4.0, delta=1e-5, steps=5, batch_size=200, accountant="rdp")
    assert relation_asked(method) == method.plan(facts, wanted).relation


def test_small_groups_and_small_tables_keep_all_their_rows() -> None:
    rows = np.arange(1000, dtype=np.uint64)
    groups = np.where(rows < fewest_rows(0.2) - 1, "small", "large")
    chosen = COIN.sparing(rows, groups)
    assert not chosen[groups == "small"].any()
    assert np.array_equal(chosen[groups == "large"], COIN.chosen(rows)[groups == "large"])
    assert not COIN.sparing(rows[:99], groups[:99]).any()
    declared = COIN.sparing(rows, groups, {"small": 500, "large": 500})
    assert np.array_equal(declared, COIN.chosen(rows)), "declared sizes count, not those of the rows"


def test_other_keys_choose_other_rows() -> None:
    rows = row_identities(pd.DataFrame({"a": np.arange(20_000)}))
    both = COIN.chosen(rows) & Holdout(0.2, Seed.from_int(6)).chosen(rows)
    assert abs(both.mean() - 0.04) < 6 * np.sqrt(0.04 / 20_000)


def test_deleting_an_image_moves_no_other_image() -> None:
    images: NDArray[np.uint8] = np.random.default_rng(0).integers(0, 255, (300, 1, 2, 2)).astype(np.uint8)
    images[200:] = images[:100]
    labels = ["cat"] * 300
    whole = image_identities(images, labels)
    shorter = image_identities(images[1:], labels[1:])
    assert sorted(set(whole) - set(shorter)) == [whole[200]], (
        "the second of two equal images takes the place of the first"
    )
    assert len(set(shorter) - set(whole)) == 0
