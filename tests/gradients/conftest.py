"""The oracle of the gradient tests: one row at a time through ordinary autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from veil.gradients import GradientEngine
from veil.gradients.batches import count_rows, sliced

torch.set_num_threads(1)

RELATIVE = {torch.float64: 1e-9, torch.float32: 1e-5}


def loop(model: nn.Module, loss: Any, batch: Any) -> dict[str, Tensor]:
    """Per-row gradients by one ordinary backward pass per row."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    found: dict[str, list[Tensor]] = {name: [] for name in trained}
    for row in range(count_rows(batch)):
        value = loss(model, sliced(batch, row, row + 1)).sum()
        gradients = torch.autograd.grad(value, list(trained.values()), allow_unused=True)
        for (name, parameter), gradient in zip(trained.items(), gradients, strict=True):
            found[name].append(torch.zeros_like(parameter) if gradient is None else gradient.to_dense())
    return {name: torch.stack(rows) for name, rows in found.items()}


def mean_square(model: nn.Module, batch: Any) -> Tensor:
    """A loss that any output shape allows and that leaves no output value without gradient."""
    output = model(batch)
    output = output[0] if isinstance(output, tuple) else output
    flat = output.flatten(1)
    return (torch.sin(flat) * torch.linspace(0.5, 1.5, flat.shape[1], dtype=flat.dtype)).sum(1)


def assert_close(name: str, found: Tensor, wanted: Tensor, scale: Tensor | None = None) -> None:
    """Equal up to rounding, relative to the largest value at stake."""
    size = (wanted if scale is None else scale).abs().amax().clamp_min(1e-30) if wanted.numel() else torch.zeros(())
    gap = (found - wanted).abs().amax() if wanted.numel() else torch.zeros(())
    assert found.shape == wanted.shape, f"{name}: shape {tuple(found.shape)}, not {tuple(wanted.shape)}"
    assert gap <= RELATIVE[wanted.dtype] * size, f"{name}: off by {gap} where values reach {size}"


def agree(model: nn.Module, batch: Any, loss: Any = mean_square, **options: Any) -> None:
    """The engine's per-row gradients, norms and sums equal the loop's, whole and in micro-batches."""
    wanted = loop(model, loss, batch)
    rows = count_rows(batch)
    engine = GradientEngine(model, loss, **options)
    norms = torch.stack([values.reshape(rows, -1).square().sum(1) for values in wanted.values()]).sum(0).sqrt()
    largest = norms.amax()
    for name, values in engine.gradients(batch).items():
        assert_close(f"per-row gradient of {name}", values, wanted[name], largest)
    weights = torch.linspace(-1.0, 2.0, 2 * rows, dtype=norms.dtype).view(2, rows)
    for again in range(2):  # the second time with what the engine remembers
        result = engine.weighted_sum(batch, lambda facts: weights)
        assert_close(f"norms ({again})", result.per_row.norms, norms)
        for weighting, sums in zip(weights, result.sums, strict=True):
            for name, values in sums.items():
                scale = torch.einsum("b,b...->b...", weighting, wanted[name]).abs().sum(0).amax() + largest
                assert_close(f"sum of {name}", values, torch.einsum("b,b...->...", weighting, wanted[name]), scale)


@pytest.fixture(scope="session")
def assert_like_loop() -> Callable[..., None]:
    """`assert_like_loop(model, batch, loss=…)`: fails unless the engine equals the one-row-at-a-time loop."""
    return agree


@pytest.fixture(scope="session")
def loop_gradients() -> Callable[..., dict[str, Tensor]]:
    """The oracle itself."""
    return loop


@pytest.fixture(scope="session")
def cross_entropy() -> Callable[..., Tensor]:
    """Per-row cross entropy of `(inputs, labels)`."""

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

    return loss
