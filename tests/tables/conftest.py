"""`veil train` on a table that nobody prepared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.program import Program
from tests.tables.table_cases import messy


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
def train(table_path: Path, tmp_path: Path, veil: Program) -> Any:
    def run(*words: str, data: Path = table_path, roles: bool = True) -> Outcome:
        named = ["--target", "bought", "--group", "region"] if roles else []
        fixed = ["--epochs", "2", "--batch-size", "64", "--seed", "1", "--json"]
        if not {"--budgets", "--row-budgets"} & set(words):
            fixed += ["--epsilon", "8"]
        return Outcome(*veil("train", str(data), *named, *fixed, "--out", str(tmp_path / "run"), *words))

    return run
