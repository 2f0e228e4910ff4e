"""CelebA: 202,599 faces with 40 attributes (Liu et al. 2015). Groups cross two attributes, Male × Blond_Hair at first.

Official layout: `celeba/list_attr_celeba.txt`, `celeba/list_eval_partition.txt`, `celeba/img_align_celeba/*.jpg`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch

from veil.datasets.files import DataFile, data_folder, locate
from veil.datasets.split import Split
from veil.errors import require
from veil.models.normalise import Normalisation, normalise
from veil.problem import Problem
from veil.tables.images import read_images

FILES = (DataFile("celeba/list_attr_celeba.txt"), DataFile("celeba/list_eval_partition.txt"))
IMAGES = "celeba/img_align_celeba"
WORDS = {"Male": ("female", "male"), "Blond_Hair": ("not blond", "blond"), "Eyeglasses": ("no glasses", "glasses")}


def load_celeba(
    *,
    target: str = "Male",
    groups: Sequence[str] = ("Male", "Blond_Hair"),
    size: tuple[int, int] = (64, 64),
    normalisation: Normalisation = "per-row",
) -> Split:
    """The official partition. ASC and DP-IS-SGD predict `Male` or `Blond_Hair`; FDPG predicts `Eyeglasses`."""
    attributes = pd.read_csv(locate(FILES[0], "celeba"), sep=r"\s+", skiprows=1)
    partition = pd.read_csv(locate(FILES[1], "celeba"), sep=r"\s+", header=None, index_col=0).iloc[:, 0]
    for name in (target, *groups):
        require(name in attributes.columns, f'CelebA does not have the attribute "{name}"')
    folder = data_folder() / IMAGES
    require(folder.is_dir(), f'data set "celeba" needs the images in {folder}')

    def part(number: int) -> Problem:
        names = partition.index[partition == number]
        rows = attributes.loc[names]
        images = torch.from_numpy(read_images([folder / str(name) for name in names], size))
        return Problem.from_arrays(
            normalise(images, normalisation),
            _words(rows[target], target),
            {name: _words(rows[name], name) for name in groups},
            classes=_names(target),
        )

    return Split(part(0), part(2), part(1) if (partition == 1).any() else None)


def _names(attribute: str) -> tuple[str, str]:
    return WORDS.get(attribute, (f"not {attribute}", attribute))


def _words(column: pd.Series, attribute: str) -> np.ndarray[tuple[int], np.dtype[np.str_]]:
    no, yes = _names(attribute)
    return np.where(column.to_numpy() > 0, yes, no)
