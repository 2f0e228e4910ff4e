"""The scikit-learn front: scikit-learn's own suite, pipelines, searches, pickles, groups, owners and text columns."""

from __future__ import annotations

import json
import pickle
import warnings
from pathlib import Path
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

from tests.program import Program
from veil.errors import InputError
from veil.estimators import (
    SEARCH,
    FairPrivateClassifier,
    FairPrivateRegressor,
    NoGroupsWarning,
    NotCoveredWarning,
)
from veil.estimators.base import CLASS_COUNTS, LARGEST_WEIGHT
from veil.tables.preparing import DRAFTED, fitted_on_rows
from veil.tables.schema import Schema, SchemaColumn, draft_schema

CHECKED = [
    # A large ε, because the suite's tables have 30 to 300 rows; the suite's deterministic checks set random_state.
    FairPrivateClassifier(epsilon=200.0, delta=1e-3, accountant="rdp"),
    FairPrivateRegressor(epsilon=200.0, delta=1e-3, accountant="rdp"),
]


_WEIGHTS = "The number of rows is public and decides noise and draws: a row of weight 0 is not a row that is missing."
EXPECTED_FAILURES: dict[str, str] = {
    "check_sample_weight_equivalence_on_dense_data": _WEIGHTS,
    "check_sample_weight_equivalence_on_sparse_data": _WEIGHTS,
}


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
    return FairPrivateClassifier(**({"epsilon": 8.0, "random_state": 3, "accountant": "rdp"} | changes))


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
    model = quick(method="idp-sgd", epochs=5, batch_size=64, budgets={"careful": 1.0, "open": 4.0}).fit(
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
        warnings.simplefilter("error", NotCoveredWarning)
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
    model = FairPrivateRegressor(target_bounds=(15.0, 45.0), epsilon=8.0, random_state=0)
    model.fit(rows, values)
    assert model.score(rows, values) > 0.7
    assert model.predict(rows * 1000).min() >= 15
    assert not any("Bounds of the target" in sentence for sentence in model.certificate_.not_covered)
    open_bounds = FairPrivateRegressor(epsilon=8.0, random_state=0).fit(rows, values)
    assert any("Bounds of the target" in sentence for sentence in open_bounds.certificate_.not_covered)


def numbers(rows: int = 400) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Two numbers, of which the first decides; labels 0 and 1; two groups."""
    generator = np.random.default_rng(5)
    X = generator.normal(size=(rows, 2))
    return X, (X[:, 0] + 0.3 * generator.normal(size=rows) > 0).astype(int), generator.choice(["f", "m"], rows)


def test_fitting_without_groups_is_warned_of() -> None:
    X, y, groups = numbers()
    with pytest.warns(NoGroupsWarning, match="fitted without groups"):
        quick().fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error", NoGroupsWarning)
        warnings.simplefilter("ignore", NotCoveredWarning)
        quick().fit(X, y, sensitive_features=groups)


@SAME_ROWS
def test_groups_are_named_by_column_and_a_gap_is_a_group_if_asked() -> None:
    table, labels, groups = people()
    whole = table.assign(**groups)
    by_name = quick().fit(whole, labels, sensitive_features=["sex", "old"])
    assert set(by_name.groups_) == {"f × no", "f × yes", "m × no", "m × yes"}
    assert quick().fit(whole, labels, sensitive_features="sex").groups_ == ("f", "m")
    with pytest.raises(InputError, match='sensitive_features names "sexx": did you mean "sex"'):
        quick().fit(whole, labels, sensitive_features="sexx")
    with pytest.raises(InputError, match=r"the group of row .* is missing"):
        quick().fit(whole, labels, sensitive_features="town")
    assert "unknown" in quick(missing_group="unknown").fit(whole, labels, sensitive_features="town").groups_


@SAME_ROWS
@pytest.mark.parametrize("method", ["auto", "dp-sgd", "group-gd"])
def test_weights_decide_what_is_learned_and_their_largest_is_public_or_not_covered(method: str) -> None:
    """Half of the labels are turned around: which half counts is what the weights say."""
    X, y, groups = numbers(800)
    turned = np.arange(len(y)) % 2 == 0
    labels = np.where(turned, 1 - y, y)
    settings = {"method": method} | ({"epochs": 20, "batch_size": 64} if method == "dp-sgd" else {})
    first = quick(**settings, max_weight=1.0)
    model = first.fit(X, labels, sample_weight=np.where(turned, 0.0, 1.0), sensitive_features=groups)
    assert model.score(X, y) > 0.8
    assert LARGEST_WEIGHT not in model.certificate_.not_covered
    model = quick(**settings).fit(X, labels, np.where(turned, 3.0, 0.0), sensitive_features=groups)
    assert model.score(X, 1 - y) > 0.8
    assert LARGEST_WEIGHT in model.certificate_.not_covered


@SAME_ROWS
def test_weights_of_classes_move_the_decision_and_balanced_ones_are_not_covered() -> None:
    X, y, groups = numbers()
    shares = []
    for weight in ({0: 1.0, 1: 0.05}, {0: 0.05, 1: 1.0}):
        model = quick(method="dp-sgd", class_weight=weight, epochs=20, batch_size=64).fit(
            X, y, sensitive_features=groups
        )
        assert CLASS_COUNTS not in model.certificate_.not_covered
        shares.append(float((model.predict(X) == 1).mean()))
    assert shares[0] < 0.4 < 0.6 < shares[1]
    model = quick(class_weight="balanced").fit(X, y, sensitive_features=groups)
    assert CLASS_COUNTS in model.certificate_.not_covered


@pytest.mark.parametrize(
    ("changes", "weight", "sentence"),
    [
        ({}, [1.0], "sample_weight.shape"),
        ({}, [-1.0] * 400, "finite and not negative"),
        ({}, [0.0] * 400, "nothing to learn from"),
        ({"max_weight": 0.0}, [1.0] * 400, "max_weight is 0.0"),
        ({"class_weight": "even"}, None, 'class_weight is "even"'),
        ({"class_weight": {7: 1.0}}, None, "names a class that y does not have"),
        ({"method": "noisy-sgd-mgr"}, [1.0] * 400, "does not take weights of rows"),
        ({"preset": "best", "method": "dp-sgd"}, None, "preset best sets method and model"),
    ],
)
def test_wrong_weights_get_a_sentence(changes: dict[str, Any], weight: Any, sentence: str) -> None:
    X, y, groups = numbers()
    with pytest.raises(InputError, match=sentence):
        quick(**changes).fit(X, y, weight, sensitive_features=groups)


@SAME_ROWS
def test_scores_agree_with_probabilities_for_two_classes_and_for_more() -> None:
    X, y, groups = numbers()
    model = quick().fit(X, y, sensitive_features=groups)
    scores = model.decision_function(X)
    assert scores.shape == (400,)
    assert np.allclose(1 / (1 + np.exp(-scores)), model.predict_proba(X)[:, 1])
    several = quick().fit(X, y + (X[:, 1] > 0.5), sensitive_features=groups)
    assert several.decision_function(X).shape == (400, 3)
    assert np.array_equal(several.classes_[several.decision_function(X).argmax(axis=1)], several.predict(X))


@SAME_ROWS
def test_sparse_rows_are_learned_as_dense_ones_and_too_many_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from scipy.sparse import csr_array

    X, y, groups = numbers()
    dense, sparse = (quick().fit(rows, y, sensitive_features=groups) for rows in (X, csr_array(X)))
    assert np.array_equal(dense.predict_proba(X), sparse.predict_proba(csr_array(X)))
    monkeypatch.setattr("veil.estimators.base.MOST_CELLS", 10)
    with pytest.raises(InputError, match="select columns first"):
        quick().fit(csr_array(X), y, sensitive_features=groups)


@SAME_ROWS
def test_an_estimator_writes_the_report_of_its_fit_and_takes_the_preset_of_the_command_line(tmp_path: Any) -> None:
    X, y, groups = numbers()
    model = quick(preset="best").fit(X, y, sensitive_features=groups)
    assert model.certificate_.method == "group-gd"
    page = model.report(tmp_path / "page.html").read_text()
    assert "What became of each column" in page
    assert "feature" in page
    assert model.certificate_.columns["x0"] == "feature: a number; bounds taken from the rows"


def test_the_defaults_are_those_of_the_command_line() -> None:
    from veil.request import Request

    asked, own = Request.checked(data="x"), FairPrivateClassifier().get_params()
    for name in ("epsilon", "delta", "epochs", "batch_size", "learning_rate", "accountant", "secure_noise"):
        assert own[name] in (None, getattr(asked.settings, name))


@SAME_ROWS
@pytest.mark.parametrize(
    ("given", "method", "without_groups"),
    [
        ({}, "auto", "auto"),
        ({"model": "additive"}, "auto", "auto"),
        ({"model": "mlp"}, "asc", "dp-sgd"),
        ({"epochs": 1}, "asc", "dp-sgd"),
        ({"batch_size": 100}, "asc", "dp-sgd"),
        ({"learning_rate": 0.5}, "asc", "dp-sgd"),
        ({"method": "dp-sgd", "epochs": 1}, "dp-sgd", "dp-sgd"),
    ],
)
def test_the_method_is_the_one_that_the_command_line_takes(
    given: dict[str, Any], method: str, without_groups: str, tmp_path: Path, veil: Program
) -> None:
    X, y, groups = numbers(200)
    pd.DataFrame(X).add_prefix("x").assign(y=y, g=groups).to_csv(tmp_path / "t.csv", index=False)
    words = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    where = (str(tmp_path / "t.csv"), "--target", "y", "--group", "g", "--dry-run", "--json")
    code, out, err = veil("train", *where, *words)
    assert code == 0, err
    assert json.loads(out)["method"] == method
    estimator = FairPrivateClassifier(random_state=1, **given)
    estimator._choose(groups=True)
    assert estimator.method_ == method
    estimator._choose(groups=False)
    assert estimator.method_ == without_groups


def test_a_network_and_a_setting_of_a_loop_are_taken_as_they_are(recwarn: pytest.WarningsRecorder) -> None:
    X, y, groups = numbers(200)
    model = FairPrivateClassifier(model="mlp", epochs=1, random_state=1).fit(X, y, sensitive_features=groups)
    assert (model.method_, model.certificate_.method) == ("asc", "asc")
    assert FairPrivateClassifier(model="mlp", epochs=1, random_state=1).fit(X, y).certificate_.method == "dp-sgd"
    alike = FairPrivateClassifier(model="mlp", epochs=1, random_state=1).fit(X, y, sensitive_features=["all"] * len(y))
    assert alike.certificate_.method == "dp-sgd", "one group is none to be fair to"
    with pytest.raises(InputError, match="auto is not trained in steps that you set: omit epochs and batch_size"):
        FairPrivateClassifier(method="auto", epochs=1, batch_size=9).fit(X, y, sensitive_features=groups)


def test_weights_that_were_counted_in_all_rows_do_not_decide_which_rows_are_held_out() -> None:
    codes = np.array([0, 0, 0, 1])
    estimator = FairPrivateClassifier(class_weight="balanced")
    estimator.classes_ = np.array(["a", "b"])
    found = estimator._weights(None, codes)
    assert found.of_row is not None
    assert found.given is None
