"""Readers that get hostile files answer, or refuse with one sentence: no crash, no code, no endless memory."""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.robustness import hostile
from veil.accounting import Ledger, LedgerDamaged
from veil.accounting.verify import verify
from veil.cli.console import LONGEST_SENTENCE, say_error
from veil.errors import InputError
from veil.foundation.toml import read_toml, to_toml
from veil.tables import read_table

ROOT = Path(__file__).parents[2]
FEW = dict.fromkeys(hostile.READERS, 400) | {"table.csv": 15}
# 115,500 in all; what takes longest has fewest.
MANY = {
    "ledger.jsonl": 15_000,
    "certificate.json": 25_000,
    "schema.toml": 20_000,
    "config.toml": 25_000,
    "budgets.toml": 15_000,
    "budgets.csv": 15_000,
    "table.csv": 500,
}


@pytest.fixture
def quick_folder(tmp_path: Path) -> Iterator[Path]:
    """Memory in place of a disk, where there is such a folder."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="veil-", dir=memory if memory.is_dir() else tmp_path))
    yield folder
    shutil.rmtree(folder)


def faults(name: str, inputs: int, folder: Path, seed: int) -> list[str]:
    chance, found = random.Random(seed), []
    content, path = hostile.valid(name, folder), folder / name
    path.write_bytes(content)
    assert hostile.fault(hostile.READERS[name], path) is None
    hostile.READERS[name](path)
    for turn in range(inputs):
        path.write_bytes(hostile.spoilt(name, content, chance))
        fault = hostile.fault(hostile.READERS[name], path)
        if fault is not None:
            found.append(f"input {turn}: {fault}")
    return found


@pytest.mark.parametrize("name", hostile.READERS)
def test_a_spoilt_file_is_read_or_refused_with_a_sentence(name: str, quick_folder: Path) -> None:
    assert faults(name, FEW[name], quick_folder, seed=1) == []


@pytest.mark.long
@pytest.mark.parametrize("name", hostile.READERS)
def test_a_hundred_thousand_spoilt_files_are_read_or_refused(name: str, quick_folder: Path) -> None:
    assert sum(MANY.values()) >= 100_000
    assert faults(name, MANY[name], quick_folder, seed=2) == []


@pytest.mark.parametrize("name", hostile.READERS)
@settings(deadline=None, derandomize=True, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(name: str, quick_folder: Path, content: bytes) -> None:
    path = quick_folder / name
    path.write_bytes(content)
    assert hostile.fault(hostile.READERS[name], path) is None


WORDS = st.text(st.characters(codec="utf-8"), max_size=8)
TOML = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | WORDS,
    lambda inside: (
        st.lists(inside.filter(lambda v: not isinstance(v, dict)), max_size=3)
        | st.dictionaries(WORDS, inside, max_size=3)
    ),
    max_leaves=8,
)


@settings(
    deadline=None, derandomize=True, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(table=st.dictionaries(WORDS, TOML, max_size=4))
def test_what_is_written_as_toml_is_read_back(quick_folder: Path, table: dict[str, object]) -> None:
    path = quick_folder / "any.toml"
    path.write_text(to_toml(table), encoding="utf-8", newline="")
    assert read_toml(path) == table


LIES = {
    "a negative count gives spent budget back": lambda r: r[1].update(count=-1),
    "a cell is counted from the end": lambda r: r[1]["costs"][0].__setitem__(1, [-1]),
    "a truth value stands for a cell": lambda r: r[1]["costs"][0].__setitem__(1, [True]),
    "another relation is mixed in": lambda r: r[1]["costs"][0][0].update(relation="replace-one"),
    "a fraction of a release": lambda r: r[1].update(count=0.5),
    "noise without end": lambda r: r[1]["costs"][0][0].update(noise_multiplier=float("inf")),
    "noise as a truth value": lambda r: r[1]["costs"][0][0].update(noise_multiplier=True),
    "a budget that is no number": lambda r: r[0]["terms"]["accounts"][0].__setitem__(2, float("nan")),
    "a delta above 1": lambda r: r[0]["terms"].update(delta=2),
    "a rule from the end": lambda r: r[0]["terms"]["accounts"][0].__setitem__(3, -1),
    "a filter below order 1": lambda r: r[0]["terms"]["rules"][1].update(order=0.5),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_ledger_whose_checksums_fit_but_whose_lines_lie_is_refused(lie: str, tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    hostile.valid_ledger(path)
    records = [json.loads(line)["record"] for line in path.read_bytes().splitlines()]
    path.write_bytes(hostile.sealed(records))
    Ledger.open(path)
    LIES[lie](records)
    path.write_bytes(hostile.sealed(records))
    with pytest.raises(LedgerDamaged):
        Ledger.open(path)


@pytest.mark.parametrize("depth", [300, 900, 100_000])
@pytest.mark.parametrize("kind", ["Mixture", "Envelope", "list"])
def test_events_inside_events_inside_events_are_refused(kind: str, depth: int, tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    hostile.valid_ledger(path)
    first = path.read_bytes().splitlines(keepends=True)[0]
    before = {
        "Mixture": '{"kind":"Mixture","probability":0.5,"event":',
        "Envelope": '{"kind":"Envelope","events":[',
        "list": "[",
    }[kind]
    after = {"Mixture": "}", "Envelope": "]}", "list": "]"}[kind]
    event = before * depth + '{"kind":"Gaussian","noise_multiplier":1.0}' + after * depth
    body = f'{{"costs":[[{event},[0]]],"count":1,"first":0,"purpose":"x"}}'
    path.write_bytes(first + f'{{"record":{body},"check":"0"}}\n'.encode())
    with pytest.raises(LedgerDamaged):
        Ledger.open(path)


BOMBS = {
    "ledger.jsonl": b'{"record":' + b"[" * 2_000_000 + b"\n",
    "certificate.json": b'{"by_group":' + b'{"a":' * 1_000_000,
    "schema.toml": b"[columns.a]\nkind = 'text'\nbuckets = 1000000000000\nlength = 1000000000000\n",
    "config.toml": b"a = " + b"[" * 1_000_000,
    "budgets.toml": b"[budgets]\nnorth = " + b"9" * 2_000_000,
    "budgets.csv": b"owner,epsilon\n" + b'"' * 2_000_000,
    "table.csv": b",".join(b"c%d" % n for n in range(4_000)) + b"\n" + b"1," * 3_999 + b"1\n",
}


@pytest.mark.slow
def test_small_files_cannot_fill_the_memory(tmp_path: Path) -> None:
    for name, content in BOMBS.items():
        (tmp_path / name).write_bytes(content)
    program = (
        "import sys, resource; from tests.robustness import hostile; from pathlib import Path\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "for name, reader in hostile.READERS.items():\n"
        "    fault = hostile.fault(reader, Path(sys.argv[1]) / name)\n"
        "    assert fault is None, (name, fault)\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)\n"
    )
    words = [sys.executable, "-c", program, str(tmp_path)]
    outcome = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT, preexec_fn=_no_core)
    assert outcome.returncode == 0, outcome.stderr
    assert int(outcome.stdout) < 600, "megabytes more than before"


def _no_core() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


class _Payload:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".pq", ".arrow", ".feather", ".pkl", ".json", ".toml", ""])
def test_a_pickle_is_never_executed_whatever_it_calls_itself(suffix: str, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    content = pickle.dumps(_Payload(mark))
    path = tmp_path / f"file{suffix}"
    path.write_bytes(content)
    readers = (*hostile.READERS.values(), read_table)
    for reader in readers:
        assert hostile.fault(reader, path) is None
    table = pd.DataFrame({"a": [content, content], "b": [str(mark), f"__import__('os').mkdir('{mark}')"]})
    table.to_parquet(tmp_path / "table.parquet")
    read_table(tmp_path / "table.parquet")
    assert not mark.exists()


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_a_spoilt_table_of_columns_is_read_or_refused(suffix: str, quick_folder: Path) -> None:
    """In a process of its own: what is tried here is code that is not Python's."""
    program = (
        "import sys; from tests.robustness import test_fuzz_readers as t; from pathlib import Path\n"
        "sys.exit('\\n'.join(t.column_faults(Path(sys.argv[1]), sys.argv[2])) or 0)"
    )
    words = [sys.executable, "-c", program, str(quick_folder), suffix]
    outcome = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT, preexec_fn=_no_core)
    assert outcome.returncode == 0, outcome.stderr[-2000:]


def column_faults(folder: Path, suffix: str, inputs: int = 300) -> list[str]:
    table = pd.DataFrame({"a": np.arange(50.0), "b": ["x", "y"] * 25, "d": pd.date_range("2020-01-01", periods=50)})
    path, chance, found = folder / f"table{suffix}", random.Random(3), []
    if suffix == ".parquet":
        table.to_parquet(path)
    else:
        table.to_feather(path, compression="uncompressed")
    content = path.read_bytes()
    for turn in range(inputs):
        spoilt = bytearray(content)
        for _ in range(chance.choice((1, 2, 4))):
            spoilt[chance.randrange(len(spoilt))] = chance.randrange(256)
        path.write_bytes(spoilt[: chance.randrange(len(spoilt))] if chance.random() < 0.2 else spoilt)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fault = hostile.fault(read_table, path)
        if fault is not None:
            found.append(f"input {turn}: {fault}")
    return found


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris is not installed: pip install atheris")
@pytest.mark.parametrize("name", ["ledger.jsonl", "schema.toml"])
def test_inputs_that_look_for_new_paths_find_no_crash(name: str, quick_folder: Path) -> None:
    words = [
        sys.executable,
        "-m",
        "tests.robustness.coverage_guided",
        name,
        str(quick_folder),
        "-runs=3000",
        f"-artifact_prefix={quick_folder}/",
    ]
    outcome = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT, preexec_fn=_no_core)
    assert outcome.returncode == 0, outcome.stderr[-2000:]


def test_rows_longer_than_the_heading_do_not_shift_the_columns(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    path.write_text("age,sex\n1,2,3\n4,5,6\n")
    with pytest.raises(InputError, match="more values than its first line has names"):
        read_table(path)
    path.write_text("age,sex\n1,2,\n4,5,\n")
    assert read_table(path).to_dict("list") == {"age": [1, 4], "sex": [2, 5]}


def test_an_index_that_came_with_a_file_does_not_name_the_rows(tmp_path: Path) -> None:
    pd.DataFrame({"a": [1, 2]}, index=["Ada", "Eve"]).to_parquet(tmp_path / "t.parquet")
    assert read_table(tmp_path / "t.parquet").index.tolist() == [0, 1]


def test_verify_of_a_spoilt_certificate_gives_a_verdict_or_a_sentence(tmp_path: Path) -> None:
    ledger = hostile.Ledger(
        hostile.Terms(
            hostile.Relation.ADD_REMOVE,
            1e-5,
            "rdp",
            (hostile.Account("f", "o", 9.0, hostile.RenyiFilter(8.0, 1.0)),),
            {"method": "test"},
        ),
        tmp_path / "ledger.jsonl",
    )
    ledger.reserve("gradient", 0, 1, {0: hostile.Gaussian(5.0)})
    path, chance = tmp_path / "certificate.json", random.Random(4)
    hostile.certify(ledger, hostile.Rdp()).save(path)
    assert verify(path).holds
    content = path.read_bytes()
    for _ in range(150):
        path.write_bytes(hostile.spoilt("certificate.json", content, chance))
        assert hostile.fault(verify, path) is None


def test_an_error_is_one_short_line_whatever_stands_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    say_error('column "a\nb\x1b[31m\x07[bold]' + "x" * 5000 + '" is wrong')
    text = capsys.readouterr().err
    assert text.count("\n") == 1
    assert len(text) < LONGEST_SENTENCE + 100
    assert "\x1b" not in text
    assert "[bold]" in text
