"""Workflows and hooks call what exists: targets of the Makefile, programs, versions of Python that are promised."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CALLERS = [
    *sorted((ROOT / ".github").rglob("*.yml")),
    *(
        ROOT / name
        for name in (".ci/run", ".pre-commit-config.yaml", "README.md", "CONTRIBUTING.md", "docs/releasing.md")
    ),
]
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def called(text: str) -> set[str]:
    """Targets that a file runs: in a step, on a line of a script, or between backticks.

    >>> sorted(called("- run: make lint\\nmake quick A=b\\nand `make test`, which make sense"))
    ['lint', 'quick', 'test']
    """
    return set(re.findall(r"(?:run: |^\s*|`)make ([a-z]+)", text, re.MULTILINE))


def versions(trove: list[str]) -> set[str]:
    """Versions of Python among classifiers."""
    return {one for line in trove for one in re.findall(r"^Programming Language :: Python :: (3\.\d+)$", line)}


def test_every_target_that_is_called_exists() -> None:
    assert len(TARGETS) > 12
    found = {path.relative_to(ROOT).as_posix(): called(path.read_text(encoding="utf-8")) for path in CALLERS}
    assert found[".github/workflows/tests.yml"] >= {"lint", "type", "test", "wheel", "site"}
    assert {name: targets - TARGETS for name, targets in found.items() if targets - TARGETS} == {}


def test_a_target_that_does_not_exist_is_found() -> None:
    assert called("      - run: make lnit\n") - TARGETS == {"lnit"}


def test_every_version_of_python_that_is_promised_is_tested() -> None:
    promised = versions(PROJECT["classifiers"])
    assert f">={min(promised)}" == PROJECT["requires-python"]
    workflow = (ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8")
    (matrix,) = re.findall(r"python: \[(.*)\]", workflow)
    assert promised <= set(re.findall(r"3\.\d+", matrix))


def test_hooks_before_a_commit_are_what_lint_and_type_run() -> None:
    hooks = set(re.findall(r"entry: \.venv/bin/(\w+)", (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert hooks == set(re.findall(r"\$\(BIN\)/(ruff|mypy)", makefile))
