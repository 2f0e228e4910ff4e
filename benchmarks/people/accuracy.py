"""People with several rows: accuracy per group at ε = 1 per person, by each way to protect them.

Two tables: generated visits of people with 1 to 200 rows each, where one group has five times as many rows per person
as the other; and Adult, whose people get 1 to 12 rows with noisy answers. Test rows are of other people.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

import veil
from veil.accounting import Ledger, Pld
from veil.accounting.people import epsilon_of_person
from veil.datasets import load_adult
from veil.foundation.randomness import Seed
from veil.models import build_model
from veil.plans import Plan
from veil.problem import Problem
from veil.request import SUITED
from veil.training import Run

# What protects rows alone; rows with ε divided by ten; people whose rows count each by itself, or by their mean.
ARMS = ("rows", "rows, ε / 10", "each of 10 rows", "mean of 1 row", "mean of 3 rows", "mean of 10 rows")
METHODS = ("auto", "dp-sgd")
# Public middles and widths of Adult's numbers.
NUMBERS = {"age": (45.0, 15.0), "education-num": (9.0, 3.0), "hours-per-week": (40.0, 12.0)}
EPSILON, DELTA, TOGETHER = 1.0, 1e-6, 10
SETTINGS: dict[str, dict[str, Any]] = {"auto": {}, "dp-sgd": {"epochs": 5, "batch_size": 1024}}


def run(quick: bool) -> list[dict[str, Any]]:
    """Means over five seeds, or one."""
    made = {"visits": lambda seed: visits(4_000 if quick else 50_000, seed), "adult": adult_visits}
    rows = []
    for name, make in made.items():
        for method in METHODS:
            for arm in ARMS:
                found = [measured(method, arm, make(seed), seed) for seed in ((1,) if quick else (1, 2, 3, 4, 5))]
                means = {key: float(np.mean([one[key] for one in found])) for key in found[0]}
                rows.append({"table": name, "method": method, "arm": arm, **means})
    return rows


def visits(people: int, seed: int) -> pd.DataFrame:
    """Visits: two groups, the smaller one with many more rows per person; a person's state decides the label."""
    rng = np.random.default_rng(seed)
    often = rng.random(people) < 0.25
    count = np.clip(np.round(rng.lognormal(np.where(often, 2.3, 0.7), 1.0)), 1, 200).astype(int)
    state, age = rng.normal(np.where(often, 0.4, -0.2), 1.0), rng.uniform(18, 90, people)
    person = np.repeat(np.arange(people), count)
    rows = len(person)
    pressure = state[person] + 0.8 * rng.standard_normal(rows)
    marker = -0.7 * state[person] + 1.0 * rng.standard_normal(rows)
    dose = rng.integers(0, 3, rows)
    tilt = np.where(often[person], -1.0, 1.0)
    score = 0.9 * state[person] + 0.5 * tilt * (dose - 1) + 0.9 * np.abs(age[person] - 50) / 40 - 0.5
    return pd.DataFrame(
        {
            "person": person,
            "group": np.where(often[person], "often", "seldom"),
            "age": age[person] / 36 - 1.5,
            "pressure": pressure,
            "marker": marker,
            "dose": dose - 1.0,
            "often": often[person].astype(float),
            "label": (score + 0.7 * rng.logistic(size=rows) > 0).astype(int),
        }
    )


def adult_visits(seed: int) -> pd.DataFrame:
    """Adult with 1 to 12 rows per person: numbers are reported with errors, the rest stays."""
    rng = np.random.default_rng(seed)
    adult = load_adult()[0]
    person = np.repeat(np.arange(len(adult)), rng.integers(1, 13, len(adult)))
    numbers = {name: (adult[name].astype(float) - middle) / width for name, (middle, width) in NUMBERS.items()}
    numbers["gain"] = np.log1p(adult["capital-gain"].astype(float)) / 3 - 1
    words = pd.get_dummies(adult[["marital-status", "occupation", "sex"]], dtype=float)
    table = pd.concat([pd.DataFrame(numbers), words], axis=1).iloc[person].reset_index(drop=True)
    for name in numbers:
        table[name] += 0.3 * rng.standard_normal(len(table))
    income = adult["income"].astype(str).str.startswith(">").to_numpy().astype(int)
    return table.assign(person=person, group=adult["sex"].astype(str).to_numpy()[person], label=income[person])


def measured(method: str, arm: str, table: pd.DataFrame, seed: int) -> dict[str, float]:
    """Train on three quarters of the people and measure all rows of the others."""
    rng = np.random.default_rng(seed + 1_000)
    tested = (rng.random(int(table["person"].max()) + 1) < 0.25)[table["person"].to_numpy()]
    features = [name for name in table.columns if name not in ("person", "group", "label")]
    training, test = table[~tested], table[tested]
    center, scale = 0.0, 4.0  # public: numbers lie within four units

    def inputs(rows: pd.DataFrame) -> NDArray[np.float32]:
        return np.clip((rows[features].to_numpy(np.float64) - center) / scale, -1, 1).astype(np.float32)

    of_people: dict[str, Any] = {}
    if not arm.startswith("rows"):
        way, _, most, _ = arm.split()
        of_people = {"people": training["person"].to_numpy(), "rows_per_person": int(most), "person_rows": way}
    problem = Problem.from_arrays(
        inputs(training), training["label"].to_numpy(), training["group"].to_numpy(), **of_people
    )
    run = _trained(method, problem, EPSILON / TOGETHER if arm == "rows, ε / 10" else EPSILON, seed)
    with torch.no_grad():
        right = run.model(torch.from_numpy(inputs(test))).argmax(1).numpy() == test["label"].to_numpy()
    by_group = pd.Series(right).groupby(test["group"].to_numpy()).mean()
    return {
        "worst group": 100 * float(by_group.min()),
        "average": 100 * float(by_group.mean()),
        "overall": 100 * float(right.mean()),
        "ε of 10 rows": EPSILON if of_people else _of_ten(run.plan),
        "seconds": run.seconds,
    }


def _trained(method: str, problem: Problem, epsilon: float, seed: int) -> Run:
    options = {"numbers": range(problem.public.input_shape[0]), "knots": 7} if method == "auto" else {}
    model = build_model(SUITED.get(method, "mlp"), problem.public, Seed.from_int(seed), **options)
    return veil.fit(model, problem, method=method, epsilon=epsilon, delta=DELTA, seed=seed, **SETTINGS[method])


def _of_ten(plan: Plan) -> float:
    """What a run for rows means for a person with ten."""
    return epsilon_of_person(Ledger(plan.terms()), TOGETHER, Pld())
