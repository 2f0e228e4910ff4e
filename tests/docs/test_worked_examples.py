"""The worked examples of CONTRIBUTING.md are true: each patch applies, is small, passes the linter, and works."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.example_worker import SHOWN

ROOT = Path(__file__).parents[2]
MOST_SOURCE_FILES = 2


def worked_examples() -> dict[str, str]:
    """The patch under each heading of the section "Worked examples"."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = page.split("\n## Worked examples\n")[1].split("\n## ")[0]
    parts = (part.partition("\n") for part in section.split("\n### ")[1:])
    return {
        title: "".join(re.findall(r"^```diff\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)) for title, _, text in parts
    }


EXAMPLES = worked_examples()


def changed(patch: str) -> list[str]:
    return re.findall(r"^diff --git a/\S+ b/(\S+)$", patch, re.MULTILINE)


def patched(title: str, folder: Path) -> Path:
    """A copy of the source tree with the example applied."""
    copy = folder / "veil"
    for name in ("src", "tests", "scripts", "docs/methods"):
        shutil.copytree(ROOT / name, copy / name)
    shutil.copy(ROOT / "pyproject.toml", copy)
    # Without a ceiling, git would look for a repository around the copy and leave out what is not in it.
    alone = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder)}
    command = ["git", "apply", "--whitespace=nowarn", "-"]
    done = subprocess.run(
        command, input=EXAMPLES[title], cwd=copy, env=alone, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f'the example "{title}" does not apply: {done.stderr}'
    return copy


def run(copy: Path, *words: str) -> None:
    found = {**os.environ, "PYTHONPATH": str(copy / "src")}
    done = subprocess.run([sys.executable, *words], cwd=copy, env=found, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_worked_example_is_run() -> None:
    assert list(EXAMPLES) == list(SHOWN)


@pytest.mark.parametrize("title", EXAMPLES)
def test_a_worked_example_changes_at_most_two_source_files(title: str) -> None:
    sources = [file for file in changed(EXAMPLES[title]) if file.startswith("src/")]
    assert 1 <= len(sources) <= MOST_SOURCE_FILES


@pytest.mark.parametrize("title", EXAMPLES)
def test_a_worked_example_applies_and_passes_the_linter(title: str, tmp_path: Path) -> None:
    copy = patched(title, tmp_path)
    files = [file for file in changed(EXAMPLES[title]) if file.endswith(".py")]
    run(copy, "-m", "ruff", "check", "--no-cache", *files)
    run(copy, "-m", "ruff", "format", "--check", "--no-cache", *files)


@pytest.mark.slow
@pytest.mark.parametrize("title", EXAMPLES)
def test_a_worked_example_adds_what_it_says(title: str, tmp_path: Path) -> None:
    run(patched(title, tmp_path), "-m", "tests.docs.example_worker", title)
