"""`FairPrivateClassifier`: classes, with probabilities and scores."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from veil.errors import InputError, require
from veil.estimators.arguments import check_length, class_weights, sample_weights
from veil.estimators.base import CLASS_COUNTS, FairPrivate, Weights
from veil.problem.people import ROWS_PER_PERSON, Counting
from veil.tables.schema import Schema


class FairPrivateClassifier(ClassifierMixin, FairPrivate):  # type: ignore[misc]
    """A classifier trained with differential privacy for every row, by any of Veil's methods.

    The default, `auto`, needs no settings; `epochs`, `batch_size` and `learning_rate` are for methods that train a
    network: who gives one, or a `model`, gets `asc`. Without a `model` it is the one that suits the method.

    `worst_group_accuracy_` comes from a noisy release on held-out rows (the share `holdout`, chosen by a coin on
    what each row says; none below 100 rows): it is covered by the certificate and never exact. Without held-out rows
    it is NaN.

    Weights (`sample_weight` in `fit`, `class_weight` here) scale what a row adds after it is bounded, so they cost no
    privacy. The largest one is public: `max_weight`, or read off the rows, which the certificate then says.

    Args:
        class_weight: Weight by class, or "balanced".
        epsilon: Privacy budget ε, above 0 (1.0 by default).
        delta: δ. By default 1 / (2 × training rows).
        method: Name of a method; `veil methods` lists them. By default `auto`; with another model or a setting of a
            loop (`epochs`, `batch_size`, `learning_rate`) it is `asc`, or `dp-sgd` with one group. `method_` has it.
        preset: Preset of method and model, such as "best"; omit both then.
        method_options: Options of the method by name.
        model: Name of a built-in model. By default the one that suits the method.
        model_options: Options of the model by name.
        epochs: Expected passes over the rows (20 by default), of methods that train in steps.
        batch_size: Expected rows per step (512 by default), of methods that train in steps.
        learning_rate: Step size. By default it follows from noise, model size, steps and batch.
        holdout: Share of rows that are kept out of training and measured with noise, at least 0 and below 1.
        rows_per_person: With `people` in `fit`: the most rows of a person that count.
        person_rows: With `people`: "mean" counts a person by the mean of their rows, "each" counts every row.
        schema: What is public about the columns. Without it columns are encoded by looking at the rows, which the
            certificate says.
        budgets: ε by owner, with `owners` in `fit`.
        max_weight: The largest weight of a row: public knowledge.
        missing_group: Name of the group of rows that have none. By default such a row is an error.
        accountant: "pld" or "rdp".
        secure_noise: Whether noise is safe against attacks on floating-point numbers; slower.
        random_state: A seed, for tests only: the certificate states that it was given.

    >>> from sklearn.datasets import make_classification
    >>> X, y = make_classification(400, random_state=0)
    >>> model = FairPrivateClassifier(epsilon=2.0, random_state=0).fit(X, y, sensitive_features=y)
    >>> model.predict(X).shape, round(model.certificate_.epsilon, 1)
    ((400,), 2.0)
    """

    def __init__(
        self,
        *,
        class_weight: Mapping[Any, float] | str | None = None,
        epsilon: float = 1.0,
        delta: float | None = None,
        method: str | None = None,
        preset: str | None = None,
        method_options: Mapping[str, Any] | None = None,
        model: str = "",
        model_options: Mapping[str, Any] | None = None,
        epochs: float | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        holdout: float = 0.2,
        rows_per_person: int = ROWS_PER_PERSON,
        person_rows: Counting = "mean",
        schema: Schema | None = None,
        budgets: Mapping[str, float] | None = None,
        max_weight: float | None = None,
        missing_group: str | None = None,
        accountant: str = "pld",
        secure_noise: bool = False,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        super().__init__(
            epsilon=epsilon,
            delta=delta,
            method=method,
            preset=preset,
            method_options=method_options,
            model=model,
            model_options=model_options,
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            holdout=holdout,
            rows_per_person=rows_per_person,
            person_rows=person_rows,
            schema=schema,
            budgets=budgets,
            max_weight=max_weight,
            missing_group=missing_group,
            accountant=accountant,
            secure_noise=secure_noise,
            random_state=random_state,
        )
        self.class_weight = class_weight

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        sensitive_features: Any = None,
        owners: Any = None,
        people: Any = None,
    ) -> Self:
        """Train on rows `X` with labels `y`.

        Args:
            X: Rows: an array, a sparse matrix, or a table of pandas, polars or Arrow.
            y: The class of each row.
            sample_weight: A weight for each row, at least 0.
            sensitive_features: Groups: one label per row, columns that are crossed, or names of columns of X.
            owners: Who set the budget of each row.
            people: Whom each row is about: all rows of a person are then protected together.

        Returns:
            The fitted estimator.

        Raises:
            InputError: An argument is wrong; the sentence says which and what to do.
        """
        if y is None:
            raise InputError("requires y to be passed, but the target y is None")
        table = self._table(X, reset=True)
        labels = column_or_1d(y, warn=True)
        if labels.dtype.kind == "f":
            assert_all_finite(labels, input_name="y")
        missing = pd.isna(labels)
        require(not missing.any(), f"Input y contains NaN in row {missing.argmax()}: fill it in or remove the row")
        check_length(len(table), len(labels), "y")
        check_classification_targets(labels)
        self.classes_ = np.unique(labels)
        require(len(self.classes_) >= 2, "there is only 1 class in y: a classifier needs rows of at least two classes")
        codes = np.searchsorted(self.classes_, labels)
        classes = list(range(len(self.classes_)))
        weights = self._weights(sample_weights(sample_weight, len(table)), codes)
        run = self._train(table, codes, (sensitive_features, owners, people), weights, classes=classes)
        self.group_metrics_ = figures = run.metrics
        self.worst_group_accuracy_ = math.nan if figures is None else figures.worst_group_accuracy
        return self

    def _weights(self, given: NDArray[np.float64] | None, codes: NDArray[np.int64]) -> Weights:
        """The weights of rows times those of their classes; both have public bounds of their own."""
        own = Weights.by(given, self.max_weight)
        if self.class_weight is None:
            return own
        by_class = class_weights(self.class_weight, self.classes_, codes)
        more = (CLASS_COUNTS,) if self.class_weight == "balanced" else ()
        of_row = by_class[codes] if own.of_row is None else by_class[codes] * np.minimum(own.of_row, own.largest)
        return Weights(of_row, own.largest * float(by_class.max()), (*own.not_covered, *more), own.given)

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """The score of each class; of two classes the log-odds of the second, one number per row.

        Args:
            X: Rows with the columns of `fit`.

        Returns:
            One number per row for two classes, otherwise one line per row with a score for each class.
        """
        scores = self._outputs(X).to(torch.float64).numpy()
        return np.asarray(scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores)

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """The probability of each class, in the order of `classes_`.

        Args:
            X: Rows with the columns of `fit`.

        Returns:
            One line per row, one column per class; lines add up to 1.
        """
        scores = self._outputs(X).to(torch.float64)
        return np.asarray(torch.softmax(scores, dim=1).numpy())

    def predict(self, X: Any) -> NDArray[Any]:
        """The most likely class of each row.

        Args:
            X: Rows with the columns of `fit`.

        Returns:
            One value per row.
        """
        chosen = self.predict_proba(X).argmax(axis=1)
        return np.asarray(self.classes_[chosen])
