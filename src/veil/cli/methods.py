"""`veil methods`: every method in one line."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from veil.cli.console import print_json, stdout


def methods(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON list on standard output.")] = False,
) -> None:
    """List the methods: family, relation and what each is for."""
    from veil.methods import table

    rows = table()
    if json:
        print_json(rows)
        return
    page = Table(title_justify="left")
    for heading in ("method", "family", "relation", "what it does"):
        page.add_column(heading, no_wrap=heading == "method")
    for row in rows:
        page.add_row(row["name"], row["family"], row["relation"] or "–", row["summary"])
    stdout.print(page)
