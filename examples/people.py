"""Several rows per person: what a promise for rows means for them, and a promise for people.

python examples/people.py [--rows N]
"""

from __future__ import annotations

import argparse

import numpy as np
import pandas as pd

from veil.accounting import Certificate
from veil.estimators import FairPrivateClassifier


def make_visits(people: int) -> pd.DataFrame:
    """One to eight visits of each patient."""
    generator = np.random.default_rng(0)
    patient = np.repeat(np.arange(people), generator.integers(1, 9, people))
    age = generator.integers(20, 90, people)[patient]
    sex = np.array(["f", "m"])[generator.integers(0, 2, people)][patient]
    back = np.where(age + 12 * generator.standard_normal(len(patient)) > 55, "yes", "no")
    return pd.DataFrame({"patient": patient, "sex": sex, "age": age, "back": back})


def main(people: int) -> tuple[Certificate, Certificate]:
    """The same table twice: rows protected, then people."""
    visits = make_visits(people)
    X, y, sex = visits[["age"]], visits["back"], visits["sex"]

    rows = FairPrivateClassifier(epsilon=1.0).fit(X, y, sensitive_features=sex).certificate_
    print(f"{rows.unit}: ε = {rows.epsilon:.2f}")
    print("the same for a person with several rows:", {k: round(cost, 2) for k, cost in rows.by_rows.items()})

    # Other rows, so that the two promises do not add up over the same people.
    fresh = make_visits(people + 1).iloc[1:]
    model = FairPrivateClassifier(epsilon=1.0)
    model.fit(fresh[["age"]], fresh["back"], sensitive_features=fresh["sex"], people=fresh["patient"])
    print(f"{model.certificate_.unit}: ε = {model.certificate_.epsilon:.2f}")
    return rows, model.certificate_


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2000, help="patients, each with one to eight visits")
    main(parser.parse_args().rows)
