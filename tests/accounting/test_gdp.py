"""The Gaussian approximation: exact on Gaussians, below the truth on sampled ones, and labelled as such."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import trapezoid

from veil.accounting.conversion import gaussian_epsilon
from veil.accounting.events import AccountingError, Gaussian, Laplace, PoissonGaussian, Relation, Repeated, Tree
from veil.accounting.gdp import Gdp
from veil.accounting.rdp import Rdp

REPLACE = Relation.REPLACE_ONE


def test_it_says_that_it_only_approximates() -> None:
    assert Gdp().approximate
    assert Gdp().name == "gdp"


def test_it_is_exact_on_gaussians() -> None:
    events = [Repeated(Gaussian(10.0), 9), Gaussian(5.0), Tree(10.0, 8)]
    assert Gdp().mu(events) == pytest.approx(math.sqrt(0.09 + 0.04 + 0.04))
    assert Gdp().epsilon(events, 1e-5) == pytest.approx(gaussian_epsilon(math.sqrt(0.17), 1e-5))
    assert Gdp().mu([Gaussian(10.0, REPLACE)]) == pytest.approx(0.2)
    assert Gdp().mu([PoissonGaussian(10.0, 1.0, REPLACE)]) == pytest.approx(0.2)
    assert Gdp().mu([PoissonGaussian(10.0, 0.0)]) == 0.0


def test_it_reports_less_than_a_third_of_the_truth_at_small_noise() -> None:
    events = [Repeated(PoissonGaussian(0.6, 0.001), 1000)]
    assert Gdp().epsilon(events, 1e-5) == pytest.approx(0.43, abs=0.005)
    assert Rdp().epsilon(events, 1e-5) > 1.43


def test_the_replace_one_limit_is_the_spread_of_the_dominating_pair() -> None:
    noise, rate = 1.3, 0.01
    z = np.linspace(-15, 15, 20_001)
    up, down = (np.exp(sign * z / noise - 0.5 / noise**2) for sign in (1, -1))
    spread = trapezoid(rate**2 * (up - down) ** 2 * np.exp(-z * z / 2), z) / math.sqrt(2 * math.pi)
    assert Gdp().mu([PoissonGaussian(noise, rate, REPLACE)]) == pytest.approx(math.sqrt(spread), rel=1e-9)


def test_delta_and_epsilon_answer_each_other() -> None:
    events = [Repeated(PoissonGaussian(1.0, 0.01), 1000)]
    assert Gdp().delta(events, Gdp().epsilon(events, 1e-6)) == pytest.approx(1e-6)
    assert Gdp().epsilon([], 1e-5) == 0.0
    assert Gdp().delta([], 0.0) == 0.0
    assert Gdp().epsilon([PoissonGaussian(0.01, 0.5)], 1e-5) == math.inf


def test_what_has_no_limit_and_mixed_relations_are_refused() -> None:
    assert not Gdp().supports(Laplace(1.0))
    with pytest.raises(AccountingError, match="Laplace"):
        Gdp().epsilon([Laplace(1.0)], 1e-5)
    with pytest.raises(AccountingError, match="cannot be composed"):
        Gdp().epsilon([Gaussian(1.0), Gaussian(1.0, REPLACE)], 1e-5)
