"""Bounds for new rows, and what no private method can do better than."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import binom, norm

import veil
from tests.methods.convex.convex_cases import NAMES, linear, made_problem, plan_of
from veil.accounting import Gaussian, Pld, Relation
from veil.accounting.generalisation import tv_from_privacy
from veil.estimators import FairPrivateClassifier
from veil.methods.convex.limits import LEANINGS, by_leaning, gap_to_new_rows, largest_on_average, lower_bound
from veil.methods.convex.losses import Logistic, SmoothedHinge
from veil.methods.convex.phased import deviation
from veil.methods.convex.setting import LinearSetting
from veil.plans import Settings
from veil.problem import Problem
from veil.report import build_twin, render_page


def setting_of(features: int, rows: int, groups: int, loss: Logistic | SmoothedHinge, radius: float) -> LinearSetting:
    names = [f"g{i % groups}" for i in range(rows)]
    facts = Problem.from_arrays(np.zeros((rows, features)), np.arange(rows) % 2, names).public
    return LinearSetting("test", facts, loss, loss.constants(1.0, radius), 1.0, radius)


def test_the_largest_of_several_is_bounded_on_average() -> None:
    rng = np.random.default_rng(0)
    for means, stds in (([0.0] * 5, [1.0] * 5), ([0.0, 1.0, -1.0], [1.0, 0.1, 2.0])):
        m, s = np.array(means), np.array(stds)
        true = float((m + s * rng.standard_normal((200_000, len(m)))).max(axis=1).mean())
        assert true <= largest_on_average(m, s**2) <= 2 * true


def test_small_groups_alone_do_not_widen_the_gap_of_many_large_ones() -> None:
    rows = 4000
    x, names = np.zeros((rows, 2)), ["small" if i < 40 else f"g{i % 3}" for i in range(rows)]
    facts = Problem.from_arrays(x, np.arange(rows) % 2, names).public
    loss = Logistic()
    setting = LinearSetting("test", facts, loss, loss.constants(1.0, 2.0), 1.0, 2.0)
    alone = setting_of(2, 80, 2, loss, 2.0)  # two groups of 40
    assert gap_to_new_rows(setting) < gap_to_new_rows(alone)


@pytest.mark.statistical
def test_the_best_weights_for_the_training_rows_stay_within_the_gap_on_new_rows() -> None:
    """Where the hinge is straight, the best weights for one group point along the mean of its rows. 2,000 tables of 30
    rows: the mean excess on new rows has a standard error of 0.002."""
    features, rows, radius = 20, 30, 0.5
    setting = setting_of(features, rows, 1, SmoothedHinge(), radius)
    rng, mean = np.random.default_rng(1), np.full(features, 0.04)
    found = []
    for _ in range(2000):
        x = np.where(rng.random((rows, features)) < 0.5 + mean * math.sqrt(features) / 2, 1, -1) / math.sqrt(features)
        seen = x.mean(axis=0)
        found.append(radius * (float(np.linalg.norm(mean)) - float(mean @ seen) / float(np.linalg.norm(seen))))
    assert 0.1 * gap_to_new_rows(setting) < np.mean(found) <= gap_to_new_rows(setting)


PLACES = np.linspace(0, 5, 2001)


def least_excess(leaning: float, wrong: float) -> float:
    """The excess of weights that point the wrong way with this probability, at their best size."""
    at, mirrored = np.logaddexp(0, -PLACES), np.logaddexp(0, PLACES)
    risk = (1 + leaning) / 2 * at + (1 - leaning) / 2 * mirrored
    other = (1 + leaning) / 2 * mirrored + (1 - leaning) / 2 * at
    return float(((1 - wrong) * risk + wrong * other).min() - risk.min())


@pytest.mark.parametrize(("rows", "epsilon", "kappa"), [(10, 1.0, 7.6), (40, 0.5, 15.2), (40, 3.0, 4.5)])
def test_no_lower_bound_exceeds_what_a_gaussian_release_really_has(rows: int, epsilon: float, kappa: float) -> None:
    """One feature, a Gaussian release of the sum of signs, weights along its sign: computed exactly."""
    delta = 1e-3
    assert Pld().epsilon([Gaussian(kappa, Relation.REPLACE_ONE)], delta) <= epsilon
    setting = setting_of(1, rows, 1, Logistic(), 5.0)
    proved = by_leaning(setting, rows, tv_from_privacy(epsilon, delta), 1, 1)
    sums = 2 * np.arange(rows + 1) - rows
    wrong = [float(binom.pmf(np.arange(rows + 1), rows, (1 + a) / 2) @ norm.cdf(-sums / kappa)) for a in LEANINGS]
    excess = np.array([least_excess(a, chance) for a, chance in zip(LEANINGS, wrong, strict=True)])
    assert (proved <= excess + 1e-12).all()
    assert (proved / np.maximum(excess, 1e-9)).max() > 0.2, "the bound is far from what a method has"


@pytest.mark.parametrize(
    ("rows", "moved", "count"), [(10, 0.1, 1), (4, 0.2, 1), (40, 0.09, 4), (40, 0.02, 4), (40, 0.0, 1), (40, 0.0, 4)]
)
def test_no_lower_bound_exceeds_what_the_method_has_that_tells_most(rows: int, moved: float, count: int) -> None:
    """A coin for each feature that says + with probability 1/2 + τ·(sum of its signs)/2: replacing a row moves all of
    them together by τ, and two tables that differ in many rows by τ for each. A method that rows do not move (τ = 0)
    has the bound exactly, with weights of 0."""
    setting = setting_of(count, rows, 1, Logistic(), 5.0)
    proved = by_leaning(setting, rows, moved, count, count)
    excess = np.array([least_excess(a, (1 - rows * a * moved / count) / 2) for a in LEANINGS])
    assert (proved <= excess + 1e-6).all()
    near = 0.999 if moved == 0 else 0.5
    assert (proved / np.maximum(excess, 1e-9)).max() > near, "the bound is far from what a method has"


def test_without_privacy_few_rows_alone_keep_every_method_from_the_best() -> None:
    rows = 12
    setting = setting_of(1, rows, 1, Logistic(), 5.0)
    proved, sums = by_leaning(setting, rows, 1.0, 1, 1), 2 * np.arange(rows + 1) - rows
    ahead = (sums < 0) + 0.5 * (sums == 0)
    wrong = [float(binom.pmf(np.arange(rows + 1), rows, (1 + a) / 2) @ ahead) for a in LEANINGS]
    excess = np.array([least_excess(a, chance) for a, chance in zip(LEANINGS, wrong, strict=True)])
    assert proved.max() > 0.003, "the rows that are there were not counted"
    assert (proved <= excess + 1e-6).all(), "more than the majority of signs has"


def entropy(leaning: float) -> float:
    return -sum(p * math.log(p) for p in ((1 + leaning) / 2, (1 - leaning) / 2))


def test_the_lower_bound_of_many_groups_asks_no_more_than_weights_in_the_ball_can_reach() -> None:
    """30 groups share the ball: each reaches a score of r/√30, the best one for rows that lean by tanh of its half.
    Beyond that leaning nothing is counted, and up to it all that weights of 0 lose."""
    groups, radius = 30, 5.0
    setting = setting_of(40, 2 * groups, groups, Logistic(), radius)
    least = lower_bound(setting, Settings.checked(epsilon=1e-3, delta=1e-9), Relation.REPLACE_ONE)
    assert least is not None
    most = math.log(2) - entropy(math.tanh(radius / math.sqrt(groups) / 2))
    assert 0.8 * most < least <= most


def test_the_lower_bound_is_that_of_the_weakest_budget_in_a_group_and_removal_moves_half_as_far() -> None:
    def least(budgets: tuple[float, float], relation: Relation) -> float:
        owners = ["careful", "open"] * 100
        given = dict(zip(("careful", "open"), budgets, strict=True))
        facts = Problem.from_arrays(np.zeros((200, 5)), np.arange(200) % 2, owners=owners, budgets=given).public
        setting = LinearSetting("test", facts, Logistic(), Logistic().constants(1.0, 5.0), 1.0, 5.0)
        found = lower_bound(setting, Settings.checked(epsilon=1.0, delta=1e-5), relation)
        assert found is not None
        return found

    replaced, removed = Relation.REPLACE_ONE, Relation.ADD_REMOVE
    assert least((0.02, 0.1), replaced) == pytest.approx(least((0.1, 0.1), replaced))
    assert least((0.02, 0.1), replaced) < 0.9 * least((0.02, 0.02), replaced)
    # For small ε, twice the ε of removal is what replacing a row costs.
    assert least((0.1, 0.1), removed) == pytest.approx(least((0.2, 0.2), replaced), rel=0.01)


@pytest.mark.statistical
def test_many_small_groups_are_further_off_than_one_and_both_gaps_count_that() -> None:
    """400 groups of 30 signs that are coins, in the straight part of the hinge: the largest of
    sup (L_D − L_S) over the ball is r·|mean|, and that of L_S − L_D at the best weights −r·mean. 1,000 tables: standard
    error 0.002."""
    groups, rows, radius = 400, 30, 0.5
    setting = setting_of(1, rows * groups, groups, SmoothedHinge(), radius)
    means = 2 * np.random.default_rng(6).binomial(rows, 0.5, size=(1000, groups)) / rows - 1
    true = radius * float(np.abs(means).max(axis=1).mean() + means.max(axis=1).mean())
    assert 0.6 * gap_to_new_rows(setting) < true <= gap_to_new_rows(setting)
    alone = deviation(setting.constants, radius, 1e-6, rows, groups, 1)
    assert 0.4 * alone < true <= alone


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rows", [240, 4000])
def test_every_bound_for_new_rows_lies_above_what_no_method_can_beat(name: str, rows: int) -> None:
    plan = plan_of(name, {}, made_problem(rows, owners=False))
    told = plan.details
    assert 0 < told["excess_risk_lower_bound"] <= told["population_excess_risk_bound"]
    assert told["excess_risk_bound"] <= told["population_excess_risk_bound"]
    assert (told["excess_risk_bound"] < told["population_excess_risk_bound"]) is name.startswith("noisy")


def test_the_lower_bound_falls_with_rows_and_budget_and_is_not_stated_where_it_is_not_proved() -> None:
    def least(rows: int, epsilon: float, loss: Logistic | SmoothedHinge | None = None) -> float:
        asked = setting_of(30, rows, 2, loss or Logistic(), 5.0)
        found = lower_bound(asked, Settings.checked(epsilon=epsilon, delta=1e-5), Relation.REPLACE_ONE)
        assert found is not None
        return found

    assert least(200, 0.1) > least(2000, 0.1) > least(2000, 2.0)
    assert least(200, 0.1, SmoothedHinge()) > 0
    plan = plan_of("phased-erm", {}, made_problem(classes=3, owners=False))
    assert plan.details["excess_risk_lower_bound"] is None


def test_the_report_shows_the_bound_for_new_rows_and_what_no_method_can_beat() -> None:
    run = veil.fit(linear(), made_problem(), method="noisy-sgd-ags", delta=1e-4, seed=5, steps=6)
    shown = build_twin([run.as_json()])["verdict"]["expected_excess_risk"]
    assert shown["population"]["value"] == run.plan.details["population_excess_risk_bound"]
    assert shown["at_least"] == run.plan.details["excess_risk_lower_bound"]
    page = render_page([run.as_json()])
    assert "New rows: at most" in page
    assert "No method with this ε can promise less than" in page


def test_a_planned_bound_above_what_weights_of_zero_have_says_nothing_on_the_report() -> None:
    run = veil.fit(linear(), made_problem(), method="noisy-sgd-ags", delta=1e-4, seed=5, steps=6).as_json()
    run["details"]["expected_excess_risk"] |= {"value": 0.3, "sentence": "An upper bound."}
    run["history"]["realised_excess_risk"] = [[0.5, 0.2]]
    shown = build_twin([run])["verdict"]["expected_excess_risk"]
    assert shown["value"] == 0.3
    assert shown["sentence"].endswith("it says nothing.")
    assert shown["says"] is False
    assert '<p class="big">says nothing</p>' in render_page([run])
    run["history"]["realised_excess_risk"] = [[0.5, 0.4]]
    shown = build_twin([run])["verdict"]["expected_excess_risk"]
    assert "have at least 0.4" in shown["sentence"]
    assert shown["says"] is True
    assert "nothing" not in render_page([run]).split("Expected excess risk", 1)[1].split("New rows", 1)[0]


@pytest.mark.parametrize("name", ["phased-erm", "dp-oco", "noisy-sgd-ags"])
def test_a_bound_of_a_method_that_releases_no_losses_never_looks_as_if_it_beat_weights_of_zero(name: str) -> None:
    """Labels are coins: w = 0 has an excess near 0, so every bound above that says nothing, and nobody knows it."""
    drawn = np.random.default_rng(3)
    coins = Problem.from_arrays(drawn.normal(size=(4000, 3)), drawn.integers(0, 2, 4000), ["a", "b"] * 2000)
    method = veil.method(name, weight_radius=0.5)
    run = veil.fit(torch.nn.Linear(3, 2), coins, method=method, epsilon=50.0, delta=1e-4, seed=5)
    shown = build_twin([run.as_json()])["verdict"]["expected_excess_risk"]
    for bound in (shown, *([shown["population"]] if shown["population"] else [])):
        assert bound["says"] is not True
        assert ("Not compared with weights of 0" in bound["sentence"]) is (bound["says"] is None)
    setting = run.plan.solver.setting
    assert (shown["says"] is None) is (shown["value"] < setting.most_of_nothing)
    page = render_page([run.as_json()])
    assert "May say nothing." in page or '<p class="big">says nothing</p>' in page


@pytest.mark.parametrize("name", NAMES)
def test_the_installed_model_loses_no_more_than_the_bound_allows_a_row_to_lose(name: str) -> None:
    """Rows are longer than 0.2: scores of rows that are not shortened would be far outside the certified range."""
    X = np.random.default_rng(0).standard_normal((400, 3))
    y = (X[:, 0] > 0).astype(int)
    options = {"batch": 50} if name.startswith("noisy") else {}
    model = FairPrivateClassifier(
        method=name, model="logistic", epsilon=8.0, random_state=0, method_options={**options, "feature_radius": 0.2}
    )
    model.fit(X, y, sensitive_features=(X[:, 1] > 0).astype(int))
    chances = model.predict_proba(X)[np.arange(len(y)), y]
    losses, certified = -np.log(chances), Logistic().constants(0.2, 5.0)
    assert certified.low <= losses.min()
    assert losses.max() <= certified.high
    assert (chances > 0.5).mean() > 0.6
