"""How much of an effect may be noise: an estimate from public values, beside how much effects really vary."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from veil.request import Request
from veil.tables.table_run import train_table


def effects(path: Path, seed: int, **more: object) -> list[dict[str, object]]:
    asked = {"data": path, "target": "y", "group": ("sex",), "settings": {"seed": seed}} | more
    found = train_table(Request.checked(**asked)).effects
    assert found is not None
    columns: list[dict[str, object]] = sorted(found["columns"], key=lambda one: str(one["column"]))
    return columns


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random, rows = np.random.default_rng(0), 2000
    work, sex = random.choice(list("abcd"), rows), random.choice(["f", "m"], rows)
    chance = 1 / (1 + np.exp(0.7 * (sex == "f") - 1.5 * (work == "a")))
    path = tmp_path_factory.mktemp("noise") / "people.csv"
    frame = pd.DataFrame({"work": work, "sex": sex, "y": np.where(random.random(rows) < chance, "yes", "no")})
    frame.to_csv(path, index=False)
    return path


def test_the_noise_of_an_effect_is_near_what_other_noise_does_to_it(table: Path) -> None:
    """Twelve seeds: a standard deviation is known to a fifth, and a factor of two and a half would be seen."""
    runs = [effects(table, seed) for seed in range(12)]
    values = np.array([[v for column in run for v in column["effects"][0]] for run in runs])  # type: ignore[index]
    noise = np.array([[v for column in run for v in column["noise"][0]] for run in runs])  # type: ignore[index]
    ratio = values.std(axis=0, ddof=1) / noise.mean(axis=0)
    assert 0.4 < np.median(ratio) < 2.5


@pytest.mark.parametrize("spread", [2.0, 40.0])
def test_the_band_of_a_number_to_predict_covers_what_other_noise_does_to_its_effects(
    tmp_path: Path, spread: float
) -> None:
    """Eight seeds on the same rows: one and two standard deviations hold about 68 and 95 % of all values.

    Errors of up to 40 lie mostly outside the bound on slopes; a band that does not know that is half as wide.
    """
    random, rows = np.random.default_rng(1), 2000
    years, work = random.integers(0, 40, rows), random.choice(list("abc"), rows)
    sex = random.choice(["f", "m"], rows)
    wage = 20 + years - 5.0 * (work == "a") + random.uniform(-spread, spread, rows)
    path = tmp_path / "wages.csv"
    pd.DataFrame({"years": years, "work": work, "sex": sex, "y": wage.round(2)}).to_csv(path, index=False)
    more = {"target_bounds": "-20,100", "task": "regression", "holdout": 0.0}
    values: list[list[float]] = []
    noise: list[list[float]] = []
    for seed in range(8):
        # Knots are placed anew by every seed: effects are compared where all curves have a value.
        work_effect, curve = effects(path, seed, **more)[-2:]
        for found, name in ((values, "effects"), (noise, "noise")):
            at_years = np.interp(np.linspace(2, 38, 10), curve["at"], curve[name][0])  # type: ignore[arg-type,index]
            found.append([*work_effect[name][0], *at_years])  # type: ignore[index]
    off = np.abs(np.array(values) - np.mean(values, axis=0)) / noise
    assert 0.5 < np.mean(off < 1) < 0.97
    assert np.mean(off < 0.5) < 0.85
    assert np.mean(off < 2) > 0.9


def test_where_the_model_does_not_know_its_noise_none_is_given(table: Path) -> None:
    settings = {"seed": 1, "epochs": 1}
    columns = effects(table, 1, method="dp-sgd", model="additive", settings=settings)
    assert all(column["noise"] is None for column in columns)
