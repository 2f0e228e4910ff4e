"""Raw files: their paths under VEIL_DATA, their checksums, and how to download them."""

from __future__ import annotations

import gzip
import hashlib
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from veil.errors import InputError, require

_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class DataFile:
    """One raw file: its path below VEIL_DATA, its checksum where one was published, and its official address.

    `packed` means that the file is gzipped and that the checksum is that of the content; the unpacked file does too.
    """

    path: str
    sha256: str | None = None
    url: str | None = None
    packed: bool = False


def data_folder() -> Path:
    """The folder that VEIL_DATA names."""
    named = os.environ.get("VEIL_DATA")
    require(bool(named), "VEIL_DATA is not set: set it to the folder with the raw data files")
    return Path(str(named))


def locate(file: DataFile, dataset: str) -> Path:
    """The file's path; a sentence that says what to do where there is none."""
    path = data_folder() / file.path
    unpacked = path.with_suffix("") if file.packed else path
    for candidate in (path, unpacked):
        if candidate.exists():
            return candidate
    raise InputError(f'data set "{dataset}" needs {path}: put the file there, or try `veil data fetch {dataset}`')


def read_verified(file: DataFile, dataset: str) -> bytes:
    """The content of a file whose checksum fits; unpacked where it is packed."""
    path = locate(file, dataset)
    content = path.read_bytes()
    if file.packed and content[:2] == b"\x1f\x8b":
        content = gzip.decompress(content)
    if file.sha256 is not None:
        found = hashlib.sha256(content).hexdigest()
        require(found == file.sha256, f"{path} is the wrong file: its sha256 is {found}, not {file.sha256}")
    return content


def verified_path(file: DataFile, dataset: str) -> Path:
    """The path of a file that is too large to be read at once, after its checksum has been checked."""
    path = locate(file, dataset)
    if file.sha256 is not None:
        found = sha256_of(path)
        require(found == file.sha256, f"{path} is the wrong file: its sha256 is {found}, not {file.sha256}")
    return path


def sha256_of(path: Path) -> str:
    """The checksum of a file, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        for piece in iter(lambda: stream.read(_PIECE), b""):
            digest.update(piece)
    return digest.hexdigest()


def fetch(file: DataFile, dataset: str) -> Path:
    """Download a file from its official URL unless it exists; a file with a wrong checksum is deleted."""
    target = data_folder() / file.path
    if target.exists():
        return target
    if file.url is None:
        raise InputError(f'data set "{dataset}": {file.path} cannot be downloaded, see `veil data info {dataset}`')
    require(file.url.startswith("https://"), f"{file.url} is not an https URL")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(target.name + ".part")
        with urllib.request.urlopen(file.url, timeout=60) as answer, part.open("wb") as stream:
            for piece in _pieces(answer):
                stream.write(piece)
    except (urllib.error.URLError, OSError) as error:
        raise InputError(f"{file.url} could not be downloaded: {error}") from error
    _check_fetched(part, file)
    part.replace(target)
    return target


def _pieces(answer: object) -> Iterator[bytes]:
    read = answer.read  # type: ignore[attr-defined]
    return iter(lambda: read(_PIECE), b"")


def _check_fetched(part: Path, file: DataFile) -> None:
    if file.sha256 is None:
        return
    content = part.read_bytes() if file.packed else b""
    found = hashlib.sha256(gzip.decompress(content)).hexdigest() if file.packed else sha256_of(part)
    if found != file.sha256:
        part.unlink()
        raise InputError(f"{file.url} returned a file with sha256 {found} instead of {file.sha256}: it was deleted")
