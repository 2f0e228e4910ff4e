"""Chest X-rays of children: normal, bacterial or viral pneumonia (Kermany et al. 2018). Each diagnosis is a group.

Official layout: `chest_xray/train/NORMAL/*.jpeg`, `chest_xray/train/PNEUMONIA/person1_bacteria_1.jpeg`; `test` alike.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import torch

from veil.datasets.files import DataFile, data_folder
from veil.datasets.split import Split, shuffled
from veil.errors import require
from veil.models.normalise import Normalisation, normalise
from veil.problem import Problem
from veil.tables.images import SUFFIXES, read_images

FILES = (DataFile("chest_xray"),)
DIAGNOSES = ("normal", "bacterial", "viral")
BUDGETS = {"healthy": 5.0, "ill": 0.5}


def load_pneumonia(
    *,
    owners: Literal["health", "everybody"] = "health",
    each: int | None = 1341,
    size: tuple[int, int] = (64, 64),
    seed: int = 0,
    normalisation: Normalisation = "per-row",
) -> Split:
    """Grey images. INO-SGD trains on 1,341 of each diagnosis; normal rows allow ε = 5 and the others ε = 0.5."""
    require(owners in ("health", "everybody"), f'owners is "{owners}": it must be health or everybody')
    train = _listed(data_folder() / FILES[0].path / "train")
    if each is not None:
        order = shuffled(len(train), seed, "pneumonia")
        kept = [row for kind in DIAGNOSES for row in [i for i in order if train[i][1] == kind][:each]]
        train = [train[row] for row in sorted(kept)]
    test = _listed(data_folder() / FILES[0].path / "test")
    return Split(
        _problem(train, size, normalisation, owners == "health"), _problem(test, size, normalisation, owned=False)
    )


def _listed(folder: Path) -> list[tuple[Path, str]]:
    require(folder.is_dir(), f'data set "pneumonia" needs the folder {folder}')
    found = []
    for path in sorted(folder.glob("*/*")):
        if path.suffix.lower() in SUFFIXES:
            ill = "bacterial" if "bacteria" in path.name else "viral" if "virus" in path.name else None
            kind = "normal" if path.parent.name == "NORMAL" else ill
            require(kind is not None, f"{path.name} says neither bacteria nor virus")
            found.append((path, str(kind)))
    require(len(found) > 0, f"{folder} holds no images in NORMAL and PNEUMONIA")
    return found


def _problem(rows: list[tuple[Path, str]], size: tuple[int, int], normalisation: Normalisation, owned: bool) -> Problem:
    images = torch.from_numpy(read_images([path for path, _ in rows], size, grey=True))
    labels = np.array([kind for _, kind in rows])
    return Problem.from_arrays(
        normalise(images, normalisation),
        labels,
        labels,
        owners=np.where(labels == "normal", "healthy", "ill") if owned else None,
        budgets=BUDGETS if owned else None,
        classes=DIAGNOSES,
    )
