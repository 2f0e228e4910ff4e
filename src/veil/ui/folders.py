"""Folders of runs as data from elsewhere: no link is followed, sizes are bounded, nothing that is read is trusted."""

from __future__ import annotations

import json
import math
import os
import stat
import tomllib
from collections import deque
from pathlib import Path
from typing import Any

from veil.errors import InputError

# A folder with one of these is a run, whatever became of it.
MARKS = frozenset({"run.json", "certificate.json", "ledger.jsonl", "seed.key"})
# What `veil export` writes has one of these and no configuration: a copy of a run's model, and no run.
EXPORTED, CONFIG = frozenset({"model.onnx", "model.pkl"}), "config.toml"
DEPTH = 3
MOST_FOLDERS = 20_000
MOST_ENTRIES = 5_000
MEGABYTE = 2**20
NESTED = 40
# A folder of programs in an exported model, and how the names of files end that are read.
PROGRAMS, READ = "code", (".json", ".jsonl", ".safetensors", ".onnx", ".pkl", ".py")
LARGEST = 2**63


class Unreadable(InputError):
    """A file that is missing, too large, a link, or not what its name says."""


def run_folders(root: Path) -> tuple[dict[Path, frozenset[str]], bool]:
    """Every folder of a run at or below `root`, with the names in it; and whether all folders could be searched.

    Nothing below a run or an exported model, behind a link, or hidden is looked at; the nearest folders come first.
    """
    found, waiting, seen = {}, deque([(root, 0)]), 0
    while waiting and seen < MOST_FOLDERS:
        folder, depth = waiting.popleft()
        seen += 1
        names, below = _look(folder)
        if EXPORTED & names and CONFIG not in names:
            continue
        if MARKS & names:
            found[folder] = names
        elif depth < DEPTH:
            waiting.extend((folder / name, depth + 1) for name in below)
    return found, not waiting


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


def check_files(folder: Path, most: int, others: int | None = None) -> None:
    """Raise where something in a folder is not a plain file of a size that can be read, before others open it.

    Args:
        folder: The folder of a run.
        most: How many bytes a file of JSON may have.
        others: How many bytes every other file may have; without it, only links are looked for among them.

    Raises:
        Unreadable: With the name of the file.
    """
    with os.scandir(folder) as entries:
        files = [(entry.name, entry.stat(follow_symlinks=False)) for entry in entries]
    for name, found in files:
        if stat.S_ISLNK(found.st_mode):
            raise Unreadable(f"{name} is a link, which is not followed here")
        bound = most if name.endswith((".json", ".jsonl")) else others
        if name == PROGRAMS and stat.S_ISDIR(found.st_mode):
            check_files(folder / name, most, others)
        elif bound is not None and not _readable(name, found, bound):
            raise Unreadable(f"{name} is not a file of at most {bound // MEGABYTE} MB")


def _readable(name: str, found: os.stat_result, most: int) -> bool:
    """Whether this is a plain file of at most so many bytes; or a folder, where no file is read by that name."""
    if stat.S_ISDIR(found.st_mode):
        return not name.endswith(READ)
    return stat.S_ISREG(found.st_mode) and found.st_size <= most


def check_source(path: Path) -> None:
    """Raise where there is something that is neither a plain file nor a folder: a device or a pipe may have no end."""
    try:
        kind = path.stat().st_mode
    except (OSError, ValueError):
        return  # who reads it says that it is missing
    if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
        raise Unreadable(f"{path} is neither a file nor a folder")


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
    return _tame(found, name)


def read_toml(folder: Path, name: str, most: int) -> dict[str, Any]:
    """A TOML file of a folder; raises `Unreadable`."""
    content = read_bytes(folder, name, most)
    try:
        found = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"{name} is not valid TOML") from error
    return _tame(found, name)


def _tame(record: dict[Any, Any], name: str, depth: int = 0) -> dict[Any, Any]:
    """A record that pages can show: nested a few levels, and no number that is too large for them."""

    def tamed(value: Any) -> Any:
        if isinstance(value, dict):
            return _tame(value, name, depth + 1)
        if isinstance(value, list):
            return list(_tame(dict(enumerate(value)), name, depth + 1).values())
        if isinstance(value, int) and abs(value) >= LARGEST:
            return math.inf if value > 0 else -math.inf
        return value

    if depth > NESTED:
        raise Unreadable(f"{name} is nested more than {NESTED} levels deep")
    return {key: tamed(value) for key, value in record.items()}
