"""`veil report`: one page from one run or many."""

from __future__ import annotations

from json import loads
from pathlib import Path
from typing import Annotated, Any

import typer

from veil.cli.console import print_json, stdout
from veil.cli.options import Json, Require
from veil.cli.requiring import checked_requirements, judge, print_verdict
from veil.errors import InputError
from veil.errors import require as check


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or the folder of a comparison.", metavar="RUN...")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file to write.")] = Path("report.html"),
    require: Require = None,
    json: Json = False,
) -> None:
    """Write one HTML page about one run or several. Exit code 1: a requirement is not met."""
    from veil.report import read_audits, write_report
    from veil.report.requirements import asked_of
    from veil.training import load

    check(out.parent.is_dir(), f"there is no folder {out.parent}: create it, or choose another path with --out")
    given = checked_requirements(require)
    folders = [folder for given in runs for folder in _run_folders(given)]
    records = [dict(load(folder).record) for folder in folders]
    wanted = given or asked_of(records)
    page = write_report(records, out, requirements=wanted, audits=read_audits(folders))
    checks = judge(records, wanted)
    if json:
        found: dict[str, Any] = {"report": str(page), "runs": [str(folder) for folder in folders]}
        print_json({**found, **checks.as_json()})
    else:
        print_verdict(checks)
        stdout.print(f"Report: {page.resolve().as_uri()}", soft_wrap=True, highlight=False)
    if not checks.met:
        raise typer.Exit(1)


def _run_folders(given: Path) -> list[Path]:
    """The folder itself, or the runs of a comparison in the order of its table."""
    if not (given / "comparison.json").exists():
        return [given]
    path = given / "comparison.json"
    try:
        rows = loads(path.read_text(encoding="utf-8")).get("rows") or []
    except ValueError as error:
        raise InputError(f"{path} is not a JSON file: {error}") from error
    check(len(rows) > 0, f"{given} contains no finished run")
    return [given / Path(row["run"]).name for row in rows]
