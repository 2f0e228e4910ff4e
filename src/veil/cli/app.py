"""The `veil` program: collects the commands and turns errors into one sentence and an exit code."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any, NoReturn

import typer

import veil
from veil.accounting.events import AccountingError
from veil.cli.account import account_app
from veil.cli.audit import audit
from veil.cli.budget import budget_app
from veil.cli.compare import compare
from veil.cli.console import say_error, say_warning
from veil.cli.data import data_app
from veil.cli.demo import demo
from veil.cli.export import export
from veil.cli.methods import methods
from veil.cli.plan import plan
from veil.cli.predict import predict
from veil.cli.report import report
from veil.cli.reproduce import reproduce
from veil.cli.train import train
from veil.cli.tune import tune
from veil.cli.ui import ui
from veil.cli.verify import verify
from veil.errors import Caution, InputError

app = typer.Typer(
    name="veil",
    help="Train models with differential privacy that leave no group behind.",
    epilog="Exit codes: 0 done, 1 a check failed, 2 wrong input (one sentence says what), 130 and 143 interrupted.",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(demo)
app.command()(plan)
app.command()(train)
app.command()(predict)
app.command()(export)
app.command()(compare)
app.command()(tune)
app.command()(methods)
app.command()(verify)
app.command()(report)
app.command()(ui)
app.command()(audit)
app.command()(reproduce)
app.add_typer(account_app, name="account")
app.add_typer(data_app, name="data")
app.add_typer(budget_app, name="budget")


def _version(value: bool) -> None:
    if value:
        typer.echo(f"veil {veil.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", help="Print the version and exit.", callback=_version, is_eager=True
    ),
) -> None:
    """Train models with differential privacy that leave no group behind."""


# What a shell shows of a program that a closed pipe ended (128 + SIGPIPE): `veil predict … | head`.
PIPE_CLOSED = 141
NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")


class Stopped(BaseException):
    """A signal asked the program to end. (Typer would catch a KeyboardInterrupt.)"""

    def __init__(self, number: int) -> None:
        super().__init__("Interrupted" if number == signal.SIGINT else "Terminated")
        self.code = 128 + number


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stopped(number)


def _say_stopped(reason: Stopped) -> NoReturn:
    say_error(f"{reason}{_what_stays(sys.argv[1:2])}.")
    sys.exit(reason.code)


def _what_stays(command: list[str]) -> str:
    """What an interrupted command has charged, and how it goes on."""
    if command in (["train"], ["tune"]):
        return ". The reserved budget stays charged; continue a started run with --resume"
    return ". The reserved budget stays charged" if command == ["compare"] else ""


def _end_in_group(code: str | int | None) -> None:
    """End a process of a group at once: torch's threads may abort one that Python takes apart, and stop the others."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_initialized() and code in (0, None):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _plainly(otherwise: Callable[..., None], message: Warning | str, category: type[Warning], *place: Any) -> None:
    """A caution as one plain line; any other warning as Python shows it."""
    if issubclass(category, Caution):
        say_warning(str(message))
    else:
        otherwise(message, category, *place)


def main() -> None:
    """Run the program. Exit code 0: done; 1: a check failed; 2: wrong input, with a one-sentence error."""
    for closed in (name for name in ("stdout", "stderr") if getattr(sys, name) is None):  # `veil … >&-`
        setattr(sys, closed, open(os.devnull, "w"))  # noqa: SIM115 (it stays open to the end)
    if threading.current_thread() is threading.main_thread():  # elsewhere Python lets nobody set a handler
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _stop)
    shown = warnings.showwarning
    warnings.showwarning = partial(_plainly, shown)
    try:
        app()
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # typer ends with 1, which would say that a check failed
            sys.exit(PIPE_CLOSED)
        _end_in_group(end.code)
        raise
    except (InputError, AccountingError) as error:
        say_error(str(error))
        sys.exit(2)
    except BrokenPipeError:
        # The reader of our output has gone; there is nobody to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(PIPE_CLOSED)
    except Stopped as reason:
        _say_stopped(reason)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error.__cause__, Stopped):  # Python 3.11 wraps what is raised while a module defines a class
            _say_stopped(error.__cause__)
        # torch reports a failed allocation as a RuntimeError; anything else is a fault that must be seen whole.
        if not isinstance(error, MemoryError) and not any(words in str(error) for words in NO_MEMORY):
            raise
        say_error("out of memory: set micro_batch in a --config file, and continue with --resume")
        sys.exit(2)
    except OSError as error:
        said = f"{error.strerror}: {error.filename}" if error.filename else str(error.strerror or error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            said += ". The reserved budget stays charged: free some space, then continue with --resume"
        say_error(said)
        sys.exit(2)
