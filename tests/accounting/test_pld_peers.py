"""Second opinions: dp-accounting's and Opacus' numerical accountants."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution as peer

from veil.accounting.events import Gaussian, Laplace, PoissonGaussian, Relation, Repeated
from veil.accounting.pld import Pld

_NEIGHBOURS = {
    Relation.ADD_REMOVE: NeighboringRelation.ADD_OR_REMOVE_ONE,
    Relation.REPLACE_ONE: NeighboringRelation.REPLACE_ONE,
}


def _settings(count: int, seed: int) -> Iterator[tuple[float, float, int, float, Relation]]:
    random = np.random.default_rng(seed)
    for index in range(count):
        rate = 10 ** random.uniform(-3, -0.5)
        steps = int(10 ** random.uniform(0, 2.5))
        noise = 10 ** random.uniform(-0.1, 0.6)
        yield noise, rate, steps, 10 ** random.uniform(-8, -3), list(Relation)[index % 2]


def _agree(noise: float, rate: float, steps: int, delta: float, relation: Relation, interval: float) -> None:
    pair = peer.from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=interval, neighboring_relation=_NEIGHBOURS[relation]
    )
    other = pair.self_compose(steps).get_epsilon_for_delta(delta)
    events = [Repeated(PoissonGaussian(noise, rate, relation), steps)]
    ours = Pld().epsilon(events, delta)
    # both are upper bounds on the same truth, each loose by its own grid
    assert ours <= other * 1.001 + 1e-6
    assert Pld().lower_epsilon(events, delta) <= other
    assert ours >= other * 0.99 - 20 * interval * np.sqrt(steps)


@pytest.mark.parametrize("seed", range(4))
def test_dp_accounting_agrees(seed: int) -> None:
    for noise, rate, steps, delta, relation in _settings(15, seed):
        _agree(noise, rate, steps, delta, relation, interval=5e-4)


def test_dp_accounting_agrees_about_different_events() -> None:
    interval = 2e-4
    mixed = peer.from_gaussian_mechanism(1.0, sampling_prob=0.02, value_discretization_interval=interval).self_compose(
        80
    )
    mixed = mixed.compose(peer.from_gaussian_mechanism(5.0, value_discretization_interval=interval))
    mixed = mixed.compose(peer.from_laplace_mechanism(4.0, value_discretization_interval=interval).self_compose(3))
    events = [Repeated(PoissonGaussian(1.0, 0.02), 80), Gaussian(5.0), Repeated(Laplace(4.0), 3)]
    for delta in (1e-3, 1e-6):
        other = mixed.get_epsilon_for_delta(delta)
        assert other * 0.998 <= Pld().epsilon(events, delta) <= other * 1.0005
        assert Pld().lower_epsilon(events, delta) <= other
    for epsilon in (0.0, 0.5, 2.0):
        assert Pld().delta(events, epsilon) == pytest.approx(mixed.get_delta_for_epsilon(epsilon), rel=5e-3)


SWEEPS = pytest.mark.parametrize("settings", [30, pytest.param(200, marks=pytest.mark.long)])


@SWEEPS
@pytest.mark.slow
def test_dp_accounting_agrees_everywhere_in_a_wide_sweep(settings: int) -> None:
    for noise, rate, steps, delta, relation in _settings(settings, seed=9):
        _agree(noise, rate, steps, delta, relation, interval=2e-4)


def _agree_with_opacus(rate: float, noise: float, steps: int, delta: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus.accountants import PRVAccountant

        accountant = PRVAccountant()
        accountant.history = [(noise, rate, steps)]
        other = accountant.get_epsilon(delta, eps_error=0.01)
    # theirs is an upper bound with an error of 0.01 and covers one direction
    ours = Pld().epsilon([Repeated(PoissonGaussian(noise, rate), steps)], delta)
    assert ours <= other + 1e-3
    assert ours >= other - 0.03


@pytest.mark.parametrize(("rate", "noise", "steps"), [(0.01, 1.0, 1000), (0.004, 0.8, 3000), (0.1, 3.0, 200)])
def test_opacus_agrees(rate: float, noise: float, steps: int) -> None:
    _agree_with_opacus(rate, noise, steps, 1e-5)


@SWEEPS
@pytest.mark.slow
def test_opacus_agrees_everywhere_in_a_wide_sweep(settings: int) -> None:
    random = np.random.default_rng(4)
    for _ in range(settings):
        rate, noise = 10 ** random.uniform(-3, -1), 10 ** random.uniform(0, 0.6)
        _agree_with_opacus(rate, noise, int(10 ** random.uniform(1, 3)), 10 ** random.uniform(-7, -4))
