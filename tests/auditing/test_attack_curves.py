"""Curves of attacks are right, and no attack on a mechanism can rise above its ceiling."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from veil.accounting import Gaussian, Pld, PoissonGaussian, RenyiFilter, Repeated, TokenBucket
from veil.auditing.attack_curves import (
    GRID,
    attack_curve,
    auroc,
    ceiling,
    ceiling_from_pairs,
    curves_by,
    tpr_at,
)
from veil.errors import InputError

# At (1, 1e-5) the noise multiplier of one Gaussian release is 3.73.
ONE = TokenBucket((Repeated(Gaussian(3.73), 1),))


def test_the_area_is_scikit_learn_s_also_with_ties() -> None:
    generator = np.random.default_rng(0)
    scores, inside = generator.integers(0, 20, 500).astype(float), generator.random(500) < 0.4
    assert auroc(scores, inside) == pytest.approx(roc_auc_score(inside, scores))


def test_the_rate_at_a_low_false_positive_rate_is_that_of_the_strictest_threshold() -> None:
    generator = np.random.default_rng(1)
    scores, inside = generator.integers(0, 50, 400).astype(float), generator.random(400) < 0.5
    for rate in (0.0, 0.01, 0.1, 0.5, 1.0):
        allowed = [t for t in [*scores, np.inf, -np.inf] if (scores[~inside] > t).mean() <= rate + 1e-12]
        assert tpr_at(scores, inside, rate) == pytest.approx(max((scores[inside] > t).mean() for t in allowed))


def test_the_ceiling_of_a_gaussian_is_its_own_curve() -> None:
    for kappa in (0.5, 1.0, 3.73):
        limit = ceiling(TokenBucket((Repeated(Gaussian(kappa), 1),)), Pld())
        exact = norm.cdf(norm.ppf(GRID[1:-1]) + 1 / kappa)
        assert np.all(limit.tpr[1:-1] >= exact - 1e-6)
        assert np.allclose(limit.tpr[1:-1], exact, atol=3e-3)
        assert limit.auroc == pytest.approx(norm.cdf(1 / kappa / 2**0.5), abs=2e-3)


def test_a_budget_of_one_caps_the_area_at_575() -> None:
    assert ceiling(ONE, Pld()).auroc == pytest.approx(0.575, abs=2e-3)


def test_one_pair_of_epsilon_and_delta_is_a_higher_ceiling_than_the_whole_curve() -> None:
    pair = ceiling_from_pairs([(Pld().epsilon(ONE.tokens, 1e-5), 1e-5)])
    assert np.all(pair.tpr >= ceiling(ONE, Pld()).tpr - 1e-9)
    assert pair.auroc > 0.65


def test_a_renyi_filter_has_a_ceiling_and_no_promise_has_none() -> None:
    limit = ceiling(RenyiFilter(8.0, 0.2), Pld())
    assert 0.5 < limit.auroc < 0.9
    assert np.all(np.diff(limit.tpr) >= -1e-12)
    assert ceiling_from_pairs([]).auroc == pytest.approx(1.0)


@pytest.mark.statistical
def test_the_best_attack_on_a_sampled_gaussian_stays_below_its_ceiling_and_comes_near_it() -> None:
    # 40,000 rows: the area has a standard error of 0.003; five of them are rarer than 1e-6.
    generator, rate, kappa, steps = np.random.default_rng(2), 0.2, 1.0, 10
    inside = generator.random(40_000) < 0.5
    seen = generator.standard_normal((steps, 40_000))
    seen += (generator.random((steps, 40_000)) < rate) * inside / kappa
    scores = np.log1p(rate * np.expm1(seen / kappa - 0.5 / kappa**2)).sum(axis=0)
    limit = ceiling(TokenBucket((Repeated(PoissonGaussian(kappa, rate), steps),)), Pld())
    found = attack_curve(scores, inside, limit)
    assert found.auroc <= limit.auroc + 0.015
    assert found.auroc >= limit.auroc - 0.02
    assert found.auroc_low < found.auroc < found.auroc_high


def test_curves_are_by_group_and_leave_out_groups_with_rows_on_one_side_only() -> None:
    inside = np.array([True, False, True, False, True, True])
    scores = np.array([1.0, 0.0, 0.0, 1.0, 2.0, 2.0])
    found = curves_by(scores, inside, np.array([0, 0, 1, 1, 2, 2]), ("a", "b", "c"))
    assert {name: curve.auroc for name, curve in found.items()} == {"a": 1.0, "b": 0.0}
    with pytest.raises(InputError, match="one side is empty"):
        attack_curve(scores, np.ones(6, dtype=bool))


def test_targets_are_pooled_each_with_its_own_threshold() -> None:
    # The second target's scores are shifted: one threshold for both would find nothing.
    scores = np.array([[1.0, 0.0, 1.0, 0.0], [101.0, 100.0, 101.0, 100.0]])
    inside = np.array([[True, False, True, False]] * 2)
    assert attack_curve(scores, inside).auroc == 1.0
    assert attack_curve(scores, inside).tpr[0] == 1.0
