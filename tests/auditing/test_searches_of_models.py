"""A canary goes through the whole of `veil tune`: rows are read, models trained, scored, and the best one chosen.

The canary alone has its value of a column, so its gradient has a direction of its own. All public rows, by which trials
are chosen, have this value too: a trial whose weight for it is large wins. The attacker sees the published model.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import veil
from veil.auditing.lower_bounds import clopper_pearson
from veil.request import TuneRequest
from veil.tables.tuning import tune

SEARCHES, EPSILON, DELTA = 150, 8.0, 1e-3
SCHEMA = """
columns.age = {kind = "numeric", low = 20.0, high = 80.0, missing = "middle"}
columns.job = {kind = "category", values = ["a", "b", "rare"]}
columns.sex = {kind = "group", values = ["f", "m"]}
columns.ill = {kind = "target", values = ["no", "yes"]}
"""
CANARY = pd.DataFrame({"age": [50], "job": ["rare"], "sex": ["f"], "ill": ["yes"]})


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    rng = np.random.default_rng(0)
    columns = {"age": rng.integers(20, 80, 150), "job": rng.choice(list("ab"), 150), "sex": rng.choice(list("fm"), 150)}
    others = pd.DataFrame(columns | {"ill": rng.choice(["no", "yes"], 150)})
    others.to_csv(folder / "without.csv", index=False)
    pd.concat([others, CANARY]).to_csv(folder / "with.csv", index=False)
    public = pd.DataFrame(
        {"age": np.linspace(20, 80, 200).astype(int), "job": "rare", "sex": ["f", "f", "m", "m"] * 50}
    )
    public["ill"] = "yes"
    public.to_csv(folder / "public.csv", index=False)
    (folder / "schema.toml").write_text(SCHEMA)
    return folder


def published(tables: Path, name: str, seed: int, out: Path) -> float:
    """How sure the published model of one search is of the canary's answer."""
    request = TuneRequest.checked(
        data=tables / f"{name}.csv",
        test=tables / "public.csv",
        schema=tables / "schema.toml",
        target="ill",
        group=("sex",),
        candidate=["group-gd steps=5"],
        trials=3.0,
        settings={"epsilon": EPSILON, "delta": DELTA, "seed": seed},
    )
    run = tune(request, out)
    assert run.certificate.epsilon <= EPSILON
    chance = float(veil.load(out).predict_proba(CANARY.drop(columns="ill"))[0][1])
    return float(np.log(chance / (1 - chance)))


@pytest.mark.long
def test_what_an_attacker_learns_from_the_best_of_all_trials_stays_below_the_certificate(
    tables: Path, tmp_path: Path
) -> None:
    coins = np.arange(2 * SEARCHES) % 2 == 0
    scores = [
        published(tables, "with" if inside else "without", seed, tmp_path / str(seed))
        for seed, inside in enumerate(coins)
    ]
    found = clopper_pearson(np.array(scores), coins, DELTA, 0.95)
    assert 0.0 < found.epsilon <= EPSILON, "the attack sees something, and less than was promised"
