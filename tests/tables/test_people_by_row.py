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
from veil.tables.opening import Opened
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


def test_people_who_are_their_own_owners_have_levels_and_no_plan_of_their_own(data: Path, tmp_path: Path) -> None:
    names = pd.read_csv(data)["patient"].unique()
    of = dict(zip(names, np.geomspace(0.3, 3.0, len(names)).tolist(), strict=True))
    pd.DataFrame({"owner": list(of), "epsilon": list(of.values())}).to_csv(tmp_path / "budgets.csv", index=False)
    found = opened(asked(data, owner="patient", budgets=tmp_path / "budgets.csv", method="idp-sgd"))
    facts = found.problem.public
    assert facts.budgets is not None
    assert 1 < len(facts.owners) <= 512
    assert not set(facts.owners) & set(names), "the certificate would list people"
    assert found.allowed >= 0.29
    # Nobody is charged more than their own ε.
    level = np.array(facts.budgets)[found.problem.owner_of]
    table = pd.read_csv(data)
    assert sorted(level.round(6)) <= sorted(of.values())
    assert found.held_out is not None
    assert len(level) + len(found.held_out) == table["patient"].nunique()
    (tmp_path / "few.csv").write_text(f"owner,epsilon\n{names[0]},1\n")
    with pytest.raises(InputError, match="has no budget: add a line for it"):
        opened(asked(data, owner="patient", budgets=tmp_path / "few.csv"))
    everybody = opened(asked(data, owner="patient"))
    assert everybody.problem.public.owners == ("everybody",)


def test_many_people_who_are_their_own_owners_make_one_plan_of_levels() -> None:
    from veil import Problem

    people = np.arange(20_000)
    budgets = dict(zip(map(str, people), np.geomspace(0.5, 4.0, len(people)).tolist(), strict=True))
    rows = np.zeros((len(people), 1), np.float32)
    problem = Problem.from_arrays(rows, people % 2, people=people, owners=people, budgets=budgets)
    facts = problem.public
    assert len(facts.cells) < 130
    own, level = np.geomspace(0.5, 4.0, len(people)), np.array(facts.budgets)[problem.owner_of]
    assert np.all(level <= own), "somebody is charged more than their own ε"
    assert level.sum() > 0.97 * own.sum()


def test_what_people_share_is_reported(data: Path) -> None:
    table = pd.read_csv(data)
    numbers = pd.factorize(table["patient"])[0]
    table["household_id"] = [f"H{number // 3:05}" for number in numbers]
    table["record_id"] = [f"R{number:05}" for number in numbers]
    table.to_csv(data, index=False)
    said = opened(asked(data)).not_covered
    assert any('people share "household_id"' in sentence for sentence in said)
    assert not any("record_id" in sentence for sentence in said), "one record of each person is no other person"


def entries(found: Opened) -> tuple[list[tuple[float, ...]], list[tuple[float, ...]]]:
    """All rows that are trained on, and all that are held out, in their order."""
    assert found.held_out is not None
    problem = found.problem.apart()[0]
    return tuple(  # type: ignore[return-value]
        [(*x, float(y)) for x, y in zip(rows.inputs.tolist(), rows.targets.tolist(), strict=True)]
        for rows in (problem, found.held_out)
    )


@pytest.mark.parametrize("way", ["mean", "each"])
def test_deleting_a_person_takes_their_rows_away_and_nobody_else_s(data: Path, tmp_path: Path, way: str) -> None:
    (tmp_path / "schema.toml").write_text(
        "[columns.patient]\nkind = 'person'\n[columns.sex]\nkind = 'group'\nvalues = ['f', 'm']\n"
        "[columns.ill]\nkind = 'target'\n"
        "values = ['no', 'yes']\n[columns.age]\nkind = 'numeric'\nlow = 0\nhigh = 100\n"
        "[group_sizes]\nf = 500\nm = 500\n"
    )
    request = asked(data, schema=tmp_path / "schema.toml", person_rows=way, rows_per_person=4)
    table, whole = pd.read_csv(data), opened(request)
    for gone in table["patient"].unique()[:12]:
        table[table["patient"] != gone].to_csv(data, index=False)
        left = opened(request)
        assert left.problem.public == whole.problem.public
        trained, held = (len(a) - len(b) for a, b in zip(entries(whole), entries(left), strict=True))
        assert (trained == 0) != (held == 0), "somebody is in both parts or in none"
        assert trained <= 4
        assert held <= 1
        for before, after in zip(entries(whole), entries(left), strict=True):
            rest = list(before)
            for row in after:
                rest.remove(row)
            assert len(rest) == len(before) - len(after)


@pytest.mark.parametrize("way", ["mean", "each"])
def test_a_session_on_people_draws_what_its_certificate_says(way: str) -> None:
    import torch

    import veil

    generator = np.random.default_rng(0)
    people = generator.integers(0, 60, 300)
    x, y = generator.normal(size=(300, 3)).astype(np.float32), generator.integers(0, 2, 300)
    problem = veil.Problem.from_arrays(x, y, people=people, rows_per_person=3, person_rows=way)  # type: ignore[arg-type]
    model = torch.nn.Linear(3, 2)
    session = veil.session(model, problem, epsilon=1.0, steps=3, batch_size=20, seed=1)
    for inputs, targets in session:
        session.step(torch.nn.functional.cross_entropy(model(inputs), targets, reduction="none"))
    certificate = session.finish().certificate
    assert certificate.unit == "one person"
    assert certificate.facts.get("rows_of_person", 1) == (3 if way == "each" else 1)
