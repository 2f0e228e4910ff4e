"""Every block of Python on a page runs, in the order of the page. Pages with a test of their own are left to it."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import veil
from veil.datasets import GroupSpec, generate
from veil.request import Request
from veil.tables.table_run import train_table

ROOT = Path(__file__).parents[2]
# Pages whose own tests run them: tests/tables/test_tables_page.py, tests/docs/test_pages.py, tests/budget_store, …
ELSEWHERE = {"tables.md", "data.md", "your-own-model.md", "methods/your-own.md", "budgets.md", "gradients.md"}
ELSEWHERE |= {"distributed.md"}
# The same at a size that takes a moment.
SMALLER = {"canaries=20_000": "canaries=200", "steps=200, batch_size=1000": "steps=5, batch_size=50"}
# Packages that a page names and that need not be there; the extra `packages` has them.
OPTIONAL = {"command-line.md": ("mlflow", "tensorboard")}
# A run in the folder `run`, which a page speaks of after its `veil train`.
WITH_RUN = {"methods/auto.md"}
# What running a page must leave behind.
LEFT = {"command-line.md": ("events.out.tfevents.*", "ml*"), "README.md": ("report.html",)}


def blocks_of(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)


PAGES = {
    page.relative_to(ROOT / "docs").as_posix(): page
    for page in sorted((ROOT / "docs").rglob("*.md"))
    if blocks_of(page) and "results" not in page.parts
} | {"README.md": ROOT / "README.md"}


def stage() -> dict[str, Any]:
    """What pages speak of without making it: a problem, a model, arrays, finished runs."""
    problem = generate([GroupSpec("a", 300), GroupSpec("b", 100)])
    inputs, targets = problem.batch(np.arange(400))
    run = veil.fit(torch.nn.Linear(10, 2), problem, method="dp-sgd", steps=2, batch_size=50, evaluation=problem)
    sex = ["f" if k % 2 else "m" for k in range(400)]
    made = {"problem": problem, "public_rows": problem, "model": torch.nn.Linear(10, 2), "runs": [run]}
    return made | {
        "X": inputs.numpy(),
        "y": targets.numpy(),
        "x": inputs,
        "sex": sex,
        "race": sex,
        "torch": torch,
        "veil": veil,
    }


def leave_run() -> None:
    """What `veil train people.csv --target income --group sex --out run` leaves, of a small table."""
    ages = [20 + k * 37 % 50 for k in range(300)]
    rows = {"age": ages, "sex": ["f", "m"] * 150, "income": ["high" if age > 45 else "low" for age in ages]}
    pd.DataFrame(rows).to_csv("people.csv", index=False)
    train_table(Request.checked(data="people.csv", target="income", group=("sex",)), out=Path("run"))


@pytest.mark.parametrize("name", sorted(set(PAGES) - ELSEWHERE))
def test_the_code_on_a_page_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in OPTIONAL.get(name, ()):
        pytest.importorskip(package, reason=f"{package} is not installed: docs/{name} was not run")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DO_NOT_TRACK", "true")  # what MLflow would send home
    space: dict[str, Any] = {"__name__": "page", **stage()}
    if name in WITH_RUN:
        leave_run()
    with warnings.catch_warnings():
        if name in OPTIONAL:
            warnings.simplefilter("ignore")  # what other packages say
        for block in blocks_of(PAGES[name]):
            for large, small in SMALLER.items():
                block = block.replace(large, small)
            exec(compile(block, name, "exec"), space)
    assert [file for file in LEFT.get(name, ()) if not list(tmp_path.rglob(file))] == []


def unfenced(page: str) -> list[str]:
    """Indented lines that are code: nothing runs them. Formulas are indented too."""
    prose = re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)
    lines = re.findall(r"^ {4}(\S.*)$", prose, flags=re.MULTILINE)
    return [line for line in lines if re.match(r"(veil|python|pip|import|from) |.*\b[a-z_]{3,}\.[a-z_]+\(", line)]


def test_code_stands_in_fences_where_it_is_run() -> None:
    pages = [page for page in (ROOT / "docs").rglob("*.md") if "results" not in page.parts]
    found = {page.name: unfenced(page.read_text(encoding="utf-8")) for page in pages}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_code_outside_fences_is_found() -> None:
    page = "Text\n\n    import veil\n    x = veil.fit(y)\n\n    g̃ = (Σ gᵢ + N(0, σ²)) / b\n    veil train a.csv\n"
    assert unfenced(page) == ["import veil", "x = veil.fit(y)", "veil train a.csv"]


def test_pages_that_are_tested_elsewhere_are_named_there() -> None:
    tests = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("test_*.py"))
    for name in ELSEWHERE:
        assert f'"{Path(name).name}"' in tests, name
