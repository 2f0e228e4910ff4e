"""Command lines on pages are true: every `veil …` names commands and options that exist, and the cheap ones run."""

from __future__ import annotations

import doctest
import functools
import re
import runpy
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from veil import methods
from veil.cli.app import app

ROOT = Path(__file__).parents[2]
PAGES = [
    *(page for page in (ROOT / "docs").rglob("*.md") if "results" not in page.parts and page.name != "options.md"),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "SECURITY.md", "examples/README.md")),
]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "newcomer.py"))
# Words in capitals stand for something of the reader's: a run, a file, a method.
PLACEHOLDER = re.compile(r"\b[A-Z]{2,}\b")
# Commands that read nothing but what the package has.
CHEAP = ("veil account ", "veil data list", "veil data info ", "veil methods")
# Files that lines name, which a page speaks of without making them.
HERE = {"people.csv", "budgets.csv"}


def lines_of(page: Path) -> list[str]:
    return [line for line in SCRIPT["commands"](page.read_text(encoding="utf-8")) if line.startswith("veil ")]


LINES = {page.relative_to(ROOT).as_posix(): lines for page in sorted(PAGES) if (lines := lines_of(page))}


@functools.cache
def program() -> Any:
    """All commands with their options."""
    return typer.main.get_command(app)


def faults(line: str) -> list[str]:
    """Commands and options of a line that Veil does not have."""
    command = program()
    words = shlex.split(line)[1:]
    words = words[: words.index(">")] if ">" in words else words
    while hasattr(command, "commands"):
        if not words or PLACEHOLDER.fullmatch(words[0]):
            return []
        if words[0].startswith("-"):
            break
        if words[0] not in command.commands:
            return [f"{line}: there is no command {words[0]}"]
        command, words = command.commands[words[0]], words[1:]
    known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)} | {"--help"}
    asked = [word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)]
    return [f"{line}: there is no option {word}" for word in asked if word not in known]


def test_every_command_line_on_a_page_has_commands_and_options_that_exist() -> None:
    assert sum(map(len, LINES.values())) > 120
    assert [fault for lines in LINES.values() for line in lines for fault in faults(line)] == []


def test_a_command_or_an_option_that_does_not_exist_is_found() -> None:
    assert faults("veil train people.csv --targets income")
    assert faults("veil trein people.csv")
    assert faults("veil data chek people.csv")
    assert faults("veil COMMAND --help") == []
    assert faults("veil verify RUN") == []


def test_the_parser_of_pages_does_what_its_examples_say() -> None:
    examples = doctest.DocTestFinder().find(SCRIPT["commands"], "commands", globs=SCRIPT)
    results = [doctest.DocTestRunner(verbose=False).run(example) for example in examples]
    assert sum(one.attempted for one in results) == 2
    assert sum(one.failed for one in results) == 0


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that lines name: a part of UCI Adult, cut between two hospitals."""
    from veil.datasets import load_adult

    folder = tmp_path_factory.mktemp("lines")
    rows = load_adult()[0].sample(2000, random_state=0).drop(columns="fnlwgt")
    rows["hospital"] = ["north", "south"] * 1000
    rows.to_csv(folder / "people.csv", index=False)
    (folder / "budgets.csv").write_text("owner,epsilon\nnorth,1\nsouth,0.5\n", encoding="utf-8")
    return folder


def said(line: str) -> str:
    """What a line prints; fails where it fails."""
    done = CliRunner().invoke(app, shlex.split(line)[1:])
    assert done.exit_code == 0, f"{line}: {done.output} {done.exception}"
    return done.output


def planned(lines: list[str]) -> list[str]:
    """Lines that train on files which are there."""
    trains = [line for line in lines if line.startswith("veil train ") and not PLACEHOLDER.search(line)]
    return [line for line in trains if set(re.findall(r"\S+\.(?:csv|toml)\b", line)) <= HERE and "people.csv" in line]


@pytest.mark.parametrize("name", methods.names())
def test_every_method_has_an_example_on_its_page(name: str) -> None:
    pages = {page: lines for page, lines in LINES.items() if page.startswith("docs/methods/")}
    titles = {page: (ROOT / page).read_text(encoding="utf-8").splitlines()[0] for page in pages}
    (page,) = [page for page, title in titles.items() if f"`{name}`" in title]
    named = [line for line in planned(pages[page]) if "--method" in line]
    assert named, f"{page} has no line that trains with its method"
    mine = {shlex.split(line)[shlex.split(line).index("--method") + 1] for line in named}
    assert mine <= {other for other in methods.names() if f"`{other}`" in titles[page]}


@pytest.mark.parametrize("line", sorted({line for lines in LINES.values() for line in planned(lines)}))
def test_a_line_that_trains_can_be_planned(line: str, table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(table)
    assert "ε" in said(f"{line} --dry-run")


def test_lines_that_train_are_many_and_groups_has_some() -> None:
    assert len({line for lines in LINES.values() for line in planned(lines)}) > 20
    assert planned(LINES["docs/groups.md"])


def cheap() -> list[str]:
    """Lines that read nothing but what the package has, and leave nothing out."""
    whole = {line for lines in LINES.values() for line in lines if line.startswith(CHEAP)}
    return sorted(line for line in whole if not PLACEHOLDER.search(line) and (" --" in line or "account" not in line))


@pytest.mark.parametrize("line", cheap())
def test_a_cheap_line_runs(line: str) -> None:
    assert said(line).strip()
