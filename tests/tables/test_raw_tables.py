"""Thirteen raw tables from file to decision, by the commands of the README alone."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from torch import nn

from tests.handover.exported import run_elsewhere
from tests.program import Program
from tests.tables.raw_table_cases import RAW, clinic, survey
from veil.errors import InputError
from veil.handover.loaded import LoadedTableRun, load
from veil.models.tables import additive
from veil.problem import Cell, PublicFacts
from veil.tables import looking, read_table, repeated_people
from veil.tables.encoding import Encoding, Numeric
from veil.tables.looking import look_at_groups
from veil.tables.table import Columns

VALUES = ("Huber", "Gruber", "P00001", "fever", "treated")


@pytest.mark.parametrize("name", RAW)
def test_a_look_at_a_raw_table_finds_what_is_wrong_with_it_and_quotes_no_row(
    name: str, tmp_path: Path, veil: Program
) -> None:
    case = RAW[name]
    words = (str(case.write(tmp_path)), "--target", case.target, "--group", case.group)
    code, out, err = veil("data", "check", *words, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert set(case.found) <= {remark["kind"] for remark in found["remarks"]}, found["remarks"]
    assert found["from_rows"] is True
    assert {use["role"] for use in found["uses"]} >= {"target", "feature"}
    code, shown, err = veil("data", "check", *words)
    assert code == 0, err
    assert "do not publish" in err
    assert not any(value in shown + err + out for value in VALUES)
    # What was asked for silences the remark that asked for it.
    if case.words:
        code, out, err = veil("data", "check", *words, *case.words, "--json")
        assert code == 0, err
        left = {remark["kind"] for remark in json.loads(out)["remarks"]}
        assert not left & {"tiny group", "tells the target", "name or address", "several rows of a person"}, left


@pytest.mark.parametrize("name", RAW)
def test_a_raw_table_is_trained_on_judged_and_predicted(name: str, tmp_path: Path, veil: Program) -> None:
    case = RAW[name]
    data, run = str(case.write(tmp_path)), str(tmp_path / "run")
    words = ("--target", case.target, "--group", case.group, *case.words)
    code, out, err = veil("train", data, *words, "--epsilon", "2", "--seed", "1", "--out", run)
    assert code == 0, err
    assert "Report: file://" in out
    assert not any(value in out + err for value in VALUES)
    certificate = json.loads((tmp_path / "run" / "certificate.json").read_text())
    report, card = (tmp_path / "run" / "report.html").read_text(), (tmp_path / "run" / "MODEL_CARD.md").read_text()
    assert certificate["columns"][case.target].startswith("target: ")
    assert "What became of each column" in report
    assert "## Columns" in card
    for ignored in case.words[case.words.index("--ignore") + 1].split(",") if "--ignore" in case.words else ():
        assert certificate["columns"][ignored] == "left out: ignored"
    code, out, err = veil("verify", run)
    assert code == 0, out + err
    answers = tmp_path / "answers.csv"
    code, _, err = veil("predict", run, data, "-o", str(answers))
    assert code == 0, err
    assert len(pd.read_csv(answers)) >= 500
    code, _, err = veil("export", run, "--to", "onnx", "-o", str(tmp_path / "handed"))
    assert code == 0, err
    code, out, err = veil("verify", str(tmp_path / "handed"))
    assert (code, "This is the certified model." in out) == (0, True), out + err
    handed_over(tmp_path, Path(data))


def test_a_file_of_excel_is_scored_alike_with_and_without_veil(tmp_path: Path, veil: Program) -> None:
    data = RAW["loans"].write(tmp_path)
    words = (
        "--target",
        "Default",
        "--group",
        "Branch",
        "--epsilon",
        "4",
        "--seed",
        "1",
        "--out",
        str(tmp_path / "run"),
    )
    assert veil("train", str(data), *words)[0] == 0
    columns = json.loads((tmp_path / "run" / "certificate.json").read_text())["columns"]
    for name in ("Income", "Interest", "Paid"):
        assert columns[name].startswith("feature: a number")
    assert veil("export", str(tmp_path / "run"), "--to", "onnx", "-o", str(tmp_path / "handed"))[0] == 0
    code, ours, err = veil("predict", str(tmp_path / "run"), str(data), "--probabilities")
    assert code == 0, err
    theirs = run_elsewhere(tmp_path / "handed" / "score.py", str(data))
    assert theirs.returncode == 0, theirs.stderr
    one, other = (pd.read_csv(io.StringIO(text)) for text in (ours, theirs.stdout))
    np.testing.assert_allclose(one.iloc[:, 1:], other.iloc[:, 1:], atol=1e-6)


def handed_over(folder: Path, data: Path) -> None:
    """The exported file gives, for the same rows, what the run gives."""
    from veil.handover.serving.score import Scorer

    run = load(folder / "run")
    assert isinstance(run, LoadedTableRun)
    table = read_table(data)
    # A word of a CSV file is read as training read it; other values are as they are.
    rows = table.astype(object).where(table.notna(), None).head(300).to_dict("records")
    found = Scorer(folder / "handed" / "model.onnx").predict(rows)
    if run.predictor.classes:
        assert np.abs(found["probabilities"] - run.predict_proba(table.head(300))).max() < 1e-6
    else:
        low, high = run.predictor.target_range or (0.0, 1.0)
        assert np.abs(found["predicted"] - run.predict(table.head(300))).max() < 1e-6 * (high - low)


def test_identifiers_and_codes_that_are_numbers_are_remarked(tmp_path: Path, veil: Program) -> None:
    draw = np.random.default_rng(0)
    rows = {
        "acct": draw.integers(10**7, 10**8, 300),
        "patient_id": np.arange(300) // 3 + 500,
        "ref": draw.integers(10**4, 10**5, 300),
        "place": draw.choice([1010, 4021, 8010], 300),
        "income": draw.lognormal(10, 1, 300).round(),
        "y": ["no", "yes"] * 150,
        "g": ["f", "f", "m"] * 100,
    }
    pd.DataFrame(rows).to_csv(tmp_path / "t.csv", index=False)
    code, out, err = veil("data", "check", str(tmp_path / "t.csv"), "--target", "y", "--group", "g", "--json")
    assert code == 0, err
    found = json.loads(out)
    said = {tuple(remark["columns"]): remark for remark in found["remarks"]}
    assert "left out as an identifier. To learn from" in said["acct", "patient_id"]["sentence"]
    assert "may be an identifier. If so: --ignore ref." in said["ref",]["sentence"]
    assert "may be codes. If so: --category place." in said["place",]["sentence"]
    assert all(remark["from_rows"] for remark in found["remarks"])
    roles = {use["column"]: use["role"] for use in found["uses"]}
    assert roles["acct"] == roles["patient_id"] == "left out"
    assert roles["income"] == roles["ref"] == roles["place"] == "feature"


def test_of_very_many_columns_some_are_shown_and_the_rest_counted(tmp_path: Path, veil: Program) -> None:
    rows = {f"c{place}": np.arange(60) % (2 + place % 7) for place in range(230)} | {
        f"e{place}": 1 for place in range(30)
    }
    rows |= {"y": ["no", "yes"] * 30, "g": ["f", "f", "m"] * 20}
    pd.DataFrame(rows).to_csv(tmp_path / "t.csv", index=False)
    words = (str(tmp_path / "t.csv"), "--target", "y", "--group", "g")
    code, out, err = veil("data", "check", *words)
    assert code == 0, err
    assert "And 62 more columns" in out
    assert out.index("│ y ") < out.index("│ c0 ")
    code, _, err = veil("train", *words, "--dry-run")
    assert code == 0, err
    assert "and 10 more." in " ".join(err.split())


def test_of_a_hundred_thousand_columns_a_bounded_number_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = dict[str, list[str]]()
    for module, name in ((looking, "may_be_identifier"), (looking, "_are_codes"), (repeated_people, "people_repeat")):
        original = getattr(module, name)

        def spied(column: pd.Series, of: str, name: str = name, original: Any = original) -> Any:
            asked.setdefault(name, []).append(of)
            return original(column, of)

        monkeypatch.setattr(module, name, spied)
    many = 100_000
    values = np.random.default_rng(0).normal(size=(60, many))
    table = pd.DataFrame(values, columns=[f"c{place}" for place in range(many - 1)] + ["patient_id"])
    table = pd.concat([table, pd.DataFrame({"y": ["no", "yes"] * 30, "g": ["f", "f", "m"] * 20})], axis=1)
    encoding = Encoding(tuple(Numeric(name, -5.0, 5.0) for name in table.columns[:many]), from_rows=True)
    found = looking.look_at_rows(table, Columns("y", ("g",)), encoding)
    assert found[0].sentence == "Of 100,002 columns, the values of the first 2,000 were looked at."
    repeated_people.repeated_people(table, {"y", "g"})
    assert {name: len(columns) for name, columns in asked.items()} == {
        "may_be_identifier": 2_000,
        "_are_codes": 2_000,
        "people_repeat": 2_001,  # and one whose name says that it is about people
    }
    facts = PublicFacts(("all",), ("all",), (Cell(0, 0, 60),), (20_000,), classes=("no", "yes"))
    *_, layer = additive(facts, [1] * 20_000, list(range(20_000)), 3).children()
    assert isinstance(layer, nn.Linear)
    assert layer.in_features == 1024, "rows of very many numbers are projected onto fewer"
    with pytest.raises(InputError, match=r"400,000 features with their knots, and additive takes at most 250,000"):
        additive(replace(facts, input_shape=(many,)), [1] * many, list(range(many)), 3)


def test_columns_the_certificate_does_not_own_up_to_are_noticed(tmp_path: Path, veil: Program) -> None:
    case = RAW["survey"]
    run = tmp_path / "run"
    words = ("--target", case.target, "--group", case.group, *case.words, "--seed", "1", "--out", str(run))
    assert veil("train", str(case.write(tmp_path)), *words)[0] == 0
    certificate = json.loads((run / "certificate.json").read_text())
    assert certificate["columns"]["wave"] == "left out: the same in every row"
    assert certificate["columns"]["comment"] == "left out: empty"
    assert any(sentence.startswith("A look at the table") for sentence in certificate["not_covered"])
    assert any(sentence.startswith("Which groups were merged") for sentence in certificate["not_covered"])
    certificate["columns"]["wave"] = "feature: a number; bounds stated as public knowledge"
    (run / "certificate.json").write_text(json.dumps(certificate))
    code, out, _ = veil("verify", str(run))
    assert code == 1
    assert "columns is not what run.json says" in out


def test_with_a_schema_only_names_are_looked_at(tmp_path: Path, veil: Program) -> None:
    """No row changes what is said: the same words for another table with the same columns."""
    table = clinic()
    schema = tmp_path / "schema.toml"
    kinds = {"sex": '"group"\nvalues = ["f", "m"]', "ill": '"target"\nvalues = ["yes", "no"]'}
    kinds |= {"zip_code": '"numeric"\nlow = 1000\nhigh = 9999', "last_name": '"text"'}
    kinds = dict.fromkeys(table.columns, '"ignore"') | kinds
    listed = (f"[columns.{name}]\nkind = {kind}\n" for name, kind in kinds.items())
    schema.write_text("".join(listed) + "[group_sizes]\nf = 300\nm = 300\n")
    said = []
    for place, rows in enumerate((table, table.sample(frac=0.7, random_state=1).assign(zip_code=7000))):
        rows.to_csv(tmp_path / f"{place}.csv", index=False)
        code, out, err = veil("data", "check", str(tmp_path / f"{place}.csv"), "--schema", str(schema), "--json")
        assert code == 0, err
        said.append(json.loads(out))
    assert said[0] == said[1]
    assert said[0]["from_rows"] is False
    assert [remark["kind"] for remark in said[0]["remarks"]] == ["name or address"]


def test_groups_of_few_rows_are_merged_in_training_test_and_held_out_rows(tmp_path: Path, veil: Program) -> None:
    survey().to_csv(tmp_path / "a.csv", index=False)
    public = survey().iloc[:200].assign(region="abroad")
    public.to_csv(tmp_path / "t.csv", index=False)
    words = ("train", str(tmp_path / "a.csv"), "--target", "votes", "--group", "region", "--seed", "1")
    words += ("--test", str(tmp_path / "t.csv"), "--merge-groups-below", "50", "--out", str(tmp_path / "run"), "--json")
    code, out, err = veil(*words)
    assert code == 0, err
    answer = json.loads(out)
    assert set(answer["privacy"]["by_group"]) == {"north", "south", "other groups"}, "the islands and the next smallest"
    assert answer["metrics"]["by_group"]["other groups"]["n"] == 200, "a group that nobody knew is one of the others"


def test_with_declared_sizes_nobody_learns_which_merged_groups_have_rows(tmp_path: Path, veil: Program) -> None:
    schema = '[columns.votes]\nkind = "target"\nvalues = ["no", "yes"]\n[columns.region]\nkind = "group"\n'
    schema += 'values = ["north", "south", "isles", "coast"]\n[columns.x]\nkind = "numeric"\nlow = 0.0\nhigh = 1.0\n'
    (tmp_path / "schema.toml").write_text(schema + "[group_sizes]\nnorth = 90\nsouth = 90\nisles = 9\ncoast = 9\n")
    words = ("train", str(tmp_path / "a.csv"), "--target", "votes", "--group", "region", "--schema")
    words = (*words, str(tmp_path / "schema.toml"), "--merge-groups-below", "15", "--dry-run")
    told = []
    for seldom in (["isles", "coast"], ["isles"]):
        regions = (["north", "south"] * 90 + seldom * 10)[:190]
        rows = {"x": 0.5, "region": regions, "votes": ["no", "yes"] * (len(regions) // 2)}
        pd.DataFrame(rows).to_csv(tmp_path / "a.csv", index=False)
        code, out, err = veil(*words)
        assert code == 0, err
        told.append([line for line in (out + err).splitlines() if "Merged into one group" in line])
    assert told[0] == told[1] != []


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--merge-groups-below", "100000"), "every group would be merged"),
        (("--merge-groups-below", "1"), "give a number of rows above 1"),
        (("--merge-groups-below", "50", "--private-preprocessing", "0.2"), "needs sizes that are public"),
        (("--category", "ocupation"), 'did you mean "occupation"?'),
    ],
)
def test_what_cannot_be_merged_or_learned_gets_a_sentence(
    words: tuple[str, ...], sentence: str, tmp_path: Path, veil: Program
) -> None:
    survey().to_csv(tmp_path / "a.csv", index=False)
    code, _, err = veil("train", str(tmp_path / "a.csv"), "--target", "votes", "--group", "region", *words)
    assert code == 2
    assert sentence in err


def test_the_advice_about_tiny_groups_can_be_followed() -> None:
    (some,) = look_at_groups({"a": 400, "b": 9})
    assert some.sentence.endswith("Merge such groups: --merge-groups-below 50.")
    (every,) = look_at_groups({"a": 30, "b": 9})
    assert every.sentence.endswith("choose a group column with fewer values.")
