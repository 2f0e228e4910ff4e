"""RunFolder: the folder of an unfinished run: its lock, seed, ledgers and configuration.

The seed is kept (readable by its owner alone) for as long as the run may be resumed, because a resumed run repeats
its releases with the same noise; it is destroyed when the run is complete. The same file holds the identity of the run
(settings, and keyed digests of rows, model and loss), so both are destroyed at once. The lock is the operating
system's: it is released when its process ends, for whatever reason.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from veil.accounting import Event, Ledger, Terms
from veil.errors import InputError, require
from veil.foundation.files import remove, write_whole
from veil.foundation.randomness import Seed
from veil.foundation.toml import to_toml
from veil.plans import Settings
from veil.training import checkpoints
from veil.training.identity import Identity, agree
from veil.training.process_group import ProcessGroup

LEDGER = "ledger.jsonl"
PREPROCESSING = "preprocessing.jsonl"
CHOOSING = "selection.jsonl"
EVALUATION = "evaluation.jsonl"
LEDGERS = (PREPROCESSING, LEDGER, CHOOSING, EVALUATION)  # in the order in which a run begins them
CHECKPOINT = "checkpoint.safetensors"
_SEED = "seed.key"
LOCK = ".lock"


class RunFolder:
    """A locked folder. Open it with `start` or `resume`; release it with `complete` or `close`."""

    leads = True

    def __init__(
        self, path: Path, seed: Seed, resumed: bool, lock: IO[str] | None, noted: Mapping[str, Any] | None = None
    ) -> None:
        self.path = path
        self.seed = seed
        self.resumed = resumed
        self._lock = lock
        self._noted: dict[str, Any] = dict(noted or {})
        self._made: tuple[str, ...] = (_SEED, CHECKPOINT, LOCK)

    @classmethod
    def start(
        cls, path: Path | str, settings: Settings, config: Mapping[str, Any] | None = None, seed: Seed | None = None
    ) -> RunFolder:
        """Start a new run. A folder with a reserved release is never reused. `seed` is that of a part of a run."""
        path = Path(path)
        path.mkdir(parents=True, exist_ok=True)
        with _checking(path) as lock:
            require(not finished_in(path), f"{path} already contains a run: choose another folder")
            require(
                not reserved_in(path),
                f"{path} contains an interrupted run: continue it with --resume, or choose another folder",
            )
        # A file that the user keeps here stays as it is; one that an earlier attempt left is replaced.
        own_config = (path / "config.toml").exists() and not under_way(path)
        if seed is None:
            seed = Seed.from_system() if settings.seed is None else Seed.from_int(settings.seed)
        folder = cls(path, seed, False, lock)
        folder._keep_seed()
        if config is not None and not own_config:
            write_whole(path / "config.toml", to_toml(config).encode(), mode=0o644)
            folder._made = (*folder._made, "config.toml")
        return folder

    @classmethod
    def resume(cls, path: Path | str) -> RunFolder:
        """Resume an interrupted run, with its original seed."""
        path = Path(path)
        require(path.is_dir(), f"There is no run to resume in {path}")
        with _checking(path) as lock:
            if not (path / _SEED).exists():
                finished = (path / "certificate.json").exists()
                raise InputError(
                    f"the run in {path} is finished: there is nothing to resume"
                    if finished
                    else f"there is no unfinished run in {path}"
                )
            try:
                record = json.loads((path / _SEED).read_text(encoding="utf-8"))
                seed = Seed(bytes.fromhex(record["secret"]), bool(record["given"]))
                meaning, noted = record.get("meaning"), dict(record.get("noted", {}))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise InputError(f"{path / _SEED} is damaged: this run cannot be resumed, and stays charged") from error
            require(
                meaning == checkpoints.MEANING,
                "Cannot resume: the run was started by a version of Veil that draws or updates differently. "
                "Use that version or a new --out.",
            )
        return cls(path, seed, True, lock, noted)

    @classmethod
    def open(cls, path: Path | str, settings: Settings, resume: bool, config: Mapping[str, Any] | None) -> RunFolder:
        """`resume` or `start`; in a process group the first process does it and tells the others the seed."""
        processes, folder = ProcessGroup.joined(), None
        if processes.leads:
            folder = cls.resume(path) if resume else cls.start(path, settings, config)
        said = processes.told_json([folder.seed.secret.hex(), folder.seed.given, folder._noted] if folder else None)
        return folder or Follower(Path(path), Seed(bytes.fromhex(said[0]), bool(said[1])), resume, None, said[2])

    def hold_to(self, stage: str, now: Identity, before: str = PREPROCESSING) -> None:
        """Reject an identity that differs from this stage's recorded one; a new stage is recorded, on disk.

        `before` is the first ledger whose releases follow from it: once that has started, it is too late to record.
        """
        noted = self._noted.get(stage)
        agree(now, noted)
        if noted is None:
            begun = [name for name in LEDGERS[LEDGERS.index(before) :] if self.leads and (self.path / name).exists()]
            require(
                not begun, f"Cannot resume: {self.path / _SEED} does not record how the run started. Use a new --out."
            )
            self._noted[stage] = now.as_json()
            self._keep_seed()

    def hold_to_step(self, step: int, digest: str) -> None:
        """Reject a different value for a step whose noise may have been released; the last step is kept."""
        before, known = self._noted.get("step", (-1, ""))
        require(step >= before, f"Cannot resume: step {step} was already made, and its checkpoint is not the latest.")
        if step > before:
            self._noted["step"] = [step, digest]
            self._keep_seed()
            return
        require(
            digest == known,
            f"Cannot resume: step {step} gives a different gradient than before. Use the original loop and number "
            "of threads, or a new --out.",
        )

    def _keep_seed(self) -> None:
        """Put the seed and what is noted beside it on disk, readable by the owner alone."""
        record = {
            "secret": self.seed.secret.hex(),
            "given": self.seed.given,
            "meaning": checkpoints.MEANING,
            "noted": self._noted,
        }
        write_whole(self.path / _SEED, json.dumps(record).encode())

    def ledger(self, terms: Terms, name: str = LEDGER) -> Ledger:
        """One of the run's ledgers: new, or the existing one in a resumed run."""
        kind = Ledger if name == LEDGER else WaitedFor
        return kind.continued(terms, self.path / name) if self.resumed else kind(terms, self.path / name)

    def complete(self) -> None:
        """The run is finished and saved: nothing will be repeated, so the seed is destroyed, then the rest."""
        for name in (_SEED, CHECKPOINT):
            remove(self.path / name)
        self.close()

    def abandon(self) -> None:
        """Remove a run that ended before it reserved anything: the folder can be reused."""
        if self.resumed or reserved_in(self.path):
            return
        for name in self._made:
            remove(self.path / name)
        with suppress(OSError):
            self.path.rmdir()

    def close(self) -> None:
        """Release the folder. The lock file stays: waiting processes must find the same file."""
        if self._lock is not None:
            self._lock.close()


class WaitedFor(Ledger):
    """A ledger whose reservations all processes of a group wait for: none reads a row before they are on disk.

    The loop needs no waiting, because no sum is whole without the first process; preprocessing and the figures on
    held-out rows are worked out by every process on its own.
    """

    def reserve(self, purpose: str, first: int, count: int, events: Mapping[int, Event]) -> int:
        """Reserve, then wait for the other processes."""
        entries = super().reserve(purpose, first, count, events)
        ProcessGroup.joined().wait()
        return entries


class Follower(RunFolder):
    """The folder as the other processes of a group see it: they know the seed and write nothing."""

    leads = False

    def _keep_seed(self) -> None:
        """The first process does it."""

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
    """Whether the run in this folder still has its seed: it is running or was interrupted."""
    return (folder / _SEED).exists()


def reserved_in(folder: Path) -> bool:
    """Whether a run in this folder may have read a row."""
    return any((folder / name).exists() for name in LEDGERS)


@contextmanager
def _checking(path: Path) -> Iterator[IO[str]]:
    """Acquire the lock, and release it if a check fails."""
    lock = _locked(path)
    try:
        yield lock
    except BaseException:
        lock.close()
        raise


def _locked(folder: Path) -> IO[str]:
    """The open lock file, held by this process only."""
    while True:
        file = (folder / LOCK).open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.close()
            raise InputError(
                f"another process is using {folder}: wait until it finishes, or choose another folder"
            ) from error
        if os.fstat(file.fileno()).st_nlink > 0:
            return file
        file.close()  # whoever held it before has deleted it: the next process would lock another file
