"""Targets: one class, one number, several labels or one class per place of each row, checked."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from veil.errors import InputError, require
from veil.problem.rows import IGNORED

# How many values of a file are looked at together: some megabytes.
_AT_ONCE = 1 << 21
Task = Literal["classification", "regression", "multi-label"]


def as_targets(
    targets: ArrayLike | Tensor, task: Task, classes: Sequence[Any] | None
) -> tuple[Tensor, tuple[str, ...]]:
    """Targets as a tensor, and the names of classes or labels."""
    require(
        not isinstance(targets, Mapping),
        "the targets are a dict: give several targets as columns, shape (rows, targets), and a loss that splits them",
    )
    if isinstance(targets, np.memmap) and targets.ndim > 1 and task == "classification":
        return _on_disk(targets, classes)
    values = _array(targets)
    if values.ndim == 2 and values.shape[1] == 1 and task != "multi-label":
        values = values[:, 0]  # a column
    if task == "regression":
        return _numbers(values), ()
    if task == "multi-label":
        return _labels(values, classes)
    if values.ndim > 1:
        return _by_place(values, classes)
    missing = np.array([v is None or v != v for v in values.ravel().tolist()])
    require(not missing.any(), f"the target of row {int(missing.argmax())} is missing: fill it in or remove the row")
    known = np.unique(values) if classes is None else np.asarray(list(classes))
    real = classes is None and values.dtype.kind == "f"
    many = real and len(known) > max(50, len(values) // 5)
    require(not many, f"the targets are {len(known):,} different numbers: set task='regression', or give the classes")
    fractions = real and bool((known != np.round(known)).any())
    require(not fractions, "the targets are numbers with fractions: set task='regression', or give the classes")
    position = {value: index for index, value in enumerate(known.tolist())}
    try:
        ids = np.array([position[value] for value in values.tolist()], dtype=np.int64)
    except KeyError:  # which would repeat the value
        raise InputError(f"a target is not one of the {len(position)} declared classes") from None
    require(len(position) >= 2, "the target has a single value: choose a target with at least two")
    return torch.from_numpy(ids), tuple(str(value) for value in known.tolist())


def _array(targets: ArrayLike | Tensor) -> NDArray[Any]:
    """Targets as an array; rows of different lengths are filled up with places that no loss counts."""
    if isinstance(targets, Tensor):
        return targets.detach().cpu().numpy()
    if isinstance(targets, list | tuple) and targets and _length(targets[0]) is not None:
        lengths = [_length(row) or 0 for row in targets]
        if len(set(lengths)) > 1:
            values = np.full((len(targets), max(lengths)), IGNORED, dtype=np.int64)
            for row, given in enumerate(targets):
                values[row, : lengths[row]] = np.asarray(given)
            return values
        return np.stack([np.asarray(row) for row in targets])
    return np.asarray(targets)


def _length(row: Any) -> int | None:
    if isinstance(row, str | bytes) or not hasattr(row, "__len__") or getattr(row, "ndim", 1) == 0:
        return None
    return len(row)


def _numbers(values: NDArray[Any]) -> Tensor:
    try:
        y = torch.as_tensor(values.astype(np.float64)).to(torch.get_default_dtype())
    except (ValueError, TypeError):  # what numpy says repeats the value
        raise InputError("a target is not a number: give numbers, or omit task for classes") from None
    require(bool(torch.isfinite(y).all()), "a target is not a finite number: fill it in or remove the row")
    return y


def _labels(values: NDArray[Any], classes: Sequence[Any] | None) -> tuple[Tensor, tuple[str, ...]]:
    """Several labels, each of which a row has (1) or has not (0)."""
    require(
        values.ndim == 2 and values.dtype.kind in "biuf",
        "for task='multi-label' the targets have shape (rows, labels): give 0 or 1 for each label of each row",
    )
    require(bool(np.isin(values, (0, 1)).all()), "a label is neither 0 nor 1: say for each label if the row has it")
    names = tuple(str(name) for name in (range(values.shape[1]) if classes is None else classes))
    require(len(names) == values.shape[1], f"there are {values.shape[1]} labels and {len(names)} names of them")
    return torch.from_numpy(values.astype(np.float64)).to(torch.get_default_dtype()), names


def _by_place(values: NDArray[Any], classes: Sequence[Any] | None) -> tuple[Tensor, tuple[str, ...]]:
    """One class for each place of a row (a token), written as 0, 1, 2, …; −100 for a place that does not count."""
    names = _places_checked(values, classes)
    return torch.from_numpy(values.astype(np.int64)), names


def _on_disk(values: np.memmap[Any, Any], classes: Sequence[Any] | None) -> tuple[Tensor, tuple[str, ...]]:
    """The same for a file: it is read once, in pieces, to check it; the tensor is the file itself."""
    names = _places_checked(values, classes)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # nothing writes to targets
        return torch.from_numpy(values.view(np.ndarray)), names


def _places_checked(values: NDArray[Any], classes: Sequence[Any] | None) -> tuple[str, ...]:
    """The names of the classes, for targets of places that are all among them."""
    require(
        values.dtype.kind in "iu",
        f"the targets have shape {values.shape} and are not whole numbers: say task='multi-label' for several labels "
        "per row, task='regression' for numbers, or give one class for each place",
    )
    lowest, highest, rows = 0, -1, max(1, _AT_ONCE // max(1, values[:1].size))
    for start in range(0, len(values), rows):
        piece = np.asarray(values[start : start + rows])
        counted = piece[piece != IGNORED] if piece.dtype.kind == "i" else piece
        if counted.size:
            lowest, highest = min(lowest, int(counted.min())), max(highest, int(counted.max()))
    require(highest >= 0 or lowest < 0, "no place of any row has a target: there is nothing to learn")
    count = highest + 1 if classes is None else len(classes)
    within = lowest >= 0 and highest < count
    require(within, f"a target is not one of the classes 0 to {count - 1}: {IGNORED} marks places that do not count")
    require(count >= 2, "the target has a single value: choose a target with at least two")
    return tuple(map(str, range(count) if classes is None else classes))
