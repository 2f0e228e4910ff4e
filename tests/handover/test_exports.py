"""`veil export` and `veil verify`: what is handed over predicts alike without Veil, and is known again."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import shutil
import subprocess
import urllib.error
import urllib.request
import venv
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pandas as pd
import pytest
from onnx import numpy_helper

import veil as package
from tests.handover.exported import elsewhere, run_elsewhere
from tests.program import Program
from veil.errors import InputError
from veil.handover.loaded import LoadedTableRun
from veil.handover.serving.score import _load_pyfunc
from veil.request import Request
from veil.tables.table_run import train_table

FORMATS = ("onnx", "sklearn", "mlflow", "container")
CERTIFIED = "This is the certified model."


def people(rows: int, seed: int) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "age": draw.integers(18, 90, rows),
            "height": np.where(draw.random(rows) < 0.1, np.nan, draw.normal(170, 10, rows).round(1)),
            "town": draw.choice(["Graz", "Wien", "Linz, upper"], rows),
            "code": draw.integers(1, 4, rows).astype(float),
            "came": pd.Series(pd.to_datetime("2020-01-01") + pd.to_timedelta(draw.integers(0, 900, rows), unit="D")),
            "sex": draw.choice(["f", "m"], rows),
        }
    )
    table["came"] = table["came"].dt.strftime("%Y-%m-%d")
    table["ill"] = np.where(table["age"] + draw.normal(0, 10, rows) > 50, "yes", "no")
    return table


def trained(folder: Path, seed: int = 1, **further: Any) -> Path:
    """A small run on a table; the model is learned within a second."""
    people(400, seed).to_csv(folder / "people.csv", index=False)
    asked: dict[str, Any] = {"target": "ill", "group": ("sex",), "category": ("code",), "holdout": 0.0}
    settings = {"seed": seed, "epsilon": 2.0}
    request = Request.checked(data=folder / "people.csv", settings=settings, **{**asked, **further})
    train_table(request, out=folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def exported(run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The run in every format."""
    folder, loaded = tmp_path_factory.mktemp("exported"), package.load(run)
    assert isinstance(loaded, LoadedTableRun)
    return {to: loaded.export(to, folder / to) for to in FORMATS}


@pytest.fixture
def copies(exported: dict[str, Path], tmp_path: Path) -> dict[str, Path]:
    return {to: Path(shutil.copytree(place, tmp_path / to)) for to, place in exported.items()}


def expected(run: Path) -> pd.DataFrame:
    """What Veil predicts for new rows."""
    loaded, table = package.load(run), people(300, 9).assign(code=2)
    assert isinstance(loaded, LoadedTableRun)
    chances = loaded.predict_proba(table)
    return pd.DataFrame(
        {
            "predicted": loaded.predict(table),
            **{f"probability of {name}": chances[:, i] for i, name in enumerate(loaded.predictor.classes)},
        }
    )


def alike(found: pd.DataFrame, run: Path) -> None:
    wanted = expected(run)
    assert list(found.columns) == list(wanted.columns)
    assert (found["predicted"].to_numpy() == wanted["predicted"].to_numpy()).all()
    assert np.abs(found.iloc[:, 1:].to_numpy(dtype=float) - wanted.iloc[:, 1:].to_numpy()).max() < 1e-6


@pytest.mark.parametrize("to", FORMATS)
def test_what_was_exported_verifies_and_brings_certificate_and_card(
    to: str, exported: dict[str, Path], run: Path, veil: Program
) -> None:
    code, out, err = veil("verify", str(exported[to]))
    assert code == 0, out + err
    assert CERTIFIED in out
    for name in ("certificate.json", "MODEL_CARD.md", "ledger.jsonl"):
        assert (exported[to] / name).read_bytes() == (run / name).read_bytes()
    assert not list(exported[to].glob("**/*.key"))
    assert "people.csv" not in (exported[to] / "run.json").read_text(), "where the rows lie stays at home"


def test_the_onnx_file_predicts_alike_without_veil_torch_and_pandas(
    exported: dict[str, Path], run: Path, tmp_path: Path
) -> None:
    people(300, 9).assign(code="2.0").to_csv(tmp_path / "new.csv", index=False)
    outcome = run_elsewhere(exported["onnx"] / "score.py", str(tmp_path / "new.csv"))
    assert outcome.returncode == 0, outcome.stderr
    alike(pd.read_csv(io.StringIO(outcome.stdout)), run)
    (tmp_path / "new.csv").write_text("age,height\nZwetschke,1\n")
    outcome = run_elsewhere(exported["onnx"] / "score.py", str(tmp_path / "new.csv"))
    assert outcome.returncode == 1
    assert outcome.stderr.count("\n") == 1
    assert "Zwetschke" not in outcome.stderr
    for content in ("age\nZwölf\n".encode("latin-1"), b"age\n" + b"1" * 200_000 + b"\n"):
        (tmp_path / "new.csv").write_bytes(content)
        outcome = run_elsewhere(exported["onnx"] / "score.py", str(tmp_path / "new.csv"))
        assert (outcome.returncode, outcome.stderr.count("\n")) == (1, 1), outcome.stderr
    assert not (exported["onnx"] / "__pycache__").exists(), "what was compiled would not verify"


def test_the_container_serves_the_same_predictions(exported: dict[str, Path], run: Path) -> None:
    words = elsewhere(exported["container"] / "serve.py", "0", "127.0.0.1")
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            place = f"http://127.0.0.1:{process.stdout.readline().split()[-1]}"
            table = people(300, 9).assign(code=2.0)
            rows = table.astype(object).where(table.notna(), None).to_dict("records")
            alike(pd.DataFrame(_asked(f"{place}/predict", {"rows": rows})), run)
            assert _asked(f"{place}/certificate")["epsilon"] == pytest.approx(2.0, rel=0.01)
            too_far = [
                {"rows": [rows[0] | change]} for change in ({"age": 10**400}, {"came": "0001-01-01T00:00:00+23:00"})
            ]
            for wrong in (
                {"rows": [{"age": 3}]},
                {"rows": 3},
                [],
                {"rows": [rows[0] | {"age": "Zwetschke"}]},
                *too_far,
            ):
                with pytest.raises(urllib.error.HTTPError) as refused:
                    _asked(f"{place}/predict", wrong)
                assert refused.value.code == 400
                assert b"Zwetschke" not in refused.value.read()
        finally:
            process.terminate()
    listed = (exported["container"] / "requirements.txt").read_text().splitlines()
    assert [line.partition("=")[0] for line in listed] == ["onnxruntime", "numpy"]
    assert "USER nobody" in (exported["container"] / "Dockerfile").read_text()


def _asked(place: str, content: Any = None) -> Any:
    data = None if content is None else json.dumps(content).encode()
    with urllib.request.urlopen(urllib.request.Request(place, data), timeout=60) as answer:
        return json.load(answer)


def test_the_pickle_is_a_scikit_learn_pipeline_that_predicts_alike(exported: dict[str, Path], run: Path) -> None:
    with (exported["sklearn"] / "model.pkl").open("rb") as file:
        pipeline = pickle.load(file)
    table = people(300, 9).assign(code=2)
    chances = pipeline.predict_proba(table)
    named = {f"probability of {name}": chances[:, i] for i, name in enumerate(pipeline.classes_)}
    alike(pd.DataFrame({"predicted": pipeline.predict(table), **named}), run)
    again = pickle.loads(pickle.dumps(pipeline))
    assert (again.predict(table) == pipeline.predict(table)).all()
    with pytest.raises(InputError, match="this model is trained"):
        pipeline.fit(table, table["ill"])


def test_the_mlflow_folder_says_how_it_is_loaded(exported: dict[str, Path]) -> None:
    yaml = pytest.importorskip("yaml")
    about = yaml.safe_load((exported["mlflow"] / "MLmodel").read_text())
    flavor = about["flavors"]["python_function"]
    assert (exported["mlflow"] / flavor["data"]).exists()
    assert (exported["mlflow"] / flavor["code"] / f"{flavor['loader_module']}.py").exists()
    assert all((exported["mlflow"] / name).exists() for name in flavor["env"].values())
    assert json.loads(about["signature"]["outputs"])[0]["name"] == "predicted"
    # MLflow rejects whole numbers where it expects doubles, and prints rows: score.py checks what comes in.
    assert "inputs" not in about["signature"]
    assert about["metadata"]["input_columns"] == ["age", "height", "town", "code", "came", "sex"]


def test_the_mlflow_loader_takes_tables_as_pandas_reads_them(
    exported: dict[str, Path], run: Path, tmp_path: Path
) -> None:
    people(300, 9).assign(code=2).to_csv(tmp_path / "new.csv", index=False)
    table = pd.read_csv(tmp_path / "new.csv")
    assert table["age"].dtype == table["code"].dtype == np.int64
    alike(_load_pyfunc(str(exported["mlflow"] / "model.onnx")).predict(table), run)


def _changed_weight(folder: Path) -> None:
    model = onnx.load(folder / "model.onnx")
    weight = next(w for w in model.graph.initializer if w.name.startswith("veil/weights/") and np.prod(w.dims) > 1)
    values = numpy_helper.to_array(weight).copy()
    values.flat[0] += 1e-3
    weight.CopyFrom(numpy_helper.from_array(values, weight.name))
    onnx.save(model, folder / "model.onnx")


def _changed_note(folder: Path) -> None:
    model = onnx.load(folder / "model.onnx")
    for entry in model.metadata_props:
        if entry.key == "veil.preprocessing":
            record = json.loads(entry.value)
            record["classes"] = record["classes"][::-1]
            entry.value = json.dumps(record)
    onnx.save(model, folder / "model.onnx")


def _changed_graph(folder: Path) -> None:
    """The bounds of the numbers are a constant of the graph, which no hash of weights covers."""
    model = onnx.load(folder / "model.onnx")
    constant = next(c for c in model.graph.initializer if c.name.startswith("veil/constant/") and len(c.dims) == 2)
    constant.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(constant) * 2, constant.name))
    onnx.save(model, folder / "model.onnx")


def _changed_program(folder: Path) -> None:
    for name in ("score.py", "code/score.py"):
        if (folder / name).exists():
            (folder / name).write_text((folder / name).read_text() + "\n# another line\n")


@pytest.mark.parametrize("to", ["onnx", "mlflow", "container"])
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (_changed_weight, "its weights have another hash"),
        (_changed_note, "its preprocessing has another hash"),
        (_changed_graph, "computes something else than the certified model"),
        (_changed_program, "score.py is not the program that this version of Veil writes"),
    ],
)
def test_whatever_was_changed_in_an_onnx_file_is_noticed(
    to: str, change: Any, sentence: str, copies: dict[str, Path], veil: Program
) -> None:
    change(copies[to])
    code, out, _ = veil("verify", str(copies[to] / "model.onnx"))
    assert code == 1
    assert sentence in out
    assert CERTIFIED not in out


def _other_class_names(folder: Path, **notes: str) -> None:
    model = onnx.load(folder / "model.onnx")
    named = next(node for node in model.graph.node if "predicted" in node.output)
    names = next(attribute.strings for attribute in named.attribute if attribute.name == "values_strings")
    names[:] = list(names)[::-1]
    for entry in model.metadata_props:
        entry.value = notes.get(entry.key, entry.value)
    onnx.save(model, folder / "model.onnx")


def test_a_good_pickle_beside_a_changed_onnx_file_does_not_vouch_for_it(copies: dict[str, Path], veil: Program) -> None:
    _other_class_names(copies["onnx"])
    _changed_program(copies["onnx"])
    shutil.copy(copies["sklearn"] / "model.pkl", copies["onnx"])
    code, out, _ = veil("verify", str(copies["onnx"]))
    assert code == 1
    assert "computes something else than the certified model" in out
    assert "score.py is not the program" in out
    assert "veil export does not write model.pkl" in out


def test_a_note_in_the_file_cannot_switch_its_comparison_off(copies: dict[str, Path], veil: Program) -> None:
    _other_class_names(copies["onnx"], **{"veil.form": "2"})
    code, out, _ = veil("verify", str(copies["onnx"]))
    assert (code, "has another form than this version of Veil writes" in out) == (1, True)
    model = onnx.load(copies["mlflow"] / "model.onnx")
    model.metadata_props.insert(0, onnx.StringStringEntryProto(key="veil.preprocessing", value="{}"))
    onnx.save(model, copies["mlflow"] / "model.onnx")
    code, out, _ = veil("verify", str(copies["mlflow"]))
    assert (code, "has a note twice" in out) == (1, True)


def test_files_around_the_model_that_veil_did_not_write_are_noticed(copies: dict[str, Path], veil: Program) -> None:
    def replaced(to: str, name: str, old: str, new: str) -> None:
        text = (copies[to] / name).read_text()
        assert old in text
        (copies[to] / name).write_text(text.replace(old, new))

    (copies["onnx"] / "onnxruntime.py").write_text("")
    (copies["sklearn"] / "sitecustomize.py").write_text("")
    replaced("mlflow", "MLmodel", '"score"', '"other"')
    replaced("mlflow", "conda.yaml", "conda-forge", "elsewhere")
    replaced("mlflow", "requirements.txt", "pandas", "pandas-other")
    (copies["mlflow"] / "code" / "other.py").write_text("")
    replaced("container", "Dockerfile", "serve.py", "other.py")
    replaced("container", "requirements.txt", "numpy==", "--index-url elsewhere\nnumpy==")
    for to, names in {
        "onnx": ["onnxruntime.py"],
        "sklearn": ["sitecustomize.py"],
        "mlflow": ["MLmodel", "conda.yaml", "requirements.txt", "code/other.py"],
        "container": ["Dockerfile", "requirements.txt"],
    }.items():
        code, out, _ = veil("verify", str(copies[to]))
        assert (code, CERTIFIED in out) == (1, False), to
        assert all(name in out for name in names), out


@pytest.mark.parametrize("to", FORMATS)
def test_a_card_that_promises_something_else_is_noticed(to: str, copies: dict[str, Path], veil: Program) -> None:
    card = copies[to] / "MODEL_CARD.md"
    card.write_text(card.read_text().replace("ε = 2", "ε = 0.1"))
    code, out, _ = veil("verify", str(copies[to]))
    assert (code, "MODEL_CARD.md is not the one that was exported" in out, CERTIFIED in out) == (1, True, False)
    card.unlink()
    assert veil("verify", str(copies[to]))[0] == 1
    record = json.loads((copies[to] / "run.json").read_text())
    (copies[to] / "run.json").write_text(json.dumps({"certificate": record["certificate"]}))
    code, out, _ = veil("verify", str(copies[to]))
    assert (code, "has no hash of MODEL_CARD.md" in out) == (1, True)


def test_other_versions_of_known_packages_verify(copies: dict[str, Path], veil: Program) -> None:
    for to, names in {"container": ["requirements.txt"], "mlflow": ["requirements.txt", "conda.yaml"]}.items():
        for name in names:
            path = copies[to] / name
            path.write_text(re.sub(r"(onnxruntime|numpy)==[0-9.]+", r"\1==1.99.0", path.read_text()))
        code, out, _ = veil("verify", str(copies[to]))
        assert (code, CERTIFIED in out) == (0, True), out


def test_a_file_of_another_name_is_refused_and_not_its_neighbour_verified(
    copies: dict[str, Path], veil: Program
) -> None:
    shutil.copy(copies["onnx"] / "model.onnx", copies["onnx"] / "mine.onnx")
    code, _, err = veil("verify", str(copies["onnx"] / "mine.onnx"))
    assert (code, "a model of another name is not compared" in " ".join(err.split())) == (2, True)
    code, _, err = veil("verify", str(copies["onnx"] / "none.onnx"))
    assert (code, "there is no certificate at" in err) == (2, True)
    interrupted = copies["onnx"].parent / "interrupted"
    interrupted.mkdir()
    (interrupted / "seed.key").write_text("{}")
    code, _, err = veil("verify", str(interrupted))
    assert (code, "is not finished: continue it with --resume" in " ".join(err.split())) == (2, True)
    (copies["sklearn"] / "model.pkl").unlink()
    code, out, _ = veil("verify", str(copies["sklearn"]))
    assert (code, "No model was compared" in out) == (0, True)


@pytest.mark.parametrize("damage", ["cut", "kind"])
def test_damaged_weights_of_an_onnx_file_are_a_sentence(damage: str, copies: dict[str, Path], veil: Program) -> None:
    model = onnx.load(copies["onnx"] / "model.onnx")
    weight = next(w for w in model.graph.initializer if w.name.startswith("veil/weights/") and w.raw_data)
    if damage == "cut":
        weight.raw_data = weight.raw_data[:-1]
    else:
        weight.data_type = 99
    (copies["onnx"] / "model.onnx").write_bytes(model.SerializeToString())
    code, _, err = veil("verify", str(copies["onnx"]))
    assert (code, "holds no readable weights" in err) == (2, True)


def test_export_replaces_neither_another_run_nor_the_folder_it_stands_in(
    run: Path, tmp_path: Path, veil: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Path(shutil.copytree(run, tmp_path / "other"))
    (other / "model.onnx").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    for out in (str(other), "."):
        code, _, err = veil("export", str(run), "--to", "onnx", "-o", out, "--force")
        assert (code, "is no exported model" in err) == (2, True)
    assert (other / "model.safetensors").exists()


def test_a_changed_pickle_is_noticed_and_none_of_its_code_is_run(copies: dict[str, Path], veil: Program) -> None:
    path = copies["sklearn"] / "model.pkl"
    with path.open("rb") as file:
        pipeline = pickle.load(file)
    model = pipeline.steps[1][1]
    model.weights = model.weights[:-1] + bytes([model.weights[-1] ^ 1])
    path.write_bytes(pickle.dumps(pipeline))
    code, out, _ = veil("verify", str(copies["sklearn"]))
    assert (code, "its weights have another hash" in out) == (1, True)
    touched = copies["sklearn"] / "touched"

    class Hostile:
        def __reduce__(self) -> Any:
            return Path.touch, (touched,)

    for hostile in (Hostile(), {"steps": []}):
        path.write_bytes(pickle.dumps(hostile))
        code, _, err = veil("verify", str(copies["sklearn"]))
        assert (code, "is not a pipeline that Veil wrote" in err) == (2, True)
    assert not touched.exists()


def test_the_certificate_of_another_run_is_noticed(copies: dict[str, Path], tmp_path: Path, veil: Program) -> None:
    (tmp_path / "other").mkdir()
    other = package.load(trained(tmp_path / "other", seed=2))
    assert isinstance(other, LoadedTableRun)
    for to, place in copies.items():
        others = other.export(to, tmp_path / "other" / to)
        for name in ("certificate.json", "ledger.jsonl", "run.json"):
            shutil.copy(others / name, place / name)
        code, out, _ = veil("verify", str(place))
        assert code == 1, to
        assert "the model is not the certified one" in out


def test_a_run_whose_model_was_changed_is_not_exported(run: Path, tmp_path: Path, veil: Program) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    content = (copy / "model.safetensors").read_bytes()
    (copy / "model.safetensors").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    code, _, err = veil("export", str(copy), "--to", "onnx", "-o", str(tmp_path / "out"))
    assert code == 2
    assert "is not the one its certificate was made for" in err
    assert not (tmp_path / "out").exists()


def test_a_run_of_an_earlier_version_is_exported_and_says_that_it_names_no_model(
    run: Path, tmp_path: Path, veil: Program
) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    for name in ("certificate.json", "run.json"):
        record = json.loads((copy / name).read_text())
        del (record if name == "certificate.json" else record["certificate"])["model"]
        (copy / name).write_text(json.dumps(record))
    for to in FORMATS:
        out = str(tmp_path / to)
        assert veil("export", str(copy), "--to", to, "-o", out)[0] == 0
        code, said, err = veil("verify", out)
        assert code == 0, said + err
        assert "The certificate has no hash of a model" in said
        assert CERTIFIED not in said


def test_what_cannot_be_exported_is_a_sentence(run: Path, tmp_path: Path, veil: Program) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "kept.txt").write_text("kept")
    for words, sentence in (
        ((str(run), "--to", "excel", "-o", str(tmp_path / "a")), 'the format is "excel": use onnx, sklearn, mlflow'),
        ((str(run), "--to", "onnx", "-o", str(run)), "exists already"),
        ((str(run), "--to", "onnx", "-o", str(tmp_path / "mine"), "--force"), "is no exported model"),
        ((str(run), "--to", "onnx", "-o", str(run.parent), "--force"), "holds the run"),
        ((str(tmp_path), "--to", "onnx", "-o", str(tmp_path / "a")), "contains no finished run"),
        ((str(tmp_path / "no"), "--to", "onnx", "-o", str(tmp_path / "a")), "is not the folder of a run"),
    ):
        code, _, err = veil("export", *words)
        assert code == 2
        assert sentence in " ".join(err.split())
        assert "Traceback" not in err
    assert (tmp_path / "mine" / "kept.txt").exists()
    assert veil("export", str(run), "--to", "onnx", "-o", str(tmp_path / "b"))[0] == 0
    assert veil("export", str(run), "--to", "sklearn", "-o", str(tmp_path / "b"), "--force")[0] == 0
    assert not (tmp_path / "b" / "model.onnx").exists()
    (tmp_path / "b" / "model.onnx").write_bytes(b"garbage")
    (tmp_path / "b" / "model.pkl").unlink()
    code, _, err = veil("verify", str(tmp_path / "b"))
    assert (code, "is not a readable ONNX file" in err) == (2, True)


def test_a_model_of_numbers_is_handed_over_too(tmp_path: Path, veil: Program) -> None:
    run = trained(tmp_path, target="age", target_bounds="18,90", ignore=("ill",))
    table = people(300, 9).assign(code=2)
    table.drop(columns="age").to_csv(tmp_path / "new.csv", index=False)
    loaded = package.load(run)
    assert isinstance(loaded, LoadedTableRun)
    wanted = loaded.predict(table).astype(float)
    for to in ("onnx", "sklearn"):
        place = loaded.export(to, tmp_path / to)
        assert CERTIFIED in veil("verify", str(place))[1]
    outcome = run_elsewhere(tmp_path / "onnx" / "score.py", str(tmp_path / "new.csv"))
    found = pd.read_csv(io.StringIO(outcome.stdout))["predicted"]
    assert np.abs(found - wanted).max() < 72 * 1e-6
    with (tmp_path / "sklearn" / "model.pkl").open("rb") as file:
        assert np.abs(pickle.load(file).predict(table) - wanted).max() < 1e-9


@pytest.mark.long
def test_environments_without_veil_predict_alike(exported: dict[str, Path], run: Path, tmp_path: Path) -> None:
    """Real environments: one with what the container installs, one with MLflow."""
    people(300, 9).assign(code="2.0").to_csv(tmp_path / "new.csv", index=False)
    by_mlflow = (
        "import sys, pandas, mlflow.pyfunc\n"
        "model = mlflow.pyfunc.load_model(sys.argv[1])\n"
        "model.predict(pandas.read_csv(sys.argv[2])).to_csv(sys.stdout, index=False)\n"
    )
    (tmp_path / "by_mlflow.py").write_text(by_mlflow)
    for to, packages, words in (
        ("container", [], [exported["container"] / "score.py", tmp_path / "new.csv"]),
        ("mlflow", ["mlflow-skinny", "pandas"], [tmp_path / "by_mlflow.py", exported["mlflow"], tmp_path / "new.csv"]),
    ):
        venv.create(tmp_path / to, with_pip=True)
        python = str(tmp_path / to / "bin" / "python")
        needed = ["-r", str(exported["container"] / "requirements.txt"), *packages]
        subprocess.run([python, "-m", "pip", "install", "--quiet", *needed], check=True, timeout=900)
        assert subprocess.run([python, "-I", "-c", "import veil"], check=False, capture_output=True).returncode == 1
        # Not -I: a program finds what lies beside it. Nothing else may lead to Veil.
        alone = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        outcome = subprocess.run([python, *map(str, words)], check=False, capture_output=True, text=True, env=alone)
        assert outcome.returncode == 0, outcome.stderr
        alike(pd.read_csv(io.StringIO(outcome.stdout)), run)
