"""A trained model of tables as a scikit-learn pipeline: columns into numbers, then the model.

Both steps keep what they need as text and bytes, so that a pickle holds no code and no torch objects, and can be
checked without being run. Where it is loaded, Veil must be installed.
"""

from __future__ import annotations

import io
import json
import pickle
import warnings
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import load
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, TransformerMixin
from sklearn.pipeline import Pipeline

from veil.errors import InputError
from veil.tables.predictor import Predictor, encoding_of, predictor_of
from veil.tables.reading import as_table


class TableEncoder(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Tables into numbers, as in training; nothing is fitted.

    Args:
        preprocessing: The run's `preprocessing.json`.
    """

    def __init__(self, preprocessing: str) -> None:
        self.preprocessing = preprocessing

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def fit(self, X: Any, y: Any = None) -> TableEncoder:
        """Nothing to do: the model is trained."""
        return self

    def transform(self, X: Any) -> NDArray[Any]:
        """Rows of numbers, from a table of pandas, polars or Arrow."""
        table, encoding = as_table(X, empty=True), encoding_of(json.loads(self.preprocessing))
        return encoding.encode(table) if len(table) else np.zeros((0, encoding.width()), dtype=np.float32)


class _Trained(BaseEstimator):  # type: ignore[misc]
    def __init__(self, preprocessing: str, weights: bytes) -> None:
        self.preprocessing = preprocessing
        self.weights = weights

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __getstate__(self) -> dict[str, Any]:
        return {"preprocessing": self.preprocessing, "weights": self.weights}

    @cached_property
    def _predictor(self) -> Predictor:
        return predictor_of(json.loads(self.preprocessing), load(self.weights))

    def fit(self, X: Any, y: Any = None) -> Any:
        """Rejected: the certificate is for these weights alone."""
        raise InputError("this model is trained, and its certificate is for these weights: train a new one instead")

    def predict(self, X: NDArray[Any]) -> NDArray[Any]:
        """The most likely class, or the expected number, of each row of numbers."""
        return self._predictor.predictions_of(np.asarray(X))


class TrainedClassifier(ClassifierMixin, _Trained):  # type: ignore[misc]
    """A trained model that predicts classes."""

    @property
    def classes_(self) -> NDArray[Any]:
        """The classes, in the order of `predict_proba`."""
        return np.array(self._predictor.classes)

    def predict_proba(self, X: NDArray[Any]) -> NDArray[np.float64]:
        """The probability of each class."""
        return self._predictor.probabilities_of(np.asarray(X))


class TrainedRegressor(RegressorMixin, _Trained):  # type: ignore[misc]
    """A trained model that predicts numbers."""


def pipeline_of(preprocessing: str, weights: bytes) -> Pipeline:
    """The pipeline of a run: raw tables in, classes or numbers out."""
    kind = TrainedClassifier if json.loads(preprocessing)["classes"] else TrainedRegressor
    return Pipeline([("columns", TableEncoder(preprocessing)), ("model", kind(preprocessing, weights))])


def pickled(pipeline: Pipeline) -> bytes:
    """The pipeline as a pickle."""
    return pickle.dumps(pipeline, protocol=5)


_ALLOWED = {
    (kind.__module__, kind.__qualname__): kind for kind in (Pipeline, TableEncoder, TrainedClassifier, TrainedRegressor)
}


class _Reader(pickle.Unpickler):
    """Reads the classes of a pipeline and nothing else: no other code of a pickle is run."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError("it holds something else than a model")
        return _ALLOWED[module, name]


def stored_in_pickle(content: bytes) -> tuple[str, bytes]:
    """Preprocessing and weights in a pickle that Veil wrote; no code of the pickle is run.

    Raises:
        InputError: It holds anything else.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of another version of scikit-learn
            found = _Reader(io.BytesIO(content)).load()
        (first, columns), (second, model) = found.steps
        expected = pipeline_of(model.preprocessing, model.weights)
        same = [(first, type(columns)), (second, type(model))] == [(name, type(step)) for name, step in expected.steps]
        alone = vars(columns) == {"preprocessing": model.preprocessing} and type(found) is Pipeline
        usual = {"steps", "memory", "verbose", "transform_input"}
        if not (same and alone and vars(found).keys() <= usual and found.memory is None):
            raise pickle.UnpicklingError("it holds something else than a model")
        return str(model.preprocessing), bytes(model.weights)
    except Exception as error:  # a pickle can raise anything
        raise InputError("model.pkl is not a pipeline that Veil wrote: do not load it") from error
