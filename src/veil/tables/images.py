"""Images: files in folders or archives into arrays of bytes. Decoding needs Pillow, which is optional."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from veil.errors import InputError, require
from veil.models.normalise import Normalisation, normalise
from veil.models.pretrained import takes_pixels
from veil.problem import Problem

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp"}


def decode_image(
    content: bytes, name: str, size: tuple[int, int] | None = None, grey: bool = False
) -> NDArray[np.uint8]:
    """One image as bytes [channels, height, width], scaled to `size` (height, width) where that is given."""
    pillow = _pillow()
    try:
        with pillow.open(BytesIO(content)) as image:
            picture = image.convert("L" if grey else "RGB")
            if size is not None and picture.size != size[::-1]:
                picture = picture.resize(size[::-1], pillow.Resampling.BILINEAR)
            array = np.asarray(picture, dtype=np.uint8)
    except (OSError, ValueError, SyntaxError) as error:
        raise InputError(f"{name} is not a readable image: {type(error).__name__}") from error
    return array[None] if grey else np.ascontiguousarray(array.transpose(2, 0, 1))


def read_images(paths: Sequence[Path], size: tuple[int, int] | None = None, grey: bool = False) -> NDArray[np.uint8]:
    """Many images of one size as bytes [rows, channels, height, width]."""
    require(len(paths) > 0, "there are no images to read")
    first = decode_image(paths[0].read_bytes(), paths[0].name, size, grey)
    images = np.empty((len(paths), *first.shape), dtype=np.uint8)
    for row, path in enumerate(paths):
        image = decode_image(path.read_bytes(), path.name, size, grey)
        require(
            image.shape == first.shape,
            f"{path.name} differs in size from {paths[0].name}: give the size for all images",
        )
        images[row] = image
    return images


def read_image_folder(
    folder: Path, size: tuple[int, int] | None = None, grey: bool = False
) -> tuple[NDArray[np.uint8], NDArray[np.str_]]:
    """A folder with one folder of images per class: the images, and the class of each."""
    require(folder.is_dir(), f"{folder} is not a folder")
    found = sorted(path for path in folder.glob("*/*") if path.suffix.lower() in SUFFIXES)
    require(len(found) > 0, f"{folder} contains no folder of images: create one folder per class")
    return read_images(found, size, grey), np.array([path.parent.name for path in found])


def image_problem(
    folder: Path,
    groups: Sequence[Any] | None = None,
    *,
    size: tuple[int, int] | None = None,
    grey: bool = False,
    normalisation: Normalisation = "per-row",
) -> Problem:
    """A problem from a folder with one folder of images per class; the class is the group where none is given.

    Groups are one label per image, in the order of the sorted paths.
    """
    images, labels = read_image_folder(folder, size, grey)
    return Problem.from_arrays(
        normalise(torch.from_numpy(images), normalisation), labels, labels if groups is None else groups
    )


def scaling_for(model: str) -> Normalisation:
    """How bytes become numbers for a model by its name: pretrained ones take pixels, others each row by itself."""
    return "none" if takes_pixels(model) else "per-row"


def holds_images(folder: Path) -> bool:
    """Whether a folder has folders of images."""
    return folder.is_dir() and any(path.suffix.lower() in SUFFIXES for path in folder.glob("*/*"))


def _pillow() -> ModuleType:
    try:
        return import_module("PIL.Image")
    except ImportError as error:
        raise InputError("reading images needs Pillow: pip install pillow") from error
