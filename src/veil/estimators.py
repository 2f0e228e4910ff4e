"""The scikit-learn front: `FairPrivateClassifier` and `FairPrivateRegressor`.

They train by `veil.fit` and keep its certificate. Groups and owners are needed at fit only. Without a schema, bounds
and categories are taken from the training rows, and the certificate states that this is not covered.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import assert_all_finite, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import Tensor

from veil import methods
from veil.accounting import Relation
from veil.errors import InputError, require
from veil.foundation.randomness import Seed
from veil.methods import Method, relation_asked
from veil.metrics.errors import ErrorMetrics
from veil.models.applying import apply
from veil.plans import Settings
from veil.problem import Problem, PublicFacts, cross
from veil.problem.people import (
    ROWS_PER_PERSON,
    Counted,
    Counting,
    Several,
    are_own_owners,
    check_owners,
    checked_counting,
    count_rows,
    name_hashes,
    names_of,
    own_budgets,
)
from veil.request import Request
from veil.tables.callers import SELECTION, callers, in_worker
from veil.tables.fitted_rows import Fitted, added_up, fitted_before, mark_of, remember, rows_of
from veil.tables.guessing import fit_encoding
from veil.tables.measuring import HeldOutFigures
from veil.tables.opening import ModelFactory, parted
from veil.tables.preparing import TARGET_BOUNDS, read_off_rows
from veil.tables.reading import refuse_twice
from veil.tables.schema import Schema
from veil.tables.splitting import Holdout, holdout_key, identities_for
from veil.tables.table import check_groups
from veil.training import Run
from veil.training.fitting import Job, Measure, execute

SEARCH = "A search or cross-validation around this fit: its other fits on the same rows, and its scores."
WRAPPED = "What {} does around this fit: its other fits on the same rows, and anything else it computes from them."
STEPS = "Steps of a pipeline around this fit: what they learned from the rows (scaling, column selection)."
COPIES = "Copies: one row appears up to {0} times among these, and {0} copies lose up to {0} times the ε of one row."
WORKER = "Other fits on the same rows by other worker processes: this fit ran in one, which cannot see them."


class NotCoveredWarning(UserWarning):
    """Warning: something around a fit is not covered by the certificate."""


class _FairPrivate(BaseEstimator):  # type: ignore[misc]
    """What both estimators share: storing, encoding rows, training, and the certificate."""

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float | None = None,
        method: str = "auto",
        method_options: Mapping[str, Any] | None = None,
        model: str = "",
        model_options: Mapping[str, Any] | None = None,
        epochs: float = 20.0,
        batch_size: int = 256,
        learning_rate: float | None = None,
        holdout: float = 0.2,
        rows_per_person: int = ROWS_PER_PERSON,
        person_rows: Counting = "mean",
        schema: Schema | None = None,
        budgets: Mapping[str, float] | None = None,
        accountant: str = "pld",
        secure_noise: bool = False,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.method = method
        self.method_options = method_options
        self.model = model
        self.model_options = model_options
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.holdout = holdout
        self.rows_per_person = rows_per_person
        self.person_rows = person_rows
        self.schema = schema
        self.budgets = budgets
        self.accountant = accountant
        self.secure_noise = secure_noise
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        """Missing values are encoded; sparse rows are not taken."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = False
        return tags

    def _table(self, X: Any, *, reset: bool) -> pd.DataFrame:
        """Rows as a table, after scikit-learn's own checks; text columns are allowed in tables with named columns."""
        if hasattr(X, "to_pandas"):
            X = X.to_pandas()
        if isinstance(X, pd.DataFrame):
            refuse_twice(X.columns, "X")
        if isinstance(X, pd.DataFrame) and not all(map(pd.api.types.is_numeric_dtype, X.dtypes)):
            validate_data(self, X, reset=reset, skip_check_array=True)
            require(len(X) > 0, "Found array with 0 sample(s): at least one row is needed")
            table = X.reset_index(drop=True)
            table.columns = table.columns.map(str)
            return table
        with _not_quoting("X"):
            array = validate_data(self, X, reset=reset, dtype=np.float64, ensure_all_finite="allow-nan")
        names = getattr(self, "feature_names_in_", None)
        names = [f"x{i}" for i in range(array.shape[1])] if names is None else list(map(str, names))
        return pd.DataFrame(array, columns=names)

    def _method(self) -> Method:
        return methods.create(self.method, self.method_options)

    def _measures(self, held_out: Problem, seed: Seed) -> list[Measure]:
        """What is measured on held-out rows."""
        relation = relation_asked(self._method())
        allowed = min(held_out.public.budgets or (math.inf,))
        return [] if relation is None else [HeldOutFigures(held_out, seed, relation, allowed=allowed)]

    def _train(
        self, table: pd.DataFrame, targets: NDArray[Any], groups: Any, owners: Any, people: Any, **facts: Any
    ) -> Run:
        """Set rows apart, encode, train and measure. Of people, one row each decides what is set apart."""
        crossed = _attributes(groups, len(table), "sensitive_features")
        owned = None if owners is None else _labels(owners, len(table), "owners")
        besides = {"target": targets, **{f"group {k}": v for k, v in (crossed or {}).items()}, "owner": owned}
        counted, drawn, own = None, np.arange(len(table)), None
        if people is not None:
            named = besides["person"] = names_of(_labels(people, len(table), "people"))
            counted = self._counted(named, crossed, owned)
            if owned is not None and self.budgets is not None and are_own_owners(named, owned):
                owned, own = None, own_budgets(named, self.budgets, range(len(table)))
            drawn = counted.drawn
        seed, given = self._seed()
        apart = self._held_out(table, besides, drawn, holdout_key(seed))
        some = None if counted is None else counted.of(~apart)
        by_row = some is not None and checked_counting(self.person_rows) == "each"
        entries = some.rows if some is not None and by_row else drawn[~apart]
        self.encoding_ = fit_encoding(table.iloc[entries], set()) if self.schema is None else self.schema.encoding()
        bounds = getattr(self, "target_bounds_", None)

        def problem(rows: NDArray[np.int64]) -> Problem:
            made = Problem.from_arrays(
                self.encoding_.encode(table.iloc[rows]),
                targets[rows],
                None if crossed is None else {name: labels[rows] for name, labels in crossed.items()},
                owners=None if owned is None else owned[rows],
                budgets=self.budgets if own is None else own[rows],
                **facts,
            )
            return made.with_classes_read() if bounds is None else made.with_target_range(*bounds)

        training, measured = parted(problem, entries, drawn[apart])
        if some is not None and by_row:
            training = training.with_each_row(some.person_of, some.most)
        elif some is not None:
            more = torch.from_numpy(self.encoding_.encode(table.iloc[some.rows]))
            of_more = torch.as_tensor(targets[some.rows]).to(training.targets.dtype)
            training = training.with_people(Several(more, of_more, some.first), some.most)
        if crossed is not None:
            check_groups(len(training.public.groups), len(training), list(crossed))
        fitting = self._fitting(table, besides, given, training.public)
        settings = Settings.checked(
            epsilon=self.epsilon,
            delta=self.delta,
            epochs=self.epochs,
            batch_size=min(self.batch_size, len(training)),
            learning_rate=self.learning_rate,
            accountant=self.accountant,
            secure_noise=self.secure_noise,
            seed=given,
        )
        asked = Request.checked(
            data=Path(),
            method=self.method,
            option=self.method_options or {},
            model=self.model,
            model_option=self.model_options or {},
            settings=settings,
        )
        job = Job(
            ModelFactory(asked, self.encoding_)(training, seed),
            training,
            not_covered=[*self._not_covered(), *_around(fitting)],
            measures=[] if measured is None else self._measures(measured, seed),
        )
        run = execute(job, methods.planned(self._method(), training.public, settings))
        # In double precision: in single, how a row is rounded follows from how many others are asked about with it.
        self.model_ = run.model.eval().double()
        self.history_ = run.history
        self.certificate_ = run.certificate
        self.groups_ = training.public.groups
        self.n_iter_ = run.plan.steps
        if run.certificate.epsilon is not None and run.certificate.delta is not None:
            remember(replace(fitting, epsilon=run.certificate.epsilon, delta=run.certificate.delta))
        return run

    def _counted(
        self, people: NDArray[Any], groups: Mapping[str, NDArray[Any]] | None, owners: NDArray[Any] | None
    ) -> Counted:
        """Which rows of each person count."""
        if owners is not None:
            check_owners(people, owners, range(len(owners)))
        of = np.zeros(len(people), np.int64) if groups is None else cross(groups, len(people))[0]
        return count_rows(people, of, self.rows_per_person)

    def _held_out(
        self, table: pd.DataFrame, besides: Mapping[str, NDArray[Any] | None], drawn: NDArray[np.int64], key: Seed
    ) -> NDArray[np.bool_]:
        """Which of the drawn rows are held out: all that was given of a row is what it says; people have names."""
        labels = {name: column[drawn] for name, column in besides.items() if column is not None}
        groups = {name: column for name, column in labels.items() if name.startswith("group ")}
        of = cross(groups, len(drawn))[0] if groups else np.zeros(len(drawn))
        if "person" in labels:
            rows = name_hashes(labels["person"])
        else:
            said = table.iloc[drawn].reset_index(drop=True).assign(**{f"\0{name}": labels[name] for name in labels})
            rows = identities_for(relation_asked(self._method()), said)
        return Holdout(self.holdout, key).sparing(rows, of)

    def _seed(self) -> tuple[Seed, int | None]:
        """A fresh seed from the operating system, or the one that `random_state` gives (stated on the certificate)."""
        if self.random_state is None:
            return Seed.from_system(), None
        given = int(check_random_state(self.random_state).randint(2**31 - 1))
        return Seed.from_int(given), given

    def _not_covered(self) -> list[str]:
        return read_off_rows(self.schema, self.encoding_)

    def _fitting(
        self, table: pd.DataFrame, besides: Mapping[str, NDArray[Any] | None], given: int | None, facts: PublicFacts
    ) -> Fitted:
        """What this fit may cost each row of the table. Only a fit with a given seed can be repeated exactly."""
        found = rows_of(table)
        if facts.unit == "person":  # whose rows may well be equal
            found = replace(found, copies=1)
        chosen = self._method()
        mark = None
        if given is not None:
            labels = {name: column for name, column in besides.items() if column is not None}
            of_rows = rows_of(pd.DataFrame(labels))
            # Which rows are held out, and what a schema says of them, follows from the names of columns too.
            named = [*table.columns, *besides]
            mark = mark_of(type(self), self.get_params(), given, named, found.whole, of_rows.whole)
        settings = Settings.checked(epsilon=self.epsilon, delta=self.delta)
        epsilon = max((settings.epsilon, *(facts.budgets or ()))) if chosen.private else 0.0
        relation = Relation(chosen.relation or Relation.ADD_REMOVE)
        return Fitted(found, epsilon, settings.delta_for(facts), relation, mark)

    def _outputs(self, X: Any) -> Tensor:
        check_is_fitted(self)
        rows = torch.from_numpy(self.encoding_.encode(self._table(X, reset=False)))
        return apply(self.model_, rows.double() if rows.is_floating_point() else rows)


class FairPrivateClassifier(ClassifierMixin, _FairPrivate):  # type: ignore[misc]
    """A classifier trained with differential privacy for every row, by any of Veil's methods.

    The default, `auto`, needs no settings; `epochs`, `batch_size` and `learning_rate` are for methods that train a
    network, as `method="asc"` does. Without a `model` it is the one that suits the method.

    `worst_group_accuracy_` comes from a noisy release on held-out rows (the share `holdout`, chosen by a coin on
    what each row says; none below 100 rows): it is covered by the certificate and never exact. Without held-out rows
    it is NaN.

    >>> from sklearn.datasets import make_classification
    >>> X, y = make_classification(400, random_state=0)
    >>> model = FairPrivateClassifier(epsilon=2.0, random_state=0).fit(X, y, sensitive_features=y)
    >>> model.predict(X).shape, round(model.certificate_.epsilon, 1)
    ((400,), 2.0)
    """

    def fit(self, X: Any, y: Any, *, sensitive_features: Any = None, owners: Any = None, people: Any = None) -> Self:
        """Train on rows `X` with labels `y`; groups and owners are one label per row, or columns that are crossed.

        `people` has one label per row, for whom it is about: all rows of a person are then protected together.
        """
        if y is None:
            raise InputError("requires y to be passed, but the target y is None")
        table = self._table(X, reset=True)
        labels = column_or_1d(y, warn=True)
        if labels.dtype.kind == "f":
            assert_all_finite(labels, input_name="y")
        missing = pd.isna(labels)
        require(not missing.any(), f"Input y contains NaN in row {missing.argmax()}: fill it in or remove the row")
        _check_length(len(table), len(labels), "y")
        check_classification_targets(labels)
        self.classes_ = np.unique(labels)
        require(len(self.classes_) >= 2, "there is only 1 class in y: a classifier needs rows of at least two classes")
        codes = np.searchsorted(self.classes_, labels)
        classes = list(range(len(self.classes_)))
        run = self._train(table, codes, sensitive_features, owners, people, classes=classes)
        self.group_metrics_ = figures = run.metrics
        self.worst_group_accuracy_ = math.nan if figures is None else figures.worst_group_accuracy
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """The probability of each class, in the order of `classes_`."""
        scores = self._outputs(X).to(torch.float64)
        return np.asarray(torch.softmax(scores, dim=1).numpy())

    def predict(self, X: Any) -> NDArray[Any]:
        """The most likely class of each row."""
        chosen = self.predict_proba(X).argmax(axis=1)
        return np.asarray(self.classes_[chosen])


class FairPrivateRegressor(RegressorMixin, _FairPrivate):  # type: ignore[misc]
    """A regression model trained with differential privacy for every row: squared error on a bounded target.

    `target_bounds` are the smallest and largest value a target may have: public knowledge. Without them they are read
    off the rows, and the certificate says that this is not covered. Predictions stay within the bounds.

    `worst_group_error_` (a root mean squared error) comes from a noisy release on held-out rows, as the classifier's
    figures do.
    """

    def __init__(
        self,
        *,
        target_bounds: tuple[float, float] | None = None,
        epsilon: float = 1.0,
        delta: float | None = None,
        method: str = "auto",
        method_options: Mapping[str, Any] | None = None,
        model: str = "",
        model_options: Mapping[str, Any] | None = None,
        epochs: float = 20.0,
        batch_size: int = 256,
        learning_rate: float | None = None,
        holdout: float = 0.2,
        rows_per_person: int = ROWS_PER_PERSON,
        person_rows: Counting = "mean",
        schema: Schema | None = None,
        budgets: Mapping[str, float] | None = None,
        accountant: str = "pld",
        secure_noise: bool = False,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        super().__init__(
            epsilon=epsilon,
            delta=delta,
            method=method,
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
            accountant=accountant,
            secure_noise=secure_noise,
            random_state=random_state,
        )
        self.target_bounds = target_bounds

    def fit(self, X: Any, y: Any, *, sensitive_features: Any = None, owners: Any = None, people: Any = None) -> Self:
        """Train on rows `X` with numbers `y`; groups, owners and people as for the classifier."""
        if y is None:
            raise InputError("requires y to be passed, but the target y is None")
        table = self._table(X, reset=True)
        with _not_quoting("y"):
            values = column_or_1d(y, dtype=np.float64, warn=True)
        assert_all_finite(values, input_name="y")
        _check_length(len(table), len(values), "y")
        low, high = self.target_bounds or (float(values.min()), float(values.max()))
        require(low <= high, f"target_bounds are {low} and {high}: the first must not be above the second")
        self.target_bounds_ = (low, high)
        scaled = np.clip(2 * (values - low) / ((high - low) or 1.0) - 1, -1.0, 1.0)
        run = self._train(table, scaled, sensitive_features, owners, people, task="regression")
        self.group_metrics_ = figures = run.metrics
        self.worst_group_error_ = figures.worst_group_error if isinstance(figures, ErrorMetrics) else math.nan
        return self

    def _not_covered(self) -> list[str]:
        return super()._not_covered() + ([TARGET_BOUNDS] if self.target_bounds is None else [])

    def predict(self, X: Any) -> NDArray[np.float64]:
        """The expected value of each row, within the target's bounds."""
        low, high = self.target_bounds_ if hasattr(self, "target_bounds_") else (0.0, 1.0)
        outputs = self._outputs(X).squeeze(1).to(torch.float64).numpy()
        return np.asarray(low + (np.clip(outputs, -1.0, 1.0) + 1) / 2 * (high - low))


def _labels(values: Any, rows: int, what: str) -> NDArray[Any]:
    labels = np.asarray(values, dtype=object)
    require(labels.ndim == 1, f"{what} has {labels.ndim} dimensions: give one label per row, or a table of columns")
    _check_length(rows, len(labels), what)
    return labels


def _attributes(values: Any, rows: int, what: str) -> dict[str, NDArray[Any]] | None:
    """One label per row, or several columns that are crossed."""
    if values is None:
        return None
    if hasattr(values, "to_pandas"):
        values = values.to_pandas()
    if isinstance(values, pd.DataFrame):
        refuse_twice(values.columns, what)
        return {str(name): _labels(values[name], rows, what) for name in values.columns}
    if isinstance(values, Mapping):
        return {str(name): _labels(column, rows, what) for name, column in values.items()}
    labels = np.asarray(values, dtype=object)
    if labels.ndim == 2:
        return {str(column): _labels(labels[:, column], rows, what) for column in range(labels.shape[1])}
    return {what: _labels(labels, rows, what)}


@contextmanager
def _not_quoting(what: str) -> Iterator[None]:
    """Replace numpy's error about text among numbers, which repeats a possibly private value."""
    try:
        yield
    except ValueError as error:
        if "could not convert" not in str(error):
            raise
        raise InputError(f"{what} contains text among numbers: give numbers, or a table with named columns") from None


def _check_length(rows: int, found: int, what: str) -> None:
    require(
        rows == found,
        f"Found input variables with inconsistent numbers of samples: X has {rows} rows and {what} has {found}",
    )


def _around(fitting: Fitted) -> list[str]:
    """What around a fit its certificate does not cover; the unexpected also raises one warning."""
    modules, steps = callers()
    wrapper = next((name for name in modules if name.startswith(SELECTION)), None) or next(iter(modules), None)
    found = []
    if wrapper is not None:
        found.append(SEARCH if wrapper.startswith(SELECTION) else WRAPPED.format(".".join(wrapper.split(".")[:2])))
    before = fitted_before(fitting.rows, fitting.mark) if fitting.epsilon > 0 else []
    if before:
        found.append(_refitted(before, fitting))
    if fitting.rows.copies > 1 and fitting.epsilon > 0:
        found.append(COPIES.format(fitting.rows.copies))
    if found:
        said = " ".join((found[0][0].lower() + found[0][1:], *found[1:]))
        warnings.warn(
            f"not covered by the certificate: {said} Each fit has its own guarantee.",
            NotCoveredWarning,
            stacklevel=4,
        )
    return [*found, *([STEPS] if steps else []), *([WORKER] if in_worker() else [])]


def _refitted(before: Sequence[Fitted], fitting: Fitted) -> str:
    """The total cost of all fits on the same rows: sums, which hold under any adaptive choice."""
    epsilon, delta = added_up(before)
    most, most_delta = added_up([*before, fitting])
    models = "1 other private model" if len(before) == 1 else f"{len(before)} other private models"
    return (
        f"These rows were used to fit {models} in this process: their ε add up to {epsilon:.3g} (δ to {delta:.2g}), "
        f"with this fit to at most {most:.3g} (δ to {most_delta:.2g})."
    )
