"""Ways past the bound and past the noise that no shape shows: cancelling terms, hooks, and places to keep rows in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import veil
from tests.attacks.test_broken_guards import ROWS, problem, settings
from tests.attacks.test_moved_rows import SLACK, largest_move, rows_of
from veil.errors import InputError
from veil.gradients import GradientEngine, GradientError, PerRow
from veil.gradients.model_state import ModelState
from veil.releases import clamp_to_limits

Loss = Callable[[nn.Module, Any], Tensor]


def itself(model: nn.Module, batch: Any) -> Tensor:
    return model(*batch)


def moved(model: nn.Module, batch: tuple[Tensor, ...], row: int, bound: float, weight: float) -> float:
    """How many bounds the removal of a row moves the sum by; no row's weight is above `weight`."""
    engine = GradientEngine(model, itself)

    def bounded(rows: tuple[Tensor, ...]) -> Tensor:
        def weigh(per_row: PerRow) -> Tensor:
            raw = (bound / per_row.norms.clamp_min(1e-12)).clamp_max(weight)
            return clamp_to_limits(raw, per_row.norms, torch.full_like(per_row.norms, bound))

        return torch.cat([part.flatten() for part in engine.weighted_sum(rows, weigh).sums[0].values()]).double()

    others = tuple(torch.cat([t[:row], t[row + 1 :]]) for t in batch)
    return float((bounded(batch) - bounded(others)).norm()) / bound


class Twins(nn.Module):
    """The difference of two places of a row under the same layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.layer(x)
        hidden = hidden if hidden.ndim == 3 else hidden.flatten(2).transpose(1, 2)
        return (hidden[:, 0] - hidden[:, 1]).sum(1)


class TwoCalls(Twins):
    def forward(self, x: Tensor) -> Tensor:
        return (self.layer(x[:, 0]) - self.layer(x[:, 1])).sum(1)


class Weighted(nn.Module):
    """Entries of a table, each times a number of the row."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 8)

    def forward(self, index: Tensor, factors: Tensor) -> Tensor:
        return (self.table(index) * factors.unsqueeze(2)).sum((1, 2))


class TiedTable(nn.Module):
    """A table used to look up and to score: the two slopes cancel, whatever the row multiplies them by."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 64)

    def forward(self, index: Tensor, factor: Tensor, x: Tensor) -> Tensor:
        found = self.table(index).squeeze(1)
        scores = F.linear(found / found.square().sum(1, keepdim=True), self.table.weight)
        return factor * scores.gather(1, index).squeeze(1) + (x * found).sum(1)


def twins(model: Callable[[], nn.Module], shape: tuple[int, ...]) -> tuple[nn.Module, tuple[Tensor, ...], int]:
    x = 0.05 * torch.randn(200, *shape)
    x[100] = 1e8
    return model(), (x,), 100


def looked_up() -> tuple[nn.Module, tuple[Tensor, ...], int]:
    index, factors = torch.full((100, 3), 3), 0.1 * torch.randn(100, 3)
    factors[50] = torch.tensor([1e8, -1e8, 0.0])
    return Weighted(), (index, factors), 50


@pytest.mark.parametrize(
    "attack",
    [
        lambda: twins(lambda: Twins(nn.Linear(64, 64, bias=False)), (2, 64)),
        lambda: twins(lambda: TwoCalls(nn.Linear(8, 8, bias=False)), (2, 8)),
        lambda: twins(lambda: Twins(nn.Conv2d(16, 128, 3, bias=False)), (16, 3, 4)),
        looked_up,
    ],
    ids=["positions", "calls", "convolution", "table"],
)
def test_long_terms_that_cancel_within_a_row_wipe_out_no_other_row(attack: Callable[[], Any]) -> None:
    torch.manual_seed(0)
    model, batch, row = attack()
    assert moved(model, batch, row, bound=1.0, weight=1.0) <= 1.0 + SLACK


@pytest.mark.parametrize("weight", [1.0, float("inf")], ids=["clipped", "normalised"])
@pytest.mark.parametrize("factor", [1e4, 1e6])
def test_a_tied_table_whose_slopes_cancel_is_bounded_by_its_true_norm(factor: float, weight: float) -> None:
    torch.manual_seed(0)
    factors, x = torch.full((10,), 0.1), 0.1 * torch.randn(10, 64)
    factors[0] = factor
    batch = (torch.randint(0, 50, (10, 1)), factors, x)
    assert moved(TiedTable(), batch, 0, bound=0.1, weight=weight) <= 1.0 + SLACK


class Hooked(nn.Module):
    """Turns the rows of a gradient around from the second pass on, by a hook that the graph does not show."""

    def __init__(self, first: int, on_node: bool) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
        self.passes, self.first, self.on_node = 0, first, on_node

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        hidden = torch.relu(self.body(x))
        if self.passes > self.first and hidden.requires_grad:
            if self.on_node:
                hidden.grad_fn.register_prehook(lambda gradients: (gradients[0].flip(0),))
            else:
                hidden.register_hook(lambda gradient: gradient.flip(0))
        return self.head(hidden)


@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize("on_node", [False, True], ids=["tensor", "node"])
@pytest.mark.filterwarnings("ignore::veil.gradients.FallbackWarning")
def test_a_hook_that_moves_rows_is_seen_in_every_pass(first: int, on_node: bool) -> None:
    torch.manual_seed(0)
    batches = [rows_of(5, seed, 1.0) for seed in range(3)]
    try:
        assert largest_move(Hooked(first, on_node), batches, bound=0.05) <= 1.0 + SLACK
    except GradientError:
        assert not on_node


@dataclass(slots=True)
class Slotted:
    largest: float = 0.0


class Listed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("largest", torch.zeros(()))


class Keeping(nn.Module):
    """Keeps the largest value it has seen where torch does not look, if it is larger than `above`."""

    def __init__(self, above: float) -> None:
        super().__init__()
        self.layer, self.above = nn.Linear(4, 2), above
        self.slots, self.bytes, self.listed = Slotted(), bytearray(1), [Listed()]

    def forward(self, x: Tensor) -> Tensor:
        found = float(x.detach().max())
        if found > self.above:
            self.slots.largest = found
            self.bytes[0] = int(found) % 256
            self.listed[0].largest.fill_(found)
        return self.layer(x)


def test_rows_kept_in_slots_bytes_and_modules_in_lists_are_seen_and_undone() -> None:
    model = Keeping(-1.0)
    state = ModelState(model)
    model(torch.full((2, 4), 99.0))
    assert state.changed() == ["bytes", "listed[0].largest", "slots.largest"]
    state.put_back()
    assert state.changed() == []
    with pytest.raises(GradientError, match="writes to it"):
        veil.fit(model, problem(), method="dp-sgd", **settings())


def test_unusual_rows_kept_in_slots_bytes_and_modules_in_lists_do_not_stay() -> None:
    rows, model = problem(), Keeping(900.0)
    rows.inputs[0, 0] = 999.0
    veil.fit(model, rows, method="dp-sgd", **settings(batch_size=ROWS, steps=2))
    assert (model.slots.largest, model.bytes[0], float(model.listed[0].largest)) == (0.0, 0, 0.0)


class Held(nn.Module):
    """A module that holds rows, which a saved model would hold too."""

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        self.register_buffer("rows", rows.detach().clone())


class Remembering(nn.Module):
    """Puts the rows it sees into a module of its own, or hides them in bits, if one of them is larger than `above`."""

    def __init__(self, above: float, where: str) -> None:
        super().__init__()
        self.layer, self.above, self.where = nn.Linear(4, 2), above, where
        self.memory, self.listed = Held(torch.zeros(1, 4)), nn.ModuleList([Held(torch.zeros(1, 4))])
        self.by_name, self.deep = nn.ModuleDict(), nn.Sequential(nn.Sequential())
        self.register_buffer("zeros", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        if float(x.detach().max()) > self.above:
            self._keep(x.detach())
        return self.layer(x)

    def _keep(self, rows: Tensor) -> None:
        if self.where == "replaced":
            self.memory = Held(rows)
        elif self.where == "listed":
            self.listed[0] = Held(rows)
        elif self.where == "by name":
            self.by_name["more"] = Held(rows)
        elif self.where == "further down":
            self.deep[0].add_module("more", Held(rows))
        elif self.where == "signs of zeros":
            self.zeros.copy_(torch.where(rows[0] > 0, -0.0, 0.0))
        else:
            self.layer.weight.rows = rows.clone()


PLACES = ["replaced", "listed", "by name", "further down", "signs of zeros", "attribute of a weight"]


@pytest.mark.parametrize("where", PLACES)
def test_rows_in_modules_that_a_pass_makes_and_in_bits_of_zeros_are_rejected(where: str) -> None:
    with pytest.raises(GradientError, match="writes to it"):
        veil.fit(Remembering(-1.0, where), problem(), method="dp-sgd", **settings())


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("own_loop", [False, True], ids=["fit", "session"])
def test_unusual_rows_in_modules_that_a_pass_makes_and_in_bits_of_zeros_do_not_stay(where: str, own_loop: bool) -> None:
    rows, model = problem(), Remembering(900.0, where)
    rows.inputs[0] = torch.tensor([999.0, 1.0, -1.0, 1.0])
    before = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    chosen = settings(batch_size=ROWS, steps=2)
    if own_loop:
        session = veil.session(model, rows, method="dp-sgd", **chosen)
        for x, y in session:
            session.step(nn.functional.cross_entropy(model(x), y, reduction="none"))
    else:
        veil.fit(model, rows, method="dp-sgd", **chosen)
    left = model.state_dict()
    assert {name: tuple(value.shape) for name, value in left.items()} == before
    assert not any(value.any() or value.signbit().any() for name, value in left.items() if "layer" not in name)
    assert vars(model.layer.weight) == {}


class Extra(Keeping):
    def get_extra_state(self) -> Tensor:
        return torch.tensor([self.slots.largest])


def test_extra_state_is_not_saved_without_noise() -> None:
    with pytest.raises(InputError, match="get_extra_state"):
        veil.fit(Extra(900.0), problem(), method="dp-sgd", **settings())


class WritesWeights(nn.Module):
    """Writes what it sees of an unusual row into a weight that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        if float(x.detach().max()) > 900.0:
            self.layer.bias.data[0] = x.max()
        return self.layer(x)


@pytest.mark.parametrize("own_loop", [False, True], ids=["fit", "session"])
def test_a_row_written_into_a_weight_does_not_stay(own_loop: bool) -> None:
    rows, model = problem(), WritesWeights()
    rows.inputs[0, 0] = 999.0
    chosen = settings(batch_size=ROWS, steps=2)
    with pytest.raises(GradientError, match="changes the parameter"):
        if own_loop:
            session = veil.session(model, rows, method="dp-sgd", **chosen)
            for inputs, targets in session:
                session.step(F.cross_entropy(model(inputs), targets, reduction="none"))
        else:
            veil.fit(model, rows, method="dp-sgd", **chosen)
    assert float(model.layer.bias.detach()[0]) < 100.0
