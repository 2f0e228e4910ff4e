"""UTKFace: about 23,700 faces whose file names say age, gender and race (Zhang et al. 2017). Groups by race × gender.

Official layout: `UTKFace/[age]_[gender]_[race]_[date].jpg.chip.jpg`.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch

from veil.datasets.files import DataFile, data_folder
from veil.datasets.split import Split, set_apart
from veil.errors import require
from veil.models.normalise import Normalisation, normalise
from veil.problem import Problem
from veil.tables.images import read_images

FILES = (DataFile("UTKFace"),)
GENDERS = ("male", "female")
RACES = ("White", "Black", "Asian", "Indian", "other")


def load_utkface(
    *,
    target: Literal["gender", "race"] = "gender",
    groups: Literal["race", "race × gender"] = "race",
    size: tuple[int, int] = (64, 64),
    test_share: float = 0.2,
    seed: int = 0,
    normalisation: Normalisation = "per-row",
) -> Split:
    """Names that do not follow the pattern (a few in the official archive) are left out."""
    require(target in ("gender", "race"), f'target is "{target}": it must be gender or race')
    folder = data_folder() / FILES[0].path
    require(folder.is_dir(), f'data set "utkface" needs the folder {folder}')
    found = []
    for path in sorted(folder.glob("*.jpg")):
        parts = path.name.split("_")
        if len(parts) == 4 and parts[1] in ("0", "1") and parts[2] in ("0", "1", "2", "3", "4"):
            found.append((path, GENDERS[int(parts[1])], RACES[int(parts[2])]))
    require(len(found) > 0, f"{folder} holds no image whose name says age, gender and race")
    gender, race = (np.array([row[column] for row in found]) for column in (1, 2))
    labels, classes = (gender, GENDERS) if target == "gender" else (race, RACES)

    def part(rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Problem:
        images = torch.from_numpy(read_images([found[row][0] for row in rows], size))
        of = {"race": race[rows]} | ({"gender": gender[rows]} if groups == "race × gender" else {})
        return Problem.from_arrays(normalise(images, normalisation), labels[rows], of, classes=classes)

    train, test = set_apart(len(found), test_share, seed, "utkface")
    return Split(part(train), part(test))
