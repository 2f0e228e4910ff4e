"""Embeddings: a table whose entries are looked up, with or without a padding entry."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from veil.gradients.contributions import Gathered
from veil.gradients.recording import Parts, Recorder, Rows, rule
from veil.gradients.records import GradientError


def refuse_mixing(max_norm: float | None, scale_grad_by_freq: bool) -> None:
    """Reject the two options of torch's embeddings that make one row's gradient depend on other rows."""
    if max_norm is not None:
        raise GradientError("an embedding with max_norm rewrites its table from the rows it sees: remove max_norm")
    if scale_grad_by_freq:
        raise GradientError(
            "an embedding with scale_grad_by_freq divides by how often an entry occurs in the batch, which mixes rows: "
            "remove scale_grad_by_freq"
        )


@rule(F.embedding)
def embedding(
    recorder: Recorder,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    """The gradient of entry v is the sum of g_t over the positions t that look v up."""
    if not recorder.trains(weight):
        return NotImplemented
    refuse_mixing(max_norm, scale_grad_by_freq)
    if recorder.without_rows("embedding", input.shape):
        recorder.calls += 1
        return recorder.derive(weight, F.embedding(input, weight, padding_idx))
    (table,) = recorder.opened(input, weight)
    assert table is not None
    padding = None if padding_idx is None else padding_idx % weight.shape[0]

    def parts(gradient: Tensor, rows: Rows) -> Parts:
        index, gradients = rows.split(input.long()), rows.split(gradient)
        if padding is not None:
            gradients = gradients.masked_fill((index == padding).unsqueeze(2), 0.0)
        yield weight, Gathered(index, gradients, weight.shape)

    output = F.embedding(input, table, padding)
    return recorder.record("embedding", input, output, input.ndim, (weight,), parts)


@rule(F.embedding_bag)
def embedding_bag(
    recorder: Recorder,
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Any:
    """As for an embedding: every entry of a bag receives the bag's gradient, times its share in the bag."""
    if not recorder.trains(weight):
        return NotImplemented
    refuse_mixing(max_norm, scale_grad_by_freq)
    if mode == "max":
        return NotImplemented
    padding = None if padding_idx is None else padding_idx % weight.shape[0]
    index, shares = _bags(input, offsets, include_last_offset, per_sample_weights, weight, padding, mode)
    (table,) = recorder.opened(shares, weight)
    assert table is not None
    output = F.embedding_bag(
        input,
        table,
        offsets,
        mode=mode,
        per_sample_weights=per_sample_weights,
        include_last_offset=include_last_offset,
        padding_idx=padding,
    )

    def parts(gradient: Tensor, rows: Rows) -> Parts:
        gradients = gradient.unsqueeze(1) * shares.detach().unsqueeze(2)
        per_row, bags = rows.split(gradients), rows.split(index.long())
        yield weight, Gathered(bags.flatten(1, 2), per_row.flatten(1, 2), weight.shape)

    return recorder.record("embedding bag", shares, output, 1, (weight,), parts)


def _bags(
    input: Tensor,
    offsets: Tensor | None,
    include_last_offset: bool,
    per_sample_weights: Tensor | None,
    weight: Tensor,
    padding: int | None,
    mode: str,
) -> tuple[Tensor, Tensor]:
    """Entries and shares as two (bags, longest bag) tensors; a share is 0 where the bag is shorter or padded."""
    values = torch.ones_like(input, dtype=weight.dtype) if per_sample_weights is None else per_sample_weights
    if offsets is not None:
        ends = torch.cat([offsets[1:], offsets.new_tensor([input.shape[0]])])
        starts, ends = (offsets[:-1], offsets[1:]) if include_last_offset else (offsets, ends)
        longest = int((ends - starts).max()) if starts.numel() else 0
        place = starts.unsqueeze(1) + torch.arange(longest, device=input.device)
        inside = place < ends.unsqueeze(1)
        place = torch.where(inside, place, torch.zeros_like(place))
        input, values = input[place], values[place] * inside
    else:
        # The caller may change its indices in place before the backward pass reads them.
        input = input.clone()
    if padding is not None:
        values = values * (input != padding)
    if mode == "mean":
        counted = (values.detach() != 0).sum(1, keepdim=True).clamp_min(1)
        values = values / counted
    return input, values
