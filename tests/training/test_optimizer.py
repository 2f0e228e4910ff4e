"""The short way to an update is torch's own update, to a part in a million."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from tests.methods.method_cases import plan_for, small_problem
from veil.training.optimizer import Optimizer


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
