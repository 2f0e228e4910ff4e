"""Features of images: CIFAR-10 through a public pretrained network, with few rows of some class; MNIST by scattering.

Features are computed once and kept in the cache folder: what computes them is fixed and public, and each row is taken
by itself.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from veil.datasets import load_cifar10
from veil.datasets.cifar10 import JPEG
from veil.datasets.split import Split, shuffled
from veil.errors import require
from veil.foundation.files import cache_folder
from veil.models.embedding import embed
from veil.models.images import papernot_cifar
from veil.models.pretrained import EFFICIENTNET, UnitLength, efficientnet_lite0, with_head
from veil.models.whitened import ImageFeatures, Projection, image_features
from veil.problem import Problem, PublicFacts

SIZE = 128
VEHICLES = ("airplane", "automobile", "ship", "truck")
DIMENSIONS = 512
# Features of few rows, by the digest of these: many arms and experiments have the same ones.
_FRESH: dict[str, Tensor] = {}


def features_of(split: Split) -> tuple[Problem, Problem]:
    """Training and test rows as 1,280 features each, scaled to length 1: maps of a single place, as images are."""
    parts = []
    for name, problem in (("train", split.train), ("test", split.test)):
        path = cache_folder() / f"cifar10-{EFFICIENTNET}-{SIZE}-{name}-{str(JPEG.sha256)[:16]}.npy"
        if not path.exists():
            found = embed(efficientnet_lite0(SIZE), problem).inputs.numpy().astype(np.float16)
            fresh = path.with_suffix(".part.npy")
            np.save(fresh, found)
            fresh.replace(path)
        parts.append(_with_features(problem, torch.from_numpy(np.load(path).astype(np.float32))))
    return parts[0], parts[1]


def fresh_features(split: Split) -> tuple[Problem, Problem]:
    """The same for a few rows, computed now and kept by this process alone."""
    train, test = (_with_features(part, _fresh(part)) for part in (split.train, split.test))
    return train, test


def _fresh(problem: Problem) -> Tensor:
    key = _digest(problem)
    if key not in _FRESH:
        _FRESH[key] = embed(efficientnet_lite0(SIZE), problem).inputs
    return _FRESH[key]


def _digest(problem: Problem) -> str:
    return hashlib.sha256(problem.inputs.numpy().tobytes()).hexdigest()[:16]


def _with_features(problem: Problem, features: Tensor) -> Problem:
    maps = UnitLength()(features)[:, :, None, None]
    return replace(problem, inputs=maps, public=replace(problem.public, input_shape=tuple(maps.shape[1:])))


def scattered(problem: Problem, keep: bool = True) -> Problem:
    """Images as 512 numbers of length 1: scattering maps through Veil's public projection; kept by a digest of rows."""
    path = cache_folder() / f"scattering-{DIMENSIONS}-{_digest(problem)}.npy"
    if path.exists():
        found = np.load(path)
    else:
        transform = nn.Sequential(ImageFeatures(), Projection(image_features(problem.public.input_shape), DIMENSIONS))
        with torch.no_grad():
            pieces = [transform(piece) for piece in torch.split(problem.inputs, 512)]
        found = torch.cat(pieces).numpy().astype(np.float16)
        if keep:
            fresh = path.with_suffix(".part.npy")
            np.save(fresh, found)
            fresh.replace(path)
    inputs = torch.from_numpy(found.astype(np.float32))
    return replace(problem, inputs=inputs, public=replace(problem.public, input_shape=(DIMENSIONS,)))


def unbalanced_cifar10(
    rare: str = "cat", share: float = 0.1, features: bool = False, first: int | None = None
) -> Split:
    """CIFAR-10 with a share of the training rows of one class, as pixels or as features.

    With `first`, only so many rows in a public random order: their features are computed anew and not kept.
    """
    split = load_cifar10(normalisation="none" if features else "published")
    if first is not None:
        split = _few(split, first)
    train, test = _seen(split, first is None) if features else (split.train, split.test)
    require(rare in train.public.classes, f'rare is "{rare}": it must be one of {", ".join(train.public.classes)}')
    labels, order = train.targets.numpy(), shuffled(len(train), 0, "cifar10/unbalanced")
    own = order[labels[order] == train.public.classes.index(rare)]
    kept = np.setdiff1d(np.arange(len(labels)), own[round(share * len(own)) :])
    return Split(of_rows(train, kept), test)


def spurious_cifar10(share: float = 0.1, first: int | None = None) -> Split:
    """Animals and vehicles of CIFAR-10 as features, with a background that tells them apart by chance.

    Groups are what a picture shows and whether it is more blue than red, as sky and water are. More than half of the
    vehicles are, and one animal in eight; of these animals `share` are kept for training. With `first`, only so many
    rows in a public random order: their features are computed anew and not kept.
    """
    split = load_cifar10(normalisation="none")
    if first is not None:
        split = _few(split, first)
    train, test = _seen(split, first is None)
    return Split(_by_background(split.train, train, share), _by_background(split.test, test, 1.0))


def _by_background(pixels: Problem, features: Problem, share: float) -> Problem:
    assert isinstance(pixels.inputs, Tensor)
    assert isinstance(features.inputs, Tensor)
    red, _, blue = pixels.inputs.mean((2, 3)).T
    vehicle, sky = np.isin(np.array(pixels.public.classes)[pixels.targets.numpy()], VEHICLES), (blue > red).numpy()
    order = shuffled(len(sky), 0, "cifar10/spurious")
    rare = order[(sky & ~vehicle)[order]]
    rows = np.setdiff1d(np.arange(len(sky)), rare[round(share * len(rare)) :])
    shown, background = np.where(vehicle, "vehicle", "animal")[rows], np.where(sky, "blue", "other")[rows]
    groups = {"shown": shown, "background": background}
    return Problem.from_arrays(features.inputs[torch.from_numpy(rows)], shown, groups, classes=("animal", "vehicle"))


def _few(split: Split, count: int) -> Split:
    return Split(_first(split.train, count), _first(split.test, count))


def _seen(split: Split, kept: bool) -> tuple[Problem, Problem]:
    return features_of(split) if kept else fresh_features(split)


def _first(problem: Problem, count: int) -> Problem:
    return of_rows(problem, np.sort(shuffled(len(problem), 0, "reproduction/rows")[:count]))


def with_validation(train: Problem, seed: int) -> tuple[Problem, Problem]:
    """Four fifths of the training rows, and the fifth that the seed sets apart."""
    order = shuffled(len(train), seed, "reproduction/validation")
    return of_rows(train, np.sort(order[len(order) // 5 :])), of_rows(train, np.sort(order[: len(order) // 5]))


def of_rows(problem: Problem, rows: NDArray[np.int64]) -> Problem:
    """Some rows of a problem in which every class is a group."""
    names = np.array(problem.public.classes)[problem.targets.numpy()[rows]]
    return Problem.from_arrays(problem.inputs[torch.from_numpy(rows)], names, names, classes=problem.public.classes)


def head(facts: PublicFacts) -> nn.Module:
    """A linear layer over features, starting at zero."""
    return nn.Sequential(nn.Flatten(), with_head(nn.Identity(), facts.input_shape[0], facts.outputs).head)  # type: ignore[arg-type]


def unit_head(facts: PublicFacts) -> nn.Module:
    """The same behind a layer that gives every row length 1: the length is then known to Veil before it sees a row."""
    return nn.Sequential(nn.Flatten(), with_head(nn.Identity(), facts.input_shape[0], facts.outputs))


def small_cnn(facts: PublicFacts) -> nn.Module:
    """The network of Papernot et al. with a quarter of its channels."""
    return papernot_cifar(facts, channels=(8, 16, 32), hidden=64)
