"""A pass that writes into a trained weight is found and undone, however it writes and however the weight lies."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
import torch
import torch.multiprocessing  # teaches the pickler to share tensors
from torch import Tensor, nn

from tests.methods.method_cases import small_problem
from veil.gradients import GradientError
from veil.training.losses import row_losses
from veil.training.side_effects import SideEffects

Write = Callable[[nn.Parameter], None]


def model(kind: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).to(kind)
    made[0].weight.data[1, 1] = float("nan")
    return made


def effects_of(made: nn.Module) -> SideEffects:
    torch.manual_seed(0)
    clean = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    effects = SideEffects(clean, small_problem(), row_losses, private=True)
    return _over(effects, made)


def _over(effects: SideEffects, made: nn.Module) -> SideEffects:
    effects._parameters = dict(made.named_parameters())
    return effects


def in_place(weight: nn.Parameter) -> None:
    with torch.no_grad():
        weight[0, 0] += 1e-6


def past_autograd(weight: nn.Parameter) -> None:
    weight.data[0, 0] = 3.0


def by_numpy(weight: nn.Parameter) -> None:
    weight.detach().numpy()[0, 0] = 3.0


def elsewhere(weight: nn.Parameter) -> None:
    weight.data = weight.data + 1.0


def turned(weight: nn.Parameter) -> None:
    weight.data = weight.data.t()


def to_not_a_number(weight: nn.Parameter) -> None:
    weight.data[0, 0] = float("nan")


WRITES = [in_place, past_autograd, by_numpy, elsewhere, turned, to_not_a_number]


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("steps", [1, 3])
def test_every_way_to_write_is_found_and_undone(write: Write, steps: int) -> None:
    made = model()
    effects, weight = effects_of(made), made[0].weight
    before: Tensor = weight.detach().clone()
    for _ in range(steps):
        effects.note()
        assert effects.undo_weights() == []
    write(weight)
    assert effects.undo_weights() == ["0.weight"]
    assert torch.equal(weight.isnan(), before.isnan())
    assert torch.equal(weight.nan_to_num(), before.nan_to_num())


@pytest.mark.parametrize(
    "lay",
    [
        lambda weight: weight,
        lambda weight: weight.t().contiguous().t(),
        lambda weight: torch.zeros(8, 8)[::2, :4].copy_(weight),
        lambda weight: weight.double(),
        lambda weight: weight.bfloat16(),
    ],
)
def test_weights_in_any_order_of_memory_and_of_any_kind_are_compared(lay: Callable[[Tensor], Tensor]) -> None:
    made = model()
    made[0].weight.data = lay(made[0].weight.data)
    effects = effects_of(made)
    for _ in range(3):
        effects.note()
        assert effects.undo_weights() == []
    made[0].weight.data[2, 3] += 1.0
    assert effects.undo_weights() == ["0.weight"]
    assert effects.undo_weights() == []


def test_what_is_written_between_steps_stays_also_where_the_weight_lies_elsewhere_then() -> None:
    made = model()
    effects, weight = effects_of(made), made[0].weight
    for moved in (lambda: weight.data.mul_(2.0), lambda: setattr(weight, "data", weight.data * 3.0)):
        effects.note()
        assert effects.undo_weights() == []
        moved()
        effects.note()
        expected = weight.detach().clone()
        assert effects.undo_weights() == []
        assert torch.equal(weight.nan_to_num(), expected.nan_to_num())


def test_the_same_values_elsewhere_are_no_change() -> None:
    made = model()
    effects = effects_of(made)
    effects.note()
    made[0].weight.data = made[0].weight.data.clone()
    assert effects.undo_weights() == []


@pytest.mark.parametrize("moved", [False, True], ids=["in place", "elsewhere"])
def test_signs_of_zeros_are_values_too(moved: bool) -> None:
    made = model()
    with torch.no_grad():
        made[2].bias.zero_()
    effects = effects_of(made)
    effects.note()
    made[2].bias.data.neg_()
    if moved:
        made[2].bias.data = made[2].bias.data.clone()
    assert effects.undo_weights() == ["2.bias"]
    assert not made[2].bias.signbit().any()


def address(view: Any) -> int:
    return int(np.frombuffer(view, dtype=np.uint8).ctypes.data)


def to_shared_memory(made: nn.Module) -> None:
    made.share_memory()


def to_another_process(made: nn.Module) -> None:
    ForkingPickler.dumps(made.state_dict())  # what a queue between processes does


@pytest.mark.parametrize("move", [to_shared_memory, to_another_process])
def test_weights_whose_memory_moved_are_compared_where_they_lie_now(move: Callable[[nn.Module], None]) -> None:
    made = model()
    effects = effects_of(made)
    effects.note()
    move(made)
    noted = effects._weights["0.weight"]
    assert noted._bytes is not None
    assert address(noted._bytes[1]) != made[0].weight.data_ptr()
    assert not noted.fits()  # its bytes were freed: reading them would be a fault, or find old values
    assert effects.undo_weights() == []
    past_autograd(made[0].weight)
    assert effects.undo_weights() == ["0.weight"]
    effects.note()
    noted = effects._weights["0.weight"]
    assert noted.fits()
    assert noted._bytes is not None
    assert address(noted._bytes[1]) == made[0].weight.data_ptr()
    past_autograd(made[0].weight)
    assert effects.undo_weights() == ["0.weight"]


def test_a_watched_weight_may_be_resized() -> None:
    made = model()
    effects_of(made).note()
    made[0].weight.data.untyped_storage().resize_(1024)
    assert made[0].weight.data.untyped_storage().nbytes() == 1024


def test_a_weight_that_is_unfrozen_between_steps_is_watched_from_then_on() -> None:
    made = model()
    made[0].weight.requires_grad_(False)
    effects = effects_of(made)
    effects.note()
    past_autograd(made[0].weight)
    assert effects.undo_weights() == []
    made[0].weight.requires_grad_(True)
    effects.note()
    elsewhere(made[0].weight)
    assert effects.undo_weights() == ["0.weight"]


def test_a_weight_without_values_is_no_trouble() -> None:
    made = model()
    made.register_parameter("empty", nn.Parameter(torch.zeros(0, 3)))
    effects = effects_of(made)
    for _ in range(2):
        effects.note()
        assert effects.undo_weights() == []


def test_a_layer_that_is_added_between_steps_is_watched_from_then_on() -> None:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(4, 2))
    effects = SideEffects(made, small_problem(), row_losses, private=True)
    effects.note()
    made.append(nn.Linear(2, 2))
    effects.note()
    past_autograd(made[1].weight)
    assert effects.undo_weights() == ["1.weight"]


def test_a_pass_that_freezes_a_weight_is_rejected() -> None:
    made = model()
    effects = effects_of(made)
    with pytest.raises(GradientError, match=r"changes the parameter 2\.bias"), effects.undone():
        made[2].bias.requires_grad_(False)
    assert made[2].bias.requires_grad
    made[2].bias.requires_grad_(False)  # between two steps that is the user's choice
    with effects.undone():
        pass
    assert not made[2].bias.requires_grad
