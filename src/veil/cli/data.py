"""`veil data`: list, describe and download data sets, look at a table, and draft a schema for it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from veil.cli.console import print_json, stderr, stdout
from veil.cli.fields import asks, values_of
from veil.cli.options import Json
from veil.errors import require
from veil.foundation.words import listed
from veil.request import Request, RowsRequest

data_app = typer.Typer(
    help="Data sets, a look at your table, and schemas.", no_args_is_help=True, rich_markup_mode=None
)


@data_app.command("list")
def list_data(json: Json = False) -> None:
    """All data sets, and whether their files are there."""
    from veil.datasets.registry import DATASETS

    rows = [_short(name) for name in DATASETS]
    if json:
        print_json({"datasets": rows})
        return
    table = Table(title="Data sets", title_justify="left")
    for heading in ("name", "what it is", "groups", "here"):
        table.add_column(heading)
    for row in rows:
        table.add_row(row["name"], row["summary"], row["groups"], "yes" if row["present"] else "no")
    stdout.print(table)


@data_app.command("info")
def info(name: Annotated[str, typer.Argument(help="A data set; see `veil data list`.")], json: Json = False) -> None:
    """Files, checksums, licence and groups of one data set."""
    from veil.datasets.registry import dataset

    found = dataset(name)
    files = [{"path": f.path, "sha256": f.sha256, "url": f.url} for f in found.files]
    record = {**_short(name), "licence": found.licence, "files": files}
    if json:
        print_json(record)
        return
    stdout.print(f"{found.name}: {found.summary}", highlight=False)
    stdout.print(f"groups: {found.groups}\nlicence: {found.licence}", highlight=False)
    if not files:
        stdout.print("It is bundled with the package.")
    for file in files:
        stdout.print(f"file: {file['path']}", soft_wrap=True, highlight=False)
        stdout.print(f"  sha256: {file['sha256'] or 'none published'}", soft_wrap=True, highlight=False)
        stdout.print(f"  from: {file['url'] or 'no public address: see its licence'}", soft_wrap=True, highlight=False)


@data_app.command("fetch")
def fetch(name: Annotated[str, typer.Argument(help="A data set; see `veil data list`.")], json: Json = False) -> None:
    """Download the files of a data set into the folder that VEIL_DATA names, and check them."""
    from veil.datasets.registry import dataset

    places = dataset(name).fetch()
    if json:
        print_json({"name": name, "files": places})
        return
    for place in places or ["It is bundled with the package: no download needed."]:
        stdout.print(place, soft_wrap=True, highlight=False)


MOST_SHOWN = 200


@data_app.command("check")
@asks(RowsRequest)
def check(context: typer.Context, json: Json = False) -> None:
    """Look at a table before anything is spent: roles of columns, and what a careful colleague would point out.

    It reads private rows: its output is for whoever may see them. With --schema only names of columns are looked at.
    """
    from veil.tables.checking import check_table

    found = check_table(Request.checked(**values_of(RowsRequest, context)))
    if json:
        print_json(found.as_json())
        return
    page = Table(title="Columns", title_justify="left")
    for heading in ("column", "role", "how it is learned, or why it is left out"):
        page.add_column(heading)
    uses = found.uses
    if len(uses) > MOST_SHOWN:  # those with a role of their own come first
        uses = tuple(sorted(uses, key=lambda use: use.role in ("feature", "left out"))[:MOST_SHOWN])
    for use in uses:
        page.add_row(*(text.replace("[", r"\[") for text in (use.column, use.role, use.how)))
    stdout.print(page)
    if len(found.uses) > MOST_SHOWN:
        stdout.print(f"And {len(found.uses) - MOST_SHOWN:,} more columns: --json lists all.", highlight=False)
    stdout.print(f"\n{found.task}", soft_wrap=True, highlight=False, markup=False)
    for name, rows in found.groups.items():
        stdout.print(
            f"  {name}: {rows:,} {'row' if rows == 1 else 'rows'}", soft_wrap=True, highlight=False, markup=False
        )
    for remark in found.remarks:
        stdout.print(f"- {remark.sentence}", soft_wrap=True, highlight=False, markup=False)
    if not found.remarks:
        stdout.print("Nothing to remark.")
    if found.from_rows:
        stderr.print("This look read private rows without noise: do not publish it.", highlight=False)


@data_app.command("schema")
def schema(
    table: Annotated[Path, typer.Argument(help="The table to draft a schema for.")],
    target: Annotated[str | None, typer.Option(help="Column to predict.")] = None,
    group: Annotated[str, typer.Option(help="Group columns, comma-separated.")] = "",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File to write. [default: standard output]")] = None,
    json: Json = False,
) -> None:
    """Draft a schema from the rows. Values taken from private rows are marked: replace them with public knowledge."""
    from veil.tables import draft_schema, read_table
    from veil.tables.schema import PRIVATE_NOTE
    from veil.tables.table import require_columns

    groups = listed(group)
    rows = read_table(table)
    require_columns(rows, [*([target] if target else []), *groups])
    draft = draft_schema(rows, target, groups)
    text = _HEADING.format(mark=PRIVATE_NOTE) + draft.to_toml(PRIVATE_NOTE)
    if out is not None:
        require(not out.exists(), f"{out} exists already: choose another name with --out")
        out.write_text(text, encoding="utf-8")
    if json:
        columns = {column.name: column.kind for column in draft.columns}
        print_json({"schema": None if out is None else str(out), "columns": columns, "read_from_private_rows": True})
    elif out is None:
        typer.echo(text)
    else:
        stderr.print(f"Wrote {out}: replace every line marked {PRIVATE_NOTE}.", soft_wrap=True, highlight=False)


_HEADING = """# A draft, taken from the rows. It is public knowledge only after you have replaced every line that is
# marked {mark} with what everybody may know; the kinds were guessed from the rows too.

"""


def _short(name: str) -> dict[str, Any]:
    from veil.datasets.registry import dataset

    found = dataset(name)
    here = found.present() if os.environ.get("VEIL_DATA") or not found.files else False
    return {"name": found.name, "summary": found.summary, "groups": found.groups, "present": here}
