"""Audits of a run: the results of `veil audit` in the run's folder, for the audit panel."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from veil.errors import InputError

NAME = "audit.json"


def read_audits(folders: Iterable[Path]) -> list[dict[str, Any]]:
    """Every audit of these runs; with several runs each says which one it is about.

    Args:
        folders: Folders of runs.

    Returns:
        The audits, in the order of the folders.

    Raises:
        InputError: A file of audits is damaged.

    >>> read_audits([Path("a-folder-without-audits")])
    []
    """
    places = list(folders)
    several = len(places) > 1
    return [{**audit, "run": folder.name} if several else audit for folder in places for audit in _read(folder / NAME)]


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is not a JSON file: {error}") from error
    # `veil audit` keeps all attacks in one object; a list, or one audit alone, is taken too.
    entries = record.get("audits", [record]) if isinstance(record, dict) else record
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InputError(f"{path} does not contain a list of audits")
    return entries
