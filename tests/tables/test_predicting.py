"""`veil predict`: from file to file, in pieces that change nothing, and one sentence for what cannot be predicted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import veil as package
from tests.program import Program
from tests.tables.table_cases import messy
from veil.errors import InputError
from veil.handover.loaded import LoadedTableRun
from veil.request import Request
from veil.tables import load_predictor, predicting
from veil.tables.mapped import first_rows
from veil.tables.reading import RENAMED, read_table
from veil.tables.table_run import train_table


def coded(rows: int = 600) -> pd.DataFrame:
    """A messy table with a column of codes, some of which look like numbers, and one of truth values."""
    table = messy(rows)
    generator = np.random.default_rng(1)
    table["code"] = generator.choice(["05", "5", "7", "A1", "1_000"], rows)
    table["level"] = generator.choice([1, 2, 3], rows)
    return table


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("predict")
    coded().to_csv(folder / "table.csv", index=False)
    request = Request.checked(
        data=folder / "table.csv", target="bought", group="region", settings={"seed": 1, "epsilon": 20.0}
    )
    train_table(request, out=folder / "run")
    return folder / "run"


def test_pieces_change_nothing(run: Path, tmp_path: Path, veil: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    table, new = coded(), tmp_path / "new.csv"
    table.to_csv(new, index=False)
    expected = load_predictor(run).predict_proba(pd.read_csv(new))
    for at_once, suffix in ((7, "csv"), (50_000, "csv"), (130, "parquet")):
        monkeypatch.setattr(predicting, "AT_ONCE", at_once)
        out = tmp_path / f"out{at_once}.{suffix}"
        code, said, _ = veil("predict", str(run), str(new), "-o", str(out), "--probabilities", "--keep", "id")
        assert (code, said) == (0, "")
        found = pd.read_csv(out) if suffix == "csv" else pd.read_parquet(out)
        assert found["id"].tolist() == table["id"].tolist()
        np.testing.assert_allclose(found[["probability of no", "probability of yes"]], expected, atol=1e-6)
        assert (found["predicted"] == np.where(expected[:, 1] > expected[:, 0], "yes", "no")).all()


def test_parquet_folders_and_arrow_are_read(run: Path, tmp_path: Path, veil: Program) -> None:
    table = coded(60)
    folder = tmp_path / "folder"
    folder.mkdir()
    table.iloc[:40].to_parquet(folder / "a.parquet")
    table.iloc[40:].to_parquet(folder / "b.parquet")
    table.to_feather(tmp_path / "rows.feather")
    table.to_csv(tmp_path / "rows.csv", index=False)
    answers = [veil("predict", str(run), str(tmp_path / name))[1] for name in ("folder", "rows.feather", "rows.csv")]
    assert answers[0] == answers[1] == answers[2]
    assert len(answers[0].splitlines()) == 61


def test_two_columns_of_one_name_in_parquet_are_named_as_in_csv(tmp_path: Path, veil: Program) -> None:
    table = messy(400)[["age", "region", "bought"]]
    folder = tmp_path / "folder"
    folder.mkdir()
    arrow = pa.Table.from_pandas(table.assign(again=np.arange(400) % 7), preserve_index=False)
    arrow = arrow.rename_columns(["age", "region", "bought", "age"])
    pq.write_table(arrow, tmp_path / "rows.parquet")
    pq.write_table(arrow.slice(0, 150), folder / "a.parquet")
    pq.write_table(arrow.slice(150), folder / "b.parquet")
    whole, parts = read_table(tmp_path / "rows.parquet"), read_table(folder)
    assert list(whole.columns) == ["age", "region", "bought", "age.1"]
    assert whole.attrs[RENAMED] == parts.attrs[RENAMED] == {"age.1": "age"}
    pd.testing.assert_frame_equal(whole, parts)
    words = ("--target", "bought", "--group", "region", "--seed", "1", "--out", str(tmp_path / "run"))
    code, _, error = veil("train", str(tmp_path / "rows.parquet"), *words)
    assert code == 0, error
    assert 'The table has several columns named "age": one of them is called "age.1" here.' in " ".join(error.split())
    whole.to_csv(tmp_path / "rows.csv", index=False)
    answers = [
        veil("predict", str(tmp_path / "run"), str(tmp_path / name)) for name in ("folder", "rows.parquet", "rows.csv")
    ]
    assert answers[0] == answers[1] == answers[2]
    assert answers[0][0] == 0
    with pytest.raises(InputError, match='has two columns named "age": rename one'):
        first_rows(folder)


def test_an_empty_file_before_others_does_not_decide_the_kinds(run: Path, tmp_path: Path, veil: Program) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    coded(20).iloc[:0].to_parquet(folder / "a.parquet")
    coded(20).to_parquet(folder / "b.parquet")
    for name, rows in {"folder": 20, "folder/a.parquet": 0}.items():
        out = tmp_path / f"out{rows}.parquet"
        code, _, said = veil("predict", str(run), str(tmp_path / name), "-o", str(out), "--keep", "id")
        assert code == 0, said
        assert pd.read_parquet(out).shape == (rows, 2)


def test_a_threshold_moves_the_second_class_alone(run: Path, tmp_path: Path, veil: Program) -> None:
    coded(200).to_csv(tmp_path / "new.csv", index=False)
    shares = []
    for threshold in ("0.1", "0.5", "0.9"):
        rows = veil("predict", str(run), str(tmp_path / "new.csv"), "--threshold", threshold)[1].splitlines()[1:]
        shares.append(rows.count("yes"))
    assert shares[0] > shares[1] > shares[2]


def test_what_training_never_saw_is_predicted(run: Path, tmp_path: Path, veil: Program) -> None:
    table = coded(30)
    table["region"], table["age"], table["joined"] = "moon", np.nan, None
    table["code"] = "never seen"
    table.drop(columns="bought").to_csv(tmp_path / "new.csv", index=False)
    code, said, _ = veil("predict", str(run), str(tmp_path / "new.csv"))
    assert code == 0
    assert len(said.splitlines()) == 31


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_file_without_rows_gives_a_file_without_rows(run: Path, tmp_path: Path, veil: Program, suffix: str) -> None:
    table, new = coded(5).iloc[:0], tmp_path / f"new.{suffix}"
    table.to_csv(new, index=False) if suffix == "csv" else table.to_parquet(new)
    code, said, _ = veil("predict", str(run), str(new), "--probabilities")
    assert (code, said) == (0, "predicted,probability of no,probability of yes\n")


def test_wrong_input_is_one_sentence_and_leaves_nothing(run: Path, tmp_path: Path, veil: Program) -> None:
    new, out = tmp_path / "new.csv", tmp_path / "out.csv"
    coded(20).drop(columns="age").to_csv(new, index=False)
    cases = [
        ((str(run), str(new), "-o", str(out)), 'no column "age", which the model was trained with'),
        ((str(run), str(tmp_path / "none.csv")), "file not found"),
        ((str(tmp_path), str(new)), "contains no table model"),
        ((str(tmp_path / "no"), str(new)), "is not the folder of a run"),
        ((str(run), str(new), "-o", str(tmp_path / "no" / "out.csv")), "there is no folder"),
        ((str(run), str(new), "-o", str(tmp_path), "--force"), "is a folder: choose the path of a file"),
    ]
    (tmp_path / "interrupted").mkdir()
    (tmp_path / "interrupted" / "seed.key").write_text("{}")
    cases.append(((str(tmp_path / "interrupted"), str(new)), "is not finished: continue it with --resume"))
    coded(20).drop(columns=["age", "level", "code"]).to_csv(tmp_path / "fewer.csv", index=False)
    cases.append(((str(run), str(tmp_path / "fewer.csv")), 'no columns "age", "code", "level", which the model'))
    kinds = {"rows.xlsx": b"PK\x03\x04 Zwetschke", "rows.json": b'[{"a": "Zwetschke"}]', "rows.csv": b"PK\x03\x04 Z"}
    for name, content in kinds.items():
        (tmp_path / name).write_bytes(content)
        said = "is a spreadsheet or a ZIP archive" if name == "rows.csv" else "is not a supported table: save it as CSV"
        cases.append(((str(run), str(tmp_path / name)), said))
    for words, said in cases:
        code, _, error = veil("predict", *words)
        assert "Zwetschke" not in error
        assert (code, said in error, error.count("\n")) == (2, True, 1), error
    table = coded(20)
    table["height (cm)"] = table["height (cm)"].astype(object)
    table.loc[17, "height (cm)"] = "tall"
    table.to_csv(new, index=False)
    code, _, error = veil("predict", str(run), str(new), "-o", str(out))
    assert code == 2
    assert 'column "height (cm)" is not a number in row 17' in error
    assert "tall" not in error
    assert not out.exists()
    coded(20).to_csv(new, index=False)
    for words, said in [
        (("--keep", "nothing"), 'no column "nothing" to keep'),
        (("--threshold", "1.5"), "must be between 0 and 1"),
        (("-o", str(new)), "exists already"),
        (("-o", str(new), "--force"), "is the file of the new rows"),
    ]:
        code, _, error = veil("predict", str(run), str(new), *words)
        assert (code, said in error) == (2, True), error


def test_a_loaded_run_predicts(run: Path) -> None:
    loaded = package.load(run)
    assert isinstance(loaded, LoadedTableRun)
    table = coded(12)
    assert (loaded.predict(table) == load_predictor(run).predict(table)).all()
    assert loaded.predict_proba(table.iloc[:0]).shape == (0, 2)
    assert sum(p.numel() for p in loaded.model.parameters()) > 0
    with pytest.raises(InputError, match='columns "age", "level" are missing'):
        loaded.predict(table.drop(columns=["age", "level"]))


def test_numbers_are_predicted_within_their_bounds(tmp_path: Path, veil: Program) -> None:
    table = coded(300)
    table["spent"] = np.arange(300) / 10
    table.to_csv(tmp_path / "table.csv", index=False)
    words = ("--target", "spent", "--group", "region", "--target-bounds", "0,30", "--seed", "1")
    assert veil("train", str(tmp_path / "table.csv"), *words, "--out", str(tmp_path / "run"))[0] == 0
    _, said, _ = veil("predict", str(tmp_path / "run"), str(tmp_path / "table.csv"))
    values = np.array([float(line) for line in said.splitlines()[1:]])
    assert len(values) == 300
    assert 0 <= values.min() <= values.max() <= 30
    assert (
        "leave --probabilities out"
        in veil("predict", str(tmp_path / "run"), str(tmp_path / "table.csv"), "--probabilities")[2]
    )
