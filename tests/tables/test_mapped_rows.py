"""Rows that do not lie in memory train exactly like rows that do."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import TensorDataset

import veil
from veil.accounting import Relation
from veil.errors import InputError
from veil.foundation.randomness import Seed
from veil.plans import Settings
from veil.request import Request
from veil.tables import mapped, table_run
from veil.tables.encoding import Encoding, Numeric
from veil.tables.mapped import MappedRows, parquet_problem
from veil.tables.splitting import Holdout, row_identities
from veil.tables.table import Columns, table_problem

ENCODING = Encoding((Numeric("a", -3, 3, "middle"), Numeric("b", -3, 3, "middle")), from_rows=False)


def table(rows: int = 3000) -> pd.DataFrame:
    generator = np.random.default_rng(0)
    a, b = generator.standard_normal((2, rows))
    return pd.DataFrame(
        {"a": a, "b": b, "sex": np.where(b > 0.5, "m", "f"), "old": b > 0, "y": np.where(a > 0, "yes", "no")}
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(mapped, "ROWS_AT_ONCE", 700)
    place = tmp_path / "big"
    place.mkdir()
    rows = table()
    rows.iloc[:1000].to_parquet(place / "part-0.parquet", index=False)
    rows.iloc[1000:].to_parquet(place / "part-1.parquet", index=False)
    return place


def trained(problem: veil.Problem, steps: int) -> torch.Tensor:
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 2)
    veil.fit(model, problem, method="dp-sgd", epsilon=2.0, steps=steps, batch_size=100, seed=4)
    return model.weight.detach().clone()


def test_mapped_rows_give_the_same_problem_and_the_same_model(folder: Path, tmp_path: Path) -> None:
    big = parquet_problem(folder, ENCODING, "y", ["sex", "old"], tmp_path / "cache").train
    small = table_problem(table(), ENCODING, Columns("y", ("sex", "old")))
    assert big.public == small.public
    assert np.array_equal(big.cell_of, small.cell_of)
    rows = np.array([2999, 0, 1000, 1001])
    assert torch.equal(big.batch(rows)[0], small.batch(rows)[0])
    assert torch.equal(big.batch(rows)[1], small.batch(rows)[1])
    assert torch.equal(trained(big, 20), trained(small, 20))


@pytest.mark.parametrize("relation", list(Relation))
def test_held_out_rows_are_those_of_the_table_in_memory_and_are_not_trained_on(
    relation: Relation, folder: Path, tmp_path: Path
) -> None:
    holdout = Holdout(0.1, Seed.from_int(3))
    made = parquet_problem(folder, ENCODING, "y", ["sex"], tmp_path / "cache", holdout, relation)
    places = np.arange(3000, dtype=np.uint64)
    apart = holdout.chosen(row_identities(table()) if relation is Relation.ADD_REMOVE else places)
    assert made.held_out is not None
    assert len(made.held_out) == apart.sum()
    wanted = torch.from_numpy(ENCODING.encode(table()[apart]))
    assert torch.equal(made.held_out.inputs, wanted)
    assert len(made.train) == 3000 - apart.sum()
    everything = made.train.batch(np.arange(len(made.train)))[0]
    assert torch.equal(everything, torch.from_numpy(ENCODING.encode(table()[~apart])))


def test_a_table_is_converted_once_and_again_only_when_it_changed(folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    parquet_problem(folder, ENCODING, "y", ["sex"], cache)
    [first] = cache.iterdir()
    assert first.stat().st_mode & 0o077 == 0, "others must not read private rows"
    stamp = (first / "rows.npy").stat().st_mtime_ns
    parquet_problem(folder, ENCODING, "y", ["sex"], cache, Holdout(0.2, Seed.from_int(0)))
    assert (first / "rows.npy").stat().st_mtime_ns == stamp
    table(10).to_parquet(folder / "part-2.parquet", index=False)
    assert len(parquet_problem(folder, ENCODING, "y", ["sex"], cache).train) == 3010


def test_mapped_rows_are_those_of_the_table_and_survive_a_pickle(folder: Path, tmp_path: Path) -> None:
    source = parquet_problem(folder, ENCODING, "y", ["sex"], tmp_path / "cache").train.source
    assert isinstance(source, MappedRows)
    wanted = torch.from_numpy(ENCODING.encode(table()))
    for start in range(0, 3000, 500):
        assert torch.equal(source.take(np.arange(start, start + 500)), wanted[start : start + 500])
    again = pickle.loads(pickle.dumps(source))
    assert torch.equal(again.take(np.array([7])), wanted[7:8])


def test_a_missing_target_names_column_and_row(folder: Path, tmp_path: Path) -> None:
    rows = table(5)
    rows.loc[3, "y"] = None
    rows.to_parquet(folder / "part-2.parquet", index=False)
    with pytest.raises(InputError, match='column "y" is missing in row 3003'):
        parquet_problem(folder, ENCODING, "y", ["sex"], tmp_path / "cache")
    with pytest.raises(InputError, match='column "z" is missing: the table has'):
        parquet_problem(folder, ENCODING, "z", ["sex"], tmp_path / "cache")


def test_a_small_group_is_trained_on_and_groups_of_one_row_are_refused(folder: Path, tmp_path: Path) -> None:
    rows = table()
    rows.loc[:7, "sex"] = "x"
    rows.iloc[:1000].to_parquet(folder / "part-0.parquet", index=False)
    made = parquet_problem(folder, ENCODING, "y", ["sex"], tmp_path / "cache", Holdout(0.5, Seed.from_int(0)))
    assert dict(zip(made.train.public.groups, made.train.public.group_sizes, strict=True))["x"] == 8
    with pytest.raises(InputError, match='group "a" has 3,000 different values'):
        parquet_problem(folder, ENCODING, "y", ["a"], tmp_path / "cache")


def test_a_large_folder_trains_end_to_end_with_a_noisy_evaluation(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped, "LARGE", 100)
    monkeypatch.setenv("VEIL_CACHE", str(tmp_path / "cache"))
    settings = Settings.checked(epsilon=8.0, epochs=3, batch_size=200, seed=1)
    asked = {"target": "y", "group": "sex", "method": "dp-sgd", "model": "logistic"}
    run = table_run.train_table(Request.checked(data=folder, **asked, settings=settings))
    assert run.metrics is not None
    assert run.metrics.as_json()["released"] is True
    assert run.metrics.accuracy > 0.8


def test_a_torch_dataset_is_read_row_by_row_and_trains_like_a_tensor() -> None:
    rows = table(400)
    inputs = torch.from_numpy(ENCODING.encode(rows))
    targets = torch.from_numpy((rows["a"] > 0).to_numpy().astype(np.int64))
    lazy = veil.Problem.from_dataset(TensorDataset(inputs, targets), rows["sex"].tolist())
    plain = veil.Problem.from_arrays(inputs, targets, rows["sex"].tolist())
    assert lazy.public == plain.public
    assert torch.equal(trained(lazy, 5), trained(plain, 5))
