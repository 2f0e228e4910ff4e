"""BatchNorm by fixed statistics is exact row by row; whatever takes statistics of its batch is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from veil.gradients import GradientEngine, GradientError, check, validate

WIDE = torch.float64


def squares(model: nn.Module, rows: Tensor) -> Tensor:
    return model(rows).flatten(1).square().sum(1)


def frozen(kind: type[nn.Module], channels: int, affine: bool) -> nn.Module:
    """BatchNorm in evaluation mode, with the statistics and the scale of some training long ago."""
    norm = kind(channels, affine=affine)
    with torch.no_grad():
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2.0)
        for parameter in norm.parameters():
            parameter.normal_()
    return norm.eval()


@settings(deadline=None, max_examples=30)
@given(rows=st.integers(1, 5), size=st.sampled_from([(), (4,), (3, 3)]), affine=st.booleans(), first=st.booleans())
def test_frozen_batch_norm_is_the_loop(assert_like_loop, rows, size, affine, first):
    torch.manual_seed(rows)
    kind = nn.BatchNorm2d if len(size) == 2 else nn.BatchNorm1d
    layer = nn.Linear(4, 4) if not size else nn.Conv1d(4, 4, 1) if len(size) == 1 else nn.Conv2d(4, 4, 1)
    norm = frozen(kind, 4, affine)
    model = nn.Sequential(*((norm, layer) if first else (layer, norm)), nn.Tanh(), layer).to(WIDE)
    batch = torch.randn(rows, 4, *size, dtype=WIDE)
    assert validate(model, batch, squares) == []
    assert_like_loop(model, batch)


def test_a_frozen_layer_behind_trained_ones_needs_no_fallback_and_no_probe_in_every_pass(assert_like_loop, monkeypatch):
    from veil.gradients.recording import Recorder

    model = nn.Sequential(nn.Conv2d(1, 4, 3), frozen(nn.BatchNorm2d, 4, True), nn.Flatten(), nn.Linear(64, 2)).to(WIDE)
    for parameter in model[1].parameters():
        parameter.requires_grad_(False)
    engine, batch = GradientEngine(model, squares), torch.randn(3, 1, 6, 6, dtype=WIDE)
    engine.norms_and_losses(batch)
    monkeypatch.setattr(Recorder, "_probe", lambda *_: pytest.fail("rows were probed though the graph tells them"))
    engine.norms_and_losses(batch)
    monkeypatch.undo()
    assert_like_loop(model, batch)


class Switching(nn.Module):
    """Sets its BatchNorm to training mode in its own forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 4), frozen(nn.BatchNorm1d, 4, True)

    def forward(self, rows: Tensor) -> Tensor:
        self.norm.train()
        return self.norm(self.layer(rows))


class OwnStatistics(nn.Module):
    """Evaluation mode by statistics that are no statistics of long ago but of this batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, rows: Tensor) -> Tensor:
        output = self.layer(rows)
        return F.batch_norm(output, output.mean(0).detach(), output.var(0).detach(), training=False)


class Looked(nn.Module):
    """Normalises entries of a table that rows chose, over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Parameter(torch.randn(6, 4)), nn.Linear(4, 4)

    def forward(self, rows: Tensor) -> Tensor:
        chosen = self.table[(rows[:, 0] > 0).long()]
        return self.layer(rows) + F.batch_norm(chosen, None, None, training=True)


@pytest.mark.parametrize("model", [Switching(), OwnStatistics(), Looked()], ids=lambda m: type(m).__name__)
def test_batch_norm_that_hides_that_it_mixes_rows_is_refused(model):
    with pytest.raises(GradientError):
        check(model, torch.randn(5, 4), squares)


@pytest.mark.parametrize("model", [Switching(), Looked()], ids=lambda m: type(m).__name__)
def test_the_engine_refuses_statistics_of_the_batch_without_any_trial(model):
    with pytest.raises(GradientError, match="BatchNorm mixes the rows"):
        GradientEngine(model, squares).norms_and_losses(torch.randn(5, 4))


def test_batch_norm_that_is_trained_again_after_a_pass_is_refused():
    model = nn.Sequential(nn.Linear(4, 4), frozen(nn.BatchNorm1d, 4, True))
    engine = GradientEngine(model, squares)
    engine.norms_and_losses(torch.randn(5, 4))
    model.train()
    with pytest.raises(GradientError, match="BatchNorm mixes the rows"):
        engine.norms_and_losses(torch.randn(5, 4))


class Standardised(nn.Conv2d):
    """The convolution of normaliser-free nets: its weight is standardised by `F.batch_norm`, with a gain."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.gain = nn.Parameter(torch.rand(self.out_channels, 1, 1, 1) + 0.5)

    def forward(self, rows: Tensor) -> Tensor:
        flat, gain = self.weight.reshape(1, self.out_channels, -1), (self.gain * 0.3).view(-1)
        weight = F.batch_norm(flat, None, None, weight=gain, training=True, momentum=0.0, eps=1e-6)
        return F.conv2d(rows, weight.reshape_as(self.weight), self.bias)


@pytest.mark.parametrize("rows", [1, 4])
def test_weights_that_are_standardised_by_batch_norm_are_the_loop(assert_like_loop: Callable[..., None], rows):
    model = nn.Sequential(Standardised(3, 4, 3), nn.ReLU(), Standardised(4, 4, 3), nn.Flatten()).to(WIDE)
    batch = torch.randn(rows, 3, 6, 6, dtype=WIDE)
    assert validate(model, batch, squares) == []
    assert_like_loop(model, batch)
