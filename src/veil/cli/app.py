"""The `veil` program: collects the commands and turns errors into one sentence and an exit code."""

from __future__ import annotations

import os
import sys

import typer

import veil
from veil.accounting.events import AccountingError
from veil.cli.account import account_app
from veil.cli.compare import compare
from veil.cli.console import say_error
from veil.cli.data import data_app
from veil.cli.demo import demo
from veil.cli.methods import methods
from veil.cli.report import report
from veil.cli.train import train
from veil.cli.verify import verify
from veil.errors import InputError

app = typer.Typer(
    name="veil",
    help="Train models with differential privacy that leave no group behind.",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(demo)
app.command()(train)
app.command()(compare)
app.command()(methods)
app.command()(verify)
app.command()(report)
app.add_typer(account_app, name="account")
app.add_typer(data_app, name="data")


def _version(value: bool) -> None:
    if value:
        typer.echo(f"veil {veil.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", help="Print the version and stop.", callback=_version, is_eager=True
    ),
) -> None:
    """Train models with differential privacy that leave no group behind."""


def main() -> None:
    """Run the program. Exit code 0: done; 1: a check failed; 2: wrong input, said in one sentence."""
    try:
        app()
    except (InputError, AccountingError) as error:
        say_error(str(error))
        sys.exit(2)
    except BrokenPipeError:
        # The reader of our output has gone; there is nobody to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt:
        say_error("interrupted: what was spent until now stands in the ledger")
        sys.exit(130)
    except OSError as error:
        say_error(f"{error.strerror or error}: {error.filename}" if error.filename else str(error))
        sys.exit(2)
