"""Features: CIFAR-10 as pixels or as features of a public pretrained network, with few rows of some class.

Features are computed once and kept in the cache folder: the network is fixed and public, and each row is taken by
itself.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from veil.datasets import load_cifar10
from veil.datasets.cifar10 import JPEG
from veil.datasets.split import Split, shuffled
from veil.errors import require
from veil.foundation.files import cache_folder
from veil.models.embedding import embed
from veil.models.pretrained import EFFICIENTNET, UnitLength, efficientnet_lite0
from veil.problem import Problem

SIZE = 128


def features_of(split: Split) -> tuple[Problem, Problem]:
    """Training and test rows as 1,280 features each, scaled to length 1."""
    parts = []
    for name, problem in (("train", split.train), ("test", split.test)):
        path = cache_folder() / f"cifar10-{EFFICIENTNET}-{SIZE}-{name}-{str(JPEG.sha256)[:16]}.npy"
        if not path.exists():
            found = embed(efficientnet_lite0(SIZE), problem).inputs.numpy().astype(np.float16)
            fresh = path.with_suffix(".part.npy")
            np.save(fresh, found)
            fresh.replace(path)
        features = UnitLength()(torch.from_numpy(np.load(path).astype(np.float32)))
        public = replace(problem.public, input_shape=tuple(features.shape[1:]))
        parts.append(replace(problem, inputs=features, public=public))
    return parts[0], parts[1]


def unbalanced_cifar10(rare: str = "cat", share: float = 0.1, features: bool = False) -> Split:
    """CIFAR-10 with a share of the training rows of one class, as pixels or as features."""
    split = load_cifar10(normalisation="none" if features else "published")
    train, test = features_of(split) if features else (split.train, split.test)
    require(rare in train.public.classes, f'rare is "{rare}": it must be one of {", ".join(train.public.classes)}')
    labels, order = train.targets.numpy(), shuffled(len(train), 0, "cifar10/unbalanced")
    own = order[labels[order] == train.public.classes.index(rare)]
    kept = np.setdiff1d(np.arange(len(labels)), own[round(share * len(own)) :])
    return Split(of_rows(train, kept), test)


def with_validation(train: Problem, seed: int) -> tuple[Problem, Problem]:
    """Four fifths of the training rows, and the fifth that the seed sets apart."""
    order = shuffled(len(train), seed, "reproduction/validation")
    return of_rows(train, np.sort(order[len(order) // 5 :])), of_rows(train, np.sort(order[: len(order) // 5]))


def of_rows(problem: Problem, rows: NDArray[np.int64]) -> Problem:
    """Some rows of a problem in which every class is a group."""
    names = np.array(problem.public.classes)[problem.targets.numpy()[rows]]
    return Problem.from_arrays(problem.inputs[torch.from_numpy(rows)], names, names, classes=problem.public.classes)
