"""Models for rows of character or token codes: a recurrent one and a small transformer. Code 0 fills up short rows."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn

from veil.problem import PublicFacts


class CharLstm(nn.Module):
    """Embedding, LSTM, and a linear map of the last state; rows are filled up on the left."""

    def __init__(self, vocabulary: int, outputs: int, embedding: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, batch_first=True)
        self.head = nn.Linear(hidden, outputs)

    def forward(self, codes: Tensor) -> Tensor:
        """Scores of each row."""
        states, _ = self.lstm(self.embedding(codes.long()))
        scores: Tensor = self.head(states[:, -1])
        return scores


def char_lstm(facts: PublicFacts, vocabulary: int = 59, embedding: int = 64, hidden: int = 128) -> nn.Module:
    """The character model of Boenisch et al. (2024) that INO-SGD trains on surnames."""
    return CharLstm(vocabulary, facts.outputs, embedding, hidden)


class SmallTransformer(nn.Module):
    """Embeddings of codes and positions, encoder layers, and the mean over the positions that are not filled up."""

    def __init__(self, vocabulary: int, length: int, outputs: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, outputs)

    def forward(self, codes: Tensor) -> Tensor:
        """Scores of each row."""
        codes = codes.long()
        positions = torch.arange(codes.shape[1]).expand(len(codes), -1)
        padding = codes == 0
        # The last position always takes part: attention over nothing would not be a number.
        padding = padding & (positions < codes.shape[1] - 1)
        states = self.encoder(self.embedding(codes) + self.position(positions), src_key_padding_mask=padding)
        kept = (~padding).to(states.dtype).unsqueeze(2)
        scores: Tensor = self.head((states * kept).sum(dim=1) / kept.sum(dim=1))
        return scores


def transformer(
    facts: PublicFacts, vocabulary: int = 59, width: int = 64, heads: int = 4, layers: int = 2
) -> nn.Module:
    """A small encoder trained from nothing."""
    return SmallTransformer(vocabulary, prod(facts.input_shape), facts.outputs, width, heads, layers)
