"""What the worked examples of CONTRIBUTING.md add, as a newcomer would use it: run in a patched copy of the tree."""

from __future__ import annotations

import contextlib
import io
import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import veil


def printed(*words: str) -> Any:
    """What `veil WORDS --json` prints; where it fails, this program does."""
    from veil.cli import main

    sys.argv = ["veil", *words, "--json"]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            main()
        except SystemExit as stop:
            if stop.code:
                raise SystemExit(f"veil {' '.join(words)} ended with {stop.code}: {out.getvalue()}") from stop
    return json.loads(out.getvalue())


def people(path: str, seed: int) -> str:
    """A table of made-up people, in which age decides who is ill."""
    import numpy as np
    import pandas as pd

    generator = np.random.default_rng(seed)
    age, sex = generator.integers(18, 90, 600), generator.choice(["f", "m"], 600)
    ill = np.where(age + 10 * generator.standard_normal(600) > 50, "yes", "no")
    pd.DataFrame({"age": age, "sex": sex, "ill": ill}).to_csv(path, index=False)
    return path


def an_option() -> None:
    """It is in the help, in the configuration that a run keeps, and it is read."""
    import torch

    words = (people("people.csv", 0), "--target", "ill", "--group", "sex", "--method", "dp-sgd", "--epochs", "1")
    printed("train", *words, "--seed", "1", "--threads", "2", "--out", "run")
    assert torch.get_num_threads() == 2
    assert "threads = 2" in Path("run", "config.toml").read_text(encoding="utf-8")


def a_metric() -> None:
    """It is measured and judged, on public rows and through noise, and stands in the files of the run."""
    table, public = people("people.csv", 0), people("public.csv", 1)
    for out, evaluation in {"noisy": (), "public": ("--test", public)}.items():
        words = (table, "--target", "ill", "--group", "sex", "--method", "dp-sgd", "--epochs", "2", "--seed", "1")
        answer = printed("train", *words, *evaluation, "--require", "worst_group_recall>=0.01", "--out", out)
        (check,) = answer["requirements"]
        stored = json.loads(Path(out, "metrics.json").read_text(encoding="utf-8"))["metrics"]
        assert stored["worst_group_recall"] == min(group["tpr"] for group in stored["by_group"].values())
        assert check["value"] == stored["worst_group_recall"]
        assert check["met"]
        low, high = stored["intervals"]["worst_group_recall"]
        assert low <= high
        twin = json.loads(Path(out, "report.json").read_text(encoding="utf-8"))
        assert twin["further"]["0"]["Worst-group recall"] == stored["worst_group_recall"]
        assert "Worst-group recall" in Path(out, "report.html").read_text(encoding="utf-8")


def a_method() -> None:
    """It is listed, and the tests of every method find it: the neighbour replay, that it learns, and its page."""
    import pytest

    made = runpy.run_path("scripts/build_docs.py")  # make docs
    made["TABLE"].write_text(made["table"](), encoding="utf-8")
    (row,) = [row for row in printed("methods") if row["name"] == "decaying-clip"]
    assert row["private"]
    counter = Counter()
    files = [
        f"tests/{name}.py" for name in ("methods/test_neighbour_replay", "methods/test_purposes", "docs/test_pages")
    ]
    assert pytest.main([*files, "-k", "decaying-clip", "-q", "-p", "no:cacheprovider"], plugins=[counter]) == 0
    assert [sum(test.startswith(file) for test in counter.passed) for file in files] == [5, 1, 2]


class Counter:
    """Which tests passed."""

    def __init__(self) -> None:
        self.passed: list[str] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Called by pytest."""
        if report.when == "call" and report.passed:
            self.passed.append(report.nodeid)


SHOWN: dict[str, Callable[[], None]] = {"A command-line option": an_option, "A metric": a_metric, "A method": a_method}

if __name__ == "__main__":
    assert Path(veil.__file__).is_relative_to(Path.cwd()), "this is not the patched Veil"
    SHOWN[sys.argv[1]]()
