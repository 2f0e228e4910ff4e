"""Models for images: the papers' convolutional networks, and residual networks with GroupNorm."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from veil.errors import require
from veil.problem import PublicFacts


def _sized(facts: PublicFacts, body: nn.Module) -> int:
    """How many numbers the body makes of one image."""
    require(
        len(facts.input_shape) == 3,
        f"this model needs rows of shape channels × height × width, not {'×'.join(map(str, facts.input_shape))}",
    )
    with torch.no_grad():
        return int(body(torch.zeros(1, *facts.input_shape)).numel())


def asc_cnn(facts: PublicFacts, channels: Sequence[int] = (32, 16), pool: int = 2) -> nn.Module:
    """The small network of Esipova et al. that ASC and FDPG train on MNIST: two convolutions, one linear layer.

    32 and 16 channels, kernel 3, tanh. The papers do not say whether they pool; `pool=1` leaves pooling out.
    """
    layers: list[nn.Module] = []
    before = facts.input_shape[0]
    for after in channels:
        layers += [nn.Conv2d(before, after, 3), nn.Tanh()] + ([nn.MaxPool2d(pool)] if pool > 1 else [])
        before = after
    body = nn.Sequential(*layers, nn.Flatten())
    return nn.Sequential(*body, nn.Linear(_sized(facts, body), facts.outputs))


def papernot_mnist(facts: PublicFacts) -> nn.Module:
    """The tanh network of Papernot et al. (2021) for MNIST: 26,010 parameters."""
    body = nn.Sequential(
        nn.Conv2d(facts.input_shape[0], 16, 8, stride=2, padding=2),
        nn.Tanh(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.Tanh(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
    )
    return nn.Sequential(*body, nn.Linear(_sized(facts, body), 32), nn.Tanh(), nn.Linear(32, facts.outputs))


def papernot_cifar(facts: PublicFacts, channels: Sequence[int] = (32, 64, 128), hidden: int = 128) -> nn.Module:
    """The tanh network of Papernot et al. (2021) for CIFAR-10: three pairs of convolutions, each then pooled."""
    layers: list[nn.Module] = []
    before = facts.input_shape[0]
    for after in channels:
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.Tanh()]
        layers += [nn.Conv2d(after, after, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)]
        before = after
    body = nn.Sequential(*layers, nn.Flatten())
    return nn.Sequential(*body, nn.Linear(_sized(facts, body), hidden), nn.Tanh(), nn.Linear(hidden, facts.outputs))


def _convolution(before: int, after: int, stride: int = 1) -> nn.Sequential:
    """Convolution, GroupNorm (which looks at one row alone) and ReLU."""
    return nn.Sequential(
        nn.Conv2d(before, after, 3, stride, padding=1, bias=False), nn.GroupNorm(_norm_groups(after), after), nn.ReLU()
    )


def _norm_groups(channels: int) -> int:
    return next(groups for groups in (32, 16, 8, 4, 2, 1) if channels % groups == 0 and channels >= 2 * groups)


class Residual(nn.Module):
    """x + f(x), where a 1 × 1 convolution brings x to the shape of f(x) if need be."""

    def __init__(self, body: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.body = body
        self.shortcut = nn.Identity() if shortcut is None else shortcut

    def forward(self, images: Tensor) -> Tensor:
        """The sum of both ways."""
        total: Tensor = self.body(images) + self.shortcut(images)
        return total


def resnet9(facts: PublicFacts, width: int = 64) -> nn.Module:
    """Nine layers with two residual pairs and GroupNorm, for images of about 32 × 32."""
    body = nn.Sequential(
        _convolution(facts.input_shape[0], width),
        _convolution(width, 2 * width),
        nn.MaxPool2d(2),
        Residual(nn.Sequential(_convolution(2 * width, 2 * width), _convolution(2 * width, 2 * width))),
        _convolution(2 * width, 4 * width),
        nn.MaxPool2d(2),
        _convolution(4 * width, 4 * width),
        nn.MaxPool2d(2),
        Residual(nn.Sequential(_convolution(4 * width, 4 * width), _convolution(4 * width, 4 * width))),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    return nn.Sequential(*body, nn.Linear(_sized(facts, body), facts.outputs))


def _basic_block(before: int, after: int, stride: int) -> nn.Module:
    body = nn.Sequential(
        _convolution(before, after, stride),
        nn.Conv2d(after, after, 3, padding=1, bias=False),
        nn.GroupNorm(_norm_groups(after), after),
    )
    same = before == after and stride == 1
    shortcut = None if same else nn.Conv2d(before, after, 1, stride, bias=False)
    return nn.Sequential(Residual(body, shortcut), nn.ReLU())


def resnet18(facts: PublicFacts, width: int = 64) -> nn.Module:
    """ResNet-18 with GroupNorm; small images enter through a 3 × 3 convolution, larger ones through 7 × 7 and pool."""
    small = min(facts.input_shape[1:], default=0) <= 64
    stem: nn.Module = (
        _convolution(facts.input_shape[0], width)
        if small
        else nn.Sequential(
            nn.Conv2d(facts.input_shape[0], width, 7, 2, padding=3, bias=False),
            nn.GroupNorm(_norm_groups(width), width),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, padding=1),
        )
    )
    stages: list[nn.Module] = []
    before = width
    for stage in range(4):
        after = width * 2**stage
        stages += [_basic_block(before, after, 1 if stage == 0 else 2), _basic_block(after, after, 1)]
        before = after
    body = nn.Sequential(stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(*body, nn.Linear(_sized(facts, body), facts.outputs))
