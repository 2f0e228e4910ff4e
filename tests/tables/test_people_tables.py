"""`--person`: everything that a run on a table releases is of people, and nobody is cut in two."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from tests.program import Program
from tests.tables.test_repeated_people import visits
from veil.budget_store import BudgetStore, DataSet
from veil.errors import InputError
from veil.estimators import FairPrivateClassifier, FairPrivateRegressor, NotCoveredWarning
from veil.foundation.randomness import Seed
from veil.methods import create, relation_asked
from veil.problem.people import count_rows, names_of
from veil.request import Request
from veil.tables.opening import Opened, Opening, open_rows
from veil.tables.preparing import columns_of, holdout_of
from veil.tables.splitting import Split, holdout_key
from veil.tables.table_run import train_table
from veil.training import Callback, StepReport


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "visits.csv"
    visits("word").to_csv(path, index=False)
    return path


def asked(data: Path, **more: object) -> Request:
    given = {"target": "ill", "group": "sex", "person": "patient", "settings": {"seed": 1, "epsilon": 2.0}}
    return Request.checked(data=data, **(given | more))


def opened(request: Request, seed: int = 1) -> Opened:
    method, source = create(request.method, request.options()), Seed.from_int(seed)
    split = Split(source, holdout_of(request, holdout_key(source)), relation_asked(method))
    return open_rows(request, columns_of(request), Opening(method, request.settings, split))


@pytest.mark.parametrize("private", [None, 0.2])
def test_everything_is_counted_in_people(data: Path, tmp_path: Path, private: float | None, veil: Program) -> None:
    run = train_table(asked(data, private_preprocessing=private), out=tmp_path / "run")
    certificate = run.certificate
    assert certificate.unit == "one person"
    assert "any one person was in the data" in certificate.statement
    found = run.as_json()
    measured = sum(group["n"] for group in found["metrics"]["by_group"].values())
    trained = sum(group["rows"] for group in found["groups"])
    assert 560 < trained + measured < 640  # of 600 people with 3,000 rows; noisy
    assert not any("All rows of one person together" in sentence for sentence in certificate.not_covered)
    assert "ε of one person" in veil("verify", str(tmp_path / "run"))[1]
    assert "Training people" in (tmp_path / "run" / "report.html").read_text()
    assert f"{trained:,}".replace(",", "") in (tmp_path / "run" / "MODEL_CARD.md").read_text()
    assert "ε of one person" in (tmp_path / "run" / "MODEL_CARD.md").read_text()


@pytest.mark.parametrize("method", ["auto", "dp-sgd"])
def test_deleting_a_person_leaves_everybody_else_where_they_were(data: Path, tmp_path: Path, method: str) -> None:
    table = pd.read_csv(data)
    whole = opened(asked(data, method=method))

    def people(found: Opened) -> dict[tuple[float, ...], tuple[bool, list[list[float]]]]:
        """Each person's first row, whether it is trained on, and all rows that count."""
        several = found.problem.several
        assert several is not None
        assert found.held_out is not None
        trained = {
            tuple(rows[0].tolist()): (True, rows.tolist())
            for i in range(len(several.first) - 1)
            if len(rows := several.inputs[several.first[i] : several.first[i + 1]])
        }
        return trained | {tuple(row.tolist()): (False, []) for row in found.held_out.inputs}

    before = people(whole)
    for gone in ("P00003", "P00123", "P00598"):
        path = tmp_path / f"{gone}.csv"
        table[table["patient"] != gone].to_csv(path, index=False)
        after = people(opened(asked(path, method=method)))
        assert all(before[first] == kept for first, kept in after.items())
        assert len(before) - len(after) <= 1


def test_no_person_is_in_two_parts(data: Path) -> None:
    request = asked(data, settings={"seed": 1})
    table = pd.read_csv(data, keep_default_na=False)
    # A column that tells people apart in the encoded rows.
    marked = table.assign(mark=table["patient"].str[1:].astype(int) * 0.37)
    marked.to_csv(data, index=False)
    found = opened(request)
    assert found.held_out is not None
    assert found.problem.several is not None
    names = [column.name for column in found.encoding.columns] if found.encoding else []
    place = sum(list(found.encoding.widths())[: names.index("mark")] if found.encoding else [])
    trained = set(found.problem.several.inputs[:, place].tolist())
    measured = found.held_out.inputs[:, place].tolist()
    assert len(measured) == len(set(measured)) > 50
    assert not trained & set(measured)
    assert "patient" not in names


def test_most_rows_of_a_person_are_the_limit(data: Path) -> None:
    for most in (1, 2, 4):
        several = opened(asked(data, rows_per_person=most)).problem.several
        assert (several is None) == (most == 1)
        assert several is None or several.sizes.max() == most


class Interrupted(Callback):
    """Ends a run in the middle."""

    def on_step(self, report: StepReport) -> None:
        if report.step == 2:
            raise KeyboardInterrupt


def test_a_resumed_run_of_people_is_the_same_run_and_no_other(data: Path, tmp_path: Path) -> None:
    settings = {"seed": 1, "epsilon": 2.0, "steps": 5, "batch_size": 32, "checkpoint_every": 1}
    request, out = asked(data, method="dp-sgd", settings=settings), tmp_path / "run"
    whole = train_table(request, out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train_table(request, out=out, callbacks=[Interrupted()])
    content = data.read_text()
    table = pd.read_csv(data)
    # A row that counts and was not drawn: another target of the same person, in the same group.
    counted = count_rows(table["patient"], (table["sex"] == "m").to_numpy().astype(np.int64), 10)
    row = int(np.setdiff1d(counted.rows, counted.drawn)[0])
    for column, value in (("ill", "no" if table.loc[row, "ill"] == "yes" else "yes"), ("pressure", 99.0)):
        table.assign(**{column: table[column].where(table.index != row, value)}).to_csv(data, index=False)
        with pytest.raises(InputError, match=r"Cannot resume: the .* differ"):
            train_table(request, out=out, resume=True)
    data.write_text(content)
    resumed = train_table(request, out=out, resume=True)
    for ours, theirs in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_people_in_training_and_test_are_rejected(data: Path, tmp_path: Path) -> None:
    table = pd.read_csv(data)
    test = tmp_path / "test.csv"
    table.iloc[:50].to_csv(test, index=False)
    with pytest.raises(InputError, match=r'the "patient" of row .* is in the training table too'):
        train_table(asked(data, test=test))
    table.assign(patient=lambda rows: "Q" + rows["patient"]).iloc[:50].to_csv(test, index=False)
    assert train_table(asked(data, test=test)).certificate.unit == "one person"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"person": "nobody"}, 'column "nobody" is missing'),
        ({"person": "patient,doctor"}, "rows about several people at once are not supported"),
        ({"person": "sex"}, 'column "sex" is the group and cannot name people'),
        ({"person": "ill"}, 'column "ill" is the target and cannot name people'),
        ({"person": None, "rows_per_person": 3}, "--rows-per-person needs --person"),
        ({"rows_per_person": 0}, "rows_per_person is 0"),
    ],
)
def test_wrong_people_are_one_sentence(data: Path, more: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        train_table(asked(data, **more))


def test_how_many_rows_count_is_said_whether_or_not_somebody_has_more(data: Path, veil: Program) -> None:
    words = ("train", str(data), "--target", "ill", "--group", "sex", "--person", "patient", "--rows-per-person", "4")
    out = str(data.parent / "run")
    assert 'Of every "patient" at most 4 rows count' in "".join(map(str, veil(*words, "--seed", "1", "--out", out)))


def test_a_missing_person_names_the_row(data: Path) -> None:
    table = pd.read_csv(data)
    table.loc[7, "patient"] = np.nan
    table.to_csv(data, index=False)
    with pytest.raises(InputError, match="the person of row"):
        train_table(asked(data))


def test_owners_and_budgets_are_those_of_people(data: Path, tmp_path: Path) -> None:
    table = pd.read_csv(data)
    number = table["patient"].str[1:].astype(int)
    table.assign(clinic=np.where(number % 2 == 0, "a", "b")).to_csv(data, index=False)
    budgets = tmp_path / "budgets.csv"
    budgets.write_text("owner,epsilon\na,0.5\nb,2\n")
    more = {"owner": "clinic", "budgets": budgets, "method": "idp-sgd"}
    steps = {"settings": {"seed": 1, "steps": 5, "batch_size": 32}}
    certificate = train_table(asked(data, **more, **steps)).certificate
    assert certificate.by_owner["a"] <= 0.5 < certificate.by_owner["b"] <= 2.0
    assert set(certificate.by_owner) == {"a", "b"}, "held-out people are of these owners, not of another"
    assert "Each person has the ε of their owner" in certificate.statement
    table.assign(clinic=np.where(np.arange(len(table)) % 2 == 0, "a", "b")).to_csv(data, index=False)
    with pytest.raises(InputError, match="has rows of several owners"):
        train_table(asked(data, **more, **steps))
    # The smallest ε of all rows of a person holds for the person, whichever row is drawn.
    table.assign(own=np.where(number % 5 == 0, np.where(np.arange(len(table)) % 2, 0.5, 3.0), 3.0)).to_csv(data)
    found = opened(asked(data, row_budgets="own", method="idp-sgd", ignore="Unnamed: 0"))
    assert found.problem.public.budgets is not None
    assert min(found.problem.public.budgets) <= 0.5
    facts = found.problem.public
    small = sum(size for size, own in zip(facts.owner_sizes, facts.budgets or (), strict=True) if own <= 0.5)
    assert small > 70  # a fifth of 480 people, less those whose rows all allow 3


def test_a_budget_of_people_takes_runs_of_people_alone(data: Path, tmp_path: Path) -> None:
    place = tmp_path / "budget.sqlite"
    store = BudgetStore.create(str(place))
    store.add_dataset(DataSet("people", groups=("sex",), person="patient"), epsilon=5.0, delta=0.1)
    store.add_dataset(DataSet("rows", groups=("sex",)), epsilon=5.0, delta=0.1)
    train_table(asked(data, dataset="people", store=str(place)), out=tmp_path / "run")
    [balance] = store.balances("people")
    assert balance.spent_epsilon == pytest.approx(2.0, rel=1e-3)
    with pytest.raises(InputError, match='kept for rows, and the run protects people by "patient"'):
        train_table(asked(data, dataset="rows", store=str(place)), out=tmp_path / "other")
    with pytest.raises(InputError, match='kept for people by "patient", and the run protects rows'):
        train_table(asked(data, person=None, dataset="people", store=str(place)), out=tmp_path / "third")
    assert len(store.history("rows")) == 0


def test_a_schema_can_name_the_person(data: Path, tmp_path: Path) -> None:
    schema = tmp_path / "schema.toml"
    schema.write_text(
        '[columns.patient]\nkind = "person"\n[columns.sex]\nkind = "group"\nvalues = ["f", "m"]\n'
        '[columns.age]\nkind = "numeric"\nlow = 0\nhigh = 100\n'
        '[columns.ill]\nkind = "target"\nvalues = ["no", "yes"]\n[group_sizes]\nf = 250\nm = 250\n'
    )
    run = train_table(asked(data, schema=schema, person=None), out=tmp_path / "run")
    assert run.certificate.unit == "one person"
    assert "declared" in run.certificate.statement
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["config"]["person"] == "patient"


def test_canaries_of_a_run_of_people_are_people(data: Path, tmp_path: Path, veil: Program) -> None:
    for method, more in (("auto", ()), ("dp-sgd", ("--epochs", "2", "--batch-size", "64"))):
        out = tmp_path / method
        words = ("--target", "ill", "--group", "sex", "--person", "patient", "--method", method, "--out", str(out))
        assert veil("train", str(data), *words, "--seed", "1", *more)[0] == 0
        code, _, said = veil("audit", str(out), "--canaries", "60", "--seed", "1")
        assert code == 0, said
        assert ("Training 120 times with one canary row" in said) == (method == "auto")


def test_estimators_take_people() -> None:
    table = visits("word")
    X, y = table[["age", "pressure"]], table["ill"]
    model = FairPrivateClassifier(epsilon=2.0, random_state=1)
    model.fit(X, y, sensitive_features=table["sex"], people=table["patient"])
    assert model.certificate_.unit == "one person"
    assert model.predict(X).shape == (len(X),)
    numbers = FairPrivateRegressor(epsilon=2.0, random_state=1, target_bounds=(0, 200), rows_per_person=3)
    numbers.fit(X[["age"]], table["pressure"], people=table["patient"])
    assert numbers.certificate_.unit == "one person"
    with pytest.raises(InputError, match="people"):
        model.fit(X, y, people=table["patient"][1:])


def test_people_with_equal_rows_stay_where_they_are_when_one_of_them_goes() -> None:
    people = 400
    table = pd.DataFrame({"x": np.zeros(2 * people), "y": [0, 1] * people, "who": np.repeat(np.arange(people), 2)})
    estimator, key = FairPrivateClassifier(), Seed.from_int(1)

    def held_out(rows: pd.DataFrame) -> np.ndarray:
        drawn = count_rows(rows["who"], np.zeros(len(rows), np.int64), 5).drawn
        besides = {"target": rows["y"].to_numpy(), "person": names_of(rows["who"])}
        return estimator._held_out(rows[["x"]], besides, drawn, key)

    whole = held_out(table)
    for gone in range(0, people, 37):
        found = held_out(table[table["who"] != gone].reset_index(drop=True))
        assert (found == whole[np.arange(people) != gone]).all()


@pytest.mark.parametrize("form", ["{:05}", "+49{}", "{}.0", "{:017}", "{}"])
@pytest.mark.parametrize("odd", ["X1", "1.5", "7,5"])
def test_how_one_name_is_written_changes_nobody_else(tmp_path: Path, form: str, odd: str) -> None:
    table = visits("number").assign(patient=lambda rows: [form.format(name) for name in rows["patient"]])
    first = table.iloc[:1].assign(patient=odd)
    found = {}
    for name, rows in {"with": pd.concat([table, first], ignore_index=True), "without": table}.items():
        path = tmp_path / f"{name}.csv"
        rows.to_csv(path, index=False)
        opened_rows = opened(asked(path, rows_per_person=3))
        assert opened_rows.held_out is not None
        several = opened_rows.problem.several
        assert several is not None
        parts = (several.inputs.tolist(), opened_rows.held_out.inputs.tolist())
        found[name] = [Counter(map(tuple, part)) for part in parts]
    trained, held = (ours - theirs for ours, theirs in zip(found["with"], found["without"], strict=True))
    assert sum((trained + held).values()) == 1
    assert not any(theirs - ours for ours, theirs in zip(found["with"], found["without"], strict=True))


def test_a_person_whose_rows_are_replaced_moves_nobody_else(data: Path, tmp_path: Path) -> None:
    table = pd.read_csv(data)
    names = table["patient"].drop_duplicates().tolist()
    other = pd.concat([table[table["patient"] != names[1]], table[table["patient"] == names[1]].iloc[-1:]])
    path = tmp_path / "other.csv"
    other.to_csv(path, index=False)
    more = {"method": "auto", "option": ["neighbours=replace-one"], "rows_per_person": 1}
    ours, theirs = (opened(asked(where, **more)) for where in (data, path))
    assert ours.held_out is not None
    assert theirs.held_out is not None
    assert len(ours.held_out) == len(theirs.held_out)
    assert ours.problem.public.rows == theirs.problem.public.rows


def test_people_of_the_test_table_are_recognised_however_they_are_read(data: Path, tmp_path: Path) -> None:
    table = visits("number").assign(patient=lambda rows: [f"{name:05}" for name in rows["patient"]])
    table.iloc[:50].to_csv(tmp_path / "test.csv", index=False)
    pd.concat([table, table.iloc[:1].assign(patient="X1")]).to_csv(data, index=False)
    with pytest.raises(InputError, match="is in the training table too"):
        train_table(asked(data, test=tmp_path / "test.csv"))


def test_another_fit_on_other_rows_of_the_same_people_is_no_repetition() -> None:
    table = visits("word")
    X, groups, people = table[["age", "pressure"]], table["sex"], table["patient"]
    counted = count_rows(people, (groups == "m").to_numpy().astype(np.int64), 10)
    other = table["ill"].where(~table.index.isin(np.setdiff1d(counted.rows, counted.drawn)), "no")
    for targets, again in ((table["ill"], False), (table["ill"], False), (other, True)):
        model = FairPrivateClassifier(epsilon=2.0, random_state=1)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            model.fit(X, targets, sensitive_features=groups, people=people)
        assert any(issubclass(warning.category, NotCoveredWarning) for warning in said) == again


def test_a_warning_names_the_option(data: Path, veil: Program, tmp_path: Path) -> None:
    words = ("--target", "ill", "--group", "sex", "--out", str(tmp_path / "run"), "--seed", "1")
    assert "--person patient" in veil("train", str(data), *words)[2]
