"""Owner diagnostics: drops, angles, Cond. (2) and the Pareto front."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from veil.errors import InputError
from veil.metrics.owners import (
    OwnerPull,
    TradeOff,
    condition_two,
    evaluate_owners,
    initial_drop,
    owner_cosines,
    pareto_front,
    trade_off,
)
from veil.problem import Problem
from veil.training.fitting import row_losses


def test_a_drop_has_a_start_a_depth_and_an_end() -> None:
    found = initial_drop([1, 5, 10, 15, 20], [0.3, 0.3, 0.1, 0.2, 0.35])
    assert (found.start, found.end) == (10, 20)
    assert found.depth == pytest.approx(0.2)


def test_a_drop_that_lasts_has_no_end_and_a_later_one_does_not_count() -> None:
    assert initial_drop([1, 2, 3], [0.5, 0.2, 0.4]).end is None
    early = initial_drop([1, 2, 3, 4], [0.5, 0.4, 0.6, 0.0])
    assert (early.start, early.end) == (2, 3)
    assert early.depth == pytest.approx(0.1)


def test_a_drop_is_measured_from_the_runs_own_peak_and_not_from_the_untrained_model() -> None:
    steps = [0, 2, 4, 8, 16, 32]
    flat = initial_drop(steps, [0.2, 0.0, 0.0, 0.0, 0.1, 0.5])
    assert not flat.happened
    risen = initial_drop(steps, [0.0, 0.1, 0.4, 0.3, 0.2, 0.5])
    assert (risen.start, risen.end) == (8, 32)
    assert risen.depth == pytest.approx(0.2)
    assert not initial_drop([0], [0.2]).happened


def test_a_drop_that_is_over_within_the_first_quarter_is_seen() -> None:
    found = initial_drop([1, 4, 40, 170, 450, 900, 3000], [0.145, 0.02, 0.0, 0.0, 0.16, 0.28, 0.57])
    assert (found.start, found.end) == (4, 450)
    assert found.depth == pytest.approx(0.145)


def test_small_fluctuations_are_within_the_tolerance() -> None:
    assert not initial_drop([1, 2, 3], [0.5, 0.495, 0.6], tolerance=0.01).happened
    with pytest.raises(InputError):
        initial_drop([1, 2], [0.5])


def test_owners_that_pull_apart_have_a_negative_cosine() -> None:
    x = torch.ones(8, 2)
    problem = Problem.from_arrays(x, [0, 1] * 4, owners=["zero", "one"] * 4, classes=[0, 1])
    model = torch.nn.Linear(2, 2)
    cosines = owner_cosines(model, problem, row_losses)
    zero, one = problem.public.owners.index("zero"), problem.public.owners.index("one")
    assert cosines[zero, one] == pytest.approx(-1.0, abs=1e-6)
    assert np.allclose(np.diag(cosines), 1.0)


def test_the_condition_fails_when_the_careful_owner_is_drawn_too_seldom() -> None:
    careful, free = OwnerPull(0.002, 30_000, 1.0), OwnerPull(0.019, 30_000, 1.0)
    assert condition_two(-0.3, careful, free) < 0 < condition_two(-0.3, careful, careful)
    assert condition_two(-0.3, careful, free) == pytest.approx(1 - 0.3 * 9.5)
    with pytest.raises(InputError):
        condition_two(0.1, OwnerPull(0.0, 1, 1.0), free)


def test_owner_accuracy_counts_an_owners_rows_only() -> None:
    problem = Problem.from_arrays(
        torch.tensor([[1.0], [1.0], [-1.0]]), [1, 0, 0], owners=["a", "a", "b"], classes=[0, 1]
    )
    model = torch.nn.Linear(1, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-1.0], [1.0]]))
        model.bias.zero_()
    scores = evaluate_owners(model, problem).by_group
    assert (scores["a"].accuracy, scores["b"].accuracy) == (0.5, 1.0)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=12))
def test_nothing_on_the_front_is_beaten_and_everything_else_is(pairs: list[tuple[int, int]]) -> None:
    points = [TradeOff(str(i), float(u), float(s)) for i, (u, s) in enumerate(pairs)]
    front = pareto_front(points)

    def beats(one: TradeOff, other: TradeOff) -> bool:
        at_least = one.utility >= other.utility and one.spread <= other.spread
        return at_least and (one.utility, one.spread) != (other.utility, other.spread)

    assert front
    for point in points:
        assert (point in front) == (not any(beats(other, point) for other in points))


def test_a_trade_off_ignores_owners_without_rows() -> None:
    assert trade_off("m", 0.8, [0.9, 0.6, math.nan]).spread == pytest.approx(0.15)
    assert trade_off("m", 0.8, [0.9, 0.6, 0.9, 0.6]).spread == pytest.approx(0.15)
    assert pareto_front([TradeOff("x", math.nan, 0.1)]) == []
