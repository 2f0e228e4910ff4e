"""The server: loopback only, a few threads, and bounds on what a connection may hold."""

from __future__ import annotations

import logging
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from waitress.server import create_server

from veil.errors import InputError
from veil.ui.app import create_app
from veil.ui.guard import Guard

LOOPBACK = "127.0.0.1"
THREADS = 8


@dataclass(frozen=True)
class Server:
    """A server that has its port and waits to be run."""

    guard: Guard
    waiting: Any

    def run(self) -> None:
        """Serve until the process is interrupted."""
        self.waiting.run()

    def close(self) -> None:
        """Give the port back."""
        self.waiting.close()


def make_server(root: Path, store: str, port: int = 0) -> Server:
    """A server for the runs of a folder.

    Args:
        root: The folder of runs.
        store: The budget store, as for `veil budget`.
        port: A port of the loopback interface; 0 for any that is free.

    Returns:
        The server, bound to its port. `server.guard.address` is what to open.

    Raises:
        InputError: The port is taken.
    """
    own = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        own.bind((LOOPBACK, port))
    except OSError as error:
        own.close()
        raise InputError(f"port {port} cannot be used ({error.strerror}): choose another with --port") from error
    # On a busy machine a request waits for a moment, and waitress would warn of each.
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)
    guard = Guard(own.getsockname()[1])
    waiting = create_server(
        create_app(root, store, guard),
        sockets=[own],
        threads=THREADS,
        ident=None,
        connection_limit=100,
        channel_timeout=30,
        max_request_header_size=16384,
        max_request_body_size=1024,
    )
    return Server(guard, waiting)
