"""Small models of the kinds that people bring: a dict of tokens in, something with `.logits` out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WORDS = 20


@dataclass
class Output:
    """What models of other packages return."""

    logits: Tensor
    loss: Tensor | None = None


class Conv1D(nn.Module):
    """The linear map of GPT-2."""

    def __init__(self, ins: int, outs: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(ins, outs) * 0.1), nn.Parameter(torch.zeros(outs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], -1)


class Encoder(nn.Module):
    """A small BERT: words and positions, masked attention, and scores of the sequence or of each place."""

    def __init__(self, classes: int = 2, places: bool = False, masked: bool = True) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, 8), nn.Embedding(32, 8)
        self.mixed, self.out, self.norm = Conv1D(8, 24), Conv1D(8, 8), nn.LayerNorm(8)
        self.head, self.places, self.masked = nn.Linear(8, classes), places, masked

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None) -> Output:
        x = self.words(input_ids) + self.positions(torch.arange(input_ids.shape[1], device=input_ids.device))
        real = torch.ones_like(input_ids) if attention_mask is None or not self.masked else attention_mask
        query, key, value = self.mixed(x).split(8, dim=-1)
        weights = query @ key.transpose(1, 2) / 8**0.5
        weights = weights.masked_fill(real[:, None, :] == 0, -1e4).softmax(-1)
        x = self.norm(x + self.out(weights @ value))
        pooled = x if self.places else (x * real[..., None]).sum(1) / real.sum(1, keepdim=True)
        logits = self.head(pooled)
        return Output(logits, None if labels is None else F.cross_entropy(logits, labels))


class Tagger(nn.Module):
    """A recurrent model that gets a padded tensor and a mask, and takes the mean over real places."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.memory, self.head = nn.Embedding(WORDS, 6), nn.GRU(6, 6, batch_first=True), nn.Linear(6, 2)

    def forward(self, words: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        states, _ = self.memory(self.words(words))
        return self.head((states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)), states
