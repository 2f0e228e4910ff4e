"""Every layer rule equals a one-row-at-a-time loop, over generated shapes, options and dtypes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from veil.gradients.contributions import inner_products
from veil.gradients.rules import convolution

generated = settings(deadline=None, derandomize=True, max_examples=25)

# torch says that padding="same" may copy its input; every other warning, a fallback above all, fails a test here.
pytestmark = pytest.mark.filterwarnings("ignore:Using padding=:UserWarning")

dtypes = st.sampled_from([torch.float32, torch.float64])
rows_of = st.integers(1, 5)


of_linear_maps = {
    "rows": rows_of,
    "lead": st.lists(st.integers(1, 4), max_size=2),
    "sizes": st.tuples(*[st.integers(1, 6)] * 3),
    "dtype": dtypes,
}


def seeded(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed + sum(shape)))


@generated
@given(
    **of_linear_maps,
    bias=st.booleans(),
)
def test_linear_over_any_leading_dimensions_is_the_loop(assert_like_loop, rows, lead, sizes, dtype, bias):
    torch.manual_seed(1)
    first, middle, last = sizes
    model = nn.Sequential(nn.Linear(first, middle, bias=bias), nn.Tanh(), nn.Linear(middle, last)).to(dtype)
    assert_like_loop(model, seeded(rows, *lead, first, dtype=dtype))


class Addmm(nn.Module):
    """The Conv1D of GPT-2: a linear map by `addmm`, its weight turned over."""

    def __init__(self, ins: int, outs: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(ins, outs)), nn.Parameter(torch.randn(outs))

    def forward(self, x: Tensor) -> Tensor:
        flat = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return flat.view(*x.shape[:-1], len(self.bias))


@generated
@given(
    **of_linear_maps,
    frozen=st.sampled_from(["", "weight", "bias"]),
)
def test_addmm_over_any_leading_dimensions_is_the_loop(assert_like_loop, rows, lead, sizes, dtype, frozen):
    torch.manual_seed(1)
    first, middle, last = sizes
    model = nn.Sequential(Addmm(first, middle), nn.Tanh(), Addmm(middle, last)).to(dtype)
    if frozen:
        getattr(model[0], frozen).requires_grad_(False)
    assert_like_loop(model, seeded(rows, *lead, first, dtype=dtype))


@generated
@given(
    dims=st.integers(1, 3),
    rows=rows_of,
    groups=st.integers(1, 2),
    channels=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 2),
    padding=st.sampled_from([0, 1, "same", "valid"]),
    dilation=st.integers(1, 2),
    dtype=dtypes,
    bias=st.booleans(),
)
def test_convolution_with_any_options_is_the_loop(
    assert_like_loop, dims, rows, groups, channels, kernel, stride, padding, dilation, dtype, bias
):
    torch.manual_seed(2)
    stride = 1 if padding == "same" else stride
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    ins, outs = channels[0] * groups, channels[1] * groups
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "bias": bias}
    model = nn.Sequential(kind(2, ins, 1), nn.Tanh(), kind(ins, outs, kernel, **options)).to(dtype)
    assert_like_loop(model, seeded(rows, 2, *(6, 5, 5)[:dims], dtype=dtype))


@pytest.mark.parametrize("way", ["patches", "grouped", "gram"])
@generated
@given(rows=rows_of, stride=st.integers(1, 2), padding=st.integers(0, 1), dilation=st.integers(1, 2), dtype=dtypes)
def test_each_way_to_a_convolution_norm_is_the_loop(assert_like_loop, way, rows, stride, padding, dilation, dtype):
    from veil.gradients.rules.convolution import Convolved

    torch.manual_seed(3)
    model = nn.Conv2d(3, 4, 2, stride=stride, padding=padding, dilation=dilation).to(dtype)
    with pytest.MonkeyPatch.context() as patch:
        costs = {"patches": 1.0, "grouped": 1.0, "gram": 1.0, way: 0.0}
        patch.setattr(Convolved, "_costs", lambda self: costs)
        assert_like_loop(model, seeded(rows, 3, 6, 5, dtype=dtype))


@pytest.mark.parametrize("mode", ["circular", "reflect", "replicate"])
def test_convolution_with_a_padding_mode_is_the_loop(assert_like_loop, mode):
    model = nn.Conv2d(2, 3, 3, padding=1, padding_mode=mode, dtype=torch.float64)
    assert_like_loop(model, seeded(3, 2, 5, 4))


@pytest.mark.parametrize("way", ["gram", "values", "fresh"])
@generated
@given(rows=rows_of, positions=st.integers(2, 6), dtype=dtypes)
def test_each_way_to_a_linear_norm_is_the_loop(assert_like_loop, way, rows, positions, dtype):
    from veil.gradients import costs, passes

    torch.manual_seed(3)
    model = nn.Linear(4, 3).to(dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passes, "HELD_SHARE", 0.0 if way == "fresh" else 100.0)
        patch.setattr(costs, "by_gram", lambda *_: 0.0 if way == "gram" else 1.0)
        patch.setattr(costs, "by_values", lambda *_: 1.0 if way == "gram" else 0.0)
        assert_like_loop(model, seeded(rows, positions, 4, dtype=dtype))


def test_norms_stay_right_where_inner_products_cancel(loop_gradients):
    """Two positions with opposite gradients: the terms of the Gram matrix are 1e8 times their sum."""
    from veil.gradients import GradientEngine, costs

    torch.manual_seed(0)
    inputs = torch.randn(3, 1, 4).repeat(1, 2, 1)
    inputs[:, 1] += 1e-4 * torch.randn(3, 4)
    model = nn.Linear(4, 3, bias=False)

    def opposite(model: nn.Module, batch: Tensor) -> Tensor:
        output = model(batch)
        return (output[:, 0] - output[:, 1]).sum(1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(costs, "by_gram", lambda *_: 0.0)
        patch.setattr(costs, "by_values", lambda *_: 1.0)
        found = GradientEngine(model, opposite).norms_and_losses(inputs).norms
    wanted = loop_gradients(model, opposite, inputs)["weight"].flatten(1).norm(dim=1)
    assert torch.allclose(found, wanted, rtol=1e-3)


class Looked(nn.Module):
    def __init__(self, padding: int | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 3, padding_idx=padding, dtype=dtype)
        self.head = nn.Linear(3, 2, dtype=dtype)

    def forward(self, index: Tensor) -> Tensor:
        return self.head(torch.tanh(self.table(index)))


@generated
@given(
    rows=rows_of, lead=st.lists(st.integers(1, 5), max_size=2), padding=st.sampled_from([None, 0, 3, -1]), dtype=dtypes
)
def test_embedding_with_repeated_and_padding_entries_is_the_loop(assert_like_loop, rows, lead, padding, dtype):
    torch.manual_seed(4)
    assert_like_loop(Looked(padding, dtype), torch.randint(0, 6, (rows, *lead)))


@generated
@given(
    rows=rows_of,
    width=st.integers(1, 5),
    mode=st.sampled_from(["sum", "mean"]),
    padding=st.sampled_from([None, 2]),
    dtype=dtypes,
)
def test_embedding_bag_is_the_loop(assert_like_loop, rows, width, mode, padding, dtype):
    torch.manual_seed(5)
    bag = nn.EmbeddingBag(5, 3, mode=mode, padding_idx=padding, dtype=dtype)
    assert_like_loop(nn.Sequential(bag, nn.Tanh(), nn.Linear(3, 2, dtype=dtype)), torch.randint(0, 5, (rows, width)))


def test_embedding_bag_with_offsets_and_weights_is_the_padded_one(loop_gradients):
    from veil.gradients import GradientEngine

    bag = nn.EmbeddingBag(5, 3, mode="sum", dtype=torch.float64)
    index, offsets = torch.tensor([0, 1, 1, 4, 2, 2]), torch.tensor([0, 3, 3])
    shares = seeded(6).abs()
    flat = {"index": index, "offsets": offsets, "shares": shares}
    engine = GradientEngine(
        bag, lambda model, b: torch.sin(model(b["index"], b["offsets"], per_sample_weights=b["shares"])).sum(1)
    )
    found = engine.weighted_sum(flat, lambda facts: torch.eye(3, dtype=torch.float64), rows=3)
    for row, (start, stop) in enumerate([(0, 3), (3, 3), (3, 6)]):
        output = bag(index[start:stop], torch.tensor([0]), per_sample_weights=shares[start:stop])
        (wanted,) = torch.autograd.grad(torch.sin(output).sum(), [bag.weight])
        assert torch.allclose(found.sums[row]["weight"], wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.LayerNorm(4), (4,)),
        (nn.LayerNorm(4), (3, 4)),
        (nn.LayerNorm((3, 4)), (2, 3, 4)),
        (nn.LayerNorm(4, bias=False), (3, 4)),
        (nn.RMSNorm(4), (3, 4)),
        (nn.RMSNorm((3, 4)), (3, 4)),
        (nn.GroupNorm(2, 4), (4,)),
        (nn.GroupNorm(2, 4), (4, 3, 2)),
        (nn.InstanceNorm1d(4, affine=True), (4, 5)),
        (nn.InstanceNorm2d(4, affine=True), (4, 3, 2)),
        (nn.InstanceNorm3d(4, affine=True), (4, 2, 3, 2)),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [1, 3])
def test_normalisation_within_a_row_is_the_loop(assert_like_loop, layer, shape, dtype, rows):
    layer = layer.to(dtype)
    with torch.no_grad():
        for place, parameter in enumerate(layer.parameters()):
            parameter.copy_(seeded(*parameter.shape, dtype=dtype, seed=place))
    assert_like_loop(layer, seeded(rows, *shape, dtype=dtype))


class Attending(nn.Module):
    def __init__(self, cross: bool, need_weights: bool, **options: object) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, dtype=torch.float64, **options)  # type: ignore[arg-type]
        self.first = options.get("batch_first", False)
        self.cross, self.need_weights = cross, need_weights
        self.other = options.get("kdim", 4)

    def forward(self, rows: Tensor) -> Tensor:
        query, context = rows[:, :3, :4], rows[:, 1:]
        if not self.cross:
            context = query
        elif self.other != 4:
            context = torch.cat([context, context], -1)
        if not self.first:
            query, context = query.transpose(0, 1), context.transpose(0, 1) if self.cross else query.transpose(0, 1)
        if not self.cross:
            context = query
        output, _ = self.attention(query, context, context, need_weights=self.need_weights)
        return output if self.first else output.transpose(0, 1)


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize(
    ("cross", "options"),
    [
        (False, {}),
        (True, {}),
        (False, {"batch_first": True}),
        (True, {"batch_first": True}),
        (False, {"bias": False}),
        (True, {"bias": False}),
        (True, {"kdim": 8, "vdim": 8, "batch_first": True}),
    ],
    ids=str,
)
def test_multi_head_attention_is_the_loop(assert_like_loop, cross, need_weights, options):
    torch.manual_seed(6)
    assert_like_loop(Attending(cross, need_weights, **options), seeded(3, 5, 4))


class Encoding(nn.Module):
    def __init__(self, masked: bool, norm_first: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(4, 2, 6, 0.0, batch_first=True, norm_first=norm_first, dtype=torch.float64)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.masked = masked

    def forward(self, rows: Tensor) -> Tensor:
        if not self.masked:
            return self.encoder(rows)
        causal = nn.Transformer.generate_square_subsequent_mask(rows.shape[1], dtype=rows.dtype)
        padding = torch.zeros(rows.shape[0], rows.shape[1], dtype=rows.dtype)
        padding[:, -1] = float("-inf")
        return self.encoder(rows, mask=causal, src_key_padding_mask=padding)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("rows", [1, 3])
def test_transformer_encoder_is_the_loop_in_training_and_evaluation_mode(
    assert_like_loop, training, masked, norm_first, rows
):
    torch.manual_seed(7)
    assert_like_loop(Encoding(masked, norm_first).train(training), seeded(rows, 4, 4))


@generated
@given(
    kind=st.sampled_from([nn.LSTM, nn.GRU, nn.RNN]),
    rows=rows_of,
    steps=st.integers(1, 4),
    layers=st.integers(1, 2),
    bidirectional=st.booleans(),
    batch_first=st.booleans(),
    bias=st.booleans(),
    relu=st.booleans(),
)
def test_recurrent_layers_are_the_loop(
    assert_like_loop, kind, rows, steps, layers, bidirectional, batch_first, bias, relu
):
    torch.manual_seed(8)
    extra = {"nonlinearity": "relu"} if relu and kind is nn.RNN else {}
    layer = kind(
        3, 2, layers, bias=bias, batch_first=batch_first, bidirectional=bidirectional, dtype=torch.float64, **extra
    )

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.recurrent = layer

        def forward(self, inputs: Tensor) -> Tensor:
            output, last = self.recurrent(inputs if batch_first else inputs.transpose(0, 1))
            output = output if batch_first else output.transpose(0, 1)
            states = last if isinstance(last, tuple) else (last,)
            return torch.cat([output.flatten(1), *(state.transpose(0, 1).flatten(1) for state in states)], 1)

    assert_like_loop(Model(), seeded(rows, steps, 3))


@pytest.mark.parametrize("steps", [13, 15, 16, 17, 31])
@pytest.mark.parametrize("frozen", [(), ("weight_ih_l0",), ("weight_hh_l0", "bias_hh_l0")])
def test_a_long_recurrent_layer_whose_weights_share_gate_gradients_is_the_loop(assert_like_loop, steps, frozen):
    torch.manual_seed(9)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.recurrent = nn.LSTM(24, 24, batch_first=True, dtype=torch.float64)
            for name in frozen:
                self.recurrent.get_parameter(name).requires_grad_(False)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.recurrent(inputs)[0].flatten(1)

    assert_like_loop(Model(), seeded(3, steps, 24))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("at_once", [1, 2, 5, 7])
def test_kernel_gradients_are_the_same_however_many_images_are_grouped_at_once(monkeypatch, groups, at_once):
    weight = seeded(6, 4 // groups, 3, 3)
    shape = convolution.Shape((3, 3), (2, 1), (1, 0), (1, 1), groups)
    images = seeded(5, 4, 7, 7)
    gradients = torch.randn_like(F.conv2d(images, weight, None, shape.stride, shape.padding, shape.dilation, groups))
    held = convolution.Convolved(images, gradients, weight, shape, 5)
    monkeypatch.setattr(convolution, "GROUPED_VALUES", at_once * weight.numel())
    assert torch.allclose(held._by_groups(), held._by_patches(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("positions", [1, 2, 12, 13, 14, 15, 16, 17, 30, 61])
def test_inner_products_of_any_number_of_positions_are_the_products(positions):
    side = seeded(3, positions, 5)
    assert torch.allclose(inner_products(side), torch.einsum("rtv,rsv->rts", side, side), rtol=0, atol=1e-12)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("turn", "back"),
    [
        (lambda x: x.transpose(0, 1), lambda y: y.transpose(0, 1)),
        (lambda x: x.transpose(1, 2), lambda y: y),
        (lambda x: x.unflatten(1, (2, 2)).permute(0, 2, 3, 1), lambda y: y),
        (lambda x: x.unflatten(1, (2, 2)).permute(2, 1, 0, 3), lambda y: y.permute(2, 1, 0, 3)),
    ],
)
def test_a_linear_map_of_an_input_that_is_not_contiguous_is_the_loop(assert_like_loop, bias, turn, back):
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4, dtype=torch.float64)
            self.second = nn.Linear(turn(seeded(3, 4, 4)).shape[-1], 5, bias=bias, dtype=torch.float64)

        def forward(self, inputs: Tensor) -> Tensor:
            return back(self.second(turn(self.first(inputs)))).flatten(1)

    torch.manual_seed(10)
    assert not turn(seeded(3, 4, 4)).is_contiguous()
    assert_like_loop(Model(), seeded(3, 4, 4))


def test_recurrent_layer_with_a_given_start_state_is_the_loop(assert_like_loop):
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.start = nn.Linear(3, 2, dtype=torch.float64)
            self.recurrent = nn.LSTM(3, 2, batch_first=True, dtype=torch.float64)

        def forward(self, inputs: Tensor) -> Tensor:
            start = torch.tanh(self.start(inputs[:, 0])).unsqueeze(0)
            return self.recurrent(inputs, (start, 2 * start))[0]

    torch.manual_seed(9)
    assert_like_loop(Model(), seeded(4, 3, 3))


def test_functional_calls_are_recorded_like_modules(assert_like_loop):
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(seeded(3, 4))
            self.kernel = nn.Parameter(seeded(2, 1, 2))

        def forward(self, inputs: Tensor) -> Tensor:
            return F.conv1d(torch.tanh(F.linear(inputs, self.weight)).unsqueeze(1), self.kernel)

    assert_like_loop(Model(), seeded(4, 4))
