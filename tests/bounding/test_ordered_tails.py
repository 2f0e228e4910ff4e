"""Tails: closed-form areas, checks of user functions, and how rows are placed in the order."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import betainc

from veil.bounding import BetaTail, Clip, GroupMean, LinearTail, Ordered, StepTail, tail_from
from veil.bounding.ordered import descending, importance
from veil.errors import InputError
from veil.gradients import PerRow


def facts_of(losses: list[float], norms: list[float] | None = None) -> PerRow:
    size = len(losses)
    lengths = torch.ones(size, dtype=torch.float64) if norms is None else torch.tensor(norms, dtype=torch.float64)
    return PerRow(torch.tensor(losses, dtype=torch.float64), lengths, torch.ones(size, dtype=torch.bool))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.floats(0.2, 20), st.floats(0.2, 20), st.floats(0.1, 50), st.floats(0, 1.3))
def test_the_beta_tail_area_equals_numerical_integration(
    alpha: float, beta: float, length: float, place: float
) -> None:
    end = min(place, 1.0) * length
    expected, _ = quad(lambda u: 1.0 - betainc(alpha, beta, u / length), 0.0, end, limit=200)
    found = BetaTail(length, alpha, beta).lost(np.array([place * length]))[0]
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-7 * length)


def test_the_straight_line_is_the_beta_tail_with_both_parameters_one() -> None:
    distances = np.linspace(0, 12, 200)
    general = distances.clip(max=10) / 10
    kept = 10 * (general * betainc(1, 1, general) - 0.5 * betainc(2, 1, general))
    assert np.allclose(BetaTail(10.0).lost(distances), 10 * general - kept, atol=1e-13)
    assert np.allclose(BetaTail(10.0).lost(distances), LinearTail(10.0, (1.0, 0.0)).lost(distances), atol=1e-13)


@pytest.mark.parametrize("beta", [0.05, 0.5, 1.0, 7.3])
@pytest.mark.parametrize("alpha", [1.0, 2.0, 4.0, 16.0, 17.0])
def test_a_whole_alpha_has_the_area_of_the_special_function(alpha: float, beta: float) -> None:
    place = np.concatenate([np.linspace(0, 1.2, 500), [1e-12, 1 - 1e-12]])
    inside = place.clip(max=1)
    kept = inside * betainc(alpha, beta, inside) - alpha / (alpha + beta) * betainc(alpha + 1, beta, inside)
    assert np.allclose(BetaTail(1.0, alpha, beta).lost(place), inside - kept, rtol=0, atol=1e-13)


def test_a_user_function_gives_the_same_weights_as_its_closed_form() -> None:
    user = tail_from(lambda place: float(betainc(2.0, 3.0, 1.0 - place)), 6.0)
    thresholds, line = np.array([0.5, 1.0, 2.0, 1.5, 4.0]), np.array([4, 0, 2, 3, 1])
    assert np.allclose(
        importance(thresholds, line, user), importance(thresholds, line, BetaTail(6.0, 2.0, 3.0)), atol=1e-5
    )


@pytest.mark.parametrize("tail", [BetaTail(3.0), StepTail(3.0), LinearTail(3.0, (0.9, 0.5, 0.1))], ids=str)
def test_weights_fall_along_the_line_and_are_one_before_the_tail(tail: BetaTail) -> None:
    weights = importance(np.ones(10), np.arange(10), tail)
    assert np.all(weights[:7] == 1.0)
    assert np.all(np.diff(weights) <= 1e-15)
    assert weights[-1] < 0.5


def test_a_line_shorter_than_the_tail_lies_at_the_far_end_of_it() -> None:
    whole = importance(np.ones(8), np.arange(8), BetaTail(8.0))
    assert np.allclose(importance(np.ones(3), np.arange(3), BetaTail(8.0)), whole[-3:])


def test_step_levels_are_the_weights_of_rows_that_fill_the_parts() -> None:
    assert importance(np.ones(4), np.arange(4), StepTail(3.0, (0.5, 0.25, 0.0))).tolist() == [1.0, 0.5, 0.25, 0.0]


def test_an_empty_batch_and_a_threshold_of_zero_are_harmless() -> None:
    assert importance(np.zeros(0), np.zeros(0, dtype=np.intp), BetaTail(1.0)).shape == (0,)
    assert np.isfinite(importance(np.array([0.0, 1.0]), np.array([0, 1]), BetaTail(1.0))).all()


def test_ties_go_to_the_row_that_comes_first() -> None:
    assert descending(np.array([1.0, 2.0, 2.0, 1.0])).tolist() == [1, 2, 0, 3]
    weights = Ordered(Clip((1.0,)), BetaTail(4.0)).weights(facts_of([1.0] * 4), torch.zeros(4, dtype=torch.long))
    assert np.all(np.diff(weights.numpy()) < 0)


def test_orders_put_the_right_row_first() -> None:
    cells = torch.tensor([0, 1, 1, 0])
    facts = facts_of([0.5, 2.0, 1.0, 3.0])

    def line(order: str) -> list[int]:
        bound = Ordered(Clip((1.0, 1.0)), BetaTail(4.0), order, ranks=(1, 0))  # type: ignore[arg-type]
        return np.argsort(-bound.weights(facts, cells).numpy()).tolist()

    assert line("loss") == [3, 1, 2, 0]
    assert line("ascending") == [0, 2, 1, 3]
    assert line("owner") == [1, 2, 3, 0]


def test_the_random_order_of_two_rows_does_not_depend_on_a_third() -> None:
    generator = np.random.default_rng(0)
    losses, norms = generator.random(30).tolist(), generator.random(30).tolist()
    bound = Ordered(Clip((1.0,)), BetaTail(30.0), "random")
    cells = torch.zeros(30, dtype=torch.long)
    inner = Clip((1.0,)).weights(facts_of(losses, norms), cells)
    whole = (bound.weights(facts_of(losses, norms), cells) / inner).numpy()
    some = (bound.weights(facts_of(losses[3:], norms[3:]), cells[3:]) / inner[3:]).numpy()
    assert np.argsort(whole[3:]).tolist() == np.argsort(some).tolist()
    assert np.argsort(whole).tolist() not in (np.argsort(losses).tolist(), list(range(30)))


@pytest.mark.parametrize("order", ["loss", "ascending", "owner", "random"])
def test_the_last_digits_of_a_loss_do_not_decide_who_goes_first(order: str) -> None:
    """Matrix products may round differently in a batch of another size; neighbours must not change places by that."""
    generator = np.random.default_rng(3)
    losses = (np.arange(40) % 8 + 0.5) / 4096.0 + (np.arange(40) % 5)
    bound = Ordered(Clip((1.0,)), BetaTail(40.0), order, ranks=(0,))  # type: ignore[arg-type]
    cells = torch.zeros(40, dtype=torch.long)
    norms = [1.03] * 40
    exact = bound.weights(facts_of(losses.tolist(), norms), cells)
    rounded = bound.weights(facts_of((losses + generator.normal(size=40) * 1e-6).tolist(), norms), cells)
    assert torch.equal(exact, rounded)
    assert len(set(exact.tolist())) == 40


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: tail_from(lambda place: place, 1.0), "increases at 0% of the tail"),
        (lambda: tail_from(lambda place: 1.5 - place, 1.0), "outside"),
        (lambda: tail_from(lambda place: float("nan"), 1.0), "outside"),
        (lambda: StepTail(1.0, (0.2, 0.4)), "increases"),
        (lambda: StepTail(1.0, ()), "at least one"),
        (lambda: BetaTail(0.0), "must be finite and above 0"),
        (lambda: BetaTail(1.0, alpha=0.0), "alpha"),
        (lambda: Ordered(GroupMean((1.0,), (0,)), BetaTail(1.0)), "per-row bound"),
        (lambda: Ordered(Clip((1.0,)), BetaTail(1.0), "owner"), "rank"),
        (lambda: Ordered(Clip((1.0,)), BetaTail(1.0), "best"), "order is"),  # type: ignore[arg-type]
        (lambda: Ordered(Clip((1e-9, 1.0)), BetaTail(100.0)), "rounding"),
    ],
)
def test_what_would_break_the_proof_is_refused(wrong: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        wrong()  # type: ignore[operator]
