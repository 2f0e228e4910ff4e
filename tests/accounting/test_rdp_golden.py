"""Numbers that the papers and their corrected settings must give under Rényi accounting."""

from __future__ import annotations

import math

import pytest

from veil.accounting.calibration import clip_for, noise_for, noise_for_subset, rate_for
from veil.accounting.events import Gaussian, PoissonGaussian, Relation, Repeated, SubsetGaussian
from veil.accounting.rdp import Rdp

REPLACE = Relation.REPLACE_ONE
# rows, batch, steps, δ; κ of DP-SGD; κ of ASC with its full-data loss releases (κ, times)
ASC = [
    (49_208, 256, 11_580, 1.02e-5, 9.22, 9.61, 240.23, 60),
    (162_770, 256, 31_800, 3.07e-6, 5.08, 5.59, 139.65, 50),
    (675_676, 1_000, 16_900, 7.4e-7, 3.83, 4.22, 105.47, 25),
]


@pytest.mark.parametrize(("rows", "batch", "steps", "delta", "sgd", "asc", "loss", "times"), ASC)
def test_the_asc_settings_spend_a_budget_of_one(
    rows: int, batch: int, steps: int, delta: float, sgd: float, asc: float, loss: float, times: int
) -> None:
    assert 0.985 <= Rdp().epsilon([Repeated(SubsetGaussian(sgd, rows, batch), steps)], delta) <= 1.0
    gradient = Repeated(SubsetGaussian(asc, rows, batch), steps)
    both_sides = Repeated(Gaussian(loss, REPLACE), times)
    assert 0.985 <= Rdp().epsilon([gradient, both_sides], delta) <= 1.0
    # the paper charges a loss in [0, ζ] with reach 2; its true reach is 1, which would leave a part of the budget
    one_side = Repeated(Gaussian(loss, REPLACE, one_sided=True), times)
    assert 0.90 <= Rdp().epsilon([gradient, one_side], delta) <= 0.97
    assert noise_for_subset(1.0, delta, rows, batch, steps) == pytest.approx(sgd, rel=0.01)


@pytest.mark.parametrize(
    ("rows", "batch", "steps", "delta", "golden"),
    [(*ASC[0][:4], 2.39), (*ASC[1][:4], 1.40), (*ASC[2][:4], 1.18)],
)
def test_poisson_noise_for_a_budget_of_one(rows: int, batch: int, steps: int, delta: float, golden: float) -> None:
    kappa = noise_for(1.0, delta, batch / rows, steps)
    # noise is printed rounded up, to the private side
    assert math.ceil(100 * kappa) / 100 == pytest.approx(golden)
    assert Rdp().epsilon([Repeated(PoissonGaussian(kappa, batch / rows), steps)], delta) <= 1.0


@pytest.mark.parametrize(
    ("rows", "batch", "steps", "delta", "tight"),
    [(*ASC[0][:4], 4.18), (*ASC[1][:4], 2.25), (*ASC[2][:4], 1.67)],
)
def test_replace_one_needs_more_noise_than_the_tight_privacy_loss_but_not_much(
    rows: int, batch: int, steps: int, delta: float, tight: float
) -> None:
    kappa = noise_for(1.0, delta, batch / rows, steps, REPLACE)
    assert tight < kappa < 1.1 * tight


def test_ten_thousand_steps_at_half_a_percent() -> None:
    assert Rdp().epsilon([Repeated(PoissonGaussian(1.0, 0.005), 10_000)], 1e-5) == pytest.approx(3.060, rel=0.005)


@pytest.mark.parametrize(("epsilon", "golden"), [(8.0, 0.193), (0.6, 0.0189)])
def test_rates_of_individual_budgets(epsilon: float, golden: float) -> None:
    assert rate_for(epsilon, 1e-5, 4.0, 1000) == pytest.approx(golden, rel=0.005)


@pytest.mark.parametrize(("epsilon", "rate", "golden"), [(0.5, 0.05, 0.328), (3.0, 0.05, 1.589), (3.0, 0.02, 3.29)])
def test_clips_of_individual_budgets(epsilon: float, rate: float, golden: float) -> None:
    assert clip_for(epsilon, 1e-5, rate, 4.0, 1000) == pytest.approx(golden, rel=0.005)


@pytest.mark.parametrize(
    ("rows", "noise", "epochs", "golden"), [(23_512, 1.0, 20, 3.41), (48_336, 1.0, 20, 2.27), (54_649, 0.8, 60, 5.90)]
)
def test_the_fdpg_settings(rows: int, noise: float, epochs: int, golden: float) -> None:
    steps = round(epochs * rows / 256)
    assert Rdp().epsilon([Repeated(PoissonGaussian(noise, 256 / rows), steps)], 1e-6) == pytest.approx(
        golden, rel=0.005
    )
