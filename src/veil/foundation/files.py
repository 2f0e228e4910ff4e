"""Atomic files: written to a temporary file, flushed to disk, then renamed; and the cache folder."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

OWNER_ONLY = 0o600
FOR_ALL = 0o644


def write_whole(path: Path, content: bytes, mode: int = OWNER_ONLY) -> None:
    """Write a file atomically: to a temporary file, flushed to disk, then renamed."""
    part = _part(path)
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    flush_folder(path.parent)


def flush_folder(path: Path) -> None:
    """Wait until the names in a folder are on disk."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def remove(path: Path) -> None:
    """Delete a file, and what a crash may have left of writing it."""
    for file in (path, _part(path)):
        file.unlink(missing_ok=True)


def cache_folder() -> Path:
    """Where converted data is kept: VEIL_CACHE, or a folder of the user's cache."""
    named = os.environ.get("VEIL_CACHE")
    base = os.environ.get("XDG_CACHE_HOME")
    folder = Path(named) if named else (Path(base) if base else Path.home() / ".cache") / "veil"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _part(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")
