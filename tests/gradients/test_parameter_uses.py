"""Parameters used in unusual ways: bare, tied, frozen, twice, through views, folded rows, or without any rule."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from veil.gradients import FallbackWarning, GradientEngine
from veil.gradients.computed import Computed

WIDE = torch.float64


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=WIDE, generator=torch.Generator().manual_seed(seed + sum(shape)))


class From(nn.Module):
    """A module made of named parts and a forward function of them."""

    def __init__(self, forward, **parts):  # type: ignore[no-untyped-def]
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, nn.Parameter(part) if isinstance(part, Tensor) else part)
        self.function = forward
        self.to(WIDE)

    def forward(self, *args):  # type: ignore[no-untyped-def]
        return self.function(self, *args)


BARE = {
    "added to features": (lambda m, x: x + m.p, {"p": (4,)}, (3, 4)),
    "added from the left": (lambda m, x: m.p + x, {"p": (3, 4)}, (3, 4)),
    "subtracted": (lambda m, x: m.p - x * 2, {"p": (1, 3, 4)}, (3, 4)),
    "multiplied by a number": (lambda m, x: x * m.p, {"p": ()}, (3, 4)),
    "divided by": (lambda m, x: x / m.p, {"p": (3, 1)}, (3, 4)),
    "torch.mul": (lambda m, x: torch.mul(x, m.p), {"p": (4,)}, (3, 4)),
    "time first": (lambda m, x: (x.transpose(0, 1) * m.p).transpose(0, 1), {"p": (3, 1, 4)}, (3, 4)),
    "class token": (lambda m, x: torch.cat([m.p.expand(x.shape[0], -1, -1), x], 1), {"p": (1, 1, 4)}, (3, 4)),
    "class token expanded as": (lambda m, x: torch.cat([m.p.expand_as(x), x], 1), {"p": (1, 1, 4)}, (3, 4)),
    "class token repeated": (lambda m, x: torch.cat([m.p.repeat(x.shape[0], 1, 1), x], 1), {"p": (1, 1, 4)}, (3, 4)),
    "slice of positions": (lambda m, x: x + m.p[:, : x.shape[1]], {"p": (1, 9, 4)}, (3, 4)),
    "matrix from the right": (lambda m, x: x @ m.p, {"p": (4, 2)}, (3, 4)),
    "transposed matrix": (lambda m, x: x @ m.p.t(), {"p": (2, 4)}, (3, 4)),
    "matrix by property": (lambda m, x: torch.matmul(x, m.p.T), {"p": (2, 4)}, (3, 4)),
    "reshaped matrix": (lambda m, x: F.linear(x, m.p.view(2, 4)), {"p": (8,)}, (3, 4)),
    "slice of a matrix": (lambda m, x: F.linear(x, m.p[1:3]), {"p": (5, 4)}, (3, 4)),
    "its exponential": (lambda m, x: x * m.p.exp(), {"p": (4,)}, (3, 4)),
    "a gate between two": (lambda m, x: torch.sigmoid(2 * m.p) * x, {"p": (3, 1)}, (3, 4)),
    "softplus of a number": (lambda m, x: x / F.softplus(m.p + 1), {"p": ()}, (3, 4)),
    "by keywords": (
        lambda m, x: torch.add(input=torch.reshape(input=x, shape=x.shape), other=x) * m.p,
        {"p": (4,)},
        (3, 4),
    ),
    "used in three ways": (lambda m, x: (x + m.p) * m.p @ m.p.unsqueeze(1), {"p": (4,)}, (3, 4)),
}


@pytest.mark.parametrize("case", BARE)
@pytest.mark.parametrize("rows", [1, 2, 3, 5])
def test_bare_parameters_are_the_loop_without_the_fallback(assert_like_loop, case, rows):
    function, shapes, shape = BARE[case]
    parts = {name: seeded(*size).abs() + 0.5 for name, size in shapes.items()}
    model = From(lambda m, x: function(m, torch.tanh(m.first(x))), first=nn.Linear(4, 4), **parts)
    assert_like_loop(model, seeded(rows, *shape))


@pytest.mark.parametrize("rows", [1, 3, 4])
def test_position_embeddings_without_rows_are_the_loop(assert_like_loop, rows):
    def forward(m, index):  # type: ignore[no-untyped-def]
        places = torch.arange(index.shape[1])
        return m.words(index) + m.places(places) + m.more(places.unsqueeze(0))

    parts = {"words": nn.Embedding(7, 3), "places": nn.Embedding(9, 3), "more": nn.Embedding(9, 3)}
    model = From(forward, **parts)
    with warnings.catch_warnings():
        # Four positions and four rows look alike at first: that batch may take the slow path, with a warning.
        warnings.simplefilter("ignore" if rows == 4 else "error", FallbackWarning)
        assert_like_loop(model, torch.randint(0, 7, (rows, 4)))


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("functional", [True, False])
def test_tied_embedding_and_output_layer_are_the_loop(assert_like_loop, steps, functional):
    table = nn.Embedding(6, 3)
    head = nn.Linear(3, 6, bias=False)
    if functional:
        model = From(lambda m, i: F.linear(torch.tanh(m.table(i)), m.table.weight), table=table)
    else:
        head.weight = table.weight
        model = From(lambda m, i: m.head(torch.tanh(m.table(i))), table=table, head=head)
    assert_like_loop(model, torch.randint(0, 6, (3, steps)))


@settings(deadline=None, derandomize=True, max_examples=25)
@given(rows=st.integers(1, 4), times=st.integers(2, 3), positions=st.integers(1, 3))
def test_a_module_used_several_times_is_the_loop(assert_like_loop, rows, times, positions):
    torch.manual_seed(0)

    def forward(m, x):  # type: ignore[no-untyped-def]
        for _ in range(times):
            x = torch.tanh(m.norm(m.layer(x)))
        return x

    model = From(forward, layer=nn.Linear(3, 3), norm=nn.LayerNorm(3))
    assert_like_loop(model, seeded(rows, positions, 3))


def test_a_convolution_used_twice_is_the_loop(assert_like_loop):
    model = From(lambda m, x: m.layer(torch.tanh(m.layer(x))), layer=nn.Conv2d(2, 2, 3, padding=1))
    assert_like_loop(model, seeded(3, 2, 4, 4))


def test_two_modules_with_one_weight_are_the_loop(assert_like_loop):
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)).to(WIDE)
    model[2].weight = model[0].weight
    assert_like_loop(model, seeded(4, 3))


def test_a_loss_that_calls_the_model_twice_is_the_loop(assert_like_loop):
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(WIDE)
    assert_like_loop(model, seeded(3, 3), loss=lambda m, x: (m(x) * m(2 * x)).sum(1))


def _combinations() -> list[tuple[bool, ...]]:
    return [tuple(bool(bits >> place & 1) for place in range(4)) for bits in range(1, 16)]


@pytest.mark.parametrize("trained", _combinations(), ids=str)
def test_any_frozen_part_is_left_out_and_the_rest_is_the_loop(assert_like_loop, trained):
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Conv1d(3, 2, 1)).to(WIDE)
    for parameter, keep in zip(model.parameters(), trained, strict=True):
        parameter.requires_grad_(keep)
    assert_like_loop(From(lambda m, x: m.two(m.one(x).unsqueeze(2)), one=model[:2], two=model[2]), seeded(4, 3))


@pytest.mark.parametrize("only", ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_partly_frozen_recurrent_layer_is_the_loop(assert_like_loop, only, kind):
    layer = kind(3, 2, batch_first=True)
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_(name == only)
    assert_like_loop(From(lambda m, x: m.layer(x)[0], layer=layer), seeded(3, 4, 3))


def test_a_frozen_layer_between_trained_ones_passes_gradients_on(assert_like_loop):
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2)).to(WIDE)
    model[2].requires_grad_(False)
    assert_like_loop(model, seeded(4, 3))


LAYOUTS = {
    "rows folded outside positions": lambda m, x: m.layer(x.reshape(-1, 3)).view(x.shape[0], -1),
    "rows folded inside positions": lambda m, x: (
        m.layer(x.transpose(0, 1).reshape(-1, 3)).view(4, -1, 3).transpose(0, 1)
    ),
    "time before rows": lambda m, x: m.layer(x.transpose(0, 1)).transpose(0, 1),
    "rows in the middle": lambda m, x: m.layer(x.view(-1, 2, 2, 3).transpose(0, 1)).transpose(0, 1),
}


@pytest.mark.parametrize("case", LAYOUTS)
@pytest.mark.parametrize("rows", [1, 2, 3, 4])
def test_rows_are_found_wherever_the_model_puts_them(assert_like_loop, case, rows):
    model = From(LAYOUTS[case], layer=nn.Linear(3, 3))
    assert_like_loop(model, seeded(rows, 4, 3))


def test_a_layout_learned_on_one_batch_serves_the_next_sizes(loop_gradients):
    model = From(LAYOUTS["time before rows"], layer=nn.Linear(3, 3))
    engine = GradientEngine(model, lambda m, x: torch.sin(m(x)).flatten(1).sum(1))
    for rows in (3, 4, 1, 2, 8):
        batch = seeded(rows, 4, 3)
        wanted = loop_gradients(model, engine.loss, batch)
        for name, values in engine.gradients(batch).items():
            assert torch.allclose(values, wanted[name], rtol=1e-9, atol=1e-12)


def test_in_place_activations_do_not_spoil_the_recorded_gradients(assert_like_loop):
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 4), nn.ELU(inplace=True)).to(WIDE)
    assert_like_loop(model, seeded(5, 3))


def test_parameters_under_no_grad_get_no_gradient(assert_like_loop):
    def forward(m, x):  # type: ignore[no-untyped-def]
        with torch.no_grad():
            shift = m.one(x)
        return m.two(x) + shift

    assert_like_loop(From(forward, one=nn.Linear(3, 3), two=nn.Linear(3, 3)), seeded(4, 3))


def _standardised(m, x):  # type: ignore[no-untyped-def]
    mean, variance = m.p.mean((1, 2), keepdim=True), m.p.var((1, 2), keepdim=True)
    return F.conv1d(x, m.gain * (m.p - mean) / torch.sqrt(variance + 1e-5), m.bias)


def _with_magnitude(m, x):  # type: ignore[no-untyped-def]
    """DoRA: the length of each column, learned, over the length that it has, which is taken as a constant."""
    changed = m.frozen + m.b @ m.a
    scale = (m.magnitude / torch.linalg.norm(changed, dim=1).detach()).view(1, -1)
    return (scale - 1) * F.linear(x, m.frozen) + scale * F.linear(F.linear(x, m.a), m.b)


def _by_constants(m, x):  # type: ignore[no-untyped-def]
    merged = F.linear(F.linear(torch.eye(4, dtype=WIDE), m.a), m.b).T
    return F.linear(x, m.frozen + 0.5 * merged, torch.cat([m.a[:, 0], m.a[:, 1]]) @ m.b.T.repeat(2, 1))


PARAMETRIZED = nn.utils.parametrizations
COMPUTED = {
    "weight norm": (lambda m, x: m.layer(x), {"layer": PARAMETRIZED.weight_norm(nn.Linear(4, 2))}),
    "weight norm of a kernel": (lambda m, x: m.layer(x), {"layer": PARAMETRIZED.weight_norm(nn.Conv1d(3, 2, 2))}),
    "spectral norm": (lambda m, x: m.layer(x), {"layer": PARAMETRIZED.spectral_norm(nn.Linear(4, 2)).eval()}),
    "orthogonal": (lambda m, x: m.layer(x), {"layer": PARAMETRIZED.orthogonal(nn.Linear(4, 2))}),
    "standardised kernel": (_standardised, {"p": seeded(2, 3, 2), "gain": seeded(2, 1, 1), "bias": seeded(2)}),
    "learned magnitude": (
        _with_magnitude,
        {"frozen": seeded(5, 4), "a": seeded(2, 4), "b": seeded(5, 2), "magnitude": seeded(5)},
    ),
    "merged by a constant": (_by_constants, {"frozen": seeded(5, 4), "a": seeded(2, 4), "b": seeded(5, 2)}),
    "two stacked": (lambda m, x: x @ torch.stack([m.a, m.b.tanh()], 1), {"a": seeded(4), "b": seeded(4)}),
    "one of the other": (lambda m, x: F.layer_norm(x, (4,), m.a * m.b, m.a / 2), {"a": seeded(4), "b": seeded(4)}),
    "used as it is too": (lambda m, x: F.linear(x, m.a) + F.linear(x, m.a * m.a.norm()), {"a": seeded(3, 4)}),
}


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 12])
@pytest.mark.parametrize("case", COMPUTED)
def test_weights_computed_from_parameters_are_the_loop_without_the_fallback(assert_like_loop, case, rows):
    function, parts = COMPUTED[case]
    model = From(lambda m, x: function(m, torch.tanh(m.first(x))), first=nn.Linear(4, 4), **parts)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name != "frozen")
    assert_like_loop(model, seeded(rows, 3, 4))


def test_a_weight_computed_from_rows_is_not_taken_for_one_without():
    """Each of these would make a row's gradient depend on others, and is left to the fallback, row by row."""

    def written(m, x):  # type: ignore[no-untyped-def]
        kernel = torch.zeros(2, 4, dtype=WIDE)
        kernel[0] = x.mean((0, 1))
        return F.linear(x, m.a * kernel)

    def by_view(m, x):  # type: ignore[no-untyped-def]
        kernel = torch.zeros(2, 4, dtype=WIDE)
        kernel.view(-1)[:4].add_(x.mean((0, 1)))
        return F.linear(x, m.a * kernel)

    def by_output(m, x):  # type: ignore[no-untyped-def]
        kernel = torch.zeros(4, dtype=WIDE)
        torch.mean(x, (0, 1), out=kernel)
        return F.linear(x, m.a * kernel)

    def scaled(m, x):  # type: ignore[no-untyped-def]
        return F.linear(x, m.a * x.detach().abs().max())

    for forward in (written, by_view, by_output, scaled):
        engine = GradientEngine(From(forward, a=seeded(2, 4)), lambda m, x: m(x).flatten(1).sum(1))
        with pytest.warns(FallbackWarning, match="a"):
            engine.norms_and_losses(seeded(5, 3, 4))


def _changed_later(m, x):  # type: ignore[no-untyped-def]
    weight = m.a * 2
    found = F.linear(x, weight)
    weight.mul_(3.0)
    return found


def _changed_between(m, x):  # type: ignore[no-untyped-def]
    weight = m.a * 2
    found = torch.tanh(F.linear(x, weight, m.b))
    weight += m.c
    return found + F.linear(x, weight)


def _written_by_rows(m, x):  # type: ignore[no-untyped-def]
    hidden, weight = m.first(x), m.a * 2
    weight[0] = hidden[0]
    return F.linear(hidden, weight)


def _written_by_a_view(m, x):  # type: ignore[no-untyped-def]
    hidden, weight = m.first(x), m.a * 2
    weight.view(-1)[:4].mul_(hidden.mean(0))
    return F.linear(hidden, weight)


def _detached(m, x):  # type: ignore[no-untyped-def]
    weight = m.a * m.c
    weight.detach_()
    return F.linear(m.first(x), weight, m.b)


@pytest.mark.filterwarnings("ignore::veil.gradients.FallbackWarning")
@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize(
    "forward",
    [_changed_later, _changed_between, _written_by_rows, _written_by_a_view, _detached],
)
def test_a_computed_weight_that_is_changed_in_place_is_the_loop(assert_like_loop, forward, rows):
    """What it was computed from is not what it stands for any more, before a use or after one."""
    model = From(forward, first=nn.Linear(4, 4), a=seeded(3, 4), b=seeded(3), c=seeded(3, 4, seed=1))
    assert_like_loop(model, seeded(rows, 4))


class _Rounded(torch.autograd.Function):
    """Rounding whose gradient is handed on as if there were none."""

    @staticmethod
    def forward(ctx, weight):  # type: ignore[no-untyped-def]
        return torch.round(4 * weight) / 4

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return gradient


class _Slowed(torch.autograd.Function):
    """The same values with a tenth of the gradient; `rows` get one too."""

    @staticmethod
    def forward(ctx, weight, rows):  # type: ignore[no-untyped-def]
        ctx.shape = rows.shape
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return gradient / 10, gradient.sum().expand(ctx.shape)


OWN_FUNCTIONS = {
    "rounded and scaled": lambda m, x: F.linear(m.first(x), _Rounded.apply(m.a) * m.c),
    "computed and rounded": lambda m, x: F.linear(m.first(x), m.c * _Rounded.apply(m.a * 2), m.b),
    "turned": lambda m, x: F.linear(m.first(x)[:, :3], _Slowed.apply(m.a, torch.zeros(1)).t()),
    "with rows": lambda m, x: F.linear(x, m.c * _Slowed.apply(m.a, m.first(x))),
}


@pytest.mark.filterwarnings("ignore::veil.gradients.FallbackWarning")
@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("case", OWN_FUNCTIONS)
def test_a_weight_from_an_autograd_function_is_the_loop(assert_like_loop, case, rows):
    """Its forward is seen as it computes, without the gradients that its backward gives."""
    parts = {"a": seeded(3, 4), "b": seeded(3), "c": seeded(3, 4, seed=1)}
    assert_like_loop(From(OWN_FUNCTIONS[case], first=nn.Linear(4, 4), **parts), seeded(rows, 4))


def test_a_buffer_into_which_rows_were_written_may_hold_rows():
    weight, held = nn.Parameter(seeded(4)), torch.zeros(4, dtype=WIDE)
    computed = Computed([weight], [held])
    assert computed.behind((weight, held)) == (weight,)
    held.copy_(weight * seeded(4))
    assert computed.behind((weight, held)) is None


FALLBACKS = {
    "bilinear": (nn.Bilinear(3, 3, 2), lambda m, x: m.layer(x, x)),
    "transposed convolution": (nn.ConvTranspose1d(1, 2, 2), lambda m, x: m.layer(x.unsqueeze(1)).flatten(1)),
    "learned slope": (nn.PReLU(), lambda m, x: m.layer(x)),
    "attention with extra keys": (
        nn.MultiheadAttention(4, 2, add_bias_kv=True, batch_first=True),
        lambda m, x: m.layer(*[F.pad(x, (0, 1)).unsqueeze(1).repeat(1, 2, 1)] * 3)[0].flatten(1),
    ),
}


@pytest.mark.parametrize("case", FALLBACKS)
def test_what_has_no_rule_is_the_loop_with_one_warning_that_names_it(assert_like_loop, case):
    layer, function = FALLBACKS[case]
    model = From(lambda m, x: function(m, torch.tanh(m.first(x))), first=nn.Linear(3, 3), layer=layer)
    with pytest.warns(FallbackWarning, match="layer") as caught:
        assert_like_loop(model, seeded(3, 3))
    assert not any("first" in str(warning.message) for warning in caught)


def test_the_fallback_warns_once_per_engine():
    model = From(lambda m, x: m.layer(x, x), layer=nn.Bilinear(3, 3, 2))
    engine = GradientEngine(model, lambda m, x: m(x).sum(1))
    with pytest.warns(FallbackWarning, match="layer"):
        engine.norms_and_losses(seeded(3, 3))
    engine.norms_and_losses(seeded(4, 3))  # a second warning would be an error here


def test_the_fallback_runs_the_module_without_a_rule_and_not_the_whole_model():
    calls = []

    def forward(m, x):  # type: ignore[no-untyped-def]
        calls.append(1)
        return m.last(torch.tanh(m.layer(m.first(x))))

    model = From(forward, first=nn.Linear(3, 3), layer=nn.PReLU(3), last=nn.Linear(3, 2))
    engine = GradientEngine(model, lambda m, x: m(x).sum(1))
    with pytest.warns(FallbackWarning, match="layer.weight"):
        engine.norms_and_losses(seeded(3, 3))
    calls.clear()
    engine.norms_and_losses(seeded(3, 3))
    assert len(calls) == 1
    assert not model.layer._forward_hooks


def test_a_module_without_a_rule_whose_rows_are_not_first_is_still_the_loop(assert_like_loop):
    """Three steps and three rows: the module's first dimension has the size of the batch but is time."""

    class Drift(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rate = nn.Parameter(torch.tensor(0.5, dtype=WIDE))

        def forward(self, x: Tensor) -> Tensor:
            return (1 + torch.cumsum(x, 0).abs()) ** self.rate

    def forward(m, x):  # type: ignore[no-untyped-def]
        return m.layer(m.first(x).transpose(0, 1)).transpose(0, 1)

    with pytest.warns(FallbackWarning, match="layer.rate"):
        assert_like_loop(From(forward, first=nn.Linear(3, 3), layer=Drift()), seeded(3, 3, 3))


def test_a_module_without_a_rule_that_is_called_twice_or_shared_is_the_loop(assert_like_loop):
    def twice(m, x):  # type: ignore[no-untyped-def]
        return m.layer(torch.sin(m.layer(x)))

    def shared(m, x):  # type: ignore[no-untyped-def]
        return m.layer(x) * torch.sin(m.layer.weight.exp())

    def used_by_a_rule_too(m, x):  # type: ignore[no-untyped-def]
        return m.layer(x) * m.layer.weight

    for forward in (twice, shared, used_by_a_rule_too):
        with pytest.warns(FallbackWarning, match="layer.weight"):
            assert_like_loop(From(forward, layer=nn.PReLU(3)), seeded(3, 3))


def test_a_model_that_torch_func_cannot_batch_is_still_the_loop(assert_like_loop):
    def forward(m, x):  # type: ignore[no-untyped-def]
        scale = 2.0 if float(x.detach().sum()) > 0 else 3.0
        return scale * m.layer(x, x)

    def one_by_one(m, x):  # type: ignore[no-untyped-def]
        return torch.cat([forward(m, row) for row in x.split(1)])

    with pytest.warns(FallbackWarning, match="no layer rule"), pytest.warns(FallbackWarning, match="one row at a time"):
        assert_like_loop(From(one_by_one, layer=nn.Bilinear(3, 3, 2)), seeded(3, 3))


def test_packed_sequences_are_the_loop_by_the_fallback(assert_like_loop):
    def forward(m, x):  # type: ignore[no-untyped-def]
        lengths = [3] * x.shape[0]
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return m.layer(packed)[1][0][-1]

    with pytest.warns(FallbackWarning, match="layer.weight_ih_l0"), pytest.warns(FallbackWarning, match="one row"):
        assert_like_loop(From(forward, layer=nn.LSTM(3, 2, batch_first=True)), seeded(3, 4, 3))
