"""Folders of runs as data from elsewhere: no link is followed, sizes are bounded, nothing that is read is trusted."""

from __future__ import annotations

import json
import os
import stat
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from veil.errors import InputError

# A folder with one of these is a run, whatever became of it.
MARKS = frozenset({"run.json", "certificate.json", "ledger.jsonl", "seed.key"})
DEPTH = 3
MOST_FOLDERS = 20_000
MOST_ENTRIES = 5_000
MEGABYTE = 2**20


class Unreadable(InputError):
    """A file that is missing, too large, a link, or not what its name says."""


def run_folders(root: Path) -> Iterator[tuple[Path, frozenset[str]]]:
    """Every folder of a run at or below `root`, with the names in it; nothing below a run, behind a link, or hidden."""
    waiting, seen = [(root, 0)], 0
    while waiting and seen < MOST_FOLDERS:
        folder, depth = waiting.pop()
        seen += 1
        names, below = _look(folder)
        if MARKS & names:
            yield folder, names
        elif depth < DEPTH:
            waiting += [(folder / name, depth + 1) for name in below]


def _look(folder: Path) -> tuple[frozenset[str], list[str]]:
    """The names in a folder, and its own folders; nothing where it may not be read or has gone."""
    names, below = set(), []
    try:
        with os.scandir(folder) as entries:
            for _, entry in zip(range(MOST_ENTRIES), entries, strict=False):
                names.add(entry.name)
                if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                    below.append(entry.name)
    except OSError:
        return frozenset(), []
    return frozenset(names), below


def check_files(folder: Path, most: int) -> None:
    """Raise where something in a folder is not a plain file of a size that can be read, before others open it."""
    for entry in os.scandir(folder):
        found = entry.stat(follow_symlinks=False)
        if stat.S_ISLNK(found.st_mode):
            raise Unreadable(f"{entry.name} is a link, which is not followed here")
        if entry.name.endswith((".json", ".jsonl")) and not (stat.S_ISREG(found.st_mode) and found.st_size <= most):
            raise Unreadable(f"{entry.name} is not a file of at most {most // MEGABYTE} MB")


def read_bytes(folder: Path, name: str, most: int) -> bytes:
    """A plain file of a folder. A link, a pipe and what is larger than `most` bytes are refused.

    Raises:
        Unreadable: With the reason.
    """
    try:
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            # Without O_NONBLOCK a pipe would wait for somebody who writes.
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=place)
        finally:
            os.close(place)
    except FileNotFoundError as error:
        raise Unreadable(f"{name} is missing") from error
    except OSError as error:
        raise Unreadable(f"{name} cannot be opened: {error.strerror}") from error
    with os.fdopen(file, "rb") as opened:
        if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
            raise Unreadable(f"{name} is not a file")
        content = opened.read(most + 1)
    if len(content) > most:
        raise Unreadable(f"{name} is larger than {most // MEGABYTE} MB")
    return content


def read_json(folder: Path, name: str, most: int) -> dict[str, Any]:
    """A JSON object of a folder; raises `Unreadable`."""
    content = read_bytes(folder, name, most)
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"{name} is not valid JSON") from error
    if not isinstance(found, dict):
        raise Unreadable(f"{name} is not a JSON object")
    return found


def read_toml(folder: Path, name: str, most: int) -> dict[str, Any]:
    """A TOML file of a folder; raises `Unreadable`."""
    content = read_bytes(folder, name, most)
    try:
        return tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"{name} is not valid TOML") from error
