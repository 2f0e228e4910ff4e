"""DiSK: an average of noisy gradients at a look-ahead point; no cost, and no trace in the model's own weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import veil
from tests.methods.method_cases import plan_for, small_engine, small_problem
from veil.errors import InputError
from veil.foundation.randomness import Seed
from veil.noise.filters import DiskFilter
from veil.plans import Plan, Settings
from veil.training.fitting import row_losses
from veil.training.loop import Loop


def one_weight(value: float) -> nn.Linear:
    layer = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        layer.weight.fill_(value)
    return layer


def final_weights(plan: Plan) -> torch.Tensor:
    loop = Loop(small_engine().model, small_problem(), replace(plan, rules=None), row_losses, Seed.from_int(5), None)
    loop.run()
    return torch.cat([p.detach().flatten() for p in loop.model.parameters()])


def test_the_filter_costs_nothing() -> None:
    problem = small_problem()
    plain, filtered = plan_for("dp-sgd", {}, problem), plan_for("disk", {}, problem)
    assert filtered.rules == plain.rules
    assert filtered.details["noise_multiplier"] == plain.details["noise_multiplier"]


def test_the_method_is_dp_sgd_with_the_setting() -> None:
    problem = small_problem()
    by_method = plan_for("disk", {}, problem, filter_memory=0.7)
    by_setting = plan_for("dp-sgd", {}, problem, noise_filter="disk", filter_memory=0.7)
    assert torch.equal(final_weights(by_method), final_weights(by_setting))
    assert not torch.equal(final_weights(by_method), final_weights(plan_for("dp-sgd", {}, problem)))


@pytest.mark.parametrize("method", ["fdpg", "adaptive-clip", "dpsgd-f", "auto-s"])
def test_any_method_takes_the_filter(method: str) -> None:
    problem = small_problem()
    plain = final_weights(plan_for(method, {}, problem))
    assert not torch.equal(plain, final_weights(plan_for(method, {}, problem, noise_filter="disk")))


def test_no_memory_is_no_filter() -> None:
    problem = small_problem()
    plain = final_weights(plan_for("dp-sgd", {}, problem))
    assert torch.equal(plain, final_weights(plan_for("disk", {}, problem, filter_memory=0.0)))


def test_the_look_ahead_point_extends_the_last_move_and_is_taken_back_exactly() -> None:
    model, disk = one_weight(1.0), DiskFilter(0.75)
    with disk.ahead(model):
        assert model.weight.item() == 1.0
    with torch.no_grad():
        model.weight.fill_(1.1)
    moved = model.weight.item()
    with disk.ahead(model):
        assert model.weight.item() == pytest.approx(1.1 + 3.0 * 0.1, rel=1e-5)
    assert model.weight.item() == moved


def test_an_error_at_the_look_ahead_point_still_gives_the_weights_back() -> None:
    model, disk = one_weight(1.0), DiskFilter(0.5)
    with disk.ahead(model):
        pass
    with torch.no_grad():
        model.weight.fill_(2.0)
    with pytest.raises(RuntimeError, match="broken"), disk.ahead(model):
        raise RuntimeError("broken")
    assert model.weight.item() == 2.0


def test_on_a_quadratic_the_look_ahead_undoes_the_delay_of_the_average() -> None:
    """At steady speed the average of look-ahead gradients is the gradient at the present weights."""
    model, disk, speed = one_weight(0.0), DiskFilter(0.8), 0.1
    for _ in range(200):
        with disk.ahead(model):
            noisy = {"weight": 3.0 * model.weight.detach().clone()}
        smooth = disk.smooth(noisy)["weight"].item()
        exact = 3.0 * model.weight.item()
        with torch.no_grad():
            model.weight.add_(speed)
    assert smooth == pytest.approx(exact, rel=1e-3)


@pytest.mark.statistical
def test_the_average_has_the_smaller_noise_that_is_promised() -> None:
    """Spread of 20,000 correlated draws: within 5 % but for fewer than one run in 10,000."""
    disk = DiskFilter(0.5)
    generator = torch.Generator().manual_seed(1)
    noise = [disk.smooth({"w": torch.randn(100, generator=generator)})["w"] for _ in range(220)][20:]
    assert float(torch.stack(noise).std()) == pytest.approx(np.sqrt(0.5 / 1.5), rel=0.05)


def test_a_restored_state_forgets_what_came_after() -> None:
    disk = DiskFilter(0.5)
    disk.smooth({"w": torch.ones(2)})
    kept = disk.state()
    disk.smooth({"w": torch.full((2,), 9.0)})
    disk.restore(kept)
    assert disk.smooth({"w": torch.ones(2)})["w"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("wrong", [{"noise_filter": "kalman"}, {"filter_memory": 1.0}, {"filter_lookahead": -1.0}])
def test_wrong_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError):
        Settings.checked(**wrong)


def test_a_filtered_run_says_so() -> None:
    run = veil.fit(small_engine().model, small_problem(), method="disk", epsilon=1.0, steps=3, batch_size=24, seed=1)
    assert run.plan.settings.noise_filter == "disk"
    assert run.certificate.method == "disk"
