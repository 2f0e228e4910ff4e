"""The options that several commands share, each written once: its type, its help, its completion."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from veil.cli.completing import complete_method, complete_methods, complete_model, complete_requirement
from veil.cli.config_file import read_config_file

Config = Annotated[
    Path | None, typer.Option(help="A TOML file with any of these options.", is_eager=True, callback=read_config_file)
]
PrintConfig = Annotated[
    bool, typer.Option("--print-config", help="Write a TOML file with every option to standard output, and stop.")
]
Target = Annotated[str | None, typer.Option(help="Column to predict.")]
Group = Annotated[str | None, typer.Option(help="Group columns, comma-separated.")]
Method = Annotated[str, typer.Option(help="See `veil methods`.", autocompletion=complete_method)]
Methods = Annotated[
    str, typer.Option(help="Methods, comma-separated; see `veil methods`.", autocompletion=complete_methods)
]
Delta = Annotated[str, typer.Option(help="δ, or auto for 1 / (2 × training rows).")]
Model = Annotated[str, typer.Option(help="A built-in model, or my_module:factory.", autocompletion=complete_model)]
Test = Annotated[Path | None, typer.Option(help="A table whose rows are public, for evaluation.")]
SchemaFile = Annotated[Path | None, typer.Option(help="Public knowledge about the columns; see `veil data schema`.")]
Ignore = Annotated[str, typer.Option(help="Columns to leave out, comma-separated.")]
Epochs = Annotated[float, typer.Option(help="Expected passes over the rows.")]
BatchSize = Annotated[int, typer.Option(help="Expected rows per step.")]
LearningRate = Annotated[float, typer.Option(help="Step size.")]
NoiseFilter = Annotated[str, typer.Option(help="none, or disk: a filter after the noise, for any method.")]
Require = Annotated[
    list[str] | None,
    typer.Option(
        help="What must hold, as METRIC>=VALUE: worst_group_accuracy>=0.6. Exit code 1 if it does not. Repeatable.",
        autocompletion=complete_requirement,
    ),
]
ShowPrivate = Annotated[
    bool,
    typer.Option(
        "--show-private", help="Also measure private rows exactly. The certificate does not cover it, and says so."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Suppress progress and messages.")]
