"""Generated models: a program is a list of steps, each a way in which real models move, fold or change their rows.

Every step keeps rows apart, so each row has a gradient of its own; what differs is where the row stands on the way. A
model that the engine cannot follow must be rejected: it may never be bounded by another row's norm.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd import Function

WIDTH = 6
"""Features of a row at every place of a program."""

Step = Callable[[], nn.Module]


class _Scaled(Function):
    """A user's own function, forward and backward."""

    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        return x * 1.5

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return gradient * 1.5


class _Careless(Function):
    """A backward pass that writes into what it is given."""

    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return gradient.mul_(0.5)


class Of(nn.Module):
    """A function of some layers and the rows."""

    def __init__(self, function: Callable[..., Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self.function = function
        self.layers = nn.ModuleDict(layers)
        self.scale = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x, **dict(self.layers))


def _order(x: Tensor) -> Tensor:
    return torch.argsort(x[:, 0])


def _sorted_index(self: Of, x: Tensor, inner: nn.Module) -> Tensor:
    order = _order(x)
    return inner(x[order])[torch.argsort(order)]


def _sorted_select(self: Of, x: Tensor, inner: nn.Module) -> Tensor:
    order = _order(x)
    return inner(x.index_select(0, order)).index_select(0, torch.argsort(order))


def _sorted_gather(self: Of, x: Tensor, inner: nn.Module) -> Tensor:
    order = _order(x)
    there, back = (o.unsqueeze(1).expand(-1, WIDTH) for o in (order, torch.argsort(order)))
    return torch.gather(inner(torch.gather(x, 0, there)), 0, back)


def _sorted_scatter(self: Of, x: Tensor, inner: nn.Module) -> Tensor:
    order = _order(x)
    return torch.zeros_like(x).index_copy(0, order, inner(x[order]))


def _sorted_matrix(self: Of, x: Tensor, inner: nn.Module) -> Tensor:
    places = F.one_hot(_order(x), len(x)).to(x.dtype)
    return places.t() @ inner(places @ x)


def _sorted_rarely(self: Of, x: Tensor, inner: nn.Module) -> Tensor:
    return _sorted_index(self, x, inner) if bool((x[:, 0] > 1.5).any()) else inner(x)


def _reversed_rows(self: Of, x: Tensor, inner: nn.Module) -> Tensor:
    return inner(x.flip(0)).flip(0)


def _rolled_rows(self: Of, x: Tensor, inner: nn.Module) -> Tensor:
    return torch.roll(inner(torch.roll(x, 1, 0)), -1, 0)


def _halves(self: Of, x: Tensor, inner: nn.Module) -> Tensor:
    half = len(x) // 2
    return torch.roll(torch.cat([inner(x[half:]), inner(x[:half])]), half, 0)


def _masked(self: Of, x: Tensor, inner: nn.Module) -> Tensor:
    positive, result = x[:, 0] > 0, torch.zeros_like(x)
    result[positive] = inner(x[positive])
    result[~positive] = torch.tanh(inner(x[~positive]))
    return result


def _short_rows(self: Of, x: Tensor, recurrent: nn.Module) -> Tensor:
    lengths = (x[:, 0].abs() * 2).long().clamp(1, 3)
    packed = nn.utils.rnn.pack_padded_sequence(x.view(-1, 3, 2), lengths, batch_first=True, enforce_sorted=False)
    return recurrent(packed)[1][0]


def _flattened_valid(self: Of, x: Tensor, inner: nn.Module) -> Tensor:
    """Only positions that are not padding go through the layer, all rows' in one line (as ragged batches do)."""
    tokens = x.view(-1, 3, 2)
    valid = torch.arange(3) < (x[:, :1].abs() * 2).long().clamp(1, 3)
    states = torch.zeros(len(x), 3, WIDTH, dtype=x.dtype)
    states[valid] = inner(F.pad(tokens[valid], (0, WIDTH - 2)))
    return states.sum(1)


def _sorted_recurrent(self: Of, x: Tensor, recurrent: nn.Module) -> Tensor:
    order = _order(x)
    return recurrent(x.view(-1, 3, 2)[order])[1][0][torch.argsort(order)]


def _folded(self: Of, x: Tensor, inner: nn.Module) -> Tensor:
    return inner(x.unsqueeze(1).expand(-1, 3, -1).reshape(-1, WIDTH)).view(-1, 3, WIDTH).sum(1)


def _time_first(self: Of, x: Tensor, inner: nn.Module) -> Tensor:
    steps = torch.stack([x, x * 0.5, -x])  # (time, rows, features)
    return inner(steps.reshape(-1, WIDTH)).view(3, -1, WIDTH).sum(0)


def _features_first(self: Of, x: Tensor, inner: nn.Module) -> Tensor:
    return inner(x.t().contiguous().t().clone()).t().contiguous().t()


def _tempting(self: Of, x: Tensor, inner: nn.Module) -> Tensor:
    """Often as many positions as rows, so that shapes alone do not tell which axis is which."""
    positions = torch.linspace(0.5, 1.5, 5, dtype=x.dtype).view(-1, 1, 1)
    return inner(positions * x).mean(0)


def _in_place(self: Of, x: Tensor, inner: nn.Module) -> Tensor:
    hidden = inner(x)
    hidden[:, 0] *= 2.0
    return hidden.add_(1.0).mul_(0.5)


def _overwritten(self: Of, x: Tensor, inner: nn.Module) -> Tensor:
    """The layer's input is written over, in another order, before the backward pass."""
    copy = x.clone()
    hidden = inner(copy)
    with torch.no_grad():
        copy.copy_(copy.flip(0))
    return hidden


def _gated_at_zero(self: Of, x: Tensor, inner: nn.Module) -> Tensor:
    return x + (self.scale * 0.0) * inner(x)


def _scaled_by_parameter(self: Of, x: Tensor, inner: nn.Module) -> Tensor:
    order = _order(x)
    return inner((x[order] * self.scale)[torch.argsort(order)])


def _computed_weight(self: Of, x: Tensor, inner: nn.Module) -> Tensor:
    weight = torch.tanh(self.scale).unsqueeze(1) * torch.eye(WIDTH, dtype=x.dtype)
    return inner(F.linear(x, weight, self.scale))


def _outer_weight(self: Of, x: Tensor, inner: nn.Module) -> Tensor:
    return inner(x @ torch.outer(self.scale, self.scale.flip(0)))


def _tied(self: Of, x: Tensor, inner: nn.Linear) -> Tensor:
    return F.linear(torch.relu(F.linear(x, inner.weight, inner.bias)), inner.weight.t(), self.scale)


def _called_twice(self: Of, x: Tensor, inner: nn.Module) -> Tensor:
    return inner(torch.relu(inner(x)))


def _own_function(self: Of, x: Tensor, inner: nn.Module) -> Tensor:
    return _Scaled.apply(inner(_Scaled.apply(x)))


def _careless_function(self: Of, x: Tensor, inner: nn.Module) -> Tensor:
    return _Careless.apply(inner(_Careless.apply(x)))


def _checkpointed(self: Of, x: Tensor, inner: nn.Module) -> Tensor:
    result: Tensor = torch.utils.checkpoint.checkpoint(inner, x, use_reentrant=False)
    return result


def _functional(self: Of, x: Tensor, inner: nn.Module) -> Tensor:
    doubled = {name: 2.0 * value for name, value in inner.named_parameters()}
    result: Tensor = torch.func.functional_call(inner, doubled, (x,))
    return result


def _looked_up(self: Of, x: Tensor, table: nn.Module) -> Tensor:
    order = _order(x)
    index = (x.abs() * 3).long().clamp(0, 9)[order]
    return table(index).sum(1)[torch.argsort(order)]


def _hooked(self: Of, x: Tensor, inner: nn.Module) -> Tensor:
    hidden = inner(x)
    if hidden.requires_grad:
        hidden.register_hook(lambda gradient: gradient.flip(0))
    return inner(hidden)


def _linear() -> nn.Module:
    return nn.Linear(WIDTH, WIDTH)


def _with(function: Callable[..., Tensor], inner: Step = _linear) -> Step:
    return lambda: Of(function, inner=inner())


INNER: dict[str, Step] = {
    "linear": _linear,
    "linear, relu": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()),
    "no bias": lambda: nn.Linear(WIDTH, WIDTH, bias=False),
    "layer norm": lambda: nn.LayerNorm(WIDTH),
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)),
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)).eval(),
    "orthogonal": lambda: nn.utils.parametrizations.orthogonal(nn.Linear(WIDTH, WIDTH)),
    "zero": lambda: _zeroed(nn.Linear(WIDTH, WIDTH)),
}


def _zeroed(layer: nn.Linear) -> nn.Module:
    nn.init.zeros_(layer.weight)
    return layer


WRAPPERS: dict[str, Callable[..., Tensor]] = {
    function.__name__.strip("_"): function
    for function in (
        *(_sorted_index, _sorted_select, _sorted_gather, _sorted_scatter, _sorted_matrix, _sorted_rarely),
        *(_reversed_rows, _rolled_rows, _halves, _masked, _flattened_valid, _folded, _time_first, _features_first),
        *(_tempting, _in_place, _overwritten, _gated_at_zero, _scaled_by_parameter, _computed_weight, _outer_weight),
        *(_called_twice, _own_function, _careless_function, _checkpointed, _functional, _hooked),
    )
}
ALONE: dict[str, Step] = {
    "tied": lambda: Of(_tied, inner=nn.Linear(WIDTH, WIDTH)),
    "short rows, packed": lambda: Of(_short_rows, recurrent=nn.GRU(2, WIDTH, batch_first=True)),
    "sorted, GRU": lambda: Of(_sorted_recurrent, recurrent=nn.GRU(2, WIDTH, batch_first=True)),
    "sorted, RNN": lambda: Of(_sorted_recurrent, recurrent=nn.RNN(2, WIDTH, batch_first=True)),
    "looked up, sorted": lambda: Of(_looked_up, table=nn.Embedding(10, WIDTH)),
}


def step_of(name: str) -> Step:
    """The step of a name such as "sorted_index(layer norm)" or "tied"."""
    if name in ALONE:
        return ALONE[name]
    outer, _, inner = name.removesuffix(")").partition("(")
    return _with(WRAPPERS[outer], INNER[inner])


NAMES = [*ALONE, *(f"{outer}({inner})" for outer in WRAPPERS for inner in INNER)]


class Program(nn.Module):
    """The steps one after the other, then a head."""

    def __init__(self, steps: list[str], classes: int = 3) -> None:
        super().__init__()
        self.names = steps
        self.steps = nn.ModuleList(step_of(name)() for name in steps)
        self.head = nn.Linear(WIDTH, classes)

    def forward(self, x: Tensor) -> Tensor:
        for step in self.steps:
            x = torch.tanh(step(x)) + 0.5 * x
        return self.head(x)


def programs() -> st.SearchStrategy[list[str]]:
    """One to three steps."""
    return st.lists(st.sampled_from(NAMES), min_size=1, max_size=3)
