"""Features of a fixed network: of each row by itself, the same in any batch, and no more than a row of other data."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import veil
from tests.training.small_models import WORDS, Encoder
from veil.errors import InputError
from veil.models import embed, with_head
from veil.problem import Problem

IMAGES = torch.rand(20, 3, 8, 8, generator=torch.Generator().manual_seed(0))
CLASSES = [0, 1] * 10
GROUPS = ["a", "b", "b", "a"] * 5


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


class Centred(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        features = images.flatten(1)
        return features - features.mean(0)


class Previous(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1).roll(1, 0)


def test_features_do_not_depend_on_the_batch_they_are_computed_in() -> None:
    problem = Problem.from_arrays(IMAGES, CLASSES, GROUPS)
    model = network()
    one, all_ = embed(model, problem, batch_size=1), embed(model, problem, batch_size=20)
    assert torch.allclose(one.inputs, all_.inputs, atol=1e-6)
    assert model.training, "the network's own mode comes back"
    assert one.public.groups == problem.public.groups
    assert torch.equal(one.targets, problem.targets)


def test_features_train_like_the_frozen_network_before_its_head() -> None:
    problem = Problem.from_arrays(IMAGES, CLASSES, GROUPS)
    settings: dict[str, Any] = {"method": "dp-sgd", "epsilon": 2.0, "steps": 4, "batch_size": 10, "seed": 1}
    whole = with_head(network().eval(), 4, 2)
    veil.fit(whole, problem, **settings)
    head = with_head(nn.Identity(), 4, 2)
    veil.fit(head, embed(network().eval(), problem), **settings)
    assert torch.allclose(whole.head.weight, head.head.weight, atol=1e-5)  # type: ignore[union-attr, arg-type]
    assert whole.head.weight.count_nonzero() > 0  # type: ignore[union-attr, operator]


@pytest.mark.parametrize("mixing", [Centred(), Previous()], ids=["centred", "previous"])
def test_a_network_that_mixes_rows_is_refused(mixing: nn.Module) -> None:
    with pytest.raises(InputError, match="change with the other rows of its batch"):
        embed(mixing, Problem.from_arrays(IMAGES, CLASSES))


def test_a_network_that_sees_how_far_a_batch_is_padded_is_refused() -> None:
    sentences = [torch.randint(1, WORDS, (3 + row % 4,)) for row in range(20)]
    problem = Problem.from_arrays({"input_ids": sentences}, CLASSES)

    class Unmasked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(WORDS, 4)

        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
            return self.words(input_ids).mean(1)

    with pytest.raises(InputError, match="padded further"):
        embed(Unmasked(), problem)
    assert embed(Encoder(), problem).public.input_shape == (2,)


def test_only_the_head_is_trained_and_it_starts_at_zero() -> None:
    model = with_head(network(), 4, 3)
    assert model(IMAGES).count_nonzero() == 0
    assert [name for name, p in model.named_parameters() if p.requires_grad] == ["head.weight", "head.bias"]
    everything = with_head(network(), 4, 3, train="all")
    assert all(p.requires_grad for p in everything.parameters())
    with pytest.raises(InputError, match="it must be head or all"):
        with_head(network(), 4, 3, train="body")  # type: ignore[arg-type]


def test_the_head_sees_features_of_length_one() -> None:
    model = with_head(network().eval(), 4, 2)
    found = model.scale(model.backbone(IMAGES))  # type: ignore[operator]
    assert torch.allclose(found, F.normalize(found, dim=1))
    assert torch.allclose(found.norm(dim=1), torch.ones(20))
