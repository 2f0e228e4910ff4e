"""RunFolder: the place on disk of one run while it is under way: its lock, its seed, its ledgers, its configuration.

The seed is kept (readable by its owner alone) for as long as the run may have to go on, because a resumed run repeats
its releases with the same noise; it is destroyed when the run is complete. The lock is the operating system's: it goes
with the process that held it, however that process ended.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from veil.accounting import Event, Ledger, Terms
from veil.errors import InputError, require
from veil.files import write_whole
from veil.plan import Settings
from veil.randomness import Seed
from veil.teams import Team
from veil.toml import to_toml

LEDGER = "ledger.jsonl"
LEDGERS = (LEDGER, "preprocessing.jsonl", "evaluation.jsonl")
CHECKPOINT = "checkpoint.safetensors"
_SEED = "seed.key"
_LOCK = ".lock"


class RunFolder:
    """A locked folder. Make it by `start` or `resume`; give it back by `complete` or `close`."""

    leads = True

    def __init__(self, path: Path, seed: Seed, resumed: bool, lock: IO[str] | None) -> None:
        self.path = path
        self.seed = seed
        self.resumed = resumed
        self._lock = lock
        self._made: tuple[str, ...] = (_SEED, CHECKPOINT, _LOCK)

    @classmethod
    def start(cls, path: Path | str, settings: Settings, config: Mapping[str, Any] | None = None) -> RunFolder:
        """A new run. A folder in which a release was reserved before is never used again."""
        path = Path(path)
        path.mkdir(parents=True, exist_ok=True)
        with _checking(path) as lock:
            require(not finished_in(path), f"{path} holds a run already: choose another folder")
            require(
                not reserved_in(path),
                f"{path} holds a run that was cut short: continue it by --resume, or choose another folder",
            )
        # A file that the user keeps here stays as it is; one that an earlier attempt left is replaced.
        own_config = (path / "config.toml").exists() and not under_way(path)
        seed = Seed.from_system() if settings.seed is None else Seed.from_int(settings.seed)
        write_whole(path / _SEED, json.dumps({"secret": seed.secret.hex(), "given": seed.given}).encode())
        folder = cls(path, seed, False, lock)
        if config is not None and not own_config:
            write_whole(path / "config.toml", to_toml(config).encode(), mode=0o644)
            folder._made = (*folder._made, "config.toml")
        return folder

    @classmethod
    def resume(cls, path: Path | str) -> RunFolder:
        """A run that was cut short, with the seed it began with."""
        path = Path(path)
        require(path.is_dir(), f"there is no run to go on with in {path}")
        with _checking(path) as lock:
            if not (path / _SEED).exists():
                finished = (path / "certificate.json").exists()
                raise InputError(
                    f"the run in {path} is finished" if finished else f"there is no unfinished run in {path}"
                )
            try:
                record = json.loads((path / _SEED).read_text(encoding="utf-8"))
                seed = Seed(bytes.fromhex(record["secret"]), bool(record["given"]))
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(f"{path / _SEED} is damaged: this run cannot go on, and stays charged") from error
        return cls(path, seed, True, lock)

    @classmethod
    def open(cls, path: Path | str, settings: Settings, resume: bool, config: Mapping[str, Any] | None) -> RunFolder:
        """`resume` or `start`; in a team the first process does it and tells the others the seed."""
        team = Team.joined()
        folder = None
        if team is None or team.leads:
            folder = cls.resume(path) if resume else cls.start(path, settings, config)
        if team is None:
            assert folder is not None
            return folder
        said = team.told_json([folder.seed.secret.hex(), folder.seed.given] if folder else None)
        return folder or Follower(Path(path), Seed(bytes.fromhex(said[0]), bool(said[1])), resume, None)

    def ledger(self, terms: Terms, name: str = LEDGER) -> Ledger:
        """One of the run's ledgers: new, or, in a run that goes on, the one it had."""
        kind = Ledger if name == LEDGER or Team.joined() is None else WaitedFor
        return kind.continued(terms, self.path / name) if self.resumed else kind(terms, self.path / name)

    def complete(self) -> None:
        """The run is finished and saved: nothing will be repeated, so the seed is destroyed, then the rest."""
        for name in (_SEED, CHECKPOINT):
            (self.path / name).unlink(missing_ok=True)
        self.close()

    def abandon(self) -> None:
        """Leave no trace of a run that ended before it reserved anything: the folder may be used again."""
        if self.resumed or reserved_in(self.path):
            return
        for name in self._made:
            (self.path / name).unlink(missing_ok=True)
        with suppress(OSError):
            self.path.rmdir()

    def close(self) -> None:
        """Give the folder free. The lock's file stays: whoever waits for it must find the same file."""
        if self._lock is not None:
            self._lock.close()


class WaitedFor(Ledger):
    """A ledger whose reservations all processes of a team wait for: none reads a row before they are on disk.

    The loop needs no waiting, because no sum is whole without the first process; preprocessing and the figures on
    held-out rows are worked out by every process on its own.
    """

    def reserve(self, purpose: str, first: int, count: int, events: Mapping[int, Event]) -> int:
        """As ever, and then wait for the others."""
        entries = super().reserve(purpose, first, count, events)
        team = Team.joined()
        if team is not None:
            team.wait()
        return entries


class Follower(RunFolder):
    """The folder as the other processes of a team see it: they know the seed and write nothing."""

    leads = False

    def ledger(self, terms: Terms, name: str = LEDGER) -> Ledger:
        """A ledger in memory: the first process writes the one that counts, and is waited for."""
        return WaitedFor(terms)

    def complete(self) -> None:
        """The first process does it."""

    def abandon(self) -> None:
        """The first process does it."""


def finished_in(folder: Path) -> bool:
    """Whether this folder holds a run that is complete: saved, and its seed destroyed afterwards."""
    saved = (folder / "certificate.json").exists() or (folder / "metrics.json").exists()
    return saved and not under_way(folder)


def under_way(folder: Path) -> bool:
    """Whether a run in this folder has still its seed: it is running, or was cut short."""
    return (folder / _SEED).exists()


def reserved_in(folder: Path) -> bool:
    """Whether a run in this folder may have read a row."""
    return any((folder / name).exists() for name in LEDGERS)


@contextmanager
def _checking(path: Path) -> Iterator[IO[str]]:
    """The lock, given back if what is checked while it is new does not hold."""
    lock = _locked(path)
    try:
        yield lock
    except BaseException:
        lock.close()
        raise


def _locked(folder: Path) -> IO[str]:
    """The open lock file, which nobody else holds."""
    file = (folder / _LOCK).open("a+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise InputError(f"another process is using {folder}: wait until it ends, or choose another folder") from error
    return file
