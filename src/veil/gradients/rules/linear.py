"""Linear layers: y = x Wᵀ + b over any leading dimensions, as a module or as a function."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from veil.gradients.contributions import Outer, Rowwise, Single, squared_norms
from veil.gradients.recording import Parts, Recorder, Rows, rule


@rule(F.linear)
def linear(recorder: Recorder, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    """The gradient of W is Σ_t g_t ⊗ x_t; that of b is Σ_t g_t."""
    # torch takes a vector as weight too, and broadcasts a bias of any other shape.
    usual = weight.ndim == 2 and (bias is None or bias.shape == weight.shape[:1])
    if not usual or not recorder.trains(weight, bias):
        return NotImplemented
    plain_weight, plain_bias = recorder.opened(input, weight, bias)
    assert plain_weight is not None
    output = F.linear(input, plain_weight, plain_bias)
    return recorder.record(
        "linear",
        input,
        output,
        input.ndim - 1,
        (weight, bias),
        lambda gradient, rows: parts(recorder, input, weight, bias, gradient, rows),
    )


def parts(
    recorder: Recorder, input: Tensor, weight: Tensor, bias: Tensor | None, gradient: Tensor, rows: Rows
) -> Parts:
    """Contributions of one linear map."""
    if rows.lead == 1 and gradient.shape[0] == rows.count:
        yield from _single(recorder, input.detach(), weight, bias, gradient)
        return
    gradients = rows.split(gradient)
    if recorder.trains(weight):
        yield weight, Outer(gradients, rows.split(input.detach()), weight.shape)
    if bias is not None and recorder.trains(bias):
        yield bias, Rowwise(gradients.sum(1))


def _single(recorder: Recorder, input: Tensor, weight: Tensor, bias: Tensor | None, gradient: Tensor) -> Parts:
    """With one position per row, ‖g‖² serves both: ‖∇W‖² = ‖g‖²·‖x‖² and ‖∇b‖² = ‖g‖²."""
    squares = squared_norms(gradient)
    if recorder.trains(weight):
        yield weight, Single(gradient, input, squares)
    if bias is not None and recorder.trains(bias):
        yield bias, Rowwise(gradient, squares)
