"""LSTM, GRU and RNN modules: layers, directions and dropout around the recorded time loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from veil.gradients.contributions import Outer, Rowwise, inner_products, prefers_gram, squared_norms
from veil.gradients.recording import Parts, Recorder, Rows, rule
from veil.gradients.rules.linear import applied
from veil.gradients.rules.recurrence import GruLoop, LstmLoop, RnnLoop


@dataclass(frozen=True, slots=True)
class _Weights:
    """The parameters of one layer in one direction; the biases may be missing."""

    input: Tensor
    hidden: Tensor
    input_bias: Tensor | None
    hidden_bias: Tensor | None

    def all(self) -> tuple[Tensor | None, ...]:
        return self.input, self.hidden, self.input_bias, self.hidden_bias


def _grouped(flat: Sequence[Tensor], biased: bool, directions: int) -> list[_Weights] | None:
    """The flat list of a torch RNN by layer and direction; None if it has projections, which have no rule."""
    each = 4 if biased else 2
    if len(flat) % (each * directions) or any(t.ndim == 1 for t in flat[:2]):
        return None
    groups = [flat[start : start + each] for start in range(0, len(flat), each)]
    if any(group[0].ndim != 2 or group[1].ndim != 2 for group in groups):
        return None
    return [_Weights(g[0], g[1], g[2] if biased else None, g[3] if biased else None) for g in groups]


def _run(
    kind: str,
    recorder: Recorder,
    input: Tensor,
    hx: Any,
    flat: Any,
    biased: bool,
    layers: int,
    dropout: float,
    training: bool,
    bidirectional: bool,
    batch_first: bool = False,
) -> Any:
    """A torch recurrent layer of this kind. Packed sequences and projections are left to the fallback."""
    directions = 2 if bidirectional else 1
    packed = isinstance(flat, bool) or not isinstance(flat, list | tuple)
    if packed or input.ndim != 3 or not recorder.trains(*flat):
        return NotImplemented
    weights = _grouped(flat, biased, directions)
    hidden, cell = (hx[0], hx[1]) if kind == "lstm" else (hx, None)
    if weights is None or len(weights) != layers * directions or hidden.shape[-1] != weights[0].hidden.shape[1]:
        return NotImplemented
    signal = input.transpose(0, 1) if batch_first else input
    last_hidden, last_cell = [], []
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            place = layer * directions + direction
            given = signal.flip(0) if direction else signal
            start = None if cell is None else cell[place]
            states, end = _layer(kind, recorder, given, hidden[place], start, weights[place])
            last_hidden.append(states[-1])
            last_cell.append(end)
            outputs.append(states.flip(0) if direction else states)
        signal = torch.cat(outputs, -1) if directions == 2 else outputs[0]
        if dropout > 0 and training and layer < layers - 1:
            signal = F.dropout(signal, dropout)
    output = signal.transpose(0, 1) if batch_first else signal
    if kind == "lstm":
        return output, torch.stack(last_hidden), torch.stack(last_cell)
    return output, torch.stack(last_hidden)


def _layer(
    kind: str, recorder: Recorder, input: Tensor, hidden: Tensor, cell: Tensor | None, weights: _Weights
) -> tuple[Tensor, Any]:
    """One layer in one direction: the input's share of all gates in one product, then the loop over time."""
    plain = [w.detach() if recorder.trains(w) and w is not None else w for w in weights.all()]
    input_weight, hidden_weight, input_bias, hidden_bias = plain
    assert input_weight is not None
    assert hidden_weight is not None
    joint = input_bias
    if input_bias is not None and hidden_bias is not None and kind != "gru":
        joint = input_bias + hidden_bias
    pre = applied(input, input_weight, joint)
    trained = recorder.trains(*weights.all())
    source = input
    if trained and not pre.requires_grad:
        pre.requires_grad_()
    resets: Tensor | None = None
    end: Any = None
    if kind == "lstm":
        states, end = LstmLoop.apply(pre, hidden, cell, hidden_weight)  # type: ignore[no-untyped-call]
    elif kind == "gru":
        bias = hidden_weight.new_zeros(hidden_weight.shape[0]) if hidden_bias is None else hidden_bias
        states, resets = GruLoop.apply(pre, hidden, hidden_weight, bias)  # type: ignore[no-untyped-call]
    else:
        states = RnnLoop.apply(pre, hidden, hidden_weight, kind)  # type: ignore[no-untyped-call]
    if trained:
        before = torch.cat([hidden.detach().unsqueeze(0), states.detach()[:-1]])
        build = partial(_parts, recorder, weights, input.detach(), before, resets)
        recorder.record(kind, source, pre, 2, weights.all(), build)
    return states, end


def _parts(
    recorder: Recorder,
    weights: _Weights,
    input: Tensor,
    before: Tensor,
    resets: Tensor | None,
    gradient: Tensor,
    rows: Rows,
) -> Parts:
    """The gate gradients meet the inputs in W_ih and the previous states in W_hh."""
    input_side = rows.split(gradient)
    hidden_side = input_side
    if resets is not None:
        # A GRU's reset gate stands between the hidden share of the candidate and its gate.
        size = resets.shape[2]
        hidden_side = input_side.clone()
        hidden_side[:, :, 2 * size :] *= rows.split(resets)
    inputs, states = rows.split(input), rows.split(before)
    trained = [recorder.trains(weight) for weight in (weights.input, weights.hidden)]
    # Both weights meet the same gate gradients, unless a reset gate stands between them.
    shared = all(trained) and resets is None and all(_prefers_gram(input_side, right) for right in (inputs, states))
    inner = inner_products(input_side) if shared else None
    sums = squares = None
    if trained[0]:
        yield weights.input, Outer(input_side, inputs, weights.input.shape, inner)
    if trained[1]:
        yield weights.hidden, Outer(hidden_side, states, weights.hidden.shape, inner)
    for side, bias in ((input_side, weights.input_bias), (hidden_side, weights.hidden_bias)):
        if bias is None or not recorder.trains(bias):
            continue
        if sums is None or side is not input_side:
            sums = side.sum(1)
            squares = squared_norms(sums)
        yield bias, Rowwise(sums, squares)


def _prefers_gram(left: Tensor, right: Tensor) -> bool:
    rows, positions, p = left.shape
    return positions > 1 and prefers_gram(rows, positions, p, right.shape[2])


_KINDS: dict[Callable[..., Any], str] = {
    torch.lstm: "lstm",
    torch.gru: "gru",
    torch.rnn_tanh: "tanh",
    torch.rnn_relu: "relu",
}
for _function, _kind in _KINDS.items():
    rule(_function)(partial(_run, _kind))
