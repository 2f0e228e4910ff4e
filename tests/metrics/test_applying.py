"""Models by name keep the channels of a pixel side by side, and pieces of rows give what all rows at once give."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from veil.foundation.randomness import Seed
from veil.gradients import GradientEngine
from veil.models import build_model
from veil.models.applying import apply, batches, rows_at_once
from veil.problem import Problem
from veil.training.fitting import row_losses


@pytest.fixture
def images() -> Problem:
    draw = np.random.default_rng(0)
    digits = draw.integers(0, 10, 300)
    return Problem.from_arrays(torch.from_numpy(draw.normal(size=(300, 1, 28, 28))).float(), digits, digits)


def test_pieces_give_what_all_rows_at_once_give(images: Problem) -> None:
    model = build_model("asc-cnn", images.public, Seed.from_int(0))
    assert rows_at_once(images.public.input_shape) < len(images)
    torch.testing.assert_close(apply(model, images.inputs), model(images.inputs))


def test_the_mode_of_the_model_comes_back_even_after_an_error() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5)).train()
    with pytest.raises(RuntimeError):
        apply(model, torch.zeros(4, 5))
    assert model.training


def test_batches_cover_every_row_once_and_none_is_one_empty_batch(images: Problem) -> None:
    rows = np.arange(len(images))[::-1].copy()
    inputs = torch.cat([batch[0] for batch in batches(images, rows)])
    assert torch.equal(inputs, images.inputs[rows.copy()])
    assert [len(batch[1]) for batch in batches(images, rows[:0])] == [0]


@pytest.mark.parametrize("name", ["asc-cnn", "papernot-mnist"])
def test_gradients_do_not_depend_on_how_the_weights_lie_in_memory(images: Problem, name: str) -> None:
    model = build_model(name, images.public, Seed.from_int(0))
    plain = build_model(name, images.public, Seed.from_int(0))
    for parameter in plain.parameters():
        parameter.data = parameter.data.contiguous()
    first = next(layer for layer in model.modules() if isinstance(layer, nn.Conv2d) and layer.in_channels > 1)
    assert not first.weight.is_contiguous()
    batch = images.batch(np.arange(40))
    found = [
        GradientEngine(one, row_losses).weighted_sum(batch, lambda per_row: 1 / per_row.norms) for one in (model, plain)
    ]
    torch.testing.assert_close(found[0].per_row.norms, found[1].per_row.norms, rtol=1e-5, atol=0)
    for key, value in found[0].sums[0].items():
        torch.testing.assert_close(value, found[1].sums[0][key], rtol=1e-4, atol=1e-5)
