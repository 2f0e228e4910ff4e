"""Loaded runs of tables: `veil.load(folder)` gives a run that predicts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from veil.accounting.model_digest import PREPROCESSING_FILE
from veil.handover.exporting import export_run
from veil.tables.predictor import Predictor, load_predictor
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


def load(folder: Path | str) -> LoadedRun:
    """Read a run folder. A run on a table can predict; of any other the weights come by `load_weights`.

    Args:
        folder: What `--out` or `out=` named.

    Returns:
        Certificate, metrics, history and configuration of the run; `predict` where it was trained on a table.

    Raises:
        InputError: The folder holds no finished run.
    """
    run = load_run(folder)
    if not (run.folder / PREPROCESSING_FILE).exists():
        return run
    return LoadedTableRun(run.folder, run.record, run.certificate, run.history)
