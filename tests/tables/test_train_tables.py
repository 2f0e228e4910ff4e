"""`veil train` on tables that nobody prepared: kinds, gaps, schemas, private preprocessing."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.tables.table_cases import messy
from veil.accounting import Ledger
from veil.accounting.verify import verify
from veil.budget_store import BudgetStore, DataSet
from veil.plans import Settings
from veil.request import Request
from veil.tables import draft_schema, load_predictor, read_table
from veil.tables.preparing import DRAFTED
from veil.tables.table_run import train_table


def test_a_csv_that_nobody_prepared_trains_without_a_config(train: Any, tmp_path: Path) -> None:
    outcome = train()
    assert outcome.code == 0, outcome.err
    assert outcome.answer["metrics"]["released"] is True
    assert set(outcome.answer["metrics"]["by_group"]) == {"island", "mainland"}
    certificate = json.loads((tmp_path / "run" / "certificate.json").read_text())
    assert any("taken from the training rows" in sentence for sentence in certificate["not_covered"])
    assert any("Held-out rows" in sentence for sentence in certificate["assumptions"])
    assert certificate["epsilon"] <= 8.0


def test_unseen_categories_words_and_gaps_in_the_test_table_are_no_error(train: Any, tmp_path: Path) -> None:
    strange = messy(50)
    strange["postcode"], strange["member"], strange["joined"] = "ZZ9999", None, None
    strange.to_csv(tmp_path / "strange.csv", index=False)
    assert train("--test", str(tmp_path / "strange.csv")).code == 0


SCHEMA = """
[columns.age]
kind = "numeric"
low = 18
high = 100
missing_words = ["?"]
[columns."height (cm)"]
kind = "numeric"
low = 120.0
high = 220.0
missing = "middle"
[columns.joined]
kind = "date"
low = 2015-01-01
high = 2025-01-01
[columns.remark]
kind = "text"
buckets = 16
[columns.member]
kind = "category"
values = ["True", "False"]
[columns.bought]
kind = "target"
values = ["no", "yes"]
[columns.region]
kind = "group"
values = ["island", "mainland"]
feature = false
[group_sizes]
island = 4
mainland = 396
"""


def test_with_a_schema_nothing_is_read_off_the_rows_and_roles_come_from_it(train: Any, tmp_path: Path) -> None:
    (tmp_path / "schema.toml").write_text(SCHEMA)
    outcome = train("--schema", str(tmp_path / "schema.toml"), roles=False)
    assert outcome.code == 0, outcome.err
    certificate = json.loads((tmp_path / "run" / "certificate.json").read_text())
    assert not any("taken from" in sentence for sentence in certificate["not_covered"])
    assert not any("were counted" in sentence for sentence in certificate["assumptions"])


WRONG_SCHEMAS = {
    "unknown kind": ('kind = "text"', 'kind = "prose"', 'column "remark": kind is "prose"'),
    "one bound": ("low = 18\n", "", 'column "age": give both low and high'),
    "bounds turned": ("low = 18\n", "low = 180\n", 'column "age": low must be below high'),
    "unknown key": ("buckets = 16", "bucket = 16", 'column "remark": "bucket" is not one of'),
    "value twice": ('["no", "yes"]', '["no", "no"]', 'column "bought": a value is listed twice'),
    "value not listed": ('["no", "yes"]', '["no", "maybe"]', 'column "bought" has in row'),
    "not a number": ('missing_words = ["?"]', "", 'column "age" is not a number in row'),
    "missing refused": ('missing = "middle"', 'missing = "refuse"', 'column "height (cm)" is missing in row'),
    "neither bounds nor values": ('values = ["True", "False"]', "", 'column "member": neither bounds nor values'),
    "no toml": ("[columns.age]", "[columns.age", "is not a TOML file"),
}


@pytest.mark.parametrize("case", WRONG_SCHEMAS)
def test_a_wrong_schema_or_row_gets_a_sentence_with_the_column(case: str, train: Any, tmp_path: Path) -> None:
    before, after, sentence = WRONG_SCHEMAS[case]
    assert before in SCHEMA
    (tmp_path / "schema.toml").write_text(SCHEMA.replace(before, after))
    outcome = train("--schema", str(tmp_path / "schema.toml"), roles=False)
    assert outcome.code == 2
    assert sentence in outcome.err.replace("\n", " ")
    assert "?" not in outcome.err
    assert not (tmp_path / "run" / "ledger.jsonl").exists()


def test_the_row_number_in_a_sentence_is_the_row_in_the_file(train: Any, tmp_path: Path) -> None:
    table = messy()
    table["height (cm)"] = table["height (cm)"].fillna(170.0)
    (tmp_path / "schema.toml").write_text(SCHEMA.replace('missing = "middle"', 'missing = "refuse"'))
    table.loc[417, "height (cm)"] = np.nan
    table.to_csv(tmp_path / "one.csv", index=False)
    outcome = train("--schema", str(tmp_path / "schema.toml"), data=tmp_path / "one.csv", roles=False)
    assert 'column "height (cm)" is missing in row 417' in outcome.err


def test_private_preprocessing_stands_in_the_ledger_and_within_the_budget(train: Any, tmp_path: Path) -> None:
    outcome = train("--method", "dp-sgd", "--private-preprocessing", "0.2", "--ignore", "id,empty")
    assert outcome.code == 0, outcome.err
    assert outcome.answer["privacy"]["epsilon"] <= 8.0
    entries = Ledger.open(tmp_path / "run" / "ledger.jsonl").entries
    assert [entry["count"] for entry in entries if entry["purpose"] == "preprocessing"] == [2]
    assert (tmp_path / "run" / "preprocessing.jsonl").exists()
    assert verify(tmp_path / "run" / "certificate.json").holds
    certificate = json.loads((tmp_path / "run" / "certificate.json").read_text())
    assert not any("taken from" in sentence for sentence in certificate["not_covered"])
    assert not any("were counted" in sentence for sentence in certificate["assumptions"])
    assert any("kind of each" in sentence for sentence in certificate["assumptions"])


def test_a_table_whose_rows_are_all_held_out_ends_in_a_sentence(train: Any, tmp_path: Path) -> None:
    place = tmp_path / "few.csv"
    pd.DataFrame({"a": [0.0, 1.5, 3.0], "region": list("nsn"), "bought": [0, 1, 0]}).to_csv(place, index=False)
    outcome = train("--private-preprocessing", "0.3", "--holdout", "0.99", "--method", "dp-sgd", data=place)
    assert outcome.code == 2
    assert "Traceback" not in outcome.err
    assert "there are no rows" in outcome.err


@pytest.mark.parametrize(
    ("model", "private"), [("mlp", True), ("mlp", False), ("wide-and-deep", True), ("char-lstm", False)]
)
def test_a_run_predicts_new_rows_from_its_folder_alone(model: str, private: bool, train: Any, tmp_path: Path) -> None:
    sequence = model == "char-lstm"
    ignored = "id,empty,mixed,postcode,member,region" if sequence else "id,empty"
    words = ["--private-preprocessing", "0.2"] if private else []
    public = shutil.copy(tmp_path / "shop.csv", tmp_path / "public.csv")
    outcome = train("--model", model, "--ignore", ignored, *words, "--test", str(public))
    assert outcome.code == 0, outcome.err
    table = pd.read_csv(tmp_path / "shop.csv")
    found = load_predictor(tmp_path / "run").predict(table)
    right = (found == table["bought"].to_numpy()).mean()
    assert right == pytest.approx(outcome.answer["metrics"]["accuracy"])
    strange = table.head(2).assign(postcode="never seen", age=None, joined=None, remark=None)
    assert set(load_predictor(tmp_path / "run").predict(strange)) <= {"no", "yes"}


def test_a_config_gives_what_the_command_line_leaves_out(train: Any, tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text(
        'target = "bought"\ngroup = ["region", "member"]\nmethod = "auto-s"\noption = ["gamma=0.1"]\n'
        '[settings]\nepsilon = 3.0\nlearning-rate = 0.1\noptimizer = "adam"\n'
    )
    outcome = train("--config", str(tmp_path / "my.toml"), roles=False)
    assert outcome.code == 0, outcome.err
    assert outcome.answer["method"] == "auto-s"
    assert tomllib.loads((tmp_path / "run" / "config.toml").read_text())["settings"]["optimizer"] == "adam"
    assert "island × True" in outcome.answer["privacy"]["by_group"]
    assert outcome.answer["privacy"]["epsilon"] == pytest.approx(8.0, rel=0.01), "the command line comes first"
    (tmp_path / "run").rename(tmp_path / "earlier")
    again = train("--config", str(tmp_path / "earlier" / "config.toml"), roles=False)
    assert again.code == 0, again.err
    assert again.answer["metrics"] == outcome.answer["metrics"], "a run can be repeated from its own config"
    (tmp_path / "my.toml").write_text("epsilom = 3.0\n")
    outcome = train("--config", str(tmp_path / "my.toml"))
    assert outcome.code == 2
    assert '"epsilom" is not an option' in outcome.err.replace("\n", " ")


@pytest.mark.parametrize("separator", [";", "|"])
def test_other_separators_are_found_in_the_heading(separator: str, train: Any, tmp_path: Path) -> None:
    messy().rename(columns={"remark": "remark, if any"}).to_csv(tmp_path / "other.csv", index=False, sep=separator)
    outcome = train("--holdout", "0", data=tmp_path / "other.csv")
    assert outcome.code == 0, outcome.err


def test_a_file_that_is_not_utf_8_gets_a_sentence_without_its_content(train: Any, tmp_path: Path) -> None:
    (tmp_path / "latin.csv").write_bytes("region,bought\nKärnten,yes\n".encode("latin-1"))
    outcome = train(data=tmp_path / "latin.csv")
    assert outcome.code == 2
    assert "save it as UTF-8" in outcome.err.replace("\n", " ")
    assert "rnten" not in outcome.err


def test_owners_with_budgets_from_a_file(train: Any, tmp_path: Path) -> None:
    (tmp_path / "budgets.csv").write_text("owner,epsilon\nTrue,1\nFalse,4\n")
    outcome = train("--owner", "member", "--budgets", str(tmp_path / "budgets.csv"), "--method", "idp-sgd")
    assert outcome.code == 0, outcome.err
    assert outcome.answer["privacy"]["by_owner"]["True"] == pytest.approx(1.0, rel=0.02)


def test_public_weights_and_chosen_layers(train: Any, tmp_path: Path) -> None:
    first = train("--holdout", "0")
    assert first.code == 0
    weights = tmp_path / "public.safetensors"
    (tmp_path / "run" / "model.safetensors").rename(weights)
    (tmp_path / "run").rename(tmp_path / "earlier")
    outcome = train("--init", str(weights), "--train-only", "5.*", "--holdout", "0")
    assert outcome.code == 0, outcome.err
    from safetensors.torch import load_file

    before, after = load_file(weights), load_file(tmp_path / "run" / "model.safetensors")
    assert bool((before["1.weight"] == after["1.weight"]).all())
    assert not bool((before["5.weight"] == after["5.weight"]).all())


@pytest.mark.parametrize("model", ["logistic", "wide-and-deep", "char-lstm", "transformer"])
def test_other_models_train_on_the_table(model: str, train: Any, tmp_path: Path) -> None:
    words = ["--ignore", "id,empty,mixed,postcode,member,region"] if model in ("char-lstm", "transformer") else []
    outcome = train("--model", model, "--epochs", "1", *words)
    assert outcome.code == 0, outcome.err


WRONG_WORDS = {
    "no target": (["--group", "region"], "no target: give"),
    "no group": (["--target", "bought"], "no group: give"),
    "budgets without owner": (["--target", "bought", "--group", "region", "--budgets", "b.csv"], "--budgets needs"),
    "target of many values": (["--target", "height (cm)", "--group", "region"], "is missing"),
    "quantity as target": (["--target", "id", "--group", "region", "--task", "classification"], "different values"),
    "share above one": (
        ["--target", "bought", "--group", "region", "--private-preprocessing", "1.5"],
        "it must be between 0 and 1",
    ),
    "not private": (
        ["--target", "bought", "--group", "region", "--private-preprocessing", "0.1", "--method", "erm"],
        "is not private",
    ),
    "sequence with nothing to find": (
        ["--target", "bought", "--group", "region", "--private-preprocessing", "0.1", "--model", "char-lstm"],
        "reads one text column by fixed public rules",
    ),
    "the target ignored": (
        ["--target", "bought", "--group", "region", "--ignore", "id,bought"],
        '"bought" is the target: --ignore cannot leave it out',
    ),
    "a name to ignore that is no column": (
        ["--target", "bought", "--group", "region", "--ignore", "id,postcod"],
        '--ignore names "postcod", which is not a column of the table: did you mean "postcode"?',
    ),
    "group of almost one row each": (["--target", "bought", "--group", "id"], 'group "id" has 500 different values'),
    "holdout of one": (["--target", "bought", "--group", "region", "--holdout", "1"], "holdout is 1.0"),
}


@pytest.mark.parametrize("case", WRONG_WORDS)
def test_wrong_words_get_one_sentence(case: str, train: Any, tmp_path: Path) -> None:
    words, sentence = WRONG_WORDS[case]
    outcome = train(*words, roles=False)
    assert outcome.code == 2
    assert sentence in outcome.err.replace("\n", " ")
    assert outcome.err.count("\n") == 1
    assert not (tmp_path / "run" / "ledger.jsonl").exists()


def test_a_folder_of_images_trains_with_its_classes_as_groups(
    train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from veil.tables import images

    def decode(content: bytes, name: str, size: Any = None, grey: bool = False) -> Any:
        return np.random.default_rng(int(content)).integers(0, 256, (3, 12, 12)).astype(np.uint8)

    monkeypatch.setattr(images, "decode_image", decode)
    for number in range(120):
        place = tmp_path / "photos" / ("cat" if number % 3 else "dog")
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number}.png").write_text(str(number))
    outcome = train("--model", "asc-cnn", data=tmp_path / "photos", roles=False)
    assert outcome.code == 0, outcome.err
    assert set(outcome.answer["metrics"]["by_group"]) == {"cat", "dog"}
    assert outcome.answer["metrics"]["released"] is True
    certificate = json.loads((tmp_path / "run" / "certificate.json").read_text())
    assert not any("taken from" in sentence for sentence in certificate["not_covered"])
    outcome = train("--target", "size", data=tmp_path / "photos", roles=False)
    assert "the class is target and group" in outcome.err

    outcome = train("--row-budgets", "size", data=tmp_path / "photos", roles=False)
    assert "--row-budgets is for tables" in outcome.err


def test_a_draft_of_a_schema_is_not_covered_until_its_marks_are_gone(train: Any, tmp_path: Path) -> None:
    from veil.cli.data import _HEADING
    from veil.tables.schema import PRIVATE_NOTE

    draft = draft_schema(read_table(tmp_path / "shop.csv"), "bought", ("region",))
    written = _HEADING.format(mark=PRIVATE_NOTE) + draft.to_toml(PRIVATE_NOTE)
    assert draft.to_toml() == draft.to_toml(PRIVATE_NOTE)
    (tmp_path / "draft.toml").write_text(written)
    (tmp_path / "edited.toml").write_text(written.replace(f"  # {PRIVATE_NOTE}", ""))
    for name, covered in (("draft", False), ("edited", True)):
        schema = str(tmp_path / f"{name}.toml")
        outcome = train("--schema", schema, "--model", "logistic", "--out", str(tmp_path / name), roles=False)
        assert outcome.code == 0, outcome.err
        certificate = json.loads((tmp_path / name / "certificate.json").read_text())
        assert (DRAFTED not in certificate["not_covered"]) == covered
        read = any("The set of classes was taken from" in sentence for sentence in certificate["assumptions"])
        assert read != covered


SHORT: dict[str, Any] = {"method": "dp-sgd", "model": "logistic", "settings": {"steps": 1, "seed": 1}}


def test_columns_that_are_not_learned_from_are_named_with_the_reason(tmp_path: Path) -> None:
    table = messy().assign(code=[f"X{i}" for i in range(500)], nothing=pd.Series([None] * 500, dtype=object))
    table.to_parquet(tmp_path / "shop.parquet")
    said: list[str] = []
    roles = {"target": "bought", "group": "region", "ignore": "remark,empty"}
    request = Request.checked(data=tmp_path / "shop.parquet", **roles, **SHORT)
    train_table(request, say=said.append)
    assert said[:2] == [
        "Not used as features: id (counts the rows), postcode (no value stands out), remark (ignored), "
        "empty (ignored), code (different in almost every row), nothing (empty).",
        'The words of a column that is different in almost every row are used with kind = "text" in --schema.',
    ]
    assert 'Column "joined" is learned as a date, in days.' in said[2:]


def test_one_delta_holds_for_preprocessing_training_and_budget(train: Any, tmp_path: Path) -> None:
    """1 / (2 × rows) by noisy rows and by exact ones are two, and the exact one tells how many rows there are."""
    store = tmp_path / "store.sqlite"
    BudgetStore.create(str(store)).add_dataset(DataSet("shop", groups=("region",)), epsilon=8.0, delta=1e-5)
    words = ("--private-preprocessing", "0.1", "--method", "dp-sgd", "--dataset", "shop", "--store", str(store))
    outcome = train(*words)
    assert outcome.code == 0, outcome.err
    said = json.loads((tmp_path / "run" / "certificate.json").read_text())["delta"]
    before = Ledger.open(tmp_path / "run" / "preprocessing.jsonl").terms.delta
    assert said == before == 1e-6


@pytest.mark.slow
@pytest.mark.statistical
def test_private_preprocessing_costs_less_than_a_point_on_adult(tmp_path: Path) -> None:
    """ε = 1, three seeds each. Accuracies of one seed differ by 0.2 points, so a mean gap of 1 point is no accident."""
    from veil.datasets import load_adult

    for name, rows in zip(("train", "test"), load_adult(), strict=True):
        rows.to_parquet(tmp_path / f"{name}.parquet")

    def accuracy(share: float | None, seed: int) -> float:
        request = Request.checked(
            data=tmp_path / "train.parquet",
            target="income",
            group="sex",
            test=tmp_path / "test.parquet",
            ignore="fnlwgt",
            private_preprocessing=share,
            method="dp-sgd",
            model="logistic",
            settings=Settings.checked(epsilon=1.0, epochs=10, batch_size=1024, learning_rate=1.0, seed=seed),
        )
        run = train_table(request)
        assert run.certificate.epsilon is not None
        assert run.certificate.epsilon <= 1.0
        assert run.metrics is not None
        return run.metrics.accuracy

    plain, private = (np.mean([accuracy(share, seed) for seed in (1, 2, 3)]) for share in (None, 0.1))
    assert plain > 0.83
    assert private > plain - 0.01


def test_no_word_that_few_rows_have_stands_in_any_file_of_a_run(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    names = np.array([f"Firstname{i}" for i in range(120)])
    # Zipf's law, as first names have it: a few are common, most belong to one person or to a handful.
    chances = 1 / np.arange(1, 121)
    table = pd.DataFrame(
        {"name": generator.choice(names, 600, p=chances / chances.sum()), "a": generator.normal(size=600)}
    )
    table["sex"], table["rich"] = ["f", "m"] * 300, np.where(table["a"] > 0, "yes", "no")
    table.to_csv(tmp_path / "people.csv", index=False)
    request = Request.checked(data=tmp_path / "people.csv", target="rich", group="sex", **SHORT)
    train_table(request, out=tmp_path / "run")
    counts = table["name"].value_counts()
    rare, common = set(counts.index[counts < 10]), set(counts.index[counts >= 30])
    assert len(rare) > 50
    for file in (tmp_path / "run").rglob("*"):
        content = file.read_bytes().decode(errors="ignore") if file.is_file() else ""
        assert not rare & set(re.findall(r"Firstname\d+", content)), file
    kept = (tmp_path / "run" / "preprocessing.json").read_text(encoding="utf-8")
    assert common <= set(re.findall(r"Firstname\d+", kept))
