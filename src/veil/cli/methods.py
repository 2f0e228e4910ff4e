"""`veil methods`: every method in one line."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

import veil
from veil.cli.console import print_json, stdout


def read_table() -> list[dict[str, Any]]:
    """What `veil.methods.table()` gives, as `make docs` wrote it: to load the methods takes ten times as long."""
    path = Path(veil.__file__).with_name("methods") / "table.json"
    found: list[dict[str, Any]] = json_format.loads(path.read_text(encoding="utf-8"))
    return found


def methods(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON list on standard output.")] = False,
) -> None:
    """List the methods: family, relation and what each is for."""
    rows = read_table()
    if json:
        print_json(rows)
        return
    page = Table(title_justify="left")
    for heading in ("method", "family", "relation", "what it does"):
        page.add_column(heading, no_wrap=heading == "method")
    for row in rows:
        page.add_row(row["name"], row["family"], row["relation"] or "–", row["summary"])
    stdout.print(page)
