"""A real PostgreSQL server in a temporary folder, run by a user without rights and reached by a socket there."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path


def why_not() -> str | None:
    """Why there can be no server here, or None if there can."""
    if _program("initdb") is None:
        return "no PostgreSQL is installed: `make test` installs it where it may"
    if importlib.util.find_spec("psycopg") is None:
        return "psycopg is not installed: pip install 'veil-dp[postgres]'"
    if os.geteuid() == 0 and _user() is None:
        return "PostgreSQL does not run as root, and there is no user postgres or nobody"
    return None


def _program(name: str) -> str | None:
    found = shutil.which(name)
    if found is not None:
        return found
    versions = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda p: float(p.parts[-3]))
    return str(versions[-1]) if versions else None


def _user() -> pwd.struct_passwd | None:
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    return known.get("postgres") or known.get("nobody")


class Server:
    """Started when made; `restart` is what a crash of the machine looks like to those who are connected."""

    def __init__(self) -> None:
        # The path of a socket is short: not below pytest's own folder, which its user could not enter either.
        self.folder = Path(tempfile.mkdtemp(prefix="veil-pg-"))
        user = _user() if os.geteuid() == 0 else None
        self._as = {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        if user is not None:
            os.chown(self.folder, user.pw_uid, user.pw_gid)
        self._run("initdb", "-D", "data", "-U", "veil", "-A", "trust", "-E", "UTF8", "--no-instructions")
        # The store must not depend on a server's defaults: these two would let it lose or overspend.
        with (self.folder / "data" / "postgresql.conf").open("a") as settings:
            settings.write("synchronous_commit = off\ndefault_transaction_isolation = 'repeatable read'\n")
        self.start()

    @property
    def url(self) -> str:
        """Where the store is."""
        return f"postgresql://veil@/postgres?host={self.folder}"

    def start(self) -> None:
        """Start it and wait until it answers."""
        options = f"-c listen_addresses='' -k {self.folder} -c max_connections=100"
        self._run("pg_ctl", "-D", "data", "-w", "-l", "log", "-o", options, "start")

    def restart(self) -> None:
        """Stop without any care for who is connected, and start again."""
        self._run("pg_ctl", "-D", "data", "-w", "-m", "immediate", "stop")
        self.start()

    def close(self) -> None:
        """Stop it and remove everything."""
        self._run("pg_ctl", "-D", "data", "-w", "-m", "immediate", "stop")
        shutil.rmtree(self.folder)

    def _run(self, name: str, *words: str) -> None:
        program = _program(name)
        assert program is not None
        # No pipe: the server would keep it open for ever.
        subprocess.run(
            [program, *words],
            check=True,
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C", "HOME": str(self.folder)},
            **self._as,  # type: ignore[call-overload]
        )
