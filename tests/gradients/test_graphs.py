"""The key of a graph: equal keys mean equal operations on equal shapes; what it leaves out is compared elsewhere."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from veil.gradients import GradientEngine
from veil.gradients.graphs import _ALIKE, read_graph

ALIKE = (F.relu, torch.tanh, torch.sigmoid, F.gelu, F.silu, torch.exp, torch.log, torch.neg)


@pytest.mark.parametrize("function", [*ALIKE, lambda x: x.softmax(1), lambda x: x.log_softmax(0)])
def test_operations_whose_shape_the_key_leaves_out_have_the_shape_of_their_input(function):
    values = torch.rand(4, 3, requires_grad=True) + 1
    node = function(values).grad_fn
    assert node.name() in _ALIKE
    (output,), ((before, number),) = node._input_metadata, node.next_functions
    assert tuple(output.shape) == tuple(before._input_metadata[number].shape) == (4, 3)


def test_every_operation_whose_shape_is_left_out_is_compared_with_its_input():
    values = torch.rand(2, 2, requires_grad=True)
    tried = {function(values).grad_fn.name() for function in ALIKE}
    assert tried | {"SoftmaxBackward0", "LogSoftmaxBackward0"} == _ALIKE


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda x: x.relu().sum(1), lambda x: x.tanh().sum(1)),
        (lambda x: x.relu().sum(1), lambda x: x.relu()[:, :2].sum(1)),
        (lambda x: x.relu()[:, 0], lambda x: x.relu()[:, 1]),
        (lambda x: x.sum(1), lambda x: x.sum(0)),
        (lambda x: x.flip(0).sum(1), lambda x: x.sum(1).flip(0)),
        (lambda x: torch.cat([x, x], 1).sum(1), lambda x: torch.cat([x, x, x], 1).sum(1)),
        (lambda x: x.unbind(1)[0], lambda x: x.unbind(1)[1]),
    ],
)
def test_graphs_that_differ_in_anything_but_values_have_different_keys(one, other):
    values = torch.rand(3, 3, requires_grad=True) + 0.0
    assert read_graph(one(values), 3).key != read_graph(other(values), 3).key
    assert read_graph(one(values), 3).key == read_graph(one(torch.rand(3, 3, requires_grad=True) + 0.0), 3).key


def test_shapes_behind_operations_that_keep_them_are_in_the_key():
    wide, narrow = (torch.rand(4, width, requires_grad=True) + 0.0 for width in (3, 2))
    assert read_graph(wide.relu().sum(1), 4).key != read_graph(narrow.relu().sum(1), 4).key


def test_a_linear_map_of_another_width_is_recorded_again():
    model = nn.Linear(3, 2)

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).relu().sum(1)

    engine, batch = GradientEngine(model, loss), torch.randn(5, 3)
    engine.norms_and_losses(batch)
    assert engine._memory.plain is not None
    model.weight.data, model.bias.data = torch.randn(6, 3), torch.randn(6)
    found = engine.gradients(batch)
    expected = GradientEngine(model, loss).gradients(batch)
    assert found["weight"].shape == (5, 6, 3)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert engine._memory.plain.maps == (("weight", "bias", 6),)


def _squares(model: nn.Module, batch: Tensor) -> Tensor:
    output: Tensor = model(batch)
    return output.square().sum(1)


@pytest.mark.parametrize("shape", [(1,), (), (1, 4)])
@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.filterwarnings("ignore::veil.gradients.FallbackWarning")
def test_a_bias_that_is_broadcast_has_the_gradient_of_its_own_shape(shape, warm, assert_like_loop, loop_gradients):
    model, batch = nn.Linear(3, 4).double(), torch.randn(5, 3).double()
    engine = GradientEngine(model, _squares)
    if warm:
        engine.norms_and_losses(batch)
        assert engine._memory.plain is not None
    model.bias.data = torch.randn(shape).double()
    found, wanted = engine.gradients(batch), loop_gradients(model, _squares, batch)
    assert all(torch.allclose(found[name], wanted[name]) for name in wanted)
    assert engine.weighted_sum(batch, lambda per_row: per_row.norms).sums[0]["bias"].shape == shape
    assert_like_loop(model, batch, _squares)


@pytest.mark.filterwarnings("ignore::veil.gradients.FallbackWarning")
def test_a_vector_as_weight_of_a_linear_map_is_exact(assert_like_loop):
    model = nn.Linear(3, 1, bias=False).double()
    model.weight.data = torch.randn(3).double()
    assert_like_loop(model, torch.randn(5, 3).double(), lambda model, batch: model(batch))


@pytest.mark.parametrize("exchange", ["layers", "weights"])
def test_layers_that_change_places_take_their_gradients_with_them(exchange, loop_gradients):
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)).double()
    engine, batch = GradientEngine(model, _squares), torch.randn(4, 3).double()
    engine.norms_and_losses(batch)
    assert engine._memory.plain is not None
    if exchange == "layers":
        model[0], model[2] = model[2], model[0]
    else:
        model[0].weight, model[2].weight = model[2].weight, model[0].weight
    found, wanted = engine.gradients(batch), loop_gradients(model, _squares, batch)
    assert all(torch.allclose(found[name], wanted[name]) for name in wanted)
    assert engine._memory.plain.holds()


class _Leaf(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.ones(1))


@pytest.mark.filterwarnings("ignore::veil.gradients.FallbackWarning")
def test_losses_that_are_a_parameter_or_its_expansion_reach_it():
    batch = torch.randn(3, 2)
    one = GradientEngine(_Leaf(), lambda model, batch: model.value).gradients(batch[:1])
    every = GradientEngine(_Leaf(), lambda model, batch: model.value.expand(len(batch))).gradients(batch)
    assert one["value"].tolist() == [[1.0]]
    assert every["value"].tolist() == [[1.0]] * 3


def test_losses_that_depend_on_no_parameter_have_no_gradient():
    engine = GradientEngine(nn.Linear(3, 2), lambda model, batch: model(batch).sum(1).detach())
    assert engine.norms_and_losses(torch.randn(4, 3)).norms.tolist() == [0.0] * 4


class _NoGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values):  # type: ignore[no-untyped-def]
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return None


@pytest.mark.filterwarnings("ignore::veil.gradients.FallbackWarning")
def test_a_function_that_gives_no_gradient_gives_zero(assert_like_loop):
    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        return (model(batch) + _NoGradient.apply(model(batch))).square().sum(1)

    assert_like_loop(nn.Linear(3, 3).double(), torch.randn(4, 3).double(), loss)


def _sorted(layer: nn.Module, rows: Tensor) -> Tensor:
    order = rows[:, 0].detach().argsort()
    output: Tensor = layer(rows[order])
    return output[order.argsort()]


# The same function of every row by the same linear map, with the rows in other places.
ARRANGED = {
    "plain": lambda layer, rows: layer(rows),
    "reversed": lambda layer, rows: layer(rows.flip(0)).flip(0),
    "rolled": lambda layer, rows: layer(rows.roll(1, 0)).roll(-1, 0),
    "sorted": _sorted,
    "in order": lambda layer, rows: layer(rows)[torch.arange(len(rows))],
    "reversed by index": lambda layer, rows: layer(rows.flip(0))[torch.arange(len(rows)).flip(0)],
    "reversed by select": lambda layer, rows: layer(rows.flip(0)).index_select(0, torch.arange(len(rows)).flip(0)),
    "reversed by matrix": lambda layer, rows: torch.eye(len(rows)).flip(0).to(rows) @ layer(rows.flip(0)),
    "reversed by stack": lambda layer, rows: torch.stack(layer(rows.flip(0)).unbind(0)[::-1]),
    "turned": lambda layer, rows: layer(rows).t().flip(1).flip(1).t(),
    "turned and reversed": lambda layer, rows: layer(rows.flip(0)).t().flip(1).t(),
    "repeated": lambda layer, rows: layer(rows.repeat(2, 1))[: len(rows)],
    "repeated, second": lambda layer, rows: layer(rows.repeat(2, 1))[len(rows) :],
    "each repeated": lambda layer, rows: layer(rows.repeat_interleave(2, 0))[::2],
    "for every row": lambda layer, rows: layer(rows.expand(len(rows), *rows.shape))[0],
    "of every row": lambda layer, rows: layer(rows.unsqueeze(1).expand(-1, len(rows), -1))[:, 0],
    "of every row, flat": lambda layer, rows: layer(rows.repeat_interleave(len(rows), 0))[:: len(rows)],
}


@pytest.mark.parametrize("rows", [2, 3, 5])
@pytest.mark.parametrize("first", [0, 1], ids=["first layer", "second layer"])
@pytest.mark.filterwarnings("ignore::veil.gradients.FallbackWarning")
def test_rows_that_stand_elsewhere_than_when_the_model_was_recorded_are_found(first, rows, loop_gradients):
    torch.manual_seed(rows)
    model = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)]).double()
    ways = [ARRANGED["plain"], ARRANGED["plain"]]

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        hidden = torch.tanh(ways[0](model[0], batch))
        return torch.log_softmax(ways[1](model[1], hidden), 1)[:, 0]

    engine = GradientEngine(model, loss)
    for name in [*ARRANGED, *reversed(ARRANGED)]:
        for way in ("plain", "plain", name):
            ways[first] = ARRANGED[way]
            batch = torch.randn(rows, 3).double()
            found, wanted = engine.gradients(batch), loop_gradients(model, loss, batch)
            assert all(torch.allclose(found[of], wanted[of]) for of in wanted), way
        assert engine._memory.plain is not None or name != "plain"


def test_a_model_of_linear_maps_is_traced_once_for_all_numbers_of_rows():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))

    def losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

    engine = GradientEngine(model, losses)
    for rows in (5, 7, 3, 6, 4, 12, 2):  # also as many as a map has features
        batch = torch.randn(rows, 4), torch.randint(0, 3, (rows,))
        alone = [GradientEngine(model, losses).gradients(tuple(part[i : i + 1] for part in batch)) for i in range(rows)]
        for name, found in engine.gradients(batch).items():
            assert torch.allclose(found, torch.cat([one[name] for one in alone]), atol=1e-6), (rows, name)
    assert engine._memory.plain is not None
    assert len(engine._memory.plain.traced) == 1


def test_operations_that_may_answer_otherwise_for_other_numbers_of_rows_are_traced_for_each():
    model = nn.Linear(4, 6)

    def losses(model: nn.Module, batch: Tensor) -> Tensor:
        out = model(batch)
        return out.view(6, -1).view(len(batch), 6).sum(1)

    engine = GradientEngine(model, losses)
    numbers = (5, 7, 3, 12)
    for rows in (4, *numbers):
        engine.norms_and_losses(torch.randn(rows, 4))
    assert engine._memory.plain is not None
    assert len(engine._memory.plain.traced) == len(numbers)
