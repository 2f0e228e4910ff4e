"""Fifty-one groups in 3,000 rows: no command names a group as the worst of which next to nothing was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from veil.request import Request, TuneRequest
from veil.tables.table_run import train_table
from veil.tables.tuning import tune

LARGE = {"r0", "r1", "r2"}


@pytest.fixture
def asked(tmp_path: Path) -> dict[str, Any]:
    """Three groups have 85 % of the rows; the 48 others have nine each, two of them held out."""
    generator = np.random.default_rng(0)
    region = np.concatenate([np.repeat(["r0", "r1", "r2"], 856), np.repeat([f"r{n}" for n in range(3, 51)], 9)])
    table = pd.DataFrame({"age": generator.normal(size=3000).round(3), "region": region})
    table["ill"] = np.where(table["age"] + generator.normal(size=3000) / 2 > 0, "yes", "no")
    table.sample(frac=1.0, random_state=0).to_csv(tmp_path / "people.csv", index=False)
    return {"data": tmp_path / "people.csv", "target": "ill", "group": ("region",)}


def test_the_worst_group_of_a_run_is_one_that_was_measured(asked: dict[str, Any]) -> None:
    for seed in range(8):
        found = train_table(Request.checked(**asked, settings={"epsilon": 1.0, "seed": seed})).metrics
        assert found is not None
        measured = {name for name, score in found.by_group.items() if not np.isnan(score.accuracy)}
        assert measured == LARGE
        assert found.worst_group in LARGE


def test_a_search_is_scored_by_groups_that_were_measured(asked: dict[str, Any], tmp_path: Path) -> None:
    """Of 3,000 rows 225 choose, about 64 of each large group; the others have one or none."""
    for seed in range(3):
        settings = {"epsilon": 3.0, "seed": seed}
        run = tune(TuneRequest.checked(**asked, settings=settings, charge="composition"), tmp_path / str(seed))
        scores = [trial["score"] for trial in run.findings["Trials"]]
        assert all(score is not None and score > 0.6 for score in scores)
        assert run.metrics is not None
        assert run.metrics.worst_group in LARGE
