"""MNIST and the unbalanced MNIST of the papers: 28 × 28 digits, one group per digit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from veil.datasets.files import DataFile, read_verified
from veil.datasets.split import Split, shuffled
from veil.errors import require
from veil.models.normalise import Normalisation, normalise
from veil.problem import Problem

_BASE = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_SUMS = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
FILES = tuple(DataFile(f"mnist/{name}.gz", total, f"{_BASE}{name}.gz", packed=True) for name, total in _SUMS.items())
# Constants that are published with the data set: mean and standard deviation of a pixel.
PIXEL = ((0.1307,), (0.3081,))
RARE_DIGIT = 8
LOW_AND_HIGH = {"0–4": 0.1, "5–9": 1.0}


def load_mnist(
    *, owners: Literal["everybody", "halves"] = "everybody", normalisation: Normalisation = "published"
) -> Split:
    """The official split. `owners="halves"`: digits 0–4 allow ε = 0.1 and digits 5–9 allow ε = 1 (INO-SGD).

    Args:
        owners: Who owns a row: `everybody`, or two owners by digit (`halves`).
        normalisation: Of pixels: `published` constants, `per-row`, or `none`.

    Returns:
        Training and test rows as problems. The groups are the digits.

    Raises:
        InputError: The raw files are not in VEIL_DATA or do not match their checksums.
    """
    images, labels = _read(0)
    return Split(_problem(images, labels, normalisation, owners), _test(normalisation))


def load_unbalanced_mnist(
    *, variant: Literal["asc", "fdpg"] = "asc", seed: int = 0, normalisation: Normalisation = "published"
) -> Split:
    """MNIST with few eights among the training rows.

    `asc`: a tenth of every digit is set apart for validation and 474 eights stay (n = 49,208). `fdpg`: all training
    rows, of which 500 are eights (n = 54,649). Which rows stay depends on the public seed alone.

    Args:
        variant: `asc` or `fdpg`.
        seed: Public: which eights stay.
        normalisation: Of pixels: `published` constants, `per-row`, or `none`.

    Returns:
        Training and test rows as problems; with `asc` validation rows too.

    Raises:
        InputError: The variant is unknown, or the raw files are not in VEIL_DATA or do not match their checksums.
    """
    images, labels = _read(0)
    order = shuffled(len(labels), seed, f"unbalanced mnist/{variant}")
    if variant == "asc":
        keep, apart = _tenth_of_each(labels, order)
        keep = _few(keep, labels, 474)
        validation = _problem(images[apart], labels[apart], normalisation)
    else:
        require(variant == "fdpg", f'variant is "{variant}": it must be asc or fdpg')
        keep, validation = _few(order, labels, 500), None
    keep = np.sort(keep)
    return Split(_problem(images[keep], labels[keep], normalisation), _test(normalisation), validation)


def _tenth_of_each(labels: NDArray[np.int64], order: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    keep, apart = [], []
    for digit in range(10):
        rows = order[labels[order] == digit]
        stay = round(0.9 * len(rows))
        keep.append(rows[:stay])
        apart.append(rows[stay:])
    return np.concatenate(keep), np.sort(np.concatenate(apart))


def _few(rows: NDArray[np.int64], labels: NDArray[np.int64], rare: int) -> NDArray[np.int64]:
    eights = labels[rows] == RARE_DIGIT
    return np.concatenate([rows[~eights], rows[eights][:rare]])


def _read(part: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    images = _idx(read_verified(FILES[2 * part], "mnist"), FILES[2 * part].path, 3)
    labels = _idx(read_verified(FILES[2 * part + 1], "mnist"), FILES[2 * part + 1].path, 1)
    return images, labels.astype(np.int64)


def _idx(content: bytes, name: str, dimensions: int) -> NDArray[np.uint8]:
    """An array in the idx format: a magic number, the extents, the bytes."""
    head = np.frombuffer(content[: 4 * (dimensions + 1)], dtype=">i4")
    require(int(head[0]) == 0x0800 + dimensions, f"{name} is not an idx file of {dimensions} dimensions")
    return np.frombuffer(content, dtype=np.uint8, offset=head.nbytes).reshape(head[1:].tolist())


def _test(normalisation: Normalisation) -> Problem:
    return _problem(*_read(1), normalisation)


def _problem(
    images: NDArray[np.uint8], labels: NDArray[np.int64], normalisation: Normalisation, owners: str = "everybody"
) -> Problem:
    require(owners in ("everybody", "halves"), f'owners is "{owners}": it must be everybody or halves')
    who = np.where(labels < 5, *LOW_AND_HIGH) if owners == "halves" else None
    budgets: Mapping[str, float] | None = LOW_AND_HIGH if owners == "halves" else None
    pixels = normalise(torch.from_numpy(images.copy())[:, None], normalisation, *PIXEL)
    return Problem.from_arrays(pixels, labels, labels, owners=who, budgets=budgets, classes=list(range(10)))
