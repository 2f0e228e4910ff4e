"""Generated tables: curves, steps and interactions that a linear model of raw columns cannot follow; unequal groups.

Which rows have which groups, and how labels depend on them, is known; every table is a function of its seed alone.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

# Rows per (origin, sex): twelve groups, among them cells of 2, 3 and 13 rows.
TINY_CELLS = {
    ("A", "male"): 2297,
    ("A", "female"): 1210,
    ("B", "male"): 700,
    ("B", "female"): 420,
    ("C", "male"): 290,
    ("C", "female"): 203,
    ("D", "male"): 120,
    ("D", "female"): 82,
    ("E", "male"): 60,
    ("E", "female"): 13,
    ("F", "male"): 3,
    ("F", "female"): 2,
}
ORIGIN_SHARES = {"A": 0.62, "B": 0.22, "C": 0.11, "D": 0.045, "E": 0.005}
CURVES_BOUNDS = {
    "age": (18.0, 90.0),
    "income": (0.0, 500.0),
    "hours": (0.0, 80.0),
    "tenure": (0.0, 60.0),
    "score": (300.0, 850.0),
    "distance": (0.0, 200.0),
}
RULES_BOUNDS = {
    "age": (18.0, 90.0),
    "dose": (0.0, 10.0),
    "weight": (35.0, 200.0),
    "pressure": (70.0, 220.0),
    "marker_a": (-6.0, 6.0),
    "marker_b": (-6.0, 6.0),
    "visits": (0.0, 40.0),
    "delay": (0.0, 365.0),
}


def curves(rows: int, seed: int) -> pd.DataFrame:
    """Numbers that act in curves, two interactions, and a label that is shifted by origin."""
    rng = np.random.default_rng(seed)
    origin = rng.choice(list(ORIGIN_SHARES), rows, p=list(ORIGIN_SHARES.values()))
    sex = np.where(rng.random(rows) < 0.36, "female", "male")
    return _curves(origin, sex, rng)


def tiny_cells(seed: int) -> pd.DataFrame:
    """The same law on 5,400 rows of twelve groups, the smallest of 2, 3 and 13 rows."""
    rng = np.random.default_rng(seed)
    cells = [cell for cell, count in TINY_CELLS.items() for _ in range(count)]
    origin, sex = np.array(cells)[rng.permutation(len(cells))].T
    return _curves(origin, sex, rng)


def _curves(origin: NDArray[np.str_], sex: NDArray[np.str_], rng: np.random.Generator) -> pd.DataFrame:
    rows = len(origin)
    age = np.clip(rng.gamma(9.0, 4.7, rows) + 4, 18, 90).round()
    income = np.clip(rng.lognormal(3.6, 0.7, rows), 0, 500).round(1)
    hours = np.clip(rng.normal(38, 11, rows), 0, 80).round()
    tenure = np.clip(rng.exponential(7, rows), 0, age - 16).round(1)
    score = np.clip(rng.normal(640, 90, rows), 300, 850).round()
    distance = np.clip(rng.lognormal(2.3, 0.9, rows), 0, 200).round(1)
    work = rng.choice(["office", "field", "shop", "home", "none"], rows, p=[0.38, 0.22, 0.2, 0.15, 0.05])
    housing = rng.choice(["own", "rent", "family"], rows, p=[0.5, 0.38, 0.12])
    logit = (
        -1.2 * np.cos((age - 18) / 72 * 2 * np.pi)  # both ends of life against the middle
        + 0.9 * np.log1p(income / 20)
        - 1.1 * (income < 15)
        + 1.3 * np.tanh((score - 620) / 45)
        - 0.9 * np.abs(hours - 38) / 11
        + 0.5 * np.sin(distance / 9) * (work == "field")
        + 1.1 * ((housing == "rent") & (tenure < 3)) * -1
        + _of(work, {"office": 0.2, "field": -0.3, "shop": 0.0, "home": 0.5, "none": -1.2})
        + _of(origin, {"A": 0.3, "B": -0.4, "C": -1.0, "D": -1.5, "E": 0.9, "F": 0.0})
        + np.where(sex == "female", -0.5, 0.0) * (age < 45)
        - 0.9
    )
    label = np.where(rng.random(rows) < _chance(logit), "yes", "no")
    return pd.DataFrame(
        {
            "age": age.astype(int),
            "income": income,
            "hours": hours.astype(int),
            "tenure": tenure,
            "score": score.astype(int),
            "distance": distance,
            "work": work,
            "housing": housing,
            "origin": origin,
            "sex": sex,
            "approved": label,
        }
    )


def rules(rows: int, seed: int) -> pd.DataFrame:
    """Rules over pairs of columns, as a tree would write them, different for one clinic; few positive labels."""
    rng = np.random.default_rng(seed)
    clinic = rng.choice(["north", "south", "east", "west"], rows, p=[0.55, 0.3, 0.12, 0.03])
    sex = np.where(rng.random(rows) < 0.52, "female", "male")
    language = rng.choice(["first", "second", "third"], rows, p=[0.8, 0.17, 0.03])
    age = rng.integers(18, 91, rows)
    dose = rng.gamma(2.0, 1.3, rows).clip(0, 10).round(2)
    weight = np.clip(rng.normal(np.where(sex == "male", 84, 71), 14), 35, 200).round(1)
    pressure = np.clip(rng.normal(118 + 0.35 * (age - 40), 16), 70, 220).round()
    marker_a, marker_b = rng.standard_normal((2, rows)).clip(-6, 6).round(3)
    visits = rng.poisson(4, rows).clip(0, 40)
    delay = np.clip(rng.exponential(40, rows), 0, 365).round()
    therapy = rng.choice(["none", "standard", "new", "combined"], rows, p=[0.2, 0.5, 0.2, 0.1])
    logit = (
        -2.2
        + 2.0 * ((marker_a > 0.5) & (marker_b < 0.2))
        - 1.5 * ((marker_a < -0.8) & (clinic != "west"))
        + 1.8 * ((marker_a < -0.8) & (clinic == "west"))
        + 1.2 * (pressure > 150)
        + 0.9 * (dose * 70 / weight > 4.0)
        - 1.0 * ((therapy == "new") & (age < 60))
        + 1.1 * ((therapy == "combined") & (age >= 60))
        + 1.4 * (np.abs(marker_b) > 1.6)
        + 0.8 * ((delay > 90) & (visits < 3))
        + 0.02 * (age - 50)
        + _of(clinic, {"north": 0.0, "south": 0.3, "east": 0.9, "west": 1.4})
        + _of(language, {"first": 0.0, "second": 0.3, "third": 0.8})
    )
    label = np.where(rng.random(rows) < _chance(1.3 * logit), "yes", "no")
    return pd.DataFrame(
        {
            "age": age,
            "dose": dose,
            "weight": weight,
            "pressure": pressure.astype(int),
            "marker_a": marker_a,
            "marker_b": marker_b,
            "visits": visits,
            "delay": delay.astype(int),
            "therapy": therapy,
            "clinic": clinic,
            "language": language,
            "sex": sex,
            "relapse": label,
        }
    )


def _of(values: NDArray[np.str_], effects: dict[str, float]) -> NDArray[np.float64]:
    return np.array([effects[value] for value in values.tolist()])


def _chance(logit: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1.0 / (1.0 + np.exp(-logit))
