"""Fits on the same rows: whatever wraps an estimator, a second fit warns with the sum of what rows lose."""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fairlearn.postprocessing import ThresholdOptimizer
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import BaggingClassifier, StackingClassifier, VotingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from veil.accounting import Relation
from veil.datasets.adult import load_adult
from veil.estimators import COPIES, SEARCH, STEPS, WORKER, FairPrivateClassifier, NotCoveredWarning
from veil.tables import fitted_rows
from veil.tables.fitted_rows import Fitted, added_up, fitted_before, mark_of, remember, rows_of


def quick(**changes: Any) -> FairPrivateClassifier:
    given = {"epsilon": 1.0, "delta": 1e-5, "epochs": 1, "batch_size": 64, "model": "logistic", "accountant": "rdp"}
    return FairPrivateClassifier(**(given | changes))


def rows(count: int = 240, seed: int = 0) -> tuple[Any, Any]:
    generator = np.random.default_rng(seed)
    table = generator.standard_normal((count, 4))
    return table, (table[:, 0] + generator.standard_normal(count) > 0).astype(int)


def warned(action: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
    return [str(warning.message) for warning in caught if issubclass(warning.category, NotCoveredWarning)]


WRAPPERS: dict[str, tuple[Callable[[Any, Any], Any], int, int]] = {
    # Which wrapper, how many private fits it makes, and how many of them share rows with the last one.
    "calibration": (lambda X, y: CalibratedClassifierCV(quick(), cv=3).fit(X, y), 3, 3),
    "bagging": (lambda X, y: BaggingClassifier(quick(), n_estimators=3, random_state=0).fit(X, y), 3, 3),
    "bagging without copies": (
        lambda X, y: BaggingClassifier(quick(), n_estimators=3, bootstrap=False, max_samples=0.8, random_state=0).fit(
            X, y
        ),
        3,
        3,
    ),
    "voting": (lambda X, y: VotingClassifier([("a", quick()), ("b", quick())]).fit(X, y), 2, 2),
    "stacking": (lambda X, y: StackingClassifier([("a", quick())], LogisticRegression(), cv=3).fit(X, y), 4, 4),
    "grid search": (lambda X, y: GridSearchCV(quick(), {"learning_rate": [0.1, 0.5]}, cv=3).fit(X, y), 7, 7),
    "cross_val_predict": (lambda X, y: cross_val_predict(quick(), X, y, cv=3), 3, 3),
    "one against the rest": (lambda X, y: OneVsRestClassifier(quick()).fit(X, np.arange(len(X)) % 3), 3, 3),
    "by hand": (lambda X, y: [quick().fit(X, y) for _ in range(4)], 4, 4),
    "by hand, half of the rows": (lambda X, y: [quick().fit(X, y), quick().fit(X[:120], y[:120])], 2, 2),
    "by hand, more rows": (lambda X, y: [quick().fit(X[:60], y[:60]), quick().fit(X, y)], 2, 2),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_every_wrapper_that_fits_again_on_private_rows_warns_with_the_sum_of_epsilon(name: str) -> None:
    action, fits, together = WRAPPERS[name]
    said = warned(lambda: action(*rows()))
    assert len(said) == (fits - 1 if name.startswith("by hand") else fits)  # once per fit
    others = "1 other private model" if together == 2 else f"{together - 1} other private models"
    assert f"used to fit {others} in this process" in said[-1]
    found = re.search(r"add up to ([\d.]+) \(δ to ([\d.e-]+)\), with this fit to at most ([\d.]+)", said[-1])
    assert found is not None
    assert float(found[1]) == pytest.approx(together - 1, rel=0.01)
    assert float(found[2]) == pytest.approx((together - 1) * 1e-5, rel=0.01)
    assert float(found[3]) == pytest.approx(together, rel=0.01)


def test_the_certificate_of_a_second_fit_says_what_the_warning_says() -> None:
    X, y = rows()
    first = quick().fit(X, y)
    with pytest.warns(NotCoveredWarning, match="1 other private model"):
        second = quick().fit(pd.DataFrame(X, columns=list("abcd")), y)
    assert not any("other private model" in sentence for sentence in first.certificate_.not_covered)
    assert any("1 other private model" in sentence for sentence in second.certificate_.not_covered)


def test_fits_on_other_rows_do_not_warn() -> None:
    X, y = rows()
    tables = [rows(seed=seed) for seed in range(1, 4)]
    text = pd.DataFrame({"word": [f"w{i}" for i in range(240)], "n": np.arange(240.0) ** 0.5})

    def fits() -> None:
        quick().fit(X[:120], y[:120])
        quick().fit(X[120:], y[120:])
        for table, labels in tables:
            quick().fit(table, labels)
        quick().fit(text, y)

    assert warned(fits) == []


def test_rows_of_few_values_are_alike_by_chance_and_do_not_warn_unless_the_whole_table_is_the_same() -> None:
    train, test = load_adult()
    few = ["age", "hours-per-week", "education-num", "sex"]
    for columns in (few, [name for name in train.columns if name not in ("fnlwgt", "income")]):
        one, two = rows_of(train[columns]), rows_of(test[columns])
        assert not one.shared_with(two)
        assert one.shared_with(rows_of(train[columns]))
    assert rows_of(train.drop(columns="income")).shared_with(rows_of(train.drop(columns="income").sample(9000)))


def test_an_exact_repetition_with_a_given_seed_costs_nothing_more_but_other_settings_do() -> None:
    X, y = rows()
    assert warned(lambda: [quick(random_state=1).fit(X, y) for _ in range(3)]) == []
    said = warned(lambda: quick(random_state=1, learning_rate=0.1).fit(X, y))
    assert len(said) == 1
    assert "1 other private model" in said[0]
    assert len(warned(lambda: quick(random_state=1).fit(X, 1 - y))) == 1


def test_a_fit_that_only_names_columns_otherwise_is_no_repetition() -> None:
    X, y = rows()
    first, second = (pd.DataFrame(X, columns=list(names)) for names in ("abcd", "dcba"))
    one = quick(random_state=1).fit(first, y)
    two = quick(random_state=1)
    said = warned(lambda: two.fit(second, y))
    assert not np.allclose(one.predict_proba(first), two.predict_proba(second))
    assert len(said) == 1
    assert len(warned(lambda: quick(random_state=1).fit(second, y, sensitive_features={"sex": y}))) == 1
    assert len(warned(lambda: quick(random_state=1).fit(second, y, sensitive_features={"race": y}))) == 1


def test_a_warning_made_an_error_stops_a_second_fit_before_it_reads_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = rows()
    quick().fit(X, y)
    monkeypatch.setattr("veil.estimators.base.execute", lambda *_, **__: pytest.fail("rows were read"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotCoveredWarning)
        with pytest.raises(NotCoveredWarning):
            quick().fit(X, y)


def test_copies_of_rows_by_a_bootstrap_or_oversampling_are_said() -> None:
    X, y = rows()
    drawn = np.random.default_rng(0).integers(0, len(X), len(X))
    most = int(np.bincount(drawn).max())
    assert most > 1
    said = warned(lambda: quick().fit(X[drawn], y[drawn]))
    assert len(said) == 1
    assert COPIES.format(most) in said[0] or COPIES.format(most)[1:] in said[0]


def test_thresholds_that_fairlearn_reads_off_the_rows_are_said() -> None:
    X, y = rows()
    groups = np.where(X[:, 1] > 0, "a", "b")
    optimizer = ThresholdOptimizer(estimator=quick(), prefit=False, predict_method="predict_proba")
    said = warned(lambda: optimizer.fit(X, y, sensitive_features=groups))
    assert len(said) == 1
    assert "what fairlearn.postprocessing does around this fit" in said[0]


def test_the_certificate_names_what_a_pipeline_learned_of_the_rows_before() -> None:
    X, y = rows()
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotCoveredWarning)
        scaled = make_pipeline(StandardScaler(), quick()).fit(X, y)
        alone = make_pipeline(quick()).fit(*rows(seed=9))
    assert STEPS in scaled[-1].certificate_.not_covered
    assert STEPS not in alone[-1].certificate_.not_covered


def test_fits_in_worker_processes_say_on_their_certificates_what_cannot_be_seen() -> None:
    X, y = rows()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotCoveredWarning)  # scikit-learn hands filters on to its workers
        model = VotingClassifier([("a", quick()), ("b", quick())], n_jobs=2).fit(X, y)
    for fitted in model.estimators_:
        said = fitted.certificate_.not_covered
        assert WORKER in said
        assert any("sklearn.ensemble" in sentence for sentence in said)
    search = GridSearchCV(quick(), {"learning_rate": [0.1]}, cv=2, n_jobs=2)
    with pytest.warns(NotCoveredWarning):
        search.fit(X, y)
    assert SEARCH in search.best_estimator_.certificate_.not_covered


def test_nothing_of_the_rows_is_in_a_pickled_model() -> None:
    X, y = rows()
    model = quick().fit(X, y)
    known = fitted_rows._FITTED[-1].rows
    content = pickle.dumps(model)
    assert known.whole not in content
    assert not any(value.tobytes() in content for value in known.hashes[:50])


def test_sums_of_two_relations_are_those_of_replacing_a_row() -> None:
    some = rows_of(pd.DataFrame(rows()[0]))
    removed = Fitted(some, 1.0, 1e-6, Relation.ADD_REMOVE)
    replaced = Fitted(some, 0.5, 1e-6, Relation.REPLACE_ONE)
    assert added_up([removed, removed]) == (2.0, 2e-6)
    epsilon, delta = added_up([removed, replaced])
    assert epsilon == 2.5
    assert delta == pytest.approx((1 + np.e) * 1e-6 + 1e-6)


def test_memory_stays_bounded_and_old_fits_stay_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitted_rows, "_ALL_TOGETHER", 3000)
    first = rows_of(pd.DataFrame(rows(1000)[0]))
    for seed in range(20):
        remember(Fitted(rows_of(pd.DataFrame(rows(1000, seed)[0])), 1.0, 1e-6, Relation.ADD_REMOVE, mark_of(seed)))
    assert sum(len(one.rows.hashes) for one in fitted_rows._FITTED) <= 3000
    assert len(fitted_before(first)) == 1
    part = rows_of(pd.DataFrame(rows(1000, 3)[0][:800]))
    assert len(fitted_before(part)) == 1
