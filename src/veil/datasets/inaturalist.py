"""iNaturalist 2017: photographs of species; the task here is the super category, which is the group too.

Official layout: `inaturalist/train2017.json`, `inaturalist/val2017.json` and the images that these name
(`inaturalist/train_val_images/<super category>/<species>/<id>.jpg`).
"""

from __future__ import annotations

import json

import numpy as np
import torch

from veil.datasets.files import DataFile, locate, read_verified
from veil.datasets.split import Split
from veil.errors import InputError
from veil.models.normalise import Normalisation, normalise
from veil.problem import Problem
from veil.tables.images import read_images

FILES = (DataFile("inaturalist/train2017.json"), DataFile("inaturalist/val2017.json"))


def load_inaturalist(*, size: tuple[int, int] = (64, 64), normalisation: Normalisation = "per-row") -> Split:
    """Training rows and the official validation rows, which serve as test rows."""
    train, labels = _read(FILES[0])
    classes = tuple(sorted(set(labels)))
    return Split(
        _problem(train, labels, classes, size, normalisation), _problem(*_read(FILES[1]), classes, size, normalisation)
    )


def _read(file: DataFile) -> tuple[list[str], list[str]]:
    """Image files, and the super category of each."""
    try:
        record = json.loads(read_verified(file, "inaturalist"))
        kinds = {category["id"]: category["supercategory"] for category in record["categories"]}
        of_image = {note["image_id"]: kinds[note["category_id"]] for note in record["annotations"]}
        names = [image["file_name"] for image in record["images"]]
        return names, [of_image[image["id"]] for image in record["images"]]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file.path} is not an annotation file of iNaturalist 2017: {error}") from error


def _problem(
    names: list[str],
    labels: list[str],
    classes: tuple[str, ...],
    size: tuple[int, int],
    normalisation: Normalisation,
) -> Problem:
    folder = locate(FILES[0], "inaturalist").parent
    images = torch.from_numpy(read_images([folder / name for name in names], size))
    return Problem.from_arrays(normalise(images, normalisation), np.array(labels), np.array(labels), classes=classes)
