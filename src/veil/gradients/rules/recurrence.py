"""Recurrences: the time loops of LSTM, GRU and plain RNN layers, with hand-written backward passes.

Each takes `pre`, the input's share of the gates for all steps, shape (time, rows, gates). The gradient that reaches
`pre` is then exactly the gate gradient per step, which is all that the weights' gradients need.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from veil.gradients.tracing import know_time_loop

_sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input
_tanh_backward = torch.ops.aten.tanh_backward.grad_input


class LstmLoop(Function):
    """(pre, h₀, c₀, W) → all hidden states and the last cell state."""

    @staticmethod
    def forward(ctx: Any, pre: Tensor, hidden: Tensor, cell: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """h = o·tanh(c), c = f·c + i·g, gates in the order i, f, g, o."""
        steps, rows, width = pre.shape
        size = width // 4
        # In the memory of `pre`, which nobody reads again. `data` has a version of its own: a view that was changed
        # would get another node than the one that the recorder watches.
        gates, cells = pre.data, pre.new_empty(steps + 1, rows, size)
        states, squashed = pre.new_empty(steps, rows, size), pre.new_empty(steps, rows, size)
        cells[0] = cell
        turned, state = weight.t(), hidden
        for t in range(steps):
            gate = gates[t].addmm_(state, turned)
            gate[:, : 2 * size].sigmoid_()
            gate[:, 2 * size : 3 * size].tanh_()
            gate[:, 3 * size :].sigmoid_()
            i, f, g, o = gate.chunk(4, 1)
            torch.mul(f, cells[t], out=cells[t + 1]).addcmul_(i, g)
            torch.tanh(cells[t + 1], out=squashed[t])
            state = torch.mul(o, squashed[t], out=states[t])
        ctx.save_for_backward(gates, cells, squashed, weight)
        return states, cells[-1].clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, Tensor, Tensor, None]:
        """Backward through time; returns the gate gradients as the gradient of `pre`."""
        outer, d_cell = gradients
        gates, cells, squashed, weight = ctx.saved_tensors
        steps = squashed.shape[0]
        result, d_cell = torch.empty_like(gates), d_cell.clone()
        carried = torch.zeros_like(d_cell)
        product, other = torch.empty_like(d_cell), torch.empty_like(d_cell)
        for t in range(steps - 1, -1, -1):
            i, f, g, o = gates[t].chunk(4, 1)
            d_i, d_f, d_g, d_o = result[t].chunk(4, 1)
            d_hidden = carried.add_(outer[t])
            _sigmoid_backward(torch.mul(d_hidden, squashed[t], out=product), o, grad_input=d_o)
            d_cell.add_(_tanh_backward(torch.mul(d_hidden, o, out=product), squashed[t], grad_input=other))
            _sigmoid_backward(torch.mul(d_cell, g, out=product), i, grad_input=d_i)
            _sigmoid_backward(torch.mul(d_cell, cells[t], out=product), f, grad_input=d_f)
            _tanh_backward(torch.mul(d_cell, i, out=product), g, grad_input=d_g)
            torch.mm(result[t], weight, out=carried)
            d_cell.mul_(f)
        return result, carried, d_cell, None


class GruLoop(Function):
    """(pre, h₀, W, b) → all hidden states and the reset gates r, which the weights' gradients need."""

    @staticmethod
    def forward(ctx: Any, pre: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """h = (1−z)·n + z·h with n = tanh(pre_n + r·(W_n h + b_n)), gates in the order r, z, n."""
        steps, rows, width = pre.shape
        size = width // 3
        gates, inner = torch.empty_like(pre), pre.new_empty(steps, rows, size)
        states = pre.new_empty(steps + 1, rows, size)
        states[0] = hidden
        turned = weight.t()
        for t in range(steps):
            share = torch.addmm(bias, states[t], turned)
            gate = gates[t]
            torch.add(pre[t, :, : 2 * size], share[:, : 2 * size], out=gate[:, : 2 * size]).sigmoid_()
            inner[t] = share[:, 2 * size :]
            r, z, n = gate.chunk(3, 1)
            torch.addcmul(pre[t, :, 2 * size :], r, inner[t], out=n).tanh_()
            torch.lerp(n, states[t], z, out=states[t + 1])
        ctx.save_for_backward(gates, inner, states, weight)
        resets = gates[:, :, :size].clone()
        ctx.mark_non_differentiable(resets)
        return states[1:].clone(), resets

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, Tensor, None, None]:
        """Backward through time; returns the input side's gate gradients as the gradient of `pre`."""
        outer = gradients[0]
        gates, inner, states, weight = ctx.saved_tensors
        steps, _, size = inner.shape
        result, hidden_side = torch.empty_like(gates), torch.empty_like(gates[0])
        carried, product = torch.zeros_like(inner[0]), torch.empty_like(inner[0])
        for t in range(steps - 1, -1, -1):
            r, z, n = gates[t].chunk(3, 1)
            d_r, d_z, d_n = result[t].chunk(3, 1)
            d_hidden = carried.add_(outer[t])
            torch.sub(states[t], n, out=product).mul_(d_hidden)
            _sigmoid_backward(product, z, grad_input=d_z)
            torch.mul(d_hidden, z, out=product)
            _tanh_backward(d_hidden - product, n, grad_input=d_n)
            _sigmoid_backward(d_n * inner[t], r, grad_input=d_r)
            hidden_side[:, : 2 * size] = result[t, :, : 2 * size]
            torch.mul(d_n, r, out=hidden_side[:, 2 * size :])
            carried = torch.addmm(product, hidden_side, weight)
        return result, carried, None, None


class RnnLoop(Function):
    """(pre, h₀, W, kind) → all hidden states of h = tanh or relu of (pre + W h)."""

    @staticmethod
    def forward(ctx: Any, pre: Tensor, hidden: Tensor, weight: Tensor, kind: str) -> Tensor:
        """One step is one product and one squashing."""
        states, state, turned = torch.empty_like(pre), hidden, weight.t()
        for t in range(pre.shape[0]):
            state = torch.addmm(pre[t], state, turned, out=states[t])
            state.tanh_() if kind == "tanh" else state.relu_()
        ctx.kind = kind
        ctx.save_for_backward(states, weight)
        return states.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, Tensor, None, None]:
        """Backward through time; returns the gate gradients as the gradient of `pre`."""
        outer = gradients[0]
        states, weight = ctx.saved_tensors
        result, carried = torch.empty_like(states), torch.zeros_like(states[0])
        for t in range(states.shape[0] - 1, -1, -1):
            carried.add_(outer[t])
            if ctx.kind == "tanh":
                _tanh_backward(carried, states[t], grad_input=result[t])
            else:
                torch.mul(carried, states[t] > 0, out=result[t])
            torch.mm(result[t], weight, out=carried)
        return result, carried, None, None


know_time_loop(LstmLoop, states=2)
know_time_loop(GruLoop, states=1)
know_time_loop(RnnLoop, states=1)
