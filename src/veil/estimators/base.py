"""What both estimators share: storing, encoding rows, training, the certificate and the report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from veil import methods
from veil.accounting import Relation
from veil.errors import require
from veil.estimators.arguments import attributes, labels_of_rows, not_quoting
from veil.estimators.surroundings import around, warn_of_no_groups
from veil.foundation.randomness import Seed
from veil.methods import Method, relation_asked
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
from veil.report import write_report
from veil.request import SUITED, Request, default_method
from veil.tables.column_uses import column_uses
from veil.tables.effects import Learned
from veil.tables.fitted_rows import Fitted, mark_of, remember, rows_of
from veil.tables.guessing import fit_encoding
from veil.tables.measuring import HeldOutFigures, expected_rows
from veil.tables.opening import ModelFactory, parted
from veil.tables.preparing import read_off_rows
from veil.tables.reading import refuse_twice
from veil.tables.schema import Schema
from veil.tables.splitting import Holdout, holdout_key, identities_for
from veil.tables.table import Columns, check_groups
from veil.training import Run
from veil.training.fitting import Job, Measure, execute
from veil.training.presets import preset

LARGEST_WEIGHT = "The largest sample weight: it was taken from the rows. State it as max_weight."
CLASS_COUNTS = "The balanced weights of classes: they were counted in the rows. State class_weight as a mapping."


# What is written out of a sparse table: 2 GB.
MOST_CELLS = 1 << 28
# An estimator is given the columns of features alone.
_NO_ROLES = Columns("", ())
Besides = tuple[Any, Any, Any]
"""Groups, owners and people, as they were given."""


@dataclass(frozen=True)
class Weights:
    """The weight of each row, the largest that one may have, and what about them the certificate does not cover.

    `given` are those of the user alone: weights of classes may be counted in all rows.
    """

    of_row: NDArray[np.float64] | None = None
    largest: float = 1.0
    not_covered: tuple[str, ...] = ()
    given: NDArray[np.float64] | None = None

    @classmethod
    def by(cls, given: NDArray[np.float64] | None, most: float | None, more: tuple[str, ...] = ()) -> Weights:
        """Weights with a stated largest one; without it the largest is read off the rows, which is said."""
        if given is None:
            return cls()
        require(most is None or (most > 0 and math.isfinite(most)), f"max_weight is {most}: it must be above 0")
        largest = float(given.max()) if most is None else float(most)
        return cls(given, largest, more if most is not None else (LARGEST_WEIGHT, *more), given)


class FairPrivate(BaseEstimator):  # type: ignore[misc]
    """What both estimators share: storing, encoding rows, training, and the certificate."""

    def __init__(
        self,
        *,
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
        self.epsilon = epsilon
        self.delta = delta
        self.method = method
        self.preset = preset
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
        self.max_weight = max_weight
        self.missing_group = missing_group
        self.accountant = accountant
        self.secure_noise = secure_noise
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        """Missing values are encoded; sparse rows are taken and written out."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
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
        with not_quoting("X"):
            array: Any = validate_data(
                self, X, reset=reset, dtype=np.float64, ensure_all_finite="allow-nan", accept_sparse="csr"
            )
        if issparse(array):
            array = _written_out(array)
        names = getattr(self, "feature_names_in_", None)
        names = [f"x{i}" for i in range(array.shape[1])] if names is None else list(map(str, names))
        return pd.DataFrame(array, columns=names)

    def _choose(self, groups: bool) -> str:
        """Set `method_` and return the name of the model: by the rule of the command line, or the preset's."""
        given = [name for name in ("epochs", "batch_size", "learning_rate") if getattr(self, name) is not None]
        model = self.model
        if self.preset is not None:
            named = self.method is not None or bool(self.model)
            require(not named, f"preset {self.preset} sets method and model: omit method and model")
            found = preset(self.preset)
            self.method_, model = found.method, found.model
        elif self.method is not None:
            self.method_ = self.method
        else:
            self.method_ = default_method(linear=model in ("", SUITED["auto"]), given=given, groups=groups)
        unused = " and ".join(given) if getattr(self._method(), "whole", False) else ""
        require(
            not unused, f"{self.method_} is not trained in steps that you set: omit {unused}, or choose another method"
        )
        return model

    def _method(self) -> Method:
        return methods.create(self.method_, self.method_options)

    def report(self, path: Path | str) -> Path:
        """Write the HTML page of this fit, as `veil report` does, and return its path."""
        check_is_fitted(self)
        return write_report([self.record_], Path(path))

    def _measures(self, held_out: Problem, training: PublicFacts, seed: Seed) -> list[Measure]:
        """What is measured on held-out rows."""
        relation = relation_asked(self._method())
        allowed = min(held_out.public.budgets or (math.inf,))
        expected = expected_rows(training, self.holdout, self.holdout)
        return [] if relation is None else [HeldOutFigures(held_out, seed, relation, None, allowed, expected=expected)]

    def _train(
        self, table: pd.DataFrame, targets: NDArray[Any], besides: Besides, weights: Weights, **facts: Any
    ) -> Run:
        """Set rows apart, encode, train and measure. Of people, one row each decides what is set apart."""
        groups, owners, people = besides
        crossed = attributes(groups, table, "sensitive_features", self.missing_group)
        model = self._choose(any(len(pd.unique(labels)) > 1 for labels in (crossed or {}).values()))
        if groups is None:
            warn_of_no_groups()
        require(weights.of_row is None or people is None, "sample weights are for rows: omit people or weights")
        owned = None if owners is None else labels_of_rows(owners, len(table), "owners")
        told = {"target": targets, **{f"group {k}": v for k, v in (crossed or {}).items()}, "owner": owned}
        told["weight"] = weights.given
        counted, drawn, own = None, np.arange(len(table)), None
        if people is not None:
            named = told["person"] = names_of(labels_of_rows(people, len(table), "people"))
            counted = self._counted(named, crossed, owned)
            if owned is not None and self.budgets is not None and are_own_owners(named, owned):
                owned, own = None, own_budgets(named, self.budgets, range(len(table)))
            drawn = counted.drawn
        seed, given = self._seed()
        apart = self._held_out(table, told, drawn, holdout_key(seed))
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
        if weights.of_row is not None:
            training = training.with_weights(weights.of_row[entries], weights.largest)
        fitting = self._fitting(table, told, given, training.public)
        settings = Settings.checked(
            epsilon=self.epsilon,
            delta=self.delta,
            epochs=_usual("epochs") if self.epochs is None else self.epochs,
            batch_size=min(_usual("batch_size") if self.batch_size is None else self.batch_size, len(training)),
            learning_rate=self.learning_rate,
            accountant=self.accountant,
            secure_noise=self.secure_noise,
            seed=given,
        )
        asked = Request.checked(
            data=Path(),
            method=self.method_,
            option=self.method_options or {},
            model=model,
            model_option=self.model_options or {},
            settings=settings,
        )
        job = Job(
            ModelFactory(asked, self.encoding_)(training, seed),
            training,
            not_covered=[*self._not_covered(), *weights.not_covered, *around(fitting)],
            measures=[
                Learned(self.encoding_),
                *([] if measured is None else self._measures(measured, training.public, seed)),
            ],
            columns=[asdict(use) for use in column_uses(table, _NO_ROLES, self.encoding_, ())],
            config={"model": asked.model},
        )
        run = execute(job, methods.planned(self._method(), training.public, settings))
        self.record_ = run.as_json()
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


def _usual(setting: str) -> Any:
    return Settings.model_fields[setting].default


def _written_out(sparse: Any) -> NDArray[np.float64]:
    """A sparse table with all its zeros."""
    cells = sparse.shape[0] * sparse.shape[1]
    require(cells <= MOST_CELLS, f"X is sparse and would have {cells:,} numbers: select columns first")
    return np.asarray(sparse.toarray())
