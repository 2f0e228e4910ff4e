"""Connecting: an SQLite file or a PostgreSQL server, transactions that wait for each other, and errors in one sentence.

A commit is on disk when it returns, whatever the server's or the file's defaults are. A connection that breaks is tried
again for a while; every action is idempotent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, DatabaseError, DBAPIError, OperationalError

from veil.errors import InputError, require
from veil.foundation.files import flush_folder

T = TypeVar("T")
PATIENCE = 60.0
_PAUSE = 0.05
_LONGEST_PAUSE = 1.0
_READING = "veil_reading"


class StoreUnreachable(InputError):
    """The store did not respond. The request may or may not have been written."""


def store_url(place: str | Path) -> URL:
    """A file as SQLite, a URL as PostgreSQL.

    >>> store_url("budget.sqlite").get_backend_name(), store_url("postgres://team@db/veil").drivername
    ('sqlite', 'postgresql+psycopg')
    """
    text_ = str(place)
    require(bool(text_), "no budget store is given: name a file or a postgresql:// URL")
    if "://" not in text_:
        return URL.create("sqlite", database=str(Path(text_).expanduser()))
    try:
        url = make_url(text_)
    except (ArgumentError, ValueError) as error:
        # The URL itself is not repeated: it may hold a password.
        raise InputError("the address of the budget store is not a valid URL") from error
    kind = url.drivername.partition("+")[0]
    if kind == "sqlite":
        require(
            bool(url.database) and url.database != ":memory:", "a budget store in memory would be lost: name a file"
        )
        return URL.create("sqlite", database=url.database)
    require(kind in ("postgresql", "postgres"), f"a budget store must be an SQLite file or PostgreSQL, not {kind}")
    return url.set(drivername="postgresql+psycopg")


def shown(url: URL) -> str:
    """The place of the store without its password."""
    if url.get_backend_name() == "sqlite":
        return str(url.database)
    return url.difference_update_query(["password", "sslpassword"]).render_as_string(hide_password=True)


def engine_for(url: URL, patience: float = PATIENCE) -> Engine:
    """An engine whose transactions are durable and, on SQLite, hold the write lock from their first moment."""
    if url.get_backend_name() == "sqlite":
        engine = create_engine(url, poolclass=NullPool, connect_args={"timeout": patience})
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_at_once)
        return engine
    try:
        engine = create_engine(
            url, poolclass=NullPool, isolation_level="READ COMMITTED", connect_args={"connect_timeout": 10}
        )
    except ModuleNotFoundError as error:
        raise InputError("a budget store on PostgreSQL needs psycopg: pip install 'veil-dp[postgres]'") from error
    event.listen(engine, "begin", _commit_on_disk)
    return engine


def _prepare_sqlite(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # transactions are begun by us
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = EXTRA")


def _begin_at_once(connection: Connection) -> None:
    reading = connection.get_execution_options().get(_READING, False)
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")


def _commit_on_disk(connection: Connection) -> None:
    connection.execute(text("SET LOCAL synchronous_commit TO on"))


def read_only(url: URL, patience: float = PATIENCE) -> Engine:
    """An engine that cannot write: an SQLite file is opened for reading, a server is told so."""
    if url.get_backend_name() == "sqlite":
        place = f"file:{quote(str(Path(str(url.database)).absolute()))}"
        return engine_for(URL.create("sqlite", database=place, query={"mode": "ro", "uri": "true"}), patience)
    return engine_for(url).execution_options(postgresql_readonly=True)


def reading(engine: Engine) -> Engine:
    """The same engine for transactions that change nothing: they need no right to write."""
    return engine.execution_options(**{_READING: True})


def patiently(engine: Engine, action: Callable[[Connection], T], patience: float = PATIENCE) -> T:
    """Run `action` in one transaction; retry for a while if the connection breaks or the store is busy."""
    end, pause = time.monotonic() + patience, _PAUSE
    while True:
        try:
            with engine.begin() as connection:
                return action(connection)
        except DBAPIError as error:
            if not _may_pass(error) or time.monotonic() + pause > end:
                raise _in_words(error, engine.url) from error
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


@contextmanager
def in_words(url: URL) -> Iterator[None]:
    """Turn a database's error into one sentence."""
    try:
        yield
    except DBAPIError as error:
        raise _in_words(error, url) from error


def _may_pass(error: DBAPIError) -> bool:
    if "sqlite" in type(error.orig).__module__:
        return "locked" in str(error.orig)
    return error.connection_invalidated or isinstance(error, OperationalError)


def _in_words(error: DBAPIError, url: URL) -> InputError:
    """One sentence. The database's own words are cut to their first line; values that were sent never appear."""
    place, reason = shown(url), (str(error.orig).splitlines() or [type(error.orig).__name__])[0].strip()
    if url.get_backend_name() == "sqlite" and "not a database" in reason:
        return InputError(f"{place} is not a budget store")
    if isinstance(error, OperationalError) or error.connection_invalidated:
        return StoreUnreachable(
            f"the budget store {place} did not respond ({reason}): a reservation in progress may have been written "
            "and then stays charged (see veil budget history)"
        )
    if isinstance(error, DatabaseError):
        return InputError(f"{place} cannot be used as a budget store: {reason}")
    return InputError(f"the budget store {place} failed: {reason}")


def new_file(url: URL) -> None:
    """Create the empty SQLite file, durably, before any table is created in it."""
    path = Path(str(url.database))
    require(path.parent.is_dir(), f"the folder {path.parent} of the budget store does not exist")
    if not path.exists():
        path.touch()
        flush_folder(path.parent)
