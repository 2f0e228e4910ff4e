"""`veil ui`: a local page of one's runs."""

from __future__ import annotations

import signal
import threading
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from veil.cli.console import print_json, stderr, stdout
from veil.cli.options import Json, Store
from veil.errors import require
from veil.request.request import STORE


def ui(
    folder: Annotated[Path, typer.Argument(help="The folder that holds your runs.")] = Path(),
    store: Store = STORE,
    port: Annotated[int, typer.Option(help="A port of 127.0.0.1; 0 for any that is free.", min=0, max=65535)] = 0,
    json: Json = False,
) -> None:
    """Show your runs in a browser: filter, compare, read reports and budgets, verify. It changes nothing.

    It answers on this machine only, and only to who has the token in the address that it prints. Ctrl-C ends it.
    """
    require(
        find_spec("flask") is not None and find_spec("waitress") is not None,
        "veil ui needs Flask and waitress: pip install 'veil-dp[ui]'",
    )
    require(folder.is_dir(), f"there is no folder {folder}: name the folder that holds your runs")
    from veil.ui.server import make_server

    server = make_server(folder.resolve(), store, port)
    if json:
        print_json({"address": server.guard.address, "port": server.guard.port, "folder": str(folder)})
    else:
        stdout.print(f"Your runs: {server.guard.address}", soft_wrap=True, highlight=False, markup=False)
        stderr.print("The address has a token: keep it to yourself. Ctrl-C ends the page.", highlight=False)
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _end)
    server.run()


def _end(number: int, frame: FrameType | None) -> None:
    """Ending the page is how it is left: no run is interrupted by it."""
    raise KeyboardInterrupt
