"""Tables with odd values at every front door: an answer or one sentence; never a traceback, never a row's content."""

from __future__ import annotations

import csv
import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.program import Program

SECRET = "Zwetschkenknoedl"  # in no heading, class or group, so no message has any business with it
Maker = Callable[[random.Random], str]
KINDS: dict[str, Maker] = {
    "numbers": lambda by: f"{by.gauss(0, 50):.3g}",
    "codes": lambda by: by.choice(["1", "2", "03", "1.0"]),
    "commas": lambda by: f"{by.uniform(0, 9999):.2f}".replace(".", ","),
    "thousands": lambda by: f"${by.randrange(10**7):,}",
    "units": lambda by: f"{by.uniform(1, 99):.1f} kg",
    "words": lambda by: by.choice("abc"),
    "dates": lambda by: f"{by.randint(1, 31)}/{by.randint(1, 12)}/{by.randint(1, 9999)}",
    "texts": lambda by: " ".join(by.choices(["fever", "again", SECRET], k=6)),
    "gaps": lambda by: "",
}
ODD = (
    *(
        "",
        "?",
        "NaT",
        "1e400",
        "nan",
        "-inf",
        "1,5",
        "1.234,5",
        "7 %",
        "true",
        "\t",
        "\x00",
        "💥",
        "9" * 400,
        "0x1F",
        "'",
    ),
    *(
        SECRET,
        "31/02/2020",
        "99999-01-01",
        "2020-01-01T00:00:00+99:00",
        "1_000",
        "=cmd()",
        "[1, 2]",
        '"',
        ";",
        "²",
        "½",
    ),
)
LISTED: dict[str, Any] = {
    "lists": lambda rows: pa.array([[1.0, 2.0]] * rows),
    "records": lambda rows: pa.array([{"name": SECRET}] * rows),
    "bytes": lambda rows: pa.array([SECRET.encode()] * rows),
    "moments": lambda rows: pa.array(range(rows), pa.timestamp("ns", tz="Europe/Vienna")),
    "times": lambda rows: pa.array([1] * rows, pa.time32("s")),
    "durations": lambda rows: pa.array([1] * rows, pa.duration("s")),
    "days": lambda rows: pa.array([-700_000] * rows, pa.date32()),
    "whole": lambda rows: pa.array([2**63 - 1] * rows, pa.uint64()),
}


def columns(by: random.Random) -> dict[str, list[str]]:
    """Up to six columns of some kind with some odd values in them; classes and groups are most often in order."""
    rows = by.choice([2, 40, 120, 300, 300])
    found = {}
    for place in range(by.randint(1, 6)):
        make = KINDS[by.choice(sorted(KINDS))]
        values = [make(by) for _ in range(rows)]
        for _ in range(by.choice([0, 0, 1, 3])):
            values[by.randrange(rows)] = by.choice(ODD)
        found[f"c{place}"] = values
    for name, labels in (("g", ["f", "m"]), ("y", ["no", "yes"])):
        found[name] = by.choices(labels, k=rows)
        if by.random() < 0.15:
            found[name][0] = by.choice(["", "1", "1,5", "other"])
    return found


def file(by: random.Random) -> tuple[str, bytes]:
    """The ending of a file and its content."""
    table = columns(by)
    if by.random() < 0.25:
        rows = len(table["y"])
        odd = {kind: make(rows) for kind, make in LISTED.items() if by.random() < 0.3}
        sink = io.BytesIO()
        pq.write_table(pa.table({**table, **odd}), sink)
        return "parquet", sink.getvalue()
    text = io.StringIO()
    writer = csv.writer(text, delimiter=by.choice(",;\t|"), lineterminator=by.choice(["\n", "\r\n"]))
    writer.writerow(table)
    writer.writerows(zip(*table.values(), strict=True))
    content = bytearray(text.getvalue().encode(by.choice(["utf-8", "utf-8-sig", "utf-16", "cp1252"]), "replace"))
    for _ in range(by.choice([0, 0, 0, 0, 1, 3])):
        at = by.randrange(len(content))
        content[at : at + 2] = by.randbytes(by.randint(0, 3))
    return "csv", bytes(content)


OPTIONS: list[tuple[str, ...]] = [
    (),
    ("--missing-group", "none"),
    ("--merge-groups-below", "20"),
    ("--person", "c0"),
    ("--category", "c0"),
    ("--ignore", "c0"),
    ("--task", "regression"),
]
ASKED = ("--target", "y", "--group", "g")
DOORS: dict[str, tuple[str, ...]] = {
    "check": ("data", "check", "FILE", *ASKED),
    "dry run": ("train", "FILE", *ASKED, "--epsilon", "3", "--dry-run"),
    "train": ("train", "FILE", *ASKED, "--epsilon", "20", "--private-preprocessing", "0.3", "--out", "OUT"),
    "predict": ("predict", "RUN", "FILE", "--probabilities"),
    "plan": ("plan", "FILE", *ASKED),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the one column that every file has."""
    from veil.request import Request
    from veil.tables.table_run import train_table

    folder, draw = tmp_path_factory.mktemp("trained"), np.random.default_rng(0)
    table = pd.DataFrame({"c0": draw.choice(["a", "b", "1"], 200)})  # words, so that whatever stands there is answered
    table["g"], table["y"] = draw.choice(["f", "m"], 200), draw.choice(["no", "yes"], 200)
    table.to_csv(folder / "t.csv", index=False)
    train_table(Request.checked(data=folder / "t.csv", group=("g",), target="y", holdout=0.0), out=folder / "run")
    return folder / "run"


def _fuzz(door: str, inputs: int, run: Path, folder: Path, veil: Program) -> None:
    by, answered = random.Random(door), 0
    for turn in range(inputs):
        ending, content = file(by)
        path = folder / f"t.{ending}"
        path.write_bytes(content)
        words = [
            {"FILE": str(path), "RUN": str(run), "OUT": str(folder / str(turn))}.get(word, word) for word in DOORS[door]
        ]
        options = by.choice(OPTIONS) if door in ("check", "dry run", "train") else ()
        code, out, err = veil(*words, *options)
        assert code in (0, 2), f"input {turn}: {out}{err}"
        assert code == 0 or err.strip(), f"input {turn} was rejected without a word"
        assert "Traceback" not in out + err, f"input {turn}: {err}"
        assert SECRET not in out + err, f"input {turn}: {out}{err}"
        answered += code == 0
    assert answered > 0, "all files were rejected: nothing behind the first check was tried"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("door", DOORS)
def test_odd_tables_are_answered_or_rejected_with_a_sentence(
    door: str, run: Path, tmp_path: Path, veil: Program
) -> None:
    _fuzz(door, 4 if door == "plan" else 12, run, tmp_path, veil)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("door", DOORS)
def test_very_many_odd_tables_are_answered_or_rejected(door: str, run: Path, tmp_path: Path, veil: Program) -> None:
    _fuzz(door, 100 if door == "plan" else 600, run, tmp_path, veil)
