"""CIFAR-100: 32 × 32 colour images of a hundred classes, from the official pickles.

Official layout: `cifar-100-python.tar.gz` with the pickles `cifar-100-python/train`, `test` and `meta`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from veil.datasets.cifar import Arrays, kept_arrays, read_pickles, rows_of
from veil.datasets.files import DataFile
from veil.datasets.split import Split
from veil.errors import require
from veil.models.normalise import Normalisation, normalise
from veil.problem import Problem

OFFICIAL = DataFile(
    "cifar-100-python.tar.gz",
    "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
    "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
)
FILES = (OFFICIAL,)
# Constants that are published with the data set.
PIXEL = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
CATEGORIES = {
    "fish": ("aquarium_fish", "flatfish", "ray", "shark", "trout"),
    "vehicles 1": ("bicycle", "bus", "motorcycle", "pickup_truck", "train"),
}
CATEGORY_BUDGETS = {"fish": 1.0, "vehicles 1": 5.0}
OWNERS = {"official": ("everybody", "class"), "fish-vehicles": ("everybody", "category")}
_CATEGORY_OF = {name: category for category, names in CATEGORIES.items() for name in names}


def load_cifar100(
    *,
    variant: Literal["official", "fish-vehicles"] = "official",
    owners: Literal["everybody", "class", "category"] = "everybody",
    normalisation: Normalisation = "published",
) -> Split:
    """The official split, one group per fine class.

    `owners="class"`: budgets from ε = 1 to 10 by class (CH of INO-SGD). `variant="fish-vehicles"`: the ten classes of
    two categories only (CIFAR-100-FV); with `owners="category"`, fish allow ε = 1 and vehicles ε = 5 (CF of INO-SGD).

    Args:
        variant: `official` or `fish-vehicles`.
        owners: Who owns a row: `everybody`, one owner per `class`, or by `category`.
        normalisation: Of pixels: `published` constants, `per-row`, or `none`.

    Returns:
        Training and test rows as problems.

    Raises:
        InputError: An option is unknown, or the raw files are not in VEIL_DATA or do not match their checksums.
    """
    require(variant in OWNERS, f'variant is "{variant}": it must be official or fish-vehicles')
    known = " or ".join(OWNERS[variant])
    require(owners in OWNERS[variant], f'owners is "{owners}": with variant "{variant}" it must be {known}')
    arrays = kept_arrays("cifar100-official", OFFICIAL, "cifar100", read_official)
    if variant == "fish-vehicles":
        arrays = _two_categories(arrays)
    return Split(_problem(arrays, "train", normalisation, owners), _problem(arrays, "test", normalisation))


def read_official(archive: Path) -> Arrays:
    """Images and fine labels of `train` and `test`, and the names of the classes; only arrays are unpickled."""
    found = dict(read_pickles(archive, "train", "test", "meta"))
    require(len(found) == 3, f"{archive.name} holds no train, test and meta")
    arrays: dict[str, NDArray[np.generic]] = {
        "classes": np.array([name.decode("ascii") for name in found["meta"][b"fine_label_names"]])
    }
    for part in ("train", "test"):
        arrays[f"{part}_images"], arrays[f"{part}_labels"] = rows_of(found[part], b"fine_labels")
    return arrays


def _two_categories(arrays: Arrays) -> Arrays:
    """The rows of ten classes, renumbered in their old order."""
    chosen = np.isin(arrays["classes"], list(_CATEGORY_OF))
    number = np.cumsum(chosen) - 1
    found = {"classes": arrays["classes"][chosen]}
    for part in ("train", "test"):
        labels = arrays[f"{part}_labels"]
        here = chosen[labels]
        found |= {f"{part}_images": arrays[f"{part}_images"][here], f"{part}_labels": number[labels[here]]}
    return found


def _problem(arrays: Arrays, part: str, normalisation: Normalisation, owners: str = "everybody") -> Problem:
    classes = arrays["classes"].tolist()
    names = arrays["classes"][arrays[f"{part}_labels"]]
    who, budgets = None, None
    if owners == "class":
        who, budgets = names, dict(zip(classes, np.linspace(1.0, 10.0, len(classes)).tolist(), strict=True))
    elif owners == "category":
        who, budgets = np.array([_CATEGORY_OF[name] for name in names.tolist()]), CATEGORY_BUDGETS
    pixels = normalise(torch.from_numpy(arrays[f"{part}_images"]), normalisation, *PIXEL)
    return Problem.from_arrays(pixels, names, names, owners=who, budgets=budgets, classes=classes)
