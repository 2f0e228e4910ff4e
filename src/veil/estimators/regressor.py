"""`FairPrivateRegressor`: numbers within public bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.utils import assert_all_finite
from sklearn.utils.validation import column_or_1d

from veil.errors import InputError, require
from veil.estimators.arguments import check_length, not_quoting, sample_weights
from veil.estimators.base import FairPrivate, Weights
from veil.metrics.errors import ErrorMetrics
from veil.problem.people import ROWS_PER_PERSON, Counting
from veil.tables.preparing import TARGET_BOUNDS
from veil.tables.schema import Schema


class FairPrivateRegressor(RegressorMixin, FairPrivate):  # type: ignore[misc]
    """A regression model trained with differential privacy for every row: squared error on a bounded target.

    `target_bounds` are the smallest and largest value a target may have: public knowledge. Without them they are read
    off the rows, and the certificate says that this is not covered. Predictions stay within the bounds.

    `worst_group_error_` (a root mean squared error) comes from a noisy release on held-out rows, as the classifier's
    figures do.

    Args:
        target_bounds: Smallest and largest target.
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

    >>> import numpy as np
    >>> generator = np.random.default_rng(0)
    >>> X = generator.normal(size=(1000, 2))
    >>> y = np.clip(X[:, 0] + 0.1 * generator.normal(size=1000), -3, 3)
    >>> sex = generator.choice(["f", "m"], 1000)
    >>> model = FairPrivateRegressor(target_bounds=(-3, 3), epsilon=2.0, random_state=0)
    >>> model = model.fit(X, y, sensitive_features=sex)
    >>> model.predict(X[:5]).shape, model.certificate_.epsilon <= 2.0
    ((5,), True)
    """

    def __init__(
        self,
        *,
        target_bounds: tuple[float, float] | None = None,
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
        self.target_bounds = target_bounds

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
        """Train on rows `X` with numbers `y`.

        Args:
            X: Rows: an array, a sparse matrix, or a table of pandas, polars or Arrow.
            y: The number of each row; outside `target_bounds` it is cut.
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
        with not_quoting("y"):
            values = column_or_1d(y, dtype=np.float64, warn=True)
        assert_all_finite(values, input_name="y")
        check_length(len(table), len(values), "y")
        low, high = self.target_bounds or (float(values.min()), float(values.max()))
        require(low <= high, f"target_bounds are {low} and {high}: the first must not be above the second")
        self.target_bounds_ = (low, high)
        scaled = np.clip(2 * (values - low) / ((high - low) or 1.0) - 1, -1.0, 1.0)
        weights = Weights.by(sample_weights(sample_weight, len(table)), self.max_weight)
        run = self._train(table, scaled, (sensitive_features, owners, people), weights, task="regression")
        self.group_metrics_ = figures = run.metrics
        self.worst_group_error_ = figures.worst_group_error if isinstance(figures, ErrorMetrics) else math.nan
        return self

    def _not_covered(self) -> list[str]:
        return super()._not_covered() + ([TARGET_BOUNDS] if self.target_bounds is None else [])

    def predict(self, X: Any) -> NDArray[np.float64]:
        """The expected value of each row, within the target's bounds.

        Args:
            X: Rows with the columns of `fit`.

        Returns:
            One value per row.
        """
        low, high = self.target_bounds_ if hasattr(self, "target_bounds_") else (0.0, 1.0)
        outputs = self._outputs(X).squeeze(1).to(torch.float64).numpy()
        return np.asarray(low + (np.clip(outputs, -1.0, 1.0) + 1) / 2 * (high - low))
