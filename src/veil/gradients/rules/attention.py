"""Multi-head attention: the packed projections of torch's attention as recorded linear maps around a plain core.

The transformer encoder needs no separate rule: its parts are attention, linear maps and layer norms.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from veil.gradients.contributions import Outer, Rowwise
from veil.gradients.recording import Parts, Recorder, Rows, rule
from veil.gradients.rules.linear import applied, linear


@rule(F.multi_head_attention_forward)
def attention(
    recorder: Recorder,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> Any:
    """Attention over (time, rows, features) with recorded projections; rare options are left to the fallback."""
    weights = (
        in_proj_weight,
        in_proj_bias,
        out_proj_weight,
        out_proj_bias,
        q_proj_weight,
        k_proj_weight,
        v_proj_weight,
    )
    rare = bias_k is not None or bias_v is not None or static_k is not None or static_v is not None or add_zero_attn
    if rare or query.ndim != 3 or not recorder.trains(*weights):
        return NotImplemented
    separate = (q_proj_weight, k_proj_weight, v_proj_weight) if use_separate_proj_weight else None
    projected = _project(recorder, (query, key, value), in_proj_weight, separate, in_proj_bias)
    heads = [_heads(part, num_heads) for part in projected]
    mask = _mask(attn_mask, key_padding_mask, heads[0], heads[1])
    dropout = dropout_p if training else 0.0
    if need_weights:
        mixed, shares = _attend(heads, mask, dropout)
        shares = shares.mean(1) if average_attn_weights else shares
    else:
        mixed, shares = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], mask, dropout), None
    joined = mixed.permute(2, 0, 1, 3).flatten(2)
    return _linear(recorder, joined, out_proj_weight, out_proj_bias), shares


def _linear(recorder: Recorder, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    output = linear(recorder, input, weight, bias)
    result: Tensor = F.linear(input, weight, bias) if output is NotImplemented else output
    return result


def _project(
    recorder: Recorder,
    inputs: tuple[Tensor, Tensor, Tensor],
    packed: Tensor | None,
    separate: tuple[Tensor | None, Tensor | None, Tensor | None] | None,
    bias: Tensor | None,
) -> list[Tensor]:
    query, key, value = inputs
    if packed is not None and separate is None and query is key and key is value:
        return list(_linear(recorder, query, packed, bias).chunk(3, -1))
    size = query.shape[-1]
    outputs = []
    for place, input in enumerate(inputs):
        part = slice(place * size, (place + 1) * size)
        if separate is None:
            assert packed is not None
            outputs.append(_sliced(recorder, input, packed, part, bias, part))
        else:
            weight = separate[place]
            assert weight is not None
            outputs.append(_sliced(recorder, input, weight, slice(0, size), bias, part))
    return outputs


def _sliced(
    recorder: Recorder, input: Tensor, weight: Tensor, part: slice, bias: Tensor | None, bias_part: slice
) -> Tensor:
    """A linear map by some rows of a packed weight and bias: its gradient is zero in the other rows."""
    if not recorder.trains(weight, bias):
        return F.linear(input, weight[part], None if bias is None else bias[bias_part])
    plain_weight, plain_bias = recorder.opened(input, weight, bias)
    assert plain_weight is not None
    output = applied(input, plain_weight[part], None if plain_bias is None else plain_bias[bias_part])

    def parts(gradient: Tensor, rows: Rows) -> Parts:
        gradients = rows.split(gradient)
        if recorder.trains(weight):
            padded = F.pad(gradients, (part.start, weight.shape[0] - part.stop))
            yield weight, Outer(padded, rows.split(input.detach()), weight.shape)
        if bias is not None and recorder.trains(bias):
            yield bias, Rowwise(F.pad(gradients.sum(1), (bias_part.start, bias.shape[0] - bias_part.stop)))

    return recorder.record("projection", input, output, input.ndim - 1, (weight, bias), parts)


def _heads(tensor: Tensor, heads: int) -> Tensor:
    """(time, rows, features) as (rows, heads, time, features per head)."""
    time, rows, size = tensor.shape
    return tensor.reshape(time, rows, heads, size // heads).permute(1, 2, 0, 3)


def _mask(attn_mask: Tensor | None, padding: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    """Both masks as one additive mask that broadcasts over (rows, heads, target time, source time)."""
    masks = []
    if attn_mask is not None:
        if attn_mask.ndim == 3:
            attn_mask = attn_mask.view(query.shape[0], query.shape[1], *attn_mask.shape[1:])
        masks.append(_additive(attn_mask, query.dtype))
    if padding is not None:
        masks.append(_additive(padding, query.dtype).view(key.shape[0], 1, 1, key.shape[2]))
    if not masks:
        return None
    return masks[0] if len(masks) == 1 else masks[0] + masks[1]


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype == torch.bool:
        return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, float("-inf"))
    return mask.to(dtype)


def _attend(heads: list[Tensor], mask: Tensor | None, dropout: float) -> tuple[Tensor, Tensor]:
    query, key, value = heads
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(2, 3)
    shares = torch.softmax(scores if mask is None else scores + mask, -1)
    shares = F.dropout(shares, dropout) if dropout > 0 else shares
    return shares @ value, shares
