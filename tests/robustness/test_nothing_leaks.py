"""What a person sees of a run, whole or broken, holds no private row, no seed and no exact figure."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.cli.people_cases import ROLES
from veil.cli.app import main
from veil.errors import InputError
from veil.estimators import FairPrivateClassifier, FairPrivateRegressor
from veil.foundation.randomness import Seed
from veil.problem import Problem
from veil.tables import load_predictor
from veil.training import load

WORD = "Zyxwvian"
NUMBER = 73519.0427
DAY = "1987-11-23"
MARKS = (WORD, str(NUMBER), "73519", DAY)
ROWS = 397
SCHEMA = f"""
[columns.age]
kind = "numeric"
low = 0
high = 100
[columns.income]
kind = "numeric"
low = 0
high = 100000
[columns.joined]
kind = "date"
low = 1980-01-01
high = 2024-01-01
[columns.remark]
kind = "text"
{ROLES}"""


def people() -> pd.DataFrame:
    """Rows 7 and 8 hold what must never be seen again."""
    generator = np.random.default_rng(0)
    age = generator.integers(18, 90, ROWS)
    table = pd.DataFrame(
        {
            "age": age.astype(str),
            "income": generator.integers(1000, 9000, ROWS).astype(float),
            "joined": (
                pd.Timestamp("2005-01-01") + pd.to_timedelta(generator.integers(0, 3000, ROWS), unit="D")
            ).strftime("%Y-%m-%d"),
            "remark": generator.choice(["came late and left early today", "paid in cash on the day"], ROWS),
            "sex": np.where(generator.random(ROWS) < 0.3, "f", "m"),
            "rich": np.where(age + 10 * generator.standard_normal(ROWS) > 50, "yes", "no"),
        }
    )
    table.loc[7, "income"], table.loc[7, "joined"], table.loc[8, "remark"] = NUMBER, DAY, f"this is {WORD} only"
    return table


BROKEN = {
    "a word in a column of numbers": ("age", f"{WORD} {NUMBER}"),
    "a word in a column of dates": ("joined", WORD),
    "an unknown group": ("sex", WORD),
    "an unknown class": ("rich", WORD),
    "a missing group": ("sex", None),
    "a number without end": ("age", "inf"),
}
TRAIN = ("--epochs", "2", "--batch-size", "40", "--method", "dp-sgd")


def veil(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[int, str]:
    monkeypatch.setattr(sys, "argv", ["veil", *words])
    code: object = 0
    try:
        main()
    except SystemExit as stop:
        code = stop.code
    captured = capsys.readouterr()
    return int(code or 0), captured.out + captured.err  # type: ignore[call-overload]


def texts(folder: Path) -> dict[str, str]:
    """Every file of a run that is not kept for its owner alone."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.stat().st_mode & 0o077]
    found = {path.name: path.read_bytes().decode("utf-8", "replace") for path in files}
    for path in files:
        if path.suffix == ".parquet":
            found[path.name] += pd.read_parquet(path).to_json()
    return found


@pytest.mark.parametrize("case", BROKEN)
def test_a_row_that_breaks_a_run_is_named_but_not_shown(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = people()
    column, value = BROKEN[case]
    table.loc[7, column] = value
    table.to_csv(tmp_path / "people.csv", index=False)
    (tmp_path / "schema.toml").write_text(SCHEMA)
    words = ("train", str(tmp_path / "people.csv"), "--schema", str(tmp_path / "schema.toml"), *TRAIN, "--holdout", "0")
    code, said = veil(capsys, monkeypatch, *words, "--out", str(tmp_path / "run"))
    assert code == 2
    assert "row 7" in said
    assert "Traceback" not in said
    for mark in MARKS:
        assert mark not in said
        assert all(mark not in text for text in texts(tmp_path / "run").values())


@pytest.mark.parametrize("schema", [True, False])
def test_a_finished_run_repeats_no_row_no_seed_and_no_exact_figure(
    schema: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = Seed(bytes(range(100, 132)), given=False)
    monkeypatch.setattr(Seed, "from_system", classmethod(lambda _: secret))
    people().to_csv(tmp_path / "people.csv", index=False)
    (tmp_path / "schema.toml").write_text(SCHEMA)
    given = ("--schema", str(tmp_path / "schema.toml")) if schema else ("--target", "rich", "--group", "sex")
    run = tmp_path / "run"
    code, said = veil(capsys, monkeypatch, "train", str(tmp_path / "people.csv"), *given, *TRAIN, "--out", str(run))
    assert code == 0, said
    kept = {"what was said": said, **texts(run)}
    assert "report.html" in kept
    assert all(mark in people().to_csv() for mark in MARKS)
    predictor = load_predictor(run)
    right = np.asarray(predictor.predict(people())) == people()["rich"].to_numpy()
    exact = [repr(float(right.mean()))[:8], *(repr(float(right[people()["sex"] == g].mean()))[:8] for g in "fm")]
    for name, text in kept.items():
        for mark in (*MARKS, secret.secret.hex(), *(figure for figure in exact if len(figure) == 8)):
            assert mark not in text, f"{mark} stands in {name}"
    for path in run.rglob("*"):
        assert not path.is_file() or secret.secret not in path.read_bytes()
    assert secret.secret.hex() not in repr(secret)


CRASH = """
import torch

class Broken(torch.nn.Linear):
    def forward(self, rows):
        if rows.shape[0] > 2:
            raise RuntimeError("this model is broken")
        return super().forward(rows)

def factory(facts):
    return Broken(facts.input_shape[0], facts.outputs)
"""


@pytest.mark.slow
def test_a_crash_in_the_middle_prints_no_row_and_no_seed(tmp_path: Path) -> None:
    people().to_csv(tmp_path / "people.csv", index=False)
    (tmp_path / "schema.toml").write_text(SCHEMA)
    (tmp_path / "broken_model.py").write_text(CRASH)
    words = [
        "train",
        "people.csv",
        "--schema",
        "schema.toml",
        *TRAIN,
        "--model",
        "broken_model:factory",
        "--out",
        "run",
    ]
    outcome = subprocess.run(
        [sys.executable, "-m", "veil.cli", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"},
    )
    assert outcome.returncode != 0
    said = outcome.stdout + outcome.stderr
    assert "this model is broken" in said
    seeds = [path.read_text() for path in (tmp_path / "run").glob("seed*")]
    assert seeds, "a run that was cut short keeps its seed, for itself"
    for text in (said, *texts(tmp_path / "run").values()):
        assert not any(mark in text for mark in MARKS)
        assert not any(word in text for seed in seeds for word in seed.split('"') if len(word) == 64)
    for path in (tmp_path / "run").iterdir():
        secret = path.name.startswith(("seed", "checkpoint"))
        assert not secret or path.stat().st_mode & 0o077 == 0, f"others can read {path.name}"


HOSTILE = "<script>alert(1)</script>"
HOSTILE_TOO = "\"'><img src=x onerror=alert(2)>{{7*7}}"


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_names_from_the_data_are_text_on_the_page_and_nothing_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = people()[["age", "sex", "rich"]].rename(columns={"sex": HOSTILE, "rich": HOSTILE_TOO})
    table[HOSTILE] = table[HOSTILE].map({"f": HOSTILE, "m": HOSTILE_TOO})
    table[HOSTILE_TOO] = table[HOSTILE_TOO].map({"no": HOSTILE, "yes": f"</script>{HOSTILE_TOO}"})
    table.to_csv(tmp_path / "people.csv", index=False)
    run = tmp_path / "run"
    words = ("train", str(tmp_path / "people.csv"), "--target", HOSTILE_TOO, "--group", HOSTILE, *TRAIN)
    code, said = veil(capsys, monkeypatch, *words, "--out", str(run))
    assert code == 0, said
    pages = list(run.rglob("*.html"))
    assert pages
    for page in (*pages, None):
        text = load(run)._repr_html_() if page is None else page.read_text(encoding="utf-8")
        tags = Tags()
        tags.feed(text)
        assert sum(tag == "script" for tag, _ in tags.tags) == (2 if page else 0)
        assert not [attrs for tag, attrs in tags.tags if tag == "img" or any(name.startswith("on") for name in attrs)]
        assert "&lt;script&gt;alert(1)" in text, "the name is there, as text"
        assert page is None or "{{7*7}}" in text, "a name is no template"


def _written(table: pd.DataFrame, kind: str, folder: Path) -> Path:
    path = folder / f"people.{kind}"
    if kind in ("json", "jsonl"):
        table.to_json(path, orient="records", lines=kind == "jsonl")
    elif kind == "txt":
        table.to_json(path, orient="records", lines=True)
    else:
        table.to_csv(path, index=False, header=False)
    return path


@pytest.mark.parametrize("kind", ["json", "jsonl", "txt", "csv"])
@pytest.mark.parametrize("twice", [False, True])
def test_a_first_row_that_is_taken_for_names_of_columns_is_not_shown(
    kind: str, twice: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = people()
    table.loc[0, "remark"], table.loc[0, "income"] = f"this is {WORD} only", NUMBER
    if twice:
        table["nickname"] = table["remark"]
    path = _written(table, kind, tmp_path)
    words = ("train", str(path), "--target", "rich", "--group", "sex", *TRAIN, "--out", str(tmp_path / "run"))
    for more in ((), ("--ignore", "remarks")):
        code, said = veil(capsys, monkeypatch, *words, *more)
        assert code == 2
        assert "looks like a row" in said or "save it as CSV" in said
        assert not any(mark in said for mark in MARKS)


def test_a_row_of_words_alone_that_is_taken_for_names_is_known_by_the_values_below_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = people()[["remark", "sex", "rich"]]
    table.loc[0, "remark"] = f"this is {WORD} only"
    words = ("train", str(_written(table, "csv", tmp_path)), "--target", "rich", "--group", "sex", *TRAIN)
    code, said = veil(capsys, monkeypatch, *words, "--out", str(tmp_path / "run"))
    assert code == 2
    assert "looks like a row" in said
    assert WORD not in said


@pytest.mark.parametrize("address", ["postgresql://u:hunter2@h/x", "postgresql://u@h/x?password=hunter2&a=b"])
def test_the_command_that_a_run_keeps_holds_no_password(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from veil.cli.train import typed_command

    monkeypatch.setattr(sys, "argv", ["veil", "train", "people.csv", "--store", address])
    assert "hunter2" not in typed_command()
    assert "people.csv" in typed_command()


def _in_words(error: BaseException) -> str:
    """All that a traceback shows of an error and its causes."""
    return "".join(line for line in traceback.format_exception(error) if not line.startswith("  File"))


def test_a_word_among_numbers_in_python_is_not_repeated_by_the_error() -> None:
    rows = np.random.default_rng(0).normal(size=(120, 3))
    wrong = rows.astype(object)
    wrong[7, 1] = WORD
    classes = (rows[:, 0] > 0).astype(int)
    named = np.where(classes, "yes", "no").astype(object)
    named[7] = WORD
    attempts: list[Callable[[], object]] = [
        lambda: FairPrivateClassifier().fit(wrong, classes),
        lambda: FairPrivateClassifier().fit(wrong.astype(str), classes),
        lambda: FairPrivateRegressor().fit(rows, wrong[:, 1]),
        lambda: Problem.from_arrays(rows, wrong[:, 1], task="regression"),
        lambda: Problem.from_arrays(rows, named, classes=["yes", "no"]),
    ]
    for attempt in attempts:
        with pytest.raises(InputError) as found:
            attempt()
        assert WORD not in _in_words(found.value)
