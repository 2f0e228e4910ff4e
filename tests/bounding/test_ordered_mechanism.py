"""The ordered sum without a model: noise, wrong input, rows that are not finite, and what it costs."""

from __future__ import annotations

import numpy as np
import pytest

from veil.accounting import Gaussian, PoissonGaussian
from veil.bounding import BetaTail, StepTail
from veil.errors import InputError
from veil.foundation.randomness import Seed
from veil.releases.mechanisms import ordered_event, ordered_sum


def test_the_hardest_rows_count_fully_and_the_last_one_least() -> None:
    values = np.eye(4)
    total = ordered_sum(values, [3.0, 1.0, 2.0, 0.0], 1.0, StepTail(2.0, (0.5, 0.0)), 0.0)
    assert total.tolist() == [1.0, 0.5, 1.0, 0.0]


def test_a_number_is_a_tail_of_that_length() -> None:
    values, scores = np.arange(6.0)[:, None], np.arange(6.0)
    assert ordered_sum(values, scores, 1.0, 3.0, 0.0) == ordered_sum(values, scores, 1.0, BetaTail(3.0), 0.0)


@pytest.mark.statistical
def test_the_noise_has_the_stated_standard_deviation() -> None:
    """20,000 draws: the empirical deviation lies within 2.5 % but for about one seed in 10⁶."""
    noisy = ordered_sum(np.zeros((1, 20_000)), [0.0], 1.0, 1.0, 3.0, seed=Seed.from_int(1))
    assert noisy.std() == pytest.approx(3.0, rel=0.025)
    assert abs(noisy.mean()) < 0.11


def test_without_a_seed_the_noise_is_fresh() -> None:
    first, second = (ordered_sum([[0.0, 0.0]], [0.0], 1.0, 1.0, 1.0) for _ in range(2))
    assert not np.array_equal(first, second)


def test_rows_that_are_not_finite_add_nothing_and_huge_ones_are_clipped() -> None:
    values = [[np.nan, 1.0], [np.inf, 0.0], [1e200, 1e200], [0.0, 0.0]]
    total = ordered_sum(values, [np.nan, 1.0, 2.0, 0.0], 2.0, 1e-6, 0.0)
    assert np.linalg.norm(total) == pytest.approx(2.0)


def test_an_empty_set_of_rows_is_a_release_of_noise_only() -> None:
    assert ordered_sum(np.zeros((0, 3)), [], 1.0, 1.0, 0.0).tolist() == [0.0, 0.0, 0.0]


def test_the_cost_is_that_of_the_rows_own_bound() -> None:
    assert ordered_event(4.0, 2.0) == Gaussian(2.0)
    assert ordered_event(4.0, 0.5, 0.1) == PoissonGaussian(8.0, 0.1)


@pytest.mark.parametrize(
    ("scores", "bounds", "sigma"),
    [([1.0], 1.0, 1.0), ([1.0, 2.0], [1.0], 1.0), ([1.0, 2.0], -1.0, 1.0), ([1.0, 2.0], 1.0, -1.0)],
)
def test_wrong_input_is_refused(scores: list[float], bounds: float | list[float], sigma: float) -> None:
    with pytest.raises(InputError):
        ordered_sum([[1.0], [2.0]], scores, bounds, 1.0, sigma)
