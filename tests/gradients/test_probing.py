"""The trial on made-up rows finds rows that mix, however they are hidden, and lets everything else pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from veil.gradients import validate


def squares(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return model(batch[0]).flatten(1).square().sum(1) + 0 * batch[1]


def classes(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def batch(rows: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(rows, 4, generator=generator), torch.randint(0, 3, (rows,), generator=generator)


def reasons(model: nn.Module, loss: Any = classes) -> str:
    return "; ".join(map(str, validate(model, batch(), loss)))


def normalised(rows: Tensor) -> Tensor:
    return (rows - rows.mean(0)) / (rows.std(0) + 1e-3)


class _Averaged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        return rows.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.mean(0).expand_as(gradient)


class Hidden(nn.Module):
    """Mixes rows in the named way."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.inner, self.head = kind, nn.Linear(4, 6), nn.Linear(6, 3)
        self.gate = nn.Parameter(torch.zeros(()))
        if kind == "a head of zeros":
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    def forward(self, rows: Tensor) -> Tensor:
        inner = self.inner(rows)
        if self.kind == "a head of zeros":
            return self.head(normalised(inner))
        if self.kind == "a gate of zero":
            return self.head(inner + self.gate * normalised(inner))
        if self.kind == "two gates of zero":
            return self.head(inner + self.gate * self.gate * normalised(inner))
        if self.kind == "the backward pass":
            return self.head(_Averaged.apply(inner))
        if self.kind == "many rows":
            return self.head(normalised(inner) if len(rows) > 8 else inner)
        if self.kind == "two rows":
            return self.head(normalised(inner) if len(rows) == 2 else inner)
        if self.kind == "large values":
            return self.head(inner - inner.max() if rows.abs().max() > 20 else inner)
        if self.kind == "the place of a row":
            return self.head(inner) * torch.arange(1.0, len(rows) + 1)[:, None]
        if self.kind == "equal rows":
            return self.head(inner) * (1 + (torch.cdist(rows, rows) < 1e-6).sum(1, keepdim=True))
        if self.kind == "a little":
            return self.head(inner + 1e-5 * inner.mean(0))
        return self.head(inner)


HIDDEN = [
    "a head of zeros",
    "a gate of zero",
    "two gates of zero",
    "the backward pass",
    "many rows",
    "two rows",
    "large values",
    "the place of a row",
    "equal rows",
    "a little",
]


@pytest.mark.parametrize("kind", HIDDEN)
def test_mixing_is_found_however_it_is_hidden(kind: str) -> None:
    torch.manual_seed(0)
    assert "model: " in reasons(Hidden(kind))


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_model_of_the_same_shape_that_mixes_nothing_passes(dropout: float) -> None:
    torch.manual_seed(0)
    assert reasons(nn.Sequential(Hidden("none"), nn.Dropout(dropout))) == ""


class Storing(nn.Module):
    """Keeps something of the rows it sees in the named way."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.head, self.seen, self.last, self.cache = kind, nn.Linear(4, 3), 0, None, {}
        self.register_buffer("top", torch.zeros(()))
        self.register_buffer("hidden", torch.zeros(()), persistent=False)
        self.frozen = nn.Parameter(torch.zeros(()), requires_grad=False)
        self.log: list[Tensor] = []

    def forward(self, rows: Tensor) -> Tensor:
        if self.kind == "a buffer":
            self.top = torch.maximum(self.top, rows.detach().max())
        elif self.kind == "a buffer in place":
            self.top += len(rows)
        elif self.kind == "a buffer by .data":
            self.top.data.add_(rows.detach().sum())
        elif self.kind == "a buffer that is not saved":
            self.hidden += rows.detach().sum()
        elif self.kind == "a buffer when evaluating":
            self.top += 0 if self.training else rows.detach().sum()
        elif self.kind == "a frozen parameter":
            self.frozen += rows.detach().sum()
        elif self.kind == "a weight":
            with torch.no_grad():
                self.head.bias.add_(rows.mean())
        elif self.kind == "a count of rows":
            self.seen += len(rows)
        elif self.kind == "a count of passes":
            self.seen += 1
        elif self.kind == "an attribute":
            self.last = rows.detach()
        elif self.kind == "a list":
            self.log.append(rows.detach().mean())
        elif self.kind == "a dict":
            self.cache["mean"] = rows.detach().mean()
        elif self.kind == "the first batch":
            self.last = rows.detach().mean(0) if self.last is None else self.last
        elif self.kind == "rare rows" and rows.abs().max() > 20:
            self.top += 1
        elif self.kind == "a table made once" and self.last is None:
            self.last = torch.arange(rows.shape[1])
        elif self.kind == "a saved count of passes":
            self.top += 1
        return self.head(rows)


WRITTEN = {
    "a buffer": "top",
    "a buffer in place": "top",
    "a buffer by .data": "top",
    "a buffer that is not saved": "hidden",
    "a buffer when evaluating": "top",
    "a frozen parameter": "frozen",
    "a weight": "head.bias",
    "a count of rows": "seen",
    "a count of passes": "seen",
    "an attribute": "last",
    "a list": "log",
    "a dict": "cache['mean']",
    "the first batch": "last",
    "rare rows": "top",
}


@pytest.mark.parametrize("kind", WRITTEN)
def test_a_forward_pass_that_stores_something_of_its_rows_is_refused_by_name(kind: str) -> None:
    model = nn.Sequential(Storing(kind))
    found = reasons(model)
    assert f"0.{WRITTEN[kind]}".removesuffix("['mean']") in found
    assert "the forward pass writes to it" in found
    assert (model[0].seen, model[0].last, model[0].log, model[0].cache) == (0, None, [], {})
    assert float(model[0].top) == float(model[0].hidden) == float(model[0].frozen) == 0.0


@pytest.mark.parametrize(
    "model",
    [
        Storing("a table made once"),
        Storing("a saved count of passes"),
        nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)),
    ],
    ids=["table", "count", "spectral norm"],
)
def test_state_that_is_the_same_whatever_the_rows_are_may_change(model: nn.Module) -> None:
    assert reasons(model) == ""


class Statistics(nn.Module):
    """Subtracts the mean of rows seen in training."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.register_buffer("mean", torch.ones(4))

    def forward(self, rows: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * rows.detach().mean(0)
        return self.head(rows - self.mean)


def test_statistics_that_are_read_and_not_written_pass() -> None:
    assert "mean: the forward pass writes to it" in reasons(Statistics())
    assert reasons(Statistics().eval()) == ""


def test_a_loss_that_remembers_earlier_rows_is_refused() -> None:
    past = [0.0]

    def moving(model: nn.Module, rows: tuple[Tensor, Tensor]) -> Tensor:
        losses = classes(model, rows)
        past[0] = 0.9 * past[0] + 0.1 * float(losses.detach().mean())
        return losses / (1 + past[0])

    assert "the second time" in reasons(nn.Linear(4, 3), moving)


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 3)),
        nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Dropout(0.3), nn.Linear(8, 3)),
        nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 4, 2), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(12, 3)),
        nn.Sequential(nn.Linear(4, 3), nn.Softplus(), nn.Hardtanh()),
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)),
        nn.Linear(4, 3).double(),
    ],
    ids=lambda model: type(model).__name__,
)
def test_models_of_every_day_pass(model: nn.Module) -> None:
    kind = next(model.parameters()).dtype
    rows, targets = batch()
    assert validate(model, (rows.to(kind), targets), classes) == []


def test_a_model_that_takes_no_single_row_and_no_large_values_passes() -> None:
    class Picky(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 3)

        def forward(self, rows: Tensor) -> Tensor:
            if len(rows) < 2 or rows.abs().max() > 20:
                raise ValueError("not such rows")
            return self.head(rows)

    assert reasons(Picky()) == ""


def test_a_layer_that_keeps_its_computed_weight_can_be_tried() -> None:
    with pytest.warns(FutureWarning):
        model = nn.utils.weight_norm(nn.Linear(4, 3))
    assert reasons(nn.Sequential(model)) == ""
