"""CIFAR-10: 32 × 32 colour images of ten classes, from the official pickles or from a tree of JPEG files."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from veil.datasets.cifar import Arrays, Rows, kept_arrays, read_pickles, rows_of
from veil.datasets.files import DataFile, data_folder
from veil.datasets.split import Split, shuffled
from veil.errors import require
from veil.models.normalise import Normalisation, normalise
from veil.problem import Problem
from veil.tables.images import decode_image

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
Owners = Literal["everybody", "class", "dealt"]


def load_cifar10(
    *,
    source: Literal["auto", "official", "jpeg"] = "auto",
    owners: Owners = "everybody",
    budgets: tuple[float, float] = (0.5, 5.0),
    seed: int = 0,
    normalisation: Normalisation = "published",
) -> Split:
    """The official split, one group per class; owners as in the INO-SGD paper.

    `owners="class"`: one owner per class, with budgets in even steps from the first to the last of `budgets` (the
    paper's CM; CL has 6 and 15). `owners="dealt"`: owners 1 to 10 have these budgets, and `seed` deals each of them a
    class (CR).

    `auto` takes the official archive where VEIL_DATA holds it, else the JPEG tree. What was decoded is kept in the
    cache folder, so the JPEG tree is slow only once.

    Args:
        source: Where the images come from.
        owners: Who owns a row: `everybody`, one owner per `class`, or `dealt`.
        budgets: ε of the first and of the last owner.
        seed: Public: deals classes to owners.
        normalisation: Of pixels: `published` constants, `per-row`, or `none`.

    Returns:
        Training and test rows as problems.

    Raises:
        InputError: An option is unknown, or the raw files are not in VEIL_DATA or do not match their checksums.
    """
    require(source in ("auto", "official", "jpeg"), f'source is "{source}": it must be auto, official or jpeg')
    require(owners in get_args(Owners), f'owners is "{owners}": it must be everybody, class or dealt')
    require(len(budgets) == 2 and min(budgets) > 0, f"budgets is {budgets}: it must be two numbers above 0")
    if source == "auto":
        source = "official" if (data_folder() / OFFICIAL.path).exists() else "jpeg"
    parts = _cached(source)
    owned = None if owners == "everybody" else _owners(owners, budgets, seed)
    return Split(_problem(parts["train"], normalisation, owned), _problem(parts["test"], normalisation))


def _owners(owners: Owners, ends: tuple[float, float], seed: int) -> tuple[NDArray[np.str_], dict[str, float]]:
    """The owner of each class, and the budget of each owner."""
    names = CLASSES if owners == "class" else tuple(str(number) for number in range(1, len(CLASSES) + 1))
    budgets = dict(zip(names, np.linspace(*ends, len(names)).tolist(), strict=True))
    dealt = np.arange(len(names)) if owners == "class" else shuffled(len(names), seed, "cifar10/dealt")
    return np.array(names)[dealt], budgets


def _problem(
    rows: Rows, normalisation: Normalisation, owned: tuple[NDArray[np.str_], dict[str, float]] | None = None
) -> Problem:
    images, labels = rows
    names = np.array(CLASSES)[labels]
    pixels = normalise(torch.from_numpy(images), normalisation, *PIXEL)
    if owned is None:
        return Problem.from_arrays(pixels, names, names, classes=CLASSES)
    of_class, budgets = owned
    return Problem.from_arrays(pixels, names, names, owners=of_class[labels], budgets=budgets, classes=CLASSES)


def _cached(source: str) -> dict[str, Rows]:
    def read(archive: Path) -> Arrays:
        parts = read_official(archive) if source == "official" else read_jpeg_tree(archive)
        (images, labels), (test_images, test_labels) = parts["train"], parts["test"]
        return {"train_0": images, "train_1": labels, "test_0": test_images, "test_1": test_labels}

    arrays = kept_arrays(f"cifar10-{source}", OFFICIAL if source == "official" else JPEG, "cifar10", read)
    return {part: (arrays[f"{part}_0"], arrays[f"{part}_1"]) for part in ("train", "test")}


def read_official(archive: Path) -> dict[str, Rows]:
    """The six pickles of the official archive; nothing but arrays is ever unpickled."""
    batches: dict[str, list[Rows]] = {"train": [], "test": []}
    for name, record in read_pickles(archive, "data_batch_*", "test_batch"):
        batches["test" if name == "test_batch" else "train"].append(rows_of(record, b"labels"))
    require(all(batches.values()), f"{archive.name} holds no data_batch_1 … 5 and test_batch")
    return {part: _joined(rows) for part, rows in batches.items()}


def _joined(rows: list[Rows]) -> Rows:
    return np.concatenate([images for images, _ in rows]), np.concatenate([labels for _, labels in rows])


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
