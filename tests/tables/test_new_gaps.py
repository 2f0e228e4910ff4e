"""A gap in a column that had none in training, through `veil train` with no option."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from veil.tables import fit_encoding, load_predictor
from veil.tables.predictor import Predictor

ROWS = 3_000


def complete_table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    score, since = (
        rng.uniform(0, 100, ROWS),
        pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, ROWS), "D"),
    )
    return pd.DataFrame(
        {
            "score": score,
            "since": since.strftime("%Y-%m-%d"),
            "sex": rng.choice(["f", "m"], ROWS),
            "y": np.where(score + rng.normal(0, 10, ROWS) > 50, "yes", "no"),
        }
    )


def trained(train: Any, table: pd.DataFrame, folder: Path, *words: str) -> Predictor:
    table.to_csv(folder / "rows.csv", index=False)
    given = ("--target", "y", "--group", "sex", "--epsilon", "1", "--seed", "1", "--holdout", "0", *words)
    done = train(*given, data=folder / "rows.csv", roles=False)
    assert done.code == 0, done.err
    return load_predictor(folder / "run")


def test_a_gap_that_training_never_had_counts_as_the_middle(train: Any, tmp_path: Path) -> None:
    predictor = trained(train, complete_table(), tmp_path)
    low, high = predictor.encoding.columns[0].low, predictor.encoding.columns[0].high  # type: ignore[union-attr]
    rows = pd.DataFrame({"score": [None, (low + high) / 2], "since": "2021-01-01", "sex": "f"})
    gap, middle = predictor.predict_proba(rows)
    assert gap == pytest.approx(middle), "a flag that no row had would have a weight of noise alone"
    dates = pd.DataFrame({"score": 50.0, "since": [None, "2021-03-26"], "sex": "f"})
    assert np.abs(np.subtract(*predictor.predict_proba(dates))).max() < 0.02


@pytest.mark.parametrize(("gaps", "rule"), [(0, "middle"), (9, "middle"), (10, "flag"), (500, "flag")])
def test_a_gap_has_a_flag_where_enough_rows_have_one(gaps: int, rule: str) -> None:
    table = complete_table()
    table.loc[: gaps - 1, ["score", "since"]] = None
    columns = fit_encoding(table, {"y", "sex"}).columns
    assert [column.missing for column in columns] == [rule, rule]  # type: ignore[union-attr]
