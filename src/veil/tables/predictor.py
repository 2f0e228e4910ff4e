"""Predictor: a trained model for tables with its preprocessing, kept in the run's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn

from veil.accounting.model_digest import PREPROCESSING_FILE, WEIGHTS_FILE
from veil.errors import InputError, require
from veil.foundation.randomness import Seed
from veil.models import build_model
from veil.models.applying import apply
from veil.problem import PublicFacts, Task
from veil.tables.encoding import Category, Codes, Column, Date, Encoding, HashedCategory, Numeric, Text
from veil.tables.image_predictor import IMAGES, ImagePredictor, image_predictor_of
from veil.training.run_folder import under_way

_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in (Numeric, Date, Category, HashedCategory, Text, Codes)}


@dataclass(frozen=True)
class Predictor:
    """A model that takes tables: columns become numbers as they did in training.

    Args:
        model: The trained model.
        encoding: How columns become numbers.
        classes: Names of the classes in their order; empty for a number.
        target_range: Smallest and largest number to predict.

    >>> import pandas as pd
    >>> from veil.tables.encoding import Numeric
    >>> always = nn.Linear(1, 2)
    >>> _ = always.weight.data.zero_(), always.bias.data.copy_(torch.tensor([0.0, 1.0]))
    >>> predictor = Predictor(always, Encoding((Numeric("age", 0, 100, "middle"),), from_rows=False), ("no", "yes"))
    >>> predictor.predict(pd.DataFrame({"age": [30, 40]})).tolist()
    ['yes', 'yes']
    """

    model: nn.Module
    encoding: Encoding
    classes: tuple[str, ...]
    target_range: tuple[float, float] | None = None

    def predict_proba(self, table: pd.DataFrame) -> NDArray[np.float64]:
        """The probability of each class, in the order of `classes`.

        Args:
            table: Rows with the columns that the model was trained on.

        Returns:
            One line for each row, one column for each class; lines add up to 1.

        Raises:
            InputError: A column is missing, or the model predicts a number.
        """
        return self.probabilities_of(self._encoded(table))

    def predict(self, table: pd.DataFrame) -> NDArray[np.str_] | NDArray[np.float64]:
        """The most likely class of each row, or its expected number, which lies within the bounds of the target.

        Args:
            table: Rows with the columns that the model was trained on.

        Returns:
            One class or number for each row.

        Raises:
            InputError: A column is missing.
        """
        return self.predictions_of(self._encoded(table))

    def probabilities_of(self, rows: NDArray[Any]) -> NDArray[np.float64]:
        """The probability of each class, of rows that are encoded already.

        Args:
            rows: Rows as `Encoding.encode` makes them.

        Returns:
            One line for each row, one column for each class; lines add up to 1.

        Raises:
            InputError: The model predicts a number.
        """
        require(len(self.classes) > 0, "this model predicts a number: it has no probabilities, use predict")
        return np.asarray(torch.softmax(self._outputs(rows), dim=1).numpy())

    def predictions_of(self, rows: NDArray[Any]) -> NDArray[np.str_] | NDArray[np.float64]:
        """The most likely class, or the expected number, of rows that are encoded already.

        Args:
            rows: Rows as `Encoding.encode` makes them.

        Returns:
            One class or number for each row.
        """
        if self.classes:
            return np.asarray(np.array(self.classes)[self.probabilities_of(rows).argmax(axis=1)])
        low, high = self.target_range or (-1.0, 1.0)
        return np.asarray(low + (self._outputs(rows).reshape(-1).clip(-1.0, 1.0).numpy() + 1) / 2 * (high - low))

    def _encoded(self, table: pd.DataFrame) -> NDArray[Any]:
        return self.encoding.encode(table) if len(table) else np.zeros((0, self.encoding.width()))

    def _outputs(self, rows: NDArray[Any]) -> Tensor:
        if len(rows) == 0:
            return torch.zeros(0, max(1, len(self.classes)), dtype=torch.float64)
        return apply(self.model, torch.from_numpy(rows)).to(torch.float64)


def preprocessing_record(
    encoding: Encoding, facts: PublicFacts, model: str, model_options: dict[str, Any]
) -> dict[str, Any]:
    """What a predictor needs besides the weights. It holds no more about rows than the encoding does."""
    return {
        "from_rows": encoding.from_rows,
        "columns": [{"column": type(column).__name__, **asdict(column)} for column in encoding.columns],
        "classes": list(facts.classes),
        "target_range": facts.target_range,
        "input_shape": list(facts.input_shape),
        "model": model,
        "model_options": model_options,
    }


def load_predictor(folder: Path | str) -> Predictor:
    """Read a run of `veil train` on a table back. A model of the user's own is imported from its module.

    Args:
        folder: The folder of a run on a table.

    Returns:
        Encoding and model, ready to predict.

    Raises:
        InputError: The run is not one on a table, or is not finished.
    """
    found = load_any_predictor(folder)
    if isinstance(found, ImagePredictor):
        raise InputError(f"{folder} holds a model of images, not of a table: use veil.load, or veil predict")
    return found


def load_any_predictor(folder: Path | str) -> Predictor | ImagePredictor:
    """Read a run of `veil train` back, on a table or on images.

    Args:
        folder: The folder of a finished run.

    Returns:
        The model with what turns new rows into numbers.

    Raises:
        InputError: The run was trained by `veil.fit` on a model of the user's own, or is not finished.
    """
    folder = Path(folder)
    require(not under_way(folder), f"the run in {folder} is not finished: continue it with --resume")
    require(
        (folder / PREPROCESSING_FILE).exists(),
        f"{folder} contains no table model: {PREPROCESSING_FILE} is missing. A model that you gave to veil.fit gets "
        "its weights by veil.load(folder).load_weights(model)",
    )
    try:
        record = json.loads((folder / PREPROCESSING_FILE).read_text(encoding="utf-8"))
        weights = load_file(folder / WEIGHTS_FILE)
        return image_predictor_of(record, weights) if IMAGES in record else predictor_of(record, weights)
    except (ValueError, KeyError, TypeError, OSError, RuntimeError) as error:
        raise InputError(f"{folder} is not a readable run: {error}") from error


def predictor_of(record: Mapping[str, Any], weights: dict[str, Tensor]) -> Predictor:
    """The predictor of a record and its weights."""
    classes = tuple(str(name) for name in record["classes"])
    task: Task = "classification" if classes else "regression"
    facts = PublicFacts(("all",), ("all",), (), tuple(record["input_shape"]), task, classes)
    bounds = record.get("target_range")
    model = build_model(str(record["model"]), facts, Seed.from_int(0), **record["model_options"])
    model.load_state_dict(weights)
    return Predictor(model.eval(), encoding_of(record), classes, None if bounds is None else (bounds[0], bounds[1]))


def encoding_of(record: Mapping[str, Any]) -> Encoding:
    """How columns become numbers, of a record."""
    return Encoding(tuple(_column(entry) for entry in record["columns"]), bool(record["from_rows"]))


def _column(entry: dict[str, Any]) -> Column:
    kind = _KINDS[entry["column"]]
    known = {field.name for field in fields(kind)}
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()}
    column: Column = kind(**{name: value for name, value in values.items() if name in known})
    return column
