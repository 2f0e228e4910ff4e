"""Linear layers: y = x Wᵀ + b over any leading dimensions, and y = b + x W (`addmm`, the Conv1D of GPT-2)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from veil.gradients.contributions import Outer, Rowwise, Single, squared_norms
from veil.gradients.recording import Parts, Recorder, Rows, rule


@rule(F.linear)
def linear(recorder: Recorder, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    """The gradient of W is Σ_t g_t ⊗ x_t; that of b is Σ_t g_t."""
    # torch takes a vector as weight too, and broadcasts a bias of any other shape.
    usual = weight.ndim == 2 and (bias is None or bias.shape == weight.shape[:1])
    if not usual or not recorder.trains(weight, bias) or recorder.computes_weight("linear", input):
        return NotImplemented
    plain_weight, plain_bias = recorder.opened(input, weight, bias)
    assert plain_weight is not None
    output = applied(input, plain_weight, plain_bias)
    return recorder.record(
        "linear",
        input,
        output,
        input.ndim - 1,
        (weight, bias),
        lambda gradient, rows: parts(recorder, input, weight, bias, gradient, rows),
    )


@rule(torch.addmm, Tensor.addmm)
def addmm(recorder: Recorder, input: Any, mat1: Any = None, mat2: Any = None, **options: Any) -> Any:
    """b + x W over (rows or positions, features): the gradient of W is Σ_t x_t ⊗ g_t; that of b is Σ_t g_t."""
    tensors = all(isinstance(part, Tensor) for part in (input, mat1, mat2))
    if not tensors or options or input.shape != mat2.shape[1:] or recorder.trains(mat1):
        return NotImplemented
    if not recorder.trains(input, mat2):
        return NotImplemented
    matrix, shift = recorder.opened(mat1, mat2, input)
    assert matrix is not None
    assert shift is not None

    def build(gradient: Tensor, rows: Rows) -> Parts:
        gradients = rows.split(gradient)
        if recorder.trains(mat2):
            yield mat2, Outer(rows.split(mat1.detach()), gradients, mat2.shape)
        if recorder.trains(input):
            yield input, Rowwise(gradients.sum(1))

    return recorder.record("addmm", mat1, torch.addmm(shift, mat1, matrix), 1, (mat2, input), build)


def applied(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear` by one large product.

    Of an input that is not contiguous and a weight without a gradient torch makes a batch of small products, forward
    and backward. Two dimensions that were swapped are swapped back; all else is copied.
    """
    if input.ndim < 3 or input.is_contiguous():
        return F.linear(input, weight, bias)
    if input.ndim == 3 and (swapped := input.transpose(0, 1)).is_contiguous():
        return F.linear(swapped, weight, bias).transpose(0, 1)
    return F.linear(input.contiguous(), weight, bias)


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
