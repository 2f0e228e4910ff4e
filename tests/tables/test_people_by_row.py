"""`--person-rows each` on tables: held-out people, private preprocessing, budgets and resumed runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.program import Program
from tests.tables.test_people_tables import asked, data, opened
from veil.errors import InputError
from veil.estimators import FairPrivateClassifier
from veil.problem.people import names_of
from veil.tables.table_run import train_table

__all__ = ["data"]


def test_rows_of_nobody_are_held_out_and_trained_on(data: Path) -> None:
    found = opened(asked(data, person_rows="each", rows_per_person=3))
    problem, held = found.problem, found.held_out
    assert held is not None
    assert problem.person_of is not None
    facts = problem.public
    assert (facts.unit, facts.rows_together, held.public.rows_together) == ("person", 3, 1)
    assert np.bincount(problem.person_of).max() == 3
    people = len(np.unique(problem.person_of))
    table = pd.read_csv(data)
    assert people + len(held) == table["patient"].nunique()
    mean = opened(asked(data, rows_per_person=3))
    assert mean.held_out is not None
    assert held.targets.equal(mean.held_out.targets), "other people are held out"
    assert sum(facts.group_sizes) == len(problem.person_of)


@pytest.mark.parametrize("more", [{}, {"private_preprocessing": 0.2}, {"method": "dp-sgd", "model": "mlp"}], ids=str)
def test_a_run_is_certified_for_people(data: Path, tmp_path: Path, more: dict[str, object], veil: Program) -> None:
    settings = {"seed": 1, "epsilon": 2.0, "epochs": 1.0, "batch_size": 300} if "method" in more else {"seed": 1}
    run = train_table(
        asked(data, person_rows="each", rows_per_person=3, settings=settings, **more), out=tmp_path / "run"
    )
    assert run.certificate.unit == "one person"
    assert run.summary()["privacy"]["rows_together"] == 3
    assert "Training rows" in (tmp_path / "run" / "report.html").read_text()
    assert "for each person with all their rows" in (tmp_path / "run" / "report.html").read_text()
    said = veil("verify", str(tmp_path / "run"))[1]
    assert "PLD of 3 rows" in said
    assert "The certificate holds" in said


def test_a_resumed_run_must_have_the_same_people(data: Path, tmp_path: Path) -> None:
    request = asked(data, person_rows="each", method="dp-sgd", settings={"seed": 1, "epochs": 1.0})
    table = pd.read_csv(data)

    def stop(_: object) -> None:
        raise KeyboardInterrupt

    from veil.training import Callback

    class Stop(Callback):
        def on_step(self, report: object) -> None:
            stop(report)

    with pytest.raises(KeyboardInterrupt):
        train_table(request, out=tmp_path / "run", callbacks=[Stop()])
    # Two people of one group exchange their names: the same rows, and other people.
    first, second = table[table["sex"] == table["sex"].iloc[0]]["patient"].unique()[:2]
    names = names_of(table["patient"])
    swapped = np.where(names == first, second, np.where(names == second, first, names))
    table.assign(patient=swapped).to_csv(data, index=False)
    with pytest.raises(InputError, match="Cannot resume"):
        train_table(request, out=tmp_path / "run", resume=True)


def test_estimators_count_each_row() -> None:
    generator = np.random.default_rng(0)
    people = generator.integers(0, 300, 1_500)
    X, sex = generator.normal(size=(1_500, 3)), np.array(["f", "m"])[people % 2]
    y = (X[:, 0] > 0).astype(int)
    model = FairPrivateClassifier(person_rows="each", rows_per_person=4, random_state=0)
    model.fit(X, y, sensitive_features=sex, people=people)
    assert (model.certificate_.unit, model.certificate_.facts["rows_of_person"]) == ("one person", 4)
    with pytest.raises(InputError, match="it must be mean or each"):
        model.set_params(person_rows="all").fit(X, y, people=people)


def test_the_option_needs_people(data: Path) -> None:
    with pytest.raises(InputError, match="--person-rows needs --person"):
        opened(asked(data, person=None, person_rows="each"))
