"""Loaded runs: `veil.load(folder)` of a run on a table or on images gives a run that predicts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from veil.accounting.model_digest import PREPROCESSING_FILE, stored_preprocessing
from veil.handover.exporting import export_run
from veil.tables.image_predictor import IMAGES, ImagePredictor
from veil.tables.predictor import Predictor, load_any_predictor, load_predictor
from veil.tables.reading import as_table
from veil.training.run import LoadedRun
from veil.training.run import load as load_run


@dataclass(frozen=True)
class LoadedTableRun(LoadedRun):
    """A run on a table: it has its model and how columns became numbers.

    Args:
        folder: Where the run is stored.
        record: What `run.json` holds.
        certificate: What is promised.
        history: One line per step.
    """

    @cached_property
    def predictor(self) -> Predictor:
        """The model with its preprocessing."""
        return load_predictor(self.folder)

    @property
    def model(self) -> nn.Module:
        """The trained model."""
        return self.predictor.model

    def predict(self, table: Any) -> NDArray[np.str_] | NDArray[np.float64]:
        """The most likely class of each row, or its expected number, for a table of pandas, polars or Arrow.

        Args:
            table: The columns that the model was trained on, in any order.

        Returns:
            One class or number per row.
        """
        return self.predictor.predict(as_table(table, empty=True))

    def predict_proba(self, table: Any) -> NDArray[np.float64]:
        """The probability of each class, in the order of `predictor.classes`.

        Args:
            table: The columns that the model was trained on, in any order.

        Returns:
            Probabilities of shape (rows, classes).
        """
        return self.predictor.predict_proba(as_table(table, empty=True))

    def export(self, to: str, out: Path | str, *, force: bool = False) -> Path:
        """Write the model into a new folder in a format of other programs; certificate and card travel with it.

        Args:
            to: `onnx`, `sklearn`, `mlflow` or `container`.
            out: The folder to make.
            force: Replace `out` if it holds an exported model.

        Returns:
            The folder; `veil verify` says whether it holds the certified model.

        Raises:
            InputError: The model cannot be written in this format, or is not the certified one.
        """
        return export_run(self, to, out, force=force)


@dataclass(frozen=True)
class LoadedImageRun(LoadedRun):
    """A run on a folder of images: it has its model, and how images became numbers."""

    @cached_property
    def predictor(self) -> ImagePredictor:
        """The model with its preprocessing."""
        found = load_any_predictor(self.folder)
        assert isinstance(found, ImagePredictor)
        return found

    @property
    def model(self) -> nn.Module:
        """The trained model."""
        return self.predictor.model

    def predict(self, images: Any) -> NDArray[np.str_]:
        """The most likely class of each image: of a folder, of paths, or of bytes [rows, 3, height, width]."""
        return self.predictor.predict(images)

    def predict_proba(self, images: Any) -> NDArray[np.float64]:
        """The probability of each class, in the order of `predictor.classes`."""
        return self.predictor.predict_proba(images)


def load(folder: Path | str) -> LoadedRun:
    """Read a run folder. A run of `veil train` can predict; of `veil.fit` the weights come by `load_weights`.

    Args:
        folder: What `--out` or `out=` named.

    Returns:
        Certificate, metrics, history and configuration of the run; `predict` and `model` of a run on a table or images.

    Raises:
        InputError: The folder holds no finished run.
    """
    run = load_run(folder)
    path = run.folder / PREPROCESSING_FILE
    if not path.exists():
        return run
    kind = LoadedImageRun if IMAGES in stored_preprocessing(path.read_bytes()) else LoadedTableRun
    return kind(run.folder, run.record, run.certificate, run.history)
