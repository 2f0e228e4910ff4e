"""Normalisation within a row: LayerNorm, RMSNorm, GroupNorm, InstanceNorm, and BatchNorm by fixed statistics.

BatchNorm by the statistics of its batch is rejected. All others scale a normalised input x̂ by γ and shift it by β, so
the gradients are Σ_t g_t·x̂_t and Σ_t g_t over the positions that share one γ and β.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from veil.gradients.contributions import Rowwise
from veil.gradients.recording import Parts, Recorder, Rows, rule
from veil.gradients.records import GradientError


def _record(
    recorder: Recorder,
    label: str,
    input: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
    forward: Callable[[Tensor, Tensor | None, Tensor | None], Tensor],
    trailing: int | None,
) -> Any:
    """Run `forward` and record it. γ and β span the last `trailing` dimensions, or the channels if that is None."""
    if not recorder.trains(scale, shift):
        return NotImplemented
    output = forward(input, *recorder.opened(input, scale, shift))
    lead = 1 if trailing is None else input.ndim - trailing

    def parts(gradient: Tensor, rows: Rows) -> Parts:
        if scale is not None and recorder.trains(scale):
            normalised = forward(input.detach(), None, None)
            yield scale, Rowwise(_summed(rows.split(normalised.mul_(gradient)), trailing))
        if shift is not None and recorder.trains(shift):
            yield shift, Rowwise(_summed(rows.split(gradient), trailing))

    return recorder.record(label, input, output, lead, (scale, shift), parts)


def _summed(values: Tensor, trailing: int | None) -> Tensor:
    """(rows, positions, …) summed to (rows, *parameter)."""
    if trailing is None and values.ndim > 3:
        return values.flatten(3).sum((1, 3))
    return values.sum(1) if values.shape[1] > 1 else values.squeeze(1)


@rule(F.layer_norm)
def layer_norm(
    recorder: Recorder,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    """γ and β have one value per normalised feature."""

    def forward(x: Tensor, scale: Tensor | None, shift: Tensor | None) -> Tensor:
        return F.layer_norm(x, list(normalized_shape), scale, shift, eps)

    return _record(recorder, "layer norm", input, weight, bias, forward, len(normalized_shape))


@rule(F.rms_norm)
def rms_norm(
    recorder: Recorder,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Any:
    """γ has one value per normalised feature; there is no β."""

    def forward(x: Tensor, scale: Tensor | None, _: Tensor | None) -> Tensor:
        return F.rms_norm(x, list(normalized_shape), scale, eps)

    return _record(recorder, "RMS norm", input, weight, None, forward, len(normalized_shape))


@rule(F.group_norm)
def group_norm(
    recorder: Recorder,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    """γ and β have one value per channel."""

    def forward(x: Tensor, scale: Tensor | None, shift: Tensor | None) -> Tensor:
        return F.group_norm(x, num_groups, scale, shift, eps)

    return _record(recorder, "group norm", input, weight, bias, forward, None)


@rule(F.instance_norm)
def instance_norm(
    recorder: Recorder,
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """γ and β have one value per channel; running statistics would keep what no release paid for."""
    if running_mean is not None:
        raise GradientError(
            "InstanceNorm with track_running_stats=True stores statistics of private rows: set it to False"
        )

    def forward(x: Tensor, scale: Tensor | None, shift: Tensor | None) -> Tensor:
        return F.instance_norm(x, None, None, scale, shift, True, momentum, eps)

    return _record(recorder, "instance norm", input, weight, bias, forward, None)


@rule(F.batch_norm)
def batch_norm(
    recorder: Recorder,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """By fixed statistics, γ and β have one value per channel. By those of the batch only weights are normalised."""
    if training or running_mean is None or running_var is None:
        if recorder.holds_no_row(input) and running_mean is None and running_var is None:
            return NotImplemented  # a weight that is standardised: it holds no row
        raise GradientError(
            "BatchNorm mixes the rows of a batch, so no row can be bounded: freeze its statistics with .eval(), or "
            "convert the model with veil.gradients.fix(model), which replaces it with GroupNorm"
        )

    def forward(x: Tensor, scale: Tensor | None, shift: Tensor | None) -> Tensor:
        return F.batch_norm(x, running_mean, running_var, scale, shift, False, momentum, eps)

    return _record(recorder, "batch norm", input, weight, bias, forward, None)
