"""The short way to an update is torch's own update, to a part in a million."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.methods.method_cases import plan_for, small_problem
from veil.training.optimizer import Optimizer, _is_dense


def model() -> nn.Module:
    torch.manual_seed(0)
    found = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    found[2].bias.requires_grad_(False)
    return found


def gradients(step: int, of: nn.Module) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {name: torch.randn(p.shape, generator=generator) for name, p in of.named_parameters() if p.requires_grad}


@pytest.mark.parametrize(("momentum", "l2"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.1), (0.5, 0.01)])
def test_an_update_is_the_one_of_torch(momentum: float, l2: float) -> None:
    plan = plan_for("dp-sgd", {}, small_problem(), momentum=momentum, l2=l2, learning_rate=0.3, schedule="cosine")
    plan = replace(plan, settings=plan.settings)
    ours, theirs = model(), model()
    optimizer = Optimizer(ours, plan)
    peer = torch.optim.SGD(
        [p for p in theirs.parameters() if p.requires_grad], lr=0.3, momentum=momentum, weight_decay=l2
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(peer, plan.steps)
    for step in range(6):
        optimizer.update(gradients(step, ours), step)
        for name, parameter in theirs.named_parameters():
            parameter.grad = gradients(step, theirs).get(name)
        peer.step()
        schedule.step()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=1e-6, atol=1e-7)
        assert one.grad is None
    kept = peer.state_dict()["state"]
    assert {index: set(slots) for index, slots in optimizer.slots().items()} == {
        index: {name for name, value in slots.items() if value is not None} for index, slots in kept.items()
    }


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_weights_that_are_unfrozen_in_mid_run_stay_as_they_are(momentum: float) -> None:
    """The optimizer was made without them, so torch's own update leaves them out too."""
    ours = model()
    optimizer = Optimizer(ours, plan_for("dp-sgd", {}, small_problem(), momentum=momentum, learning_rate=0.3))
    optimizer.update(gradients(0, ours), 0)
    ours[2].bias.requires_grad_(True)
    before = {name: p.detach().clone() for name, p in ours.named_parameters()}
    optimizer.update(gradients(1, ours), 1)
    same = {name for name, p in ours.named_parameters() if torch.equal(p, before[name])}
    assert same == {"2.bias"}


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("cut", [(slice(None), slice(0, 3)), (slice(None), slice(0, 6, 2)), (slice(0, 2), slice(None))])
def test_weights_with_gaps_in_memory_are_updated_and_nothing_between_them(
    cut: tuple[slice, slice], momentum: float
) -> None:
    whole = torch.full((4, 6), 7.0)
    held, dense = nn.Module(), nn.Module()
    held.w, dense.w = nn.Parameter(whole[cut]), nn.Parameter(whole[cut].clone(memory_format=torch.contiguous_format))
    outside = torch.ones(4, 6, dtype=torch.bool)
    outside[cut] = False
    for of in (held, dense):
        optimizer = Optimizer(of, plan_for("dp-sgd", {}, small_problem(), momentum=momentum, learning_rate=0.3))
        for step in range(3):
            optimizer.update(gradients(step, of), step)
    assert torch.allclose(held.w, dense.w, rtol=1e-6, atol=1e-7)
    assert not torch.equal(held.w, torch.full_like(held.w, 7.0))
    assert bool((whole[outside] == 7.0).all())


def test_updates_in_one_piece_are_for_weights_without_gaps() -> None:
    """In any order of memory; a gap, or one number seen in many places, is for torch's slower update."""
    base = torch.zeros(4, 6)
    dense = [base, base.t(), base[1:3], base[:, None, :], torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)]
    assert all(_is_dense(one) for one in [*dense, torch.zeros(()), torch.zeros(0, 3)])
    assert not any(_is_dense(one) for one in [base[:, :3], base[:, ::2], base[::2], torch.zeros(1).expand(3)])


@pytest.mark.parametrize("settings", [{"momentum": 0.0}, {"momentum": 0.9, "l2": 0.01}, {"optimizer": "adam"}])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_an_update_by_a_sum_and_its_divisor_is_bit_for_bit_that_by_the_mean(
    settings: dict[str, Any], kind: torch.dtype
) -> None:
    by_sum, by_mean = model().to(kind), model().to(kind)
    for of, divisor in ((by_sum, 37.3), (by_mean, 1.0)):
        optimizer = Optimizer(of, plan_for("dp-sgd", {}, small_problem(), learning_rate=0.3, **settings))
        for step in range(4):
            total = {name: value.to(kind) for name, value in gradients(step, of).items()}
            if divisor == 1.0:
                total = {name: value / 37.3 for name, value in total.items()}
            optimizer.update(total, step, divisor)
            assert not total, "a sum that was used must not be used again"
    for one, other in zip(by_sum.parameters(), by_mean.parameters(), strict=True):
        assert torch.equal(one, other)
