"""Image predictor: a trained model for images with how they become numbers, kept in the run's folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from veil.errors import require
from veil.foundation.randomness import Seed
from veil.models import build_model
from veil.models.applying import apply
from veil.models.normalise import Normalisation, normalise
from veil.problem import PublicFacts
from veil.tables.images import SUFFIXES, read_images

IMAGES = "images"
"""The key of a run's preprocessing that says that its rows were images."""
AT_ONCE = 256


@dataclass(frozen=True)
class ImagePredictor:
    """A model that takes images: they become numbers as they did in training.

    Args:
        model: The trained model.
        classes: Names of the classes in their order.
        size: Height and width of the images; files of another size are scaled to it.
        normalisation: How bytes become numbers.
    """

    model: nn.Module
    classes: tuple[str, ...]
    size: tuple[int, int]
    normalisation: Normalisation

    def predict_proba(self, images: Any) -> NDArray[np.float64]:
        """The probability of each class, in the order of `classes`.

        Args:
            images: A folder, paths of files, or bytes [rows, 3, height, width].

        Returns:
            One line for each image, one column for each class; lines add up to 1.

        Raises:
            InputError: A file is no image, or the bytes have another shape.
        """
        if isinstance(images, str | Path):
            images = image_files(Path(images))
        if not isinstance(images, np.ndarray | Tensor):
            paths = [Path(path) for path in images]
            pieces = [paths[start : start + AT_ONCE] for start in range(0, len(paths), AT_ONCE)]
            found = [self.predict_proba(read_images(piece, self.size)) for piece in pieces]
            return np.concatenate(found) if found else np.zeros((0, len(self.classes)))
        pixels = torch.as_tensor(images)
        shape = (3, *self.size)
        right = pixels.dtype == torch.uint8 and tuple(pixels.shape[1:]) == shape
        wanted = "rows × " + " × ".join(map(str, shape))
        require(right, f"images are {pixels.dtype} of shape {tuple(pixels.shape)}: give bytes (uint8), {wanted}")
        if len(pixels) == 0:
            return np.zeros((0, len(self.classes)))
        outputs = apply(self.model, normalise(pixels, self.normalisation)).to(torch.float64)
        return np.asarray(torch.softmax(outputs, dim=1).numpy())

    def predict(self, images: Any) -> NDArray[np.str_]:
        """The most likely class of each image.

        Args:
            images: A folder, paths of files, or bytes [rows, 3, height, width].

        Returns:
            One class for each image.
        """
        return np.asarray(np.array(self.classes)[self.predict_proba(images).argmax(axis=1)])


def image_record(
    facts: PublicFacts, normalisation: Normalisation, model: str, model_options: Mapping[str, Any]
) -> dict[str, Any]:
    """What a predictor needs besides the weights."""
    return {
        IMAGES: {"size": list(facts.input_shape[1:]), "normalisation": normalisation},
        "classes": list(facts.classes),
        "input_shape": list(facts.input_shape),
        "model": model,
        "model_options": dict(model_options),
    }


def image_predictor_of(record: Mapping[str, Any], weights: dict[str, Tensor]) -> ImagePredictor:
    """The predictor of a record and its weights."""
    classes = tuple(str(name) for name in record["classes"])
    facts = PublicFacts(("all",), ("all",), (), tuple(record["input_shape"]), "classification", classes)
    model = build_model(str(record["model"]), facts, Seed.from_int(0), **record["model_options"])
    model.load_state_dict(weights)
    height, width = record[IMAGES]["size"]
    return ImagePredictor(model.eval(), classes, (int(height), int(width)), record[IMAGES]["normalisation"])


def image_files(place: Path) -> list[Path]:
    """All images below a folder in the order of their paths, or the one file."""
    require(place.exists(), f"file not found: {place}")
    found = sorted(path for path in (place.rglob("*") if place.is_dir() else [place]) if _is_image(path))
    require(len(found) > 0, f"{place} contains no image: give a folder with {', '.join(sorted(SUFFIXES))} files")
    return found


def image_pieces(
    predictor: ImagePredictor, place: Path, *, threshold: float | None = None, probabilities: bool = False
) -> Iterator[pd.DataFrame]:
    """Predictions for all images of a folder, a table for every piece: file, answer and, if asked, probabilities."""
    two = threshold is None or len(predictor.classes) == 2
    require(two, "--threshold is for models with two classes: leave it out")
    require(threshold is None or 0 < threshold < 1, f"--threshold is {threshold}: it must be between 0 and 1")
    files, root = image_files(place), place if place.is_dir() else place.parent
    for start in range(0, len(files), AT_ONCE):
        piece = files[start : start + AT_ONCE]
        chances = predictor.predict_proba(piece)
        chosen = chances.argmax(axis=1) if threshold is None else (chances[:, 1] >= threshold).astype(np.int64)
        found: dict[str, Any] = {"file": [path.relative_to(root).as_posix() for path in piece]}
        found["predicted"] = np.array(predictor.classes, dtype=object)[chosen]
        if probabilities:
            found |= {f"probability of {name}": chances[:, place] for place, name in enumerate(predictor.classes)}
        yield pd.DataFrame(found)


def _is_image(path: Path) -> bool:
    return path.is_file() and path.suffix.lower() in SUFFIXES
