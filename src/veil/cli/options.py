"""The options that several commands share, each written once: its type, its help, its completion."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from veil.cli.completing import complete_requirement
from veil.cli.config_file import read_config_file

Config = Annotated[
    Path | None, typer.Option(help="A TOML file with any of these options.", is_eager=True, callback=read_config_file)
]
PrintConfig = Annotated[bool, typer.Option("--print-config", help="Print a TOML file with every option and exit.")]
Require = Annotated[
    list[str] | None,
    typer.Option(
        help="A requirement, METRIC>=VALUE: worst_group_accuracy>=0.6. Exit code 1 if it is not met. Repeatable.",
        autocompletion=complete_requirement,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Suppress progress and messages.")]
Store = Annotated[
    str,
    typer.Option(envvar="VEIL_BUDGET", help="An SQLite file, or the URL of a PostgreSQL database: postgresql://…"),
]
