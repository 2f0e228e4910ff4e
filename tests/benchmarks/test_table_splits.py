"""Rows of the benchmark of tables: fixed in a file, the same for everybody, and test rows apart from all others."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

from benchmarks.tables import data, generated, splits
from benchmarks.tables.data import GROUPINGS, TABLES, Table
from benchmarks.tables.numbers import NUMBERS
from veil.errors import InputError


def test_every_table_has_its_splits_in_the_file() -> None:
    assert sorted(json.loads(splits.FILE.read_text(encoding="utf-8"))) == sorted([*TABLES, *NUMBERS])


@pytest.mark.parametrize("name", ["adult", "generated_tiny_cells"])
def test_tables_that_need_no_file_match_their_digests(name: str) -> None:
    assert len(data.load(name).frame) > 0


def test_another_label_or_row_is_noticed() -> None:
    labels = generated.tiny_cells(seed=54)["approved"].tolist()
    splits.check("generated_tiny_cells", labels)
    with pytest.raises(InputError, match="labels differ"):
        splits.check("generated_tiny_cells", ["yes" if labels[0] == "no" else "no", *labels[1:]])
    with pytest.raises(InputError, match="rows, labels, test, validation differ"):
        splits.check("generated_tiny_cells", labels[:-1])


def test_another_split_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = generated.tiny_cells(seed=54)["approved"].tolist()
    monkeypatch.setattr(splits, "TEST_SEED", 1)
    with pytest.raises(InputError, match="test, validation differ"):
        splits.check("generated_tiny_cells", labels)


def test_validation_rows_are_never_test_rows() -> None:
    train, test = splits.split("adult", 1000, "test", 1)
    assert (len(train), len(test)) == (750, 250)
    assert sorted([*train, *test]) == list(range(1000))
    for seed in splits.VALIDATION_SEEDS:
        inner, measured = splits.split("adult", 1000, "validation", seed)
        assert sorted([*inner, *measured]) == train.tolist()
    assert splits.split("adult", 1000, "test", 2)[1].tolist() == test.tolist()
    with pytest.raises(InputError, match="use seeds 101 to 110"):
        splits.split("adult", 1000, "validation", 1)


def test_the_table_of_tiny_cells_has_them() -> None:
    frame = generated.tiny_cells(seed=54)
    sizes = Counter(zip(frame["origin"], frame["sex"], strict=True))
    assert len(frame) == 5400
    assert sorted(sizes.values())[:3] == [2, 3, 13]
    assert len(sizes) == 12


def test_columns_that_only_make_groups_are_no_features(tiny_table: Table) -> None:
    task = tiny_table.task("crossed")
    assert set(task.features) == set(tiny_table.frame) - {"part", "approved"}
    assert "part" in task.train
    assert set(task.groups_of(task.test)) <= {f"{s} × {p}" for s in ("female", "male") for p in ("old", "young")}
    assert [len(task.train), len(task.test), task.delta] == [300, 100, 3e-4]


@pytest.mark.parametrize("name", TABLES)
def test_every_definition_of_groups_is_there_and_label_contains_the_target(name: str) -> None:
    spec = TABLES[name]
    assert set(spec.groups) == set(GROUPINGS)
    assert spec.target in spec.groups["label"]
    assert spec.target not in (*spec.groups["protected"], *spec.groups["crossed"])
    assert len(spec.groups["crossed"]) > len(spec.groups["protected"])
    assert not set(spec.groups_only) & set(spec.bounds)


def test_generated_numbers_lie_within_their_public_bounds() -> None:
    for frame, bounds in (
        (generated.curves(3000, seed=2), generated.CURVES_BOUNDS),
        (generated.rules(3000, seed=2), generated.RULES_BOUNDS),
    ):
        for name, (low, high) in bounds.items():
            assert np.all((frame[name] >= low) & (frame[name] <= high)), name
