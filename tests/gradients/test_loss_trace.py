"""Losses of a user's own loop that mix rows are seen at the step itself; ordinary ones pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from veil.gradients import GradientError
from veil.gradients.loss_trace import THOROUGH, LossTrace

ROWS = 12
Pass = Callable[[nn.Module, Tensor, Tensor], Tensor]


def losses_of(model: nn.Module, rows: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(rows), targets, reduction="none")


def on_losses(change: Callable[[Tensor], Tensor]) -> Pass:
    return lambda model, rows, targets: change(losses_of(model, rows, targets))


def mixup(model: nn.Module, rows: Tensor, targets: Tensor) -> Tensor:
    order = torch.randperm(len(rows))
    outputs = model(0.6 * rows + 0.4 * rows[order])
    mine, theirs = (F.cross_entropy(outputs, t, reduction="none") for t in (targets, targets[order]))
    return 0.6 * mine + 0.4 * theirs


def by_class(model: nn.Module, rows: Tensor, targets: Tensor) -> Tensor:
    outputs, found = model(rows), torch.zeros(len(rows))
    for value in range(3):
        chosen = targets == value
        found[chosen] = F.cross_entropy(outputs[chosen], targets[chosen], reduction="none")
    return found


def capped(losses: Tensor) -> Tensor:
    losses = losses * 2
    losses[losses > 1.5] = 1.5
    return losses


def focal(losses: Tensor) -> Tensor:
    print_me = losses.mean().item()
    assert print_me > 0
    return (1 - torch.exp(-losses.detach())) ** 2 * losses


MIXED: dict[str, Pass] = {
    "softmax": on_losses(lambda losses: losses * losses.softmax(0) * ROWS),
    "softmax, detached": on_losses(lambda losses: losses * losses.detach().softmax(0) * ROWS),
    "largest": on_losses(lambda losses: losses / losses.max()),
    "largest, detached": on_losses(lambda losses: losses / losses.detach().max()),
    "mean, detached": on_losses(lambda losses: losses / losses.detach().mean()),
    "mean by .data": on_losses(lambda losses: losses / losses.data.mean()),
    "rank": on_losses(lambda losses: losses * (losses.argsort().argsort() < ROWS // 2)),
    "sorted": on_losses(lambda losses: losses.sort().values),
    "class counts": lambda model, rows, t: losses_of(model, rows, t) / torch.bincount(t, minlength=3)[t],
    "mixup": mixup,
    "mixup of inputs": lambda model, rows, targets: losses_of(model, 0.6 * rows + 0.4 * rows.flip(0), targets),
    "centred rows": lambda model, rows, targets: losses_of(model, rows - rows.mean(0), targets),
    "another order": lambda model, rows, targets: losses_of(model, rows.roll(1, 0), targets.roll(1, 0)),
}
APART: dict[str, Pass] = {
    "plain": losses_of,
    "by hand": lambda model, rows, t: -torch.log_softmax(model(rows), 1)[torch.arange(ROWS), t],
    "probabilities": lambda model, rows, t: F.binary_cross_entropy(
        torch.sigmoid(model(rows)[:, 0]), (t > 0).float(), reduction="none"
    ),
    "focal": on_losses(focal),
    "capped in place": on_losses(capped),
    "written class by class": by_class,
    "noisy rows": lambda model, rows, targets: losses_of(model, rows + torch.randn_like(rows), targets),
    "dropout on rows": lambda model, rows, targets: losses_of(model, F.dropout(rows), targets),
    "row by row": lambda model, rows, t: torch.cat([losses_of(model, rows[[i]], t[[i]]) for i in range(ROWS)]),
    "past the model's call": lambda model, rows, t: F.cross_entropy(model.forward(rows), t, reduction="none"),
    "a constant": lambda model, rows, targets: torch.zeros(ROWS),
}


def checked(pass_over: Pass, turn: int) -> None:
    generator = torch.Generator().manual_seed(turn)
    torch.manual_seed(turn)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    rows, targets = torch.randn(ROWS, 4, generator=generator), torch.randint(0, 3, (ROWS,), generator=generator)
    trace = LossTrace(model, (rows, targets), turn)
    with trace:
        losses = pass_over(model, rows, targets)
    kept = losses.detach().clone()
    state = torch.get_rng_state()
    try:
        trace.check(losses)
    finally:
        assert torch.equal(torch.get_rng_state(), state)
        assert torch.equal(losses.detach(), kept)
        assert not torch.overrides._get_current_function_mode_stack()
        assert not model._forward_hooks
        assert not model._forward_pre_hooks


@pytest.mark.parametrize("turn", [0, 1, THOROUGH + 3])
@pytest.mark.parametrize("kind", MIXED)
def test_a_pass_that_mixes_rows_outside_of_the_model_is_refused(kind: str, turn: int) -> None:
    with pytest.raises(GradientError, match="changing some rows of the batch changes others"):
        checked(MIXED[kind], turn)


@pytest.mark.parametrize("kind", APART)
def test_a_pass_that_keeps_rows_apart_goes_through(kind: str) -> None:
    for turn in (0, 1, THOROUGH, THOROUGH + 1, THOROUGH + 2, THOROUGH + 3):
        checked(APART[kind], turn)


def test_a_model_with_time_first_is_not_taken_for_one_that_mixes_when_there_are_as_many_rows_as_times() -> None:
    def time_first(model: nn.Module, rows: Tensor, targets: Tensor) -> Tensor:
        return model(rows.unsqueeze(0).expand(ROWS, -1, -1)).mean(0).square().sum(1) + targets

    for turn in range(4):
        checked(time_first, turn)
