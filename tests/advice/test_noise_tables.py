"""The page of a plan never shows less noise than is needed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from veil.accounting import Pld, PoissonGaussian, Rdp, Repeated
from veil.accounting.calibration import noise_for
from veil.advice.noise_tables import NoiseTables, noise_tables, rounded_up

ROWS = 20_000


@pytest.fixture(scope="module")
def tables() -> NoiseTables:
    return noise_tables(ROWS)


SETTINGS = list(itertools.product((32, 512, ROWS), (1, 20), (1e-5, 1e-8), (0.3, 1.0, 8.0)))


@pytest.mark.parametrize(("batch", "epochs", "delta", "epsilon"), SETTINGS[::2])
def test_noise_from_the_tables_is_enough_for_a_second_accountant(
    tables: NoiseTables, batch: int, epochs: int, delta: float, epsilon: float
) -> None:
    steps = round(epochs * ROWS / batch)
    noise = tables.noise(batch, steps, delta, epsilon)
    assert noise is not None
    run = [Repeated(PoissonGaussian(noise, batch / ROWS), steps)]
    assert Pld().epsilon(run, delta) <= tables.epsilon(batch, noise, steps, delta) <= epsilon


@pytest.mark.parametrize(("batch", "epochs", "delta", "epsilon"), SETTINGS[1::4])
def test_noise_from_the_tables_is_not_much_more_than_needed(
    tables: NoiseTables, batch: int, epochs: int, delta: float, epsilon: float
) -> None:
    steps = round(epochs * ROWS / batch)
    least = noise_for(epsilon, delta, batch / ROWS, steps, accountant=Rdp())
    assert (tables.noise(batch, steps, delta, epsilon) or np.inf) <= max(1.1 * least, tables.noises[0])


def test_costs_are_never_rounded_down(tables: NoiseTables) -> None:
    draws = np.random.default_rng(0).lognormal(0, 8, 2000)
    assert np.all(rounded_up(draws) >= draws)
    assert np.all(rounded_up(draws) <= draws * 1.0002)
    assert rounded_up([0.0]).tolist() == [0.0]


def test_a_budget_that_no_prepared_noise_reaches_is_said(tables: NoiseTables) -> None:
    assert tables.noise(ROWS, 10_000, 1e-10, 0.01) is None
