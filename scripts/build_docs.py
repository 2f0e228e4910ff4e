"""Rewrite the pages that are made from code: `make docs`.

The index of methods comes from the registry, the list of options from the commands; the ε table of docs/methods/fdpg.md
is computed anew.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from veil import methods
from veil.cli.app import app

ROOT = Path(__file__).parents[1]
INDEX = ROOT / "docs" / "methods" / "README.md"
OPTIONS = ROOT / "docs" / "options.md"
TABLE = ROOT / "src" / "veil" / "methods" / "table.json"
# Methods that share a page with others.
PAGES = dict.fromkeys(("erm", "is-sgd", "iw-sgd", "gdro", "adversarial"), "not-private")
PAGES |= dict.fromkeys(("azb", "azb-prop", "azb-weak"), "azb")


def index() -> str:
    """One line per method, by family."""
    lines = [
        "# Methods",
        "",
        "The default is [`auto`](auto.md). `veil methods` prints this list; `make docs` writes it.",
        "",
    ]
    rows = methods.table()
    families = list(dict.fromkeys(row["family"] for row in rows))
    for family in sorted(families, key=lambda family: family == "not private"):  # these are for comparison
        own = [row for row in rows if row["family"] == family]
        relations = " or ".join(sorted({row["relation"] for row in own if row["relation"]}))
        said = f"Neighbouring relation: {relations}." if relations else "For comparison: they have no ε."
        lines += [f"## {family.capitalize()}", "", said, "", "| method | what it does |", "|---|---|"]
        lines += [f"| [`{row['name']}`]({PAGES.get(row['name'], row['name'])}.md) | {row['summary']} |" for row in own]
        lines.append("")
    return "\n".join([*lines, "[Your own method in forty lines](your-own.md).", ""])


def table() -> str:
    """The same as data, for commands that list methods without loading them."""
    return json.dumps(methods.table(), indent=1, ensure_ascii=False) + "\n"


def commands(command: Any, words: str) -> Iterator[tuple[str, Any]]:
    """Every command with the words that call it, those of a group behind each other."""
    if below := getattr(command, "commands", None):
        for name, inner in below.items():
            yield from commands(inner, f"{words} {name}")
    else:
        yield words, command


def options() -> str:
    """Every argument and option of every command."""
    lines = ["# All options", "", "Made by `make docs` from the commands themselves: what `--help` shows.", ""]
    for words, command in commands(typer.main.get_command(app), "veil"):
        lines += [f"## `{words}`", "", _sentence(command.help), "", "| argument or option | meaning |", "|---|---|"]
        lines += [f"| {_names(asked)} | {_meaning(asked)} |" for asked in command.params if not asked.hidden]
        lines.append("")
    return "\n".join(lines)


def _names(asked: Any) -> str:
    """How it is typed: an argument by its name in capitals, an option with what follows it."""
    if asked.param_type_name == "argument":
        return f"`{asked.metavar or asked.name.upper()}`"
    names = [*asked.opts, *asked.secondary_opts]
    value = "" if asked.is_flag else f" {asked.metavar or asked.name.upper()}"
    return ", ".join(f"`{name}`" for name in [*names[:-1], names[-1] + value])


def _meaning(asked: Any) -> str:
    said, usual = _sentence(asked.help), asked.default
    plain = isinstance(usual, str | int | float) and not isinstance(usual, bool) and usual != ""
    return f"{said} Default: `{usual}`." if plain else said


def _sentence(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


if __name__ == "__main__":
    INDEX.write_text(index(), encoding="utf-8")
    OPTIONS.write_text(options(), encoding="utf-8")
    TABLE.write_text(table(), encoding="utf-8")
    subprocess.run([sys.executable, "-m", "experiments.fdpg_accounting"], check=True, cwd=ROOT)
    print(f"wrote {INDEX.relative_to(ROOT)}, {OPTIONS.relative_to(ROOT)} and the table of docs/methods/fdpg.md")
