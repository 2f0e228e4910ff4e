"""`veil train` on a table that nobody prepared."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tables.table_cases import messy
from veil.cli.app import main


@pytest.fixture
def table_path(tmp_path: Path) -> Path:
    messy().to_csv(tmp_path / "shop.csv", index=False)
    return tmp_path / "shop.csv"


class Outcome:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def answer(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def train(table_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    def run(*words: str, data: Path = table_path, roles: bool = True) -> Outcome:
        named = ["--target", "bought", "--group", "region"] if roles else []
        fixed = ["--epochs", "2", "--batch-size", "64", "--seed", "1", "--json"]
        if not {"--budgets", "--row-budgets"} & set(words):
            fixed += ["--epsilon", "8"]
        monkeypatch.setattr(
            sys, "argv", ["veil", "train", str(data), *named, *fixed, "--out", str(tmp_path / "run"), *words]
        )
        try:
            main()
            code: Any = 0
        except SystemExit as stop:
            code = stop.code
        captured = capsys.readouterr()
        return Outcome(int(code or 0), captured.out, captured.err)

    return run
