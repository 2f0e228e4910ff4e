"""Store: the finished runs of an experiment in one JSON file, each written at once and never run again."""

from __future__ import annotations

import ast
import fcntl
import hashlib
import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch

import veil
from experiments.runner.spec import Task
from veil.errors import InputError, require
from veil.foundation.files import FOR_ALL, write_whole

Stored = dict[str, Any]


def versions() -> dict[str, str]:
    """What the figures were made with."""
    return {"veil": veil.__version__, "torch": torch.__version__, "python": platform.python_version()}


# What shows results or asks for runs, but does not make them what they are.
NOT_MAKING = ("cli", "report", "auditing", "budget_store", "request")


@cache
def code_digest(folder: Path = Path(veil.__file__).parent) -> str:
    """A digest of the code that makes a run what it is: comments, docstrings and layout do not count."""
    whole = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(folder)
        if name.parts[0] not in NOT_MAKING:
            whole.update(f"{name.as_posix()}\n{_meaning(path.read_text(encoding='utf-8'))}\n".encode())
    return whole.hexdigest()[:16]


def _meaning(source: str) -> str:
    """The syntax tree without docstrings.

    >>> _meaning("x = 1  # one") == _meaning("'A module.'; x = 1") != _meaning("x = 2")
    True
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            value = body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                del body[0]
    return ast.dump(tree)


def machine() -> dict[str, Any]:
    """What the figures were made on: no names, only what bears on the time it took."""
    return {"cores": os.cpu_count(), "architecture": platform.machine()}


def read_store(path: Path, name: str, scale: str) -> Stored:
    """What is stored, or an empty store; the store of another experiment or scale is refused."""
    if not path.exists():
        return {"experiment": name, "scale": scale, "command": "", "version": {}, "machine": {}, "runs": []}
    try:
        stored: Stored = json.loads(path.read_text(encoding="utf-8"))
        of = stored["experiment"], stored["scale"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is no file of stored runs: move it away or choose another folder by --out") from error
    fits = of == (name, scale)
    require(fits, f"{path} holds runs of {of[0]} at scale {of[1]}: choose another folder by --out")
    return stored


def find(
    runs: Sequence[Mapping[str, Any]], task: Task, figures: Sequence[str] = (), moments: Sequence[float] = ()
) -> Mapping[str, Any] | None:
    """The stored run of a task, if it was made with equal settings, has these figures and was looked at then."""
    for run in runs:
        same = (run["arm"], run["x"], run["seed"], run["fingerprint"]) == (
            task.arm,
            task.x,
            task.seed,
            task.fingerprint,
        )
        looked = run.get("owners", {}).get("moments", ())
        if same and all(name in run["figures"] for name in figures) and set(moments) <= set(looked):
            return run
    return None


def add_run(path: Path, name: str, scale: str, command: str, record: Mapping[str, Any]) -> None:
    """Put a run into the file, in place of an older one of the same arm, value and seed."""
    with _alone(path.parent):
        stored = read_store(path, name, scale)
        key = (record["arm"], record["x"], record["seed"])
        others = [run for run in stored["runs"] if (run["arm"], run["x"], run["seed"]) != key]
        made = {"command": command, "version": versions(), "machine": machine()}
        known = {**record, "code": code_digest()}
        write_whole(path, text_of({**stored, **made, "runs": [*others, known]}).encode(), FOR_ALL)


def complete_runs(path: Path, name: str, scale: str, missing: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
    """Give stored runs what can be known of them without training; how they were made stays as it was."""
    with _alone(path.parent):
        stored = read_store(path, name, scale)
        runs = [{**run, **missing(run)} for run in stored["runs"]]
        if runs != stored["runs"]:
            write_whole(path, text_of({**stored, "runs": runs}).encode(), FOR_ALL)


def text_of(stored: Mapping[str, Any]) -> str:
    """The JSON text: one run per line, so that a difference shows which runs are new."""
    head = {key: value for key, value in stored.items() if key != "runs"}
    runs = ",\n".join(json.dumps(run, ensure_ascii=False, allow_nan=False) for run in stored["runs"])
    opening = json.dumps(head, ensure_ascii=False, indent=1).removesuffix("\n}")
    return f'{opening},\n "runs": [\n{runs}\n ]\n}}\n'


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time: the folder itself is the lock."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
