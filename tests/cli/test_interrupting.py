"""Ctrl-C and SIGTERM leave a run that goes on, with a sentence and an exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.program import Program


def start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "veil.cli", "train", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "sigterm"])
def test_an_interrupted_run_goes_on_from_its_own_configuration(
    tmp_path: Path, veil: Program, number: int, code: int
) -> None:
    generator = np.random.default_rng(0)
    frame = pd.DataFrame({"a": generator.normal(size=600), "sex": ["f", "m"] * 300})
    frame["rich"] = np.where(frame["a"] > 0, "yes", "no")
    frame.to_csv(tmp_path / "people.csv", index=False)
    out = tmp_path / "run"
    words = ["--target", "rich", "--group", "sex", "--model", "logistic", "--batch-size", "20", "--epochs", "60"]
    words += ["--out", str(out), "--seed", "1", "--quiet"]
    process = start(str(tmp_path / "people.csv"), *words)
    limit = time.monotonic() + 120
    while not (out / "ledger.jsonl").exists() and time.monotonic() < limit:
        time.sleep(0.01)
    process.send_signal(number)
    _, said = process.communicate(timeout=120)
    assert process.returncode == code, said
    assert "continue a started run with --resume" in said
    assert "Traceback" not in said
    assert not (out / "certificate.json").exists()
    resumed, _, said = veil("train", "--config", str(out / "config.toml"), "--out", str(out), "--resume", "--quiet")
    assert resumed == 0, said
    assert (out / "certificate.json").exists()


def ended_by(
    fails: Callable[[], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int | str | None, str]:
    """The exit code and the message of a program whose commands do this."""
    from veil.cli import app

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setattr(app, "app", fails)
    try:
        with pytest.raises(SystemExit) as ended:
            app.main()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return ended.value.code, capsys.readouterr().err


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: 8 bytes")])
def test_running_out_of_memory_is_one_sentence(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        raise error

    code, said = ended_by(fails, monkeypatch, capsys)
    assert code == 2
    assert "out of memory" in said


class SignalsItself:
    """Python 3.11 turns what is raised while it is told its name into a RuntimeError."""

    def __set_name__(self, owner: type, name: str) -> None:
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize(
    ("command", "goes_on"), [("train", True), ("tune", True), ("audit", False), ("account", False)]
)
def test_a_signal_that_comes_while_a_class_is_made_ends_the_program_as_any_other(
    command: str, goes_on: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Commands that can go on say how; others do not name an option that they lack."""

    def imports() -> None:
        type("Imported", (), {"field": SignalsItself()})

    monkeypatch.setattr(sys, "argv", ["veil", command])
    code, said = ended_by(imports, monkeypatch, capsys)
    assert code == 143
    assert "Terminated." in said
    assert ("continue a started run with --resume" in said) is goes_on


@pytest.mark.parametrize("words", [["methods"], ["account", "epsilon", "--help"]], ids=" ".join)
def test_a_reader_that_goes_away_ends_the_program_quietly_and_is_no_failed_check(words: list[str]) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    ended = subprocess.run(
        [sys.executable, "-m", "veil.cli", *words], stdout=writes, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writes)
    assert (ended.returncode, ended.stderr) == (141, "")


@pytest.mark.parametrize(("words", "closed", "code"), [("methods", 1, 0), ("methodz", 2, 2)], ids=["output", "errors"])
def test_a_program_without_output_does_its_work_quietly(words: str, closed: int, code: int) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "veil.cli", words],
        preexec_fn=partial(os.close, closed),
        capture_output=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, b"", b"")
