"""Arguments of a fit: labels per row, groups by label or by column, and weights within a public bound."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from veil.errors import InputError, require
from veil.tables.reading import refuse_twice
from veil.tables.table import nearest_name


def sample_weights(values: Any, rows: int) -> NDArray[np.float64] | None:
    """Weights of rows: finite numbers of at least 0, one per row."""
    if values is None:
        return None
    with not_quoting("sample_weight"):
        found = np.asarray(values, dtype=np.float64)
    found = np.full(rows, float(found)) if found.ndim == 0 else found
    require(found.ndim == 1, "Sample weights must be 1D array or scalar")
    require(len(found) == rows, f"sample_weight.shape == {found.shape}, expected ({rows},)!")
    require(bool(np.isfinite(found).all() and (found >= 0).all()), "sample_weight must be finite and not negative")
    require(bool((found > 0).any()), "sample_weight is zero for all rows: there is nothing to learn from")
    return found


def class_weights(given: Any, classes: NDArray[Any], codes: NDArray[np.int64]) -> NDArray[np.float64]:
    """The weight of each class: 1 for those that a mapping leaves out; "balanced" counts the rows."""
    if isinstance(given, str):
        require(given == "balanced", f'class_weight is "{given}": give "balanced" or a weight for each class')
        counts = np.bincount(codes, minlength=len(classes))
        return np.asarray(len(codes) / (len(classes) * np.maximum(counts, 1)), dtype=np.float64)
    require(isinstance(given, Mapping), 'class_weight must be "balanced" or a mapping of classes to weights')
    known = {str(label) for label in classes.tolist()}
    unknown = [label for label in given if str(label) not in known]
    require(not unknown, "class_weight names a class that y does not have: correct it")
    by_name = {str(label): float(weight) for label, weight in given.items()}
    found = np.array([by_name.get(str(label), 1.0) for label in classes.tolist()])
    require(bool(np.isfinite(found).all() and (found >= 0).all()), "class_weight must be finite and not negative")
    require(bool((found > 0).any()), "every class_weight is 0: give at least one class a weight")
    return found


def labels_of_rows(values: Any, rows: int, what: str) -> NDArray[Any]:
    labels = np.asarray(values, dtype=object)
    require(labels.ndim == 1, f"{what} has {labels.ndim} dimensions: give one label per row, or a table of columns")
    check_length(rows, len(labels), what)
    return labels


def attributes(
    values: Any, table: pd.DataFrame, what: str, missing: str | None = None
) -> dict[str, NDArray[Any]] | None:
    """One label per row, or several columns that are crossed; a name, or a list of names, means columns of the table.

    A missing label becomes the group `missing`, where that is given.
    """
    if values is None:
        return None
    found = _attributes(_named_columns(values, table, what), len(table), what)
    if missing is None:
        for labels in found.values():
            gaps = np.flatnonzero(pd.isna(labels))
            require(
                len(gaps) == 0,
                f"the group of row {gaps[0] if len(gaps) else 0} is missing: fill it in, remove the row, or name a "
                "group for such rows with missing_group",
            )
        return found
    return {name: np.where(pd.isna(labels), missing, labels).astype(object) for name, labels in found.items()}


def _named_columns(values: Any, table: pd.DataFrame, what: str) -> Any:
    """The columns of a table, if their names were given."""
    named = [values] if isinstance(values, str) else values
    if not isinstance(named, list | tuple) or not all(isinstance(name, str) for name in named):
        return values
    if not isinstance(values, str) and (len(named) == len(table) or not set(named) & set(table.columns)):
        return values
    for name in named:
        require(name in table.columns, f'{what} names "{name}": {nearest_name(name, table)}')
    return table[list(named)]


def _attributes(values: Any, rows: int, what: str) -> dict[str, NDArray[Any]]:
    if hasattr(values, "to_pandas"):
        values = values.to_pandas()
    if isinstance(values, pd.DataFrame):
        refuse_twice(values.columns, what)
        return {str(name): labels_of_rows(values[name], rows, what) for name in values.columns}
    if isinstance(values, Mapping):
        return {str(name): labels_of_rows(column, rows, what) for name, column in values.items()}
    labels = np.asarray(values, dtype=object)
    if labels.ndim == 2:
        return {str(column): labels_of_rows(labels[:, column], rows, what) for column in range(labels.shape[1])}
    return {what: labels_of_rows(labels, rows, what)}


@contextmanager
def not_quoting(what: str) -> Iterator[None]:
    """Replace numpy's error about text among numbers, which repeats a possibly private value."""
    try:
        yield
    except ValueError as error:
        if "could not convert" not in str(error):
            raise
        raise InputError(f"{what} contains text among numbers: give numbers, or a table with named columns") from None


def check_length(rows: int, found: int, what: str) -> None:
    require(
        rows == found,
        f"Found input variables with inconsistent numbers of samples: X has {rows} rows and {what} has {found}",
    )
