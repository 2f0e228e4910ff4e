"""Numbers that this accountant must hit."""

from __future__ import annotations

import pytest

from veil.accounting.events import Gaussian, PoissonGaussian, Relation, Repeated, SubsetGaussian
from veil.accounting.pld import Pld

R1 = Relation.REPLACE_ONE
SETTINGS = [(49_208, 256, 11_580, 1.02e-5), (162_770, 256, 31_800, 3.07e-6), (675_676, 1_000, 16_900, 7.4e-7)]


@pytest.mark.parametrize(("setting", "noise"), [*zip(SETTINGS, (4.18, 2.25, 1.67), strict=True)])
def test_poisson_replace_one_noise_for_epsilon_one_moved(setting: tuple[int, int, int, float], noise: float) -> None:
    size, batch, steps, delta = setting
    costs = [
        Pld().epsilon([Repeated(PoissonGaussian(noise * s, batch / size, R1), steps)], delta) for s in (1.005, 0.995)
    ]
    assert costs[0] < 1.0 < costs[1]


@pytest.mark.parametrize(("setting", "noise"), [*zip(SETTINGS, (2.22, 1.32, 1.07), strict=True)])
def test_poisson_add_remove_noise_for_epsilon_one_moved(setting: tuple[int, int, int, float], noise: float) -> None:
    size, batch, steps, delta = setting
    costs = [Pld().epsilon([Repeated(PoissonGaussian(noise * s, batch / size), steps)], delta) for s in (1.005, 0.995)]
    assert costs[0] < 1.0 < costs[1]


@pytest.mark.parametrize(
    ("rate", "noise", "steps", "epsilon"),
    [(0.005, 1.0, 10_000, 2.801), (0.001, 0.6, 1_000, 1.43), (0.001, 0.5, 1_000, 3.24)],
)
def test_poisson_add_remove_epsilon_moved(rate: float, noise: float, steps: int, epsilon: float) -> None:
    assert Pld().epsilon([Repeated(PoissonGaussian(noise, rate), steps)], 1e-5) == pytest.approx(epsilon, rel=0.005)


@pytest.mark.parametrize(("factor", "epsilon"), [(2, 11.9), (3, 19.3), (5, 36.4), (10, 91.8)])
def test_up_weighting_a_group_looks_cheaper_than_it_is(factor: int, epsilon: float) -> None:
    event = PoissonGaussian(0.8, factor * 256 / 54_649)
    assert Pld().epsilon([Repeated(event, 60 * (54_649 // 256))], 1e-6) == pytest.approx(epsilon, rel=0.005)


@pytest.mark.parametrize(
    ("setting", "noise", "extra"),
    [*zip(SETTINGS, (9.61, 5.59, 4.22), ((60, 240.23), (50, 139.65), (25, 105.47)), strict=True)],
)
def test_subset_plus_full_releases_cost_more_than_one(
    setting: tuple[int, int, int, float], noise: float, extra: tuple[int, float]
) -> None:
    size, batch, steps, delta = setting
    sampled = Repeated(SubsetGaussian(noise, size, batch), steps)
    full = Repeated(Gaussian(extra[1], R1), extra[0])
    both, one = Pld().epsilon([sampled, full], delta), Pld().epsilon([sampled], delta)
    assert 0.4 < one < both < 1.0


def test_subset_costs_more_than_the_renyi_bound_says() -> None:
    rdp = pytest.importorskip("veil.accounting.rdp").Rdp()
    for (size, batch, steps, delta), noise in zip(SETTINGS, (9.22, 5.08, 3.83), strict=True):
        events = [Repeated(SubsetGaussian(noise, size, batch), steps)]
        assert Pld().epsilon(events, delta) < rdp.epsilon(events, delta)
