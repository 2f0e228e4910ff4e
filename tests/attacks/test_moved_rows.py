"""One row moves the bounded sum by at most its bound, whatever the model does to the order and the place of rows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.attacks.losses import SCORES, WAYS, Loss, made_losses
from tests.attacks.programs import INNER, NAMES, WIDTH, WRAPPERS, Program, programs
from veil.foundation.nested import mapped
from veil.gradients import GradientEngine, GradientError, PerRow
from veil.gradients.batches import sliced
from veil.gradients.records import LossFn

# What the engine keeps below a bound for the error of single-precision norms, and the rounding of two sums.
SLACK = 2e-3
# Ways that cannot be followed: a hook that changes gradients, an input that is overwritten before it is used, and a
# program that torch itself does not take.
REJECTED = ("hooked", "overwritten", "in_place(linear, relu)")


losses = Loss("cross entropy")


def rows_of(count: int, seed: int, scale: float) -> tuple[Tensor, Tensor]:
    """Made-up rows of very different sizes, so that one row's norm is a bad bound for another."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.logspace(-1.0, 1.0, count)[torch.randperm(count, generator=generator)]
    return (
        scale * sizes.unsqueeze(1) * torch.randn(count, WIDTH, generator=generator),
        torch.randint(0, 3, (count,), generator=generator),
    )


def without(batch: tuple[Tensor, Tensor], row: int) -> tuple[Tensor, Tensor]:
    """The batch as it would be if that row had not been drawn."""
    kept: tuple[Tensor, Tensor] = mapped(batch, lambda t: torch.cat([t[:row], t[row + 1 :]]))
    return kept


def bounded_sum(engine: GradientEngine, batch: tuple[Tensor, Tensor], bound: float) -> Tensor:
    """Σ min(1, bound / ‖g‖) g as one vector."""

    def clip(per_row: PerRow) -> Tensor:
        return (bound / per_row.norms.clamp_min(1e-12)).clamp_max(1.0)

    return torch.cat([part.flatten() for part in engine.weighted_sum(batch, clip).sums[0].values()]).double()


def largest_move(model: nn.Module, batches: list[tuple[Tensor, Tensor]], bound: float, loss: LossFn = losses) -> float:
    """How far the removal of one row moves the sum, in bounds, at most; one engine sees all batches."""
    engine, moves = GradientEngine(model, loss), []
    for batch in batches:
        whole = bounded_sum(engine, batch, bound)
        moves += [(whole - bounded_sum(engine, without(batch, row), bound)).norm() for row in range(len(batch[1]))]
    return float(max(moves)) / bound


def assert_as_alone(engine: GradientEngine, batch: tuple[Tensor, Tensor]) -> None:
    """Every row has the gradient and the norm that it has in a batch of its own."""
    trained = dict(engine.model.named_parameters())
    found, norms = engine.gradients(batch), engine.norms_and_losses(batch).norms
    for row in range(len(norms)):
        alone = torch.autograd.grad(
            engine.loss(engine.model, sliced(batch, row, row + 1)).sum(), list(trained.values()), allow_unused=True
        )
        size = torch.stack([g.norm() for g in alone if g is not None]).norm()
        assert norms[row] == pytest.approx(float(size), rel=1e-3, abs=1e-6)
        for parameter, gradient in zip(trained, alone, strict=True):
            wanted = torch.zeros_like(trained[parameter]) if gradient is None else gradient
            assert (found[parameter][row] - wanted).norm() <= 1e-3 * size + 1e-6, f"row {row}, {parameter}"


@settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(steps=programs(), loss=made_losses(), seed=st.integers(0, 1000), count=st.integers(2, 6))
@pytest.mark.filterwarnings("ignore::veil.gradients.FallbackWarning")
def test_no_row_moves_the_sum_by_more_than_its_bound(steps: list[str], loss: Loss, seed: int, count: int) -> None:
    torch.manual_seed(seed)
    model = Program(steps)
    batches = [rows_of(count, seed, 0.3), rows_of(5, seed + 1, 1.0)]
    try:
        assert largest_move(model, batches, 0.05, loss) <= 1.0 + SLACK
    except GradientError:
        assert any(name.startswith(REJECTED) for name in steps)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore::veil.gradients.FallbackWarning")
def test_every_row_has_the_gradient_that_it_has_alone(name: str) -> None:
    torch.manual_seed(3)
    model = Program([name, "called_twice(linear)"])
    engine = GradientEngine(model, losses)
    if name.startswith(REJECTED):
        with pytest.raises(GradientError):
            engine.gradients(rows_of(5, 0, 1.0))
        return
    for seed, count in ((0, 5), (1, 4), (2, 5)):
        assert_as_alone(engine, rows_of(count, seed, 1.0))


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.filterwarnings("ignore::veil.gradients.FallbackWarning")
def test_every_row_has_its_own_gradient_under_every_loss(score: str, way: str) -> None:
    torch.manual_seed(3)
    for model in (nn.Linear(WIDTH, 3), Program(["called_twice(linear)"])):
        engine = GradientEngine(model, Loss(score, (way,)))
        for seed, count in ((0, 5), (1, 4), (2, 5)):
            assert_as_alone(engine, rows_of(count, seed, 1.0))


@pytest.mark.parametrize("count", [2, 5, WIDTH])
@pytest.mark.filterwarnings("ignore::veil.gradients.FallbackWarning")
def test_an_engine_that_saw_the_same_layers_in_other_arrangements_has_every_row_right(count: int) -> None:
    torch.manual_seed(3)
    model = Program(["features_first(linear)"])
    engine = GradientEngine(model, losses)
    ways = [way for name, way in WRAPPERS.items() if name not in REJECTED]
    plain = WRAPPERS["features_first"]
    for seed, way in enumerate([plain, *(way for other in ways for way in (other, plain)), *reversed(ways)]):
        model.steps[0].function = way
        assert_as_alone(engine, rows_of(count, seed, 1.0))


def test_the_family_has_what_breaks_engines() -> None:
    assert len(NAMES) == 5 + len(INNER) * len(WRAPPERS) > 200
