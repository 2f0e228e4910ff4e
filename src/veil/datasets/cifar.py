"""What the two CIFAR archives share: pickles that may hold nothing but arrays, and a cache of what was read."""

from __future__ import annotations

import io
import pickle
import tarfile
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veil.datasets.files import DataFile, verified_path
from veil.errors import InputError
from veil.foundation.files import cache_folder

Rows = tuple[NDArray[np.uint8], NDArray[np.int64]]
Arrays = Mapping[str, NDArray[Any]]


def read_pickles(archive: Path, *patterns: str) -> Iterator[tuple[str, dict[bytes, Any]]]:
    """Name and content of the pickles whose name fits a pattern, by path; nothing but arrays is ever unpickled."""
    with tarfile.open(archive) as tar:
        for member in sorted(tar.getmembers(), key=lambda member: member.name):
            name = Path(member.name).name
            if member.isfile() and any(fnmatchcase(name, pattern) for pattern in patterns):
                stream = tar.extractfile(member)
                yield name, _ArraysOnly(io.BytesIO(stream.read() if stream else b""), encoding="bytes").load()


def rows_of(record: Mapping[bytes, Any], labels: bytes) -> Rows:
    """Images [rows, 3, 32, 32] and one label each, from a pickle's content.

    >>> rows_of({b"data": [[0] * 3072], b"labels": [7]}, b"labels")[0].shape
    (1, 3, 32, 32)
    """
    images = np.asarray(record[b"data"], dtype=np.uint8).reshape(-1, 3, 32, 32)
    return images, np.asarray(record[labels], dtype=np.int64)


def kept_arrays(name: str, file: DataFile, dataset: str, read: Callable[[Path], Arrays]) -> Arrays:
    """What `read` makes of a file whose checksum fits; kept in the cache folder, so that it is read only once."""
    kept = cache_folder() / f"{name}-{str(file.sha256)[:16]}.npz"
    if not kept.exists():
        fresh = kept.with_suffix(".part.npz")
        found: dict[str, Any] = dict(read(verified_path(file, dataset)))
        np.savez(fresh, **found)
        fresh.replace(kept)
    with np.load(kept) as arrays:
        return {key: arrays[key] for key in arrays.files}


class _ArraysOnly(pickle.Unpickler):
    """Rejects every class but what a numpy array needs, so that reading runs no code."""

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("numpy") and name in {"_reconstruct", "ndarray", "dtype"}:
            return super().find_class(module.replace("numpy.core", "numpy._core"), name)
        if (module, name) == ("_codecs", "encode"):
            return super().find_class(module, name)
        raise InputError(f"the pickle imports {module}.{name}, so it is not the official file")
