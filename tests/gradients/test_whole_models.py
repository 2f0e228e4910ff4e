"""Whole models as people write them: every one equals the loop, and none needs the fallback (which would warn)."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDE = torch.float64


class ResidualBlock(nn.Module):
    def __init__(self, ins: int, outs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(ins, outs, 3, stride, 1, bias=False)
        self.first_norm = nn.GroupNorm(2, outs)
        self.second = nn.Conv2d(outs, outs, 3, 1, 1, bias=False)
        self.second_norm = nn.GroupNorm(2, outs)
        self.skip = nn.Identity() if stride == 1 and ins == outs else nn.Conv2d(ins, outs, 1, stride, bias=False)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, images: Tensor) -> Tensor:
        inner = self.relu(self.first_norm(self.first(images)))
        return self.relu(self.second_norm(self.second(inner)) + self.skip(images))


def residual_network() -> nn.Module:
    blocks = [ResidualBlock(4, 4, 1), ResidualBlock(4, 8, 2)]
    return nn.Sequential(nn.Conv2d(1, 4, 3, 1, 1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))


class LanguageModel(nn.Module):
    """Word and position embeddings, causal attention, and an output layer tied to the words."""

    def __init__(self, words: int = 11, size: int = 8) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, size), nn.Embedding(9, size)
        self.norm, self.qkv, self.out = nn.LayerNorm(size), nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.head = nn.Linear(size, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, index: Tensor) -> Tensor:
        rows, length = index.shape
        signal = self.words(index) + self.places(torch.arange(length))
        parts = self.qkv(self.norm(signal)).chunk(3, 2)
        heads = [part.view(rows, length, 2, -1).transpose(1, 2) for part in parts]
        mixed = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        return self.head(signal + self.out(mixed.transpose(1, 2).reshape(rows, length, -1)))


class ImageTransformer(nn.Module):
    """Patches, a class token and learned positions."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 8, 4, 4)
        self.token, self.places = nn.Parameter(torch.randn(1, 1, 8)), nn.Parameter(torch.randn(1, 5, 8))
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.Linear(8, 5)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(images.shape[0], -1, -1), tokens], 1) + self.places
        return self.head(self.encoder(tokens)[:, 0])


class Translator(nn.Module):
    """Encoder and decoder with attention across them."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.transformer = nn.Embedding(11, 8), nn.Transformer(8, 2, 1, 1, 16, 0.0, batch_first=True)
        self.head = nn.Linear(8, 11)

    def forward(self, index: Tensor) -> Tensor:
        words = self.words(index)
        mask = nn.Transformer.generate_square_subsequent_mask(index.shape[1] - 3, dtype=words.dtype)
        return self.head(self.transformer(words[:, :4], words[:, 3:], tgt_mask=mask))


class LowRank(nn.Module):
    """A frozen layer with a trained low-rank update that starts at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(64, 6).requires_grad_(False)
        self.down, self.up = nn.Parameter(torch.randn(2, 64)), nn.Parameter(torch.zeros(6, 2))
        self.head = nn.Linear(6, 5)

    def forward(self, images: Tensor) -> Tensor:
        flat = images.flatten(1)
        return self.head(torch.tanh(self.base(flat) + flat @ self.down.t() @ self.up.t()))


@pytest.mark.parametrize("build", [residual_network, ImageTransformer, LowRank])
@pytest.mark.parametrize("rows", [1, 4])
def test_image_models_are_the_loop_without_the_fallback(assert_like_loop, cross_entropy, build, rows):
    torch.manual_seed(0)
    batch = torch.randn(rows, 1, 8, 8, dtype=WIDE), torch.randint(0, 5, (rows,))
    assert_like_loop(build().to(WIDE), batch, loss=cross_entropy)


@pytest.mark.parametrize("build", [LanguageModel, Translator])
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_sequence_models_are_the_loop_without_the_fallback(assert_like_loop, build, rows):
    torch.manual_seed(0)
    assert_like_loop(build().to(WIDE), torch.randint(0, 11, (rows, 7)))
