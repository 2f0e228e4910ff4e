"""The scikit-learn front: scikit-learn's own suite, pipelines, searches, pickles, groups, owners and text columns."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pandas as pd
import polars
import pyarrow
import pytest
import sklearn
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from veil.errors import InputError
from veil.estimators import SEARCH, FairPrivateClassifier, FairPrivateRegressor, NotCoveredWarning
from veil.tables.preparing import DRAFTED, fitted_on_rows
from veil.tables.schema import Schema, SchemaColumn, draft_schema

CHECKED = [
    # A large ε, because the suite's tables have 30 to 300 rows; the suite's deterministic checks set random_state.
    FairPrivateClassifier(epsilon=200.0, delta=1e-3, epochs=6, batch_size=32, learning_rate=0.5, accountant="rdp"),
    FairPrivateRegressor(epsilon=200.0, delta=1e-3, epochs=6, batch_size=32, learning_rate=0.1, accountant="rdp"),
]


# No check is expected to fail. An entry here would be name: reason.
EXPECTED_FAILURES: dict[str, str] = {}


# Fits on the same rows, one after another, are what these tests are about.
SAME_ROWS = pytest.mark.filterwarnings("ignore::veil.estimators.NotCoveredWarning")


@SAME_ROWS
@parametrize_with_checks(CHECKED, expected_failed_checks=lambda estimator: EXPECTED_FAILURES)
def test_scikit_learns_own_suite(estimator: Any, check: Any) -> None:
    check(estimator)


def people(rows: int = 600) -> tuple[pd.DataFrame, NDArray[Any], pd.DataFrame]:
    """Numbers with gaps, a category, a date and a text; string labels; two attributes that make groups."""
    generator = np.random.default_rng(0)
    age = generator.integers(18, 90, rows).astype(float)
    table = pd.DataFrame(
        {
            "age": np.where(generator.random(rows) < 0.1, np.nan, age),
            "town": generator.choice(["A", "B", "C", None], rows),
            "since": pd.to_datetime("2001-01-01") + pd.to_timedelta(generator.integers(0, 9000, rows), unit="D"),
            "note": [f"a few words about person number {i}" for i in range(rows)],
        }
    )
    labels = np.where(age + 8 * generator.standard_normal(rows) > 54, "rich", "poor")
    groups = pd.DataFrame({"sex": generator.choice(["f", "m"], rows), "old": np.where(age > 60, "yes", "no")})
    return table, labels, groups


def quick(**changes: Any) -> FairPrivateClassifier:
    return FairPrivateClassifier(
        **({"epsilon": 8.0, "epochs": 5, "batch_size": 64, "random_state": 3, "accountant": "rdp"} | changes)
    )


def test_a_table_of_mixed_columns_and_string_labels_is_learned() -> None:
    table, labels, groups = people()
    model = quick().fit(table, labels, sensitive_features=groups)
    assert model.classes_.tolist() == ["poor", "rich"]
    assert set(model.groups_) == {"f × no", "f × yes", "m × no", "m × yes"}
    assert model.score(table, labels) > 0.75
    assert 0 <= model.worst_group_accuracy_ <= 1
    assert model.certificate_.epsilon == pytest.approx(8.0, rel=0.01)
    assert set(model.certificate_.by_group) == set(model.groups_)
    assert fitted_on_rows() in model.certificate_.not_covered
    assert any("Held-out rows" in sentence for sentence in model.certificate_.assumptions)
    assert len(model.history_) == model.n_iter_


def test_unseen_categories_and_missing_values_at_predict_time_are_no_error() -> None:
    table, labels, _ = people()
    model = quick().fit(table, labels)
    strange = table.head(3).copy()
    strange["town"], strange["age"], strange["note"] = "Z", np.nan, None
    chances = model.predict_proba(strange)
    assert np.isfinite(chances).all()
    assert np.allclose(chances.sum(axis=1), 1)


def test_a_word_in_a_column_of_numbers_is_refused_with_column_and_row_but_not_its_content() -> None:
    table, labels, _ = people()
    model = quick().fit(table, labels)
    wrong = table.head(5).copy()
    wrong["age"] = wrong["age"].astype(object)
    wrong.loc[3, "age"] = "a secret"
    with pytest.raises(InputError, match='column "age" is not a number in row 3') as error:
        model.predict(wrong)
    assert "secret" not in str(error.value)


@SAME_ROWS
def test_with_a_schema_nothing_is_read_off_the_rows() -> None:
    table, labels, _ = people()
    schema = Schema((SchemaColumn("age", "numeric", 0, 120), SchemaColumn("town", "category", values=("A", "B"))))
    model = quick(schema=schema).fit(table, labels)
    assert fitted_on_rows() not in model.certificate_.not_covered
    assert model.encoding_.width() == 4
    changed = table.copy()
    changed.loc[0, "age"] = 5000.0
    assert quick(schema=schema).fit(changed, labels).encoding_ == model.encoding_


def test_owners_keep_their_own_budgets() -> None:
    table, labels, groups = people()
    owners = np.where(groups["sex"] == "f", "careful", "open")
    model = quick(method="idp-sgd", budgets={"careful": 1.0, "open": 4.0}).fit(
        table, labels, sensitive_features=groups["sex"], owners=owners
    )
    assert model.certificate_.by_owner["careful"] == pytest.approx(1.0, rel=0.02)
    assert model.certificate_.by_owner["open"] == pytest.approx(4.0, rel=0.02)


@SAME_ROWS
def test_the_same_random_state_gives_the_same_model_and_none_gives_another() -> None:
    table, labels, _ = people(200)
    one, two = (quick().fit(table, labels).predict_proba(table) for _ in range(2))
    assert np.array_equal(one, two)
    fresh = [quick(random_state=None).fit(table, labels) for _ in range(2)]
    assert not np.array_equal(*(model.predict_proba(table) for model in fresh))
    assert not any("seed was given" in sentence for sentence in fresh[0].certificate_.assumptions)


def test_pickles_and_clones() -> None:
    table, labels, groups = people(300)
    model = quick(method="dp-sgd", method_options={"clip": 0.5}, model_options={"width": 8}).fit(
        table, labels, sensitive_features=groups
    )
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict(table), model.predict(table))
    assert again.certificate_ == model.certificate_
    assert clone(model).get_params() == model.get_params()


def test_several_classes_with_one_percent_minority_keep_all_classes() -> None:
    generator = np.random.default_rng(1)
    labels = np.array(["common"] * 700 + ["second"] * 290 + ["rare"] * 10)
    rows = generator.standard_normal((1000, 3)) + (labels == "second")[:, None] * 2
    model = quick().fit(rows, labels, sensitive_features=labels)
    assert model.predict_proba(rows).shape == (1000, 3)
    assert set(model.certificate_.by_group) == {"common", "second", "rare"}


def test_a_search_warns_that_it_is_not_covered_and_the_certificate_says_so() -> None:
    table, labels, _ = people(300)
    search = GridSearchCV(quick(), {"learning_rate": [0.1, 0.5]}, cv=2)
    with pytest.warns(NotCoveredWarning, match="search or cross-validation"):
        search.fit(table[["age"]].fillna(50.0), labels)
    assert SEARCH in search.best_estimator_.certificate_.not_covered
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert SEARCH not in quick().fit(table, labels).certificate_.not_covered


def test_groups_are_routed_through_pipelines_and_cross_validation() -> None:
    table, labels, groups = people(300)
    rows, sex = table[["age"]].fillna(50.0), groups["sex"].to_numpy()
    with sklearn.config_context(enable_metadata_routing=True):
        pipeline = make_pipeline(StandardScaler(), quick().set_fit_request(sensitive_features=True))
        pipeline.fit(rows, labels, sensitive_features=sex)
        assert set(pipeline[-1].groups_) == {"f", "m"}
        with pytest.warns(NotCoveredWarning):
            found = cross_validate(
                pipeline, rows, labels, params={"sensitive_features": sex}, cv=2, return_estimator=True
            )
    assert all(set(model[-1].groups_) == {"f", "m"} for model in found["estimator"])


def test_polars_and_arrow_tables_are_taken() -> None:
    table, labels, _ = people(200)
    expected = quick().fit(table, labels).predict(table)
    for other in (pyarrow.Table.from_pandas(table), polars.from_pandas(table)):
        assert np.array_equal(quick().fit(other, labels).predict(other), expected)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"sensitive_features": ["a"] * 3}, "sensitive_features has 3"),
        ({"owners": ["a"] * 200}, "owner"),
    ],
)
def test_wrong_groups_or_owners_get_a_sentence(changes: dict[str, Any], sentence: str) -> None:
    table, labels, _ = people(200)
    budgets = {"somebody else": 1.0} if "owners" in changes else None
    with pytest.raises(InputError, match=sentence):
        quick(budgets=budgets).fit(table, labels, **changes)


def test_a_missing_label_among_words_gets_a_sentence_with_its_row() -> None:
    table, labels, _ = people(200)
    gaps = labels.astype(object)
    for gap in (np.nan, None):
        gaps[7] = gap
        with pytest.raises(InputError, match="y contains NaN in row 7"):
            quick().fit(table, gaps)


@pytest.mark.parametrize("words", [True, False])
def test_two_columns_of_one_name_are_refused(words: bool) -> None:
    table, labels, groups = people(200)
    chosen = table[["age", "town" if words else "age"]].set_axis(["age", "age"], axis=1)
    with pytest.raises(InputError, match='X has two columns named "age"'):
        quick().fit(chosen, labels)
    with pytest.raises(InputError, match='sensitive_features has two columns named "sex"'):
        quick().fit(table, labels, sensitive_features=groups.set_axis(["sex", "sex"], axis=1))


@pytest.mark.filterwarnings("ignore::veil.estimators.NotCoveredWarning")
def test_a_group_of_one_row_is_trained_on_and_groups_of_one_row_each_are_refused() -> None:
    table, labels, groups = people()
    sex = groups["sex"].to_numpy(dtype=object)
    sex[0] = "x"
    for seed in range(5):
        assert "x" in quick(random_state=seed).fit(table, labels, sensitive_features=sex).groups_
    with pytest.raises(InputError, match="different values in"):
        quick().fit(table, labels, sensitive_features=np.arange(len(table)))


def test_a_draft_of_a_schema_is_not_covered() -> None:
    table, labels, _ = people()
    assert DRAFTED in quick(schema=draft_schema(table)).fit(table, labels).certificate_.not_covered


@SAME_ROWS
def test_a_regression_stays_within_the_targets_bounds_and_learns() -> None:
    generator = np.random.default_rng(0)
    rows = generator.uniform(-1, 1, (800, 2))
    values = 30 + 10 * rows[:, 0]
    model = FairPrivateRegressor(target_bounds=(15.0, 45.0), epsilon=8.0, epochs=10, random_state=0)
    model.fit(rows, values)
    assert model.score(rows, values) > 0.7
    assert model.predict(rows * 1000).min() >= 15
    assert not any("Bounds of the target" in sentence for sentence in model.certificate_.not_covered)
    open_bounds = FairPrivateRegressor(epsilon=8.0, epochs=1, random_state=0).fit(rows, values)
    assert any("Bounds of the target" in sentence for sentence in open_bounds.certificate_.not_covered)
