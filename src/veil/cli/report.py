"""`veil report`: one page from one run or many."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from veil.cli.console import print_json, stdout


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.", metavar="RUN...")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file to write.")] = Path("report.html"),
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")] = False,
) -> None:
    """Write one HTML page about one run or several."""
    from veil.report import write_report
    from veil.training import load

    page = write_report([dict(load(run).facts) for run in runs], out)
    if json:
        print_json({"report": str(page), "runs": [str(run) for run in runs]})
    else:
        stdout.print(f"Report: {page.resolve().as_uri()}", soft_wrap=True, highlight=False)
