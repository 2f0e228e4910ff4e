"""A benchmark that got slower fails the build; one that vanished does too."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from benchmarks import thresholds
from benchmarks.thresholds import Rows, Threshold, measure, passed, read_thresholds

SLOW = Threshold("startup", {"command": "veil --help"}, "ratio", 0.25)


def suite(ratio: float) -> Rows:
    return [{"command": "import torch", "ratio": 1.0}, {"command": "veil --help", "ratio": ratio}]


@pytest.mark.parametrize(("ratio", "complaints"), [(0.2, 0), (0.25, 0), (0.26, 1), (float("nan"), 1)])
def test_a_figure_above_its_threshold_is_named(ratio: float, complaints: int) -> None:
    found = passed([SLOW], measure([SLOW], lambda _: suite(ratio)))
    assert len(found) == complaints
    assert all("veil --help" in sentence and "0.25" in sentence for sentence in found)


def test_a_row_that_is_not_measured_any_more_is_an_error() -> None:
    with pytest.raises(LookupError, match="no such row"):
        measure([SLOW], lambda _: [{"command": "import torch", "ratio": 1.0}])


def test_every_suite_runs_once_however_many_thresholds_it_has() -> None:
    runs: list[str] = []
    measure([SLOW, SLOW], lambda name: [*map(runs.append, [name])] and suite(0.1))  # type: ignore[func-returns-value]
    assert runs == ["startup"]


def test_a_failing_build_says_so_and_keeps_the_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(thresholds, "read_thresholds", lambda: [SLOW])
    startup = importlib.import_module("benchmarks.startup")
    for ratio, code in ((0.1, 0), (0.9, 1)):
        monkeypatch.setattr(startup, "run", lambda repeats, quick, ratio=ratio: suite(ratio))
        with pytest.raises(SystemExit) as stop:
            thresholds.main(["--history", str(tmp_path / "history.jsonl")])
        assert stop.value.code == code
    assert "it must be at most 0.25" in capsys.readouterr().err
    assert len((tmp_path / "history.jsonl").read_text().splitlines()) == 2


def test_the_file_names_suites_that_exist() -> None:
    named = {threshold.suite for threshold in read_thresholds()}
    assert all(hasattr(importlib.import_module(f"benchmarks.{name}"), "run") for name in named)
    assert named == {"startup", "loop", "planning", "architectures", "ino"}


def test_ino_sgd_may_cost_three_percent_of_a_step_and_its_rows_are_measured() -> None:
    own = [threshold for threshold in read_thresholds() if threshold.suite == "ino"]
    assert own
    rows = importlib.import_module("benchmarks.ino").run(1, quick=True)
    assert len(measure(own, lambda _: rows)) == len(own)
    assert all(threshold.most == 3.0 for threshold in own)
