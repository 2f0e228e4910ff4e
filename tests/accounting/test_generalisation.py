"""Bounds on the gap between training rows and new rows."""

from __future__ import annotations

import math

import numpy as np
import pytest

from veil.accounting.conversion import gaussian_delta
from veil.accounting.events import AccountingError, Gaussian, PoissonGaussian, Relation, Repeated
from veil.accounting.gdp import Gdp
from veil.accounting.generalisation import (
    calibration_gap,
    property_gap,
    subgroup_gap,
    tv_from_events,
    tv_from_privacy,
)
from veil.accounting.rdp import Rdp

REPLACE = Relation.REPLACE_ONE


def test_proposition_two_six_is_tight_on_randomised_response_with_a_leak() -> None:
    # with probability δ the row is told outright, else randomised response with ε: its total variation is the bound
    for epsilon, delta in [(0.0, 0.0), (1.0, 0.0), (1.0, 0.1), (3.0, 1e-5), (0.0, 0.2)]:
        tell = delta + (1 - delta) * math.tanh(epsilon / 2)
        assert tv_from_privacy(epsilon, delta) == pytest.approx(tell)


def test_proposition_two_six_beats_the_direct_bound_and_never_exceeds_one() -> None:
    assert tv_from_privacy(1.0, 1e-3) < math.expm1(1.0) + 1e-3
    assert tv_from_privacy(1e4, 0.0) == 1.0
    assert tv_from_privacy(50.0, 1.0) == 1.0


def test_the_profile_says_more_than_one_pair() -> None:
    events = [Repeated(PoissonGaussian(5.0, 0.01, REPLACE), 1000)]
    tight = tv_from_events(Rdp(), events)
    assert 0 < tight < tv_from_privacy(Rdp().epsilon(events, 1e-5), 1e-5)


def test_the_bound_of_a_gaussian_is_not_below_its_exact_total_variation() -> None:
    for noise in (1.0, 10.0, 1000.0):
        exact = gaussian_delta(2 / noise, 0.0)
        assert exact <= tv_from_events(Rdp(), [Gaussian(noise, REPLACE)]) <= 1.31 * exact
    assert tv_from_events(Rdp(), []) == 0.0


def test_only_replace_one_and_only_proofs_count() -> None:
    with pytest.raises(AccountingError, match="replace-one"):
        tv_from_events(Rdp(), [Gaussian(1.0)])
    with pytest.raises(AccountingError, match="approximation"):
        tv_from_events(Gdp(), [Gaussian(1.0, REPLACE)])


def test_a_property_scales_with_its_range() -> None:
    assert property_gap(0.25) == 0.25
    assert property_gap(0.25, -2.0, 2.0) == 1.0
    with pytest.raises(AccountingError, match="is empty"):
        property_gap(0.1, 1.0, 0.0)


def test_a_small_group_is_as_safe_as_a_large_one_once_it_is_there() -> None:
    assert subgroup_gap(0.1, 0.5, 10_000) == pytest.approx(subgroup_gap(0.1, 0.01, 10_000))
    assert subgroup_gap(0.1, 0.0, 50) == 1.0
    assert subgroup_gap(0.1, 0.01, 10) > 0.9
    assert subgroup_gap(0.1, 1.0, 1) == 0.1


@pytest.mark.statistical
def test_a_noisy_mean_keeps_all_three_gaps_below_their_bounds() -> None:
    # 200,000 trainings on 4 rows of ±1, group = first two draws by a coin; false alarm below 1e-6 (5 standard errors)
    rng = np.random.default_rng(0)
    trials, rows, sigma = 200_000, 4, 3.0
    table = rng.choice([-1.0, 1.0], size=(trials, rows))
    model = table.sum(axis=1) + sigma * rng.standard_normal(trials)
    tv = gaussian_delta(2 / sigma, 0.0)
    fresh = rng.choice([-1.0, 1.0], size=trials)
    error = 5 / math.sqrt(trials)
    train, test = np.mean(table[:, 0] * model > 0), np.mean(fresh * model > 0)
    assert 0.02 < abs(train - test) <= property_gap(tv) + error
    group = rng.random((trials, rows)) < 0.3
    inside = group.sum(axis=1)
    agree = ((table * model[:, None] > 0) & group).sum(axis=1) / np.maximum(inside, 1)
    assert abs(agree[inside > 0].mean() - np.mean((fresh * model > 0)[inside > 0])) <= tv + error
    assert abs(agree.mean() - test) <= subgroup_gap(tv, 0.3, rows) + error
    score = 1 / (1 + np.exp(-model))
    bins = np.digitize(score, [0.25, 0.5, 0.75])

    def calibration(label: np.ndarray) -> float:
        return float(sum(abs(np.mean((bins == b) * ((label + 1) / 2 - score))) for b in range(4)))

    assert abs(calibration(table[:, 0]) - calibration(fresh)) <= calibration_gap(tv) + 4 * error


def test_calibration_cannot_be_off_by_more_than_one() -> None:
    assert calibration_gap(0.9) == 1.0
    assert calibration_gap(0.0) == 0.0


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan])
def test_what_is_not_a_probability_is_refused(value: float) -> None:
    for ask in (property_gap, calibration_gap, lambda tv: subgroup_gap(tv, 0.5, 10)):
        with pytest.raises(AccountingError, match="between 0 and 1"):
            ask(value)
    with pytest.raises(AccountingError, match="between 0 and 1"):
        subgroup_gap(0.1, value, 10)
    with pytest.raises(AccountingError, match="between 0 and 1"):
        tv_from_privacy(1.0, value)
    with pytest.raises(AccountingError, match="at least one"):
        subgroup_gap(0.1, 0.5, 0)
