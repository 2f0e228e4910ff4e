"""Images: files in folders or archives into arrays of bytes. Decoding needs Pillow, which is optional."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veil.errors import InputError, require
from veil.models.normalise import Normalisation, normalise
from veil.models.pretrained import takes_pixels
from veil.problem import Problem

# Images that take more than this many bytes as numbers stay in their files.
IN_MEMORY = 1 << 30
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
    found, labels = _listed(folder)
    return read_images(found, size, grey), labels


def _listed(folder: Path) -> tuple[list[Path], NDArray[np.str_]]:
    require(folder.is_dir(), f"{folder} is not a folder")
    found = sorted(path for path in folder.glob("*/*") if path.suffix.lower() in SUFFIXES)
    require(len(found) > 0, f"{folder} contains no folder of images: create one folder per class")
    return found, np.array([path.parent.name for path in found])


@dataclass(frozen=True)
class ImageFiles:
    """Images that stay in their files: a data set whose items are decoded when they are asked for.

    Args:
        paths: The files.
        size: Height and width that all are scaled to. By default all must have one size.
        grey: Whether they are read in shades of grey, one channel instead of three.
        normalisation: As for `veil.models.normalise`.

    Raises:
        InputError: The images have different sizes, which their headers tell, or a file is no image.
    """

    decodes_files: ClassVar[bool] = True

    paths: Sequence[Path]
    size: tuple[int, int] | None = None
    grey: bool = False
    normalisation: Normalisation = "per-row"

    def __post_init__(self) -> None:
        pillow, first = _pillow(), None
        for path in self.paths if self.size is None else ():
            try:
                with pillow.open(path) as image:  # reads the header alone
                    first = first or image.size
                    require(
                        image.size == first,
                        f"{path.name} differs in size from {self.paths[0].name}: give the size for all images",
                    )
            except OSError as error:
                raise InputError(f"{path.name} is not a readable image: {type(error).__name__}") from error

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, row: int) -> Tensor:
        path = self.paths[row]
        pixels = decode_image(path.read_bytes(), path.name, self.size, self.grey)
        return normalise(torch.tensor(pixels)[None], self.normalisation)[0]


def image_problem(
    folder: Path,
    groups: Sequence[Any] | None = None,
    *,
    size: tuple[int, int] | None = None,
    grey: bool = False,
    normalisation: Normalisation = "per-row",
    in_memory: bool | None = None,
) -> Problem:
    """A problem from a folder with one folder of images per class; the class is the group where none is given.

    Args:
        folder: The folder of folders.
        groups: One label per image, in the order of the sorted paths. By default the class.
        size: Height and width that all images are scaled to. By default all must have one size.
        grey: Whether images are read in shades of grey.
        normalisation: "per-row", "published" or "none" (`veil.models.normalise`).
        in_memory: Whether all images are decoded now. By default they are if they take at most 1 GiB; otherwise each is
            decoded whenever it is drawn.

    Returns:
        The problem.

    Raises:
        InputError: There are no images, one cannot be read, or their sizes differ.
    """
    paths, labels = _listed(folder)
    files = ImageFiles(paths, size, grey, normalisation)
    if in_memory is None:
        in_memory = len(files) * files[0].nbytes <= IN_MEMORY
    by_class = labels if groups is None else groups
    if not in_memory:
        return Problem.from_dataset(files, by_class, targets=labels)
    images = torch.from_numpy(read_images(paths, size, grey))
    return Problem.from_arrays(normalise(images, normalisation), labels, by_class)


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
