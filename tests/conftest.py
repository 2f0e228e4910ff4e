"""Shared by all tests: one thread per test process, where the raw data sets are, and the command line."""

from __future__ import annotations

import functools
import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import typer.main

from tests.program import Program
from tests.quick import Quick

torch.set_num_threads(1)
# A program makes its commands once; so do tests, which run it in one process again and again.
typer.main.get_command = functools.cache(typer.main.get_command)
# Programs that tests start, and fixtures: there is nothing to collect in them.
collect_ignore_glob = ["*/*_worker.py", "*/coverage_guided.py", "conftest.py", "*/conftest.py"]
os.environ.setdefault("VEIL_DATA", str(Path(__file__).parents[2] / "shared" / "data"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """How long a run may take."""
    told = "leave out the slowest tests, so that all others took at most so long together when they last ran"
    parser.addoption("--within", type=float, metavar="SECONDS", help=told)


def pytest_configure(config: pytest.Config) -> None:
    """Durations are kept where pytest keeps what it remembers."""
    if config.pluginmanager.hasplugin("cacheprovider"):
        config.pluginmanager.register(Quick(config))


def pytest_collection_finish() -> None:
    """Modules and tests stay until the end: to walk through them again and again would take a tenth of all time."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(autouse=True)
def _no_rows_of_other_tests() -> Iterator[None]:
    """Tests fit on the same made-up rows: what one has fitted is none of the next one's business."""
    yield
    if "veil.tables.fitted_rows" in sys.modules:
        sys.modules["veil.tables.fitted_rows"].forget()


@pytest.fixture
def veil(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Program]:
    """Run the program in this process: exit code, standard output, standard error."""
    # The program's own handlers would make Ctrl-C a failure of whatever test runs, and the others would go on.
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def run(*words: str) -> tuple[int, str, str]:
        from veil.cli.app import main

        monkeypatch.setattr(sys, "argv", ["veil", *words])
        try:
            main()
            code: object = 0
        except SystemExit as stop:
            code = stop.code
        captured = capsys.readouterr()
        return int(code or 0), captured.out, captured.err  # type: ignore[call-overload]

    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)
