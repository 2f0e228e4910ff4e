"""CIFAR-10: 32 × 32 colour images of ten classes, from the official pickles or from a tree of JPEG files."""

from __future__ import annotations

import io
import pickle
import tarfile
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from veil.datasets.files import DataFile, cache_folder, data_folder, verified_path
from veil.datasets.images import decode_image
from veil.datasets.split import Split
from veil.errors import InputError, require
from veil.models.normalise import Normalisation, normalise
from veil.problem import Problem

OFFICIAL = DataFile(
    "cifar-10-python.tar.gz",
    "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
    "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
)
JPEG = DataFile("cifar10_jpeg/cifar10_jpeg.tar.gz", "ba71b9da469a0642b511b82cb7e817f919872cb21e6b3681ebca2fc4bdd50bf3")
FILES = (OFFICIAL,)
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
# Constants that are published with the data set.
PIXEL = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
BUDGETS = dict(zip(CLASSES, np.linspace(0.5, 5.0, 10).tolist(), strict=True))
Rows = tuple[NDArray[np.uint8], NDArray[np.int64]]


def load_cifar10(
    *,
    source: Literal["auto", "official", "jpeg"] = "auto",
    owners: Literal["everybody", "class"] = "everybody",
    normalisation: Normalisation = "published",
) -> Split:
    """The official split, one group per class. `owners="class"`: budgets from ε = 0.5 to 5 by class (INO-SGD).

    `auto` takes the official archive where VEIL_DATA holds it, else the JPEG tree. What was decoded is kept in the
    cache folder, so the JPEG tree is slow only once.
    """
    require(source in ("auto", "official", "jpeg"), f'source is "{source}": it is auto, official or jpeg')
    require(owners in ("everybody", "class"), f'owners is "{owners}": it is everybody or class')
    if source == "auto":
        source = "official" if (data_folder() / OFFICIAL.path).exists() else "jpeg"
    parts = _cached(source)
    return Split(_problem(parts["train"], normalisation, owners == "class"), _problem(parts["test"], normalisation))


def _problem(rows: Rows, normalisation: Normalisation, owned: bool = False) -> Problem:
    images, labels = rows
    names = np.array(CLASSES)[labels]
    pixels = normalise(torch.from_numpy(images), normalisation, *PIXEL)
    return Problem.from_arrays(
        pixels, names, names, owners=names if owned else None, budgets=BUDGETS if owned else None, classes=CLASSES
    )


def _cached(source: str) -> dict[str, Rows]:
    file = OFFICIAL if source == "official" else JPEG
    kept = cache_folder() / f"cifar10-{source}-{str(file.sha256)[:16]}.npz"
    if not kept.exists():
        path = verified_path(file, "cifar10")
        parts = read_official(path) if source == "official" else read_jpeg_tree(path)
        fresh = kept.with_suffix(".part.npz")
        (images, labels), (test_images, test_labels) = parts["train"], parts["test"]
        np.savez(fresh, train_0=images, train_1=labels, test_0=test_images, test_1=test_labels)
        fresh.replace(kept)
    with np.load(kept) as arrays:
        return {part: (arrays[f"{part}_0"], arrays[f"{part}_1"]) for part in ("train", "test")}


def read_official(archive: Path) -> dict[str, Rows]:
    """The six pickles of the official archive; nothing but arrays is ever unpickled."""
    batches: dict[str, list[Rows]] = {"train": [], "test": []}
    with tarfile.open(archive) as tar:
        for member in sorted(tar.getmembers(), key=lambda member: member.name):
            name = Path(member.name).name
            if member.isfile() and (name.startswith("data_batch_") or name == "test_batch"):
                stream = tar.extractfile(member)
                record = _ArraysOnly(io.BytesIO(stream.read() if stream else b""), encoding="bytes").load()
                images = np.asarray(record[b"data"], dtype=np.uint8).reshape(-1, 3, 32, 32)
                part = "test" if name == "test_batch" else "train"
                batches[part].append((images, np.asarray(record[b"labels"], dtype=np.int64)))
    require(all(batches.values()), f"{archive.name} holds no data_batch_1 … 5 and test_batch")
    return {part: _joined(rows) for part, rows in batches.items()}


def _joined(rows: list[Rows]) -> Rows:
    return np.concatenate([images for images, _ in rows]), np.concatenate([labels for _, labels in rows])


class _ArraysOnly(pickle.Unpickler):
    """Refuses every class but what a numpy array needs, so that reading runs no code."""

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("numpy") and name in {"_reconstruct", "ndarray", "dtype"}:
            return super().find_class(module.replace("numpy.core", "numpy._core"), name)
        if (module, name) == ("_codecs", "encode"):
            return super().find_class(module, name)
        raise InputError(f"the pickle asks for {module}.{name}: it is not the official file")


def read_jpeg_tree(archive: Path) -> dict[str, Rows]:
    """`train/CLASS/0000.jpg` and `test/CLASS/0000.jpg`; a lossy copy of the official images."""
    found: dict[str, list[tuple[str, NDArray[np.uint8]]]] = {"train": [], "test": []}
    with tarfile.open(archive) as tar:
        for member in tar:
            parts = Path(member.name).parts
            if member.isfile() and len(parts) == 3 and parts[0] in found and parts[1] in CLASSES:
                stream = tar.extractfile(member)
                image = decode_image(stream.read() if stream else b"", member.name, (32, 32))
                found[parts[0]].append((parts[1], image))
    require(all(found.values()), f"{archive.name} holds no train/CLASS and test/CLASS folders")
    position = {name: index for index, name in enumerate(CLASSES)}
    return {
        part: (np.stack([image for _, image in rows]), np.array([position[name] for name, _ in rows], dtype=np.int64))
        for part, rows in found.items()
    }
