"""Adding or removing any row moves the ordered sum by at most that row's own threshold."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from veil.bounding import BetaTail, Clip, LinearTail, Normalise, Ordered, StepTail
from veil.bounding.ordered import ORDERS, Tail, UnitClipByCell, descending, importance
from veil.gradients import PerRow
from veil.releases.mechanisms import ordered_sum

SLACK = 1 + 1e-9
ROWS = st.integers(1, 12)
FALLING = st.lists(st.floats(0, 1), min_size=2, max_size=6).map(lambda v: tuple(sorted(v, reverse=True)))


@st.composite
def tails(draw: st.DrawFn) -> Tail:
    """Tails of all kinds, shorter and far longer than the line of thresholds."""
    length = draw(st.floats(0.01, 60.0))
    kind = draw(st.sampled_from(["beta", "steps", "lines"]))
    if kind == "beta":
        alpha = draw(st.one_of(st.floats(0.05, 30), st.sampled_from([1.0, 4.0, 16.0])))
        return BetaTail(length, alpha, draw(st.one_of(st.floats(0.05, 30), st.sampled_from([0.5, 1.0]))))
    return StepTail(length, draw(FALLING)) if kind == "steps" else LinearTail(length, draw(FALLING))


@st.composite
def batches(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Vectors within their thresholds (some of norm 0, many at full length in one direction), and scores with ties."""
    rows = draw(ROWS)
    thresholds = np.array(
        draw(st.lists(st.sampled_from([0.05, 0.3, 1.0, 1.0, 2.5, 7.0]), min_size=rows, max_size=rows))
    )
    scores = np.array(draw(st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.5]), min_size=rows, max_size=rows)))
    shares = np.array(draw(st.lists(st.sampled_from([0.0, 0.3, 1.0, 1.0]), min_size=rows, max_size=rows)))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    directions = generator.normal(size=(rows, 3))
    if draw(st.booleans()):  # the worst case of the triangle inequality: all in one line
        directions = np.abs(directions[:1]) * generator.choice([-1.0, 1.0, 1.0], size=(rows, 1))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    return directions * (shares * thresholds)[:, None], thresholds, scores


def weighted(vectors: np.ndarray, thresholds: np.ndarray, scores: np.ndarray, tail: Tail) -> np.ndarray:
    return vectors.T @ importance(thresholds, descending(scores), tail)


@settings(max_examples=2000, deadline=None, derandomize=True)
@given(batches(), tails())
def test_removing_a_row_moves_the_sum_by_at_most_its_threshold(
    batch: tuple[np.ndarray, np.ndarray, np.ndarray], tail: Tail
) -> None:
    vectors, thresholds, scores = batch
    whole = weighted(vectors, thresholds, scores, tail)
    for row in range(len(scores)):  # every row of the batch: about 20,000 removals in all
        rest = np.arange(len(scores)) != row
        other = weighted(vectors[rest], thresholds[rest], scores[rest], tail)
        assert np.linalg.norm(whole - other) <= thresholds[row] * SLACK


@settings(max_examples=400, deadline=None, derandomize=True)
@given(
    st.integers(1, 40), tails(), st.sampled_from(ORDERS), st.integers(0, 2**32 - 1), st.sampled_from(["c", "n", "u"])
)
def test_the_bound_keeps_every_limit_in_every_order_and_over_every_inner_bound(
    rows: int, tail: Tail, order: str, seed: int, inner: str
) -> None:
    generator = np.random.default_rng(seed)
    limits = (0.2, 1.0, 3.0)
    below = {"c": Clip(limits), "n": Normalise(limits), "u": UnitClipByCell(0.7, limits)}[inner]
    bound = Ordered(below, tail, order, ranks=(0, 1, 1))  # type: ignore[arg-type]
    cells = torch.from_numpy(generator.integers(0, 3, rows))
    gradients = generator.normal(size=(rows, 3)) * generator.choice([0.0, 0.1, 5.0], size=(rows, 1))
    losses = torch.from_numpy(generator.choice([0.0, 0.5, 2.0], size=rows))
    norms = torch.from_numpy(np.linalg.norm(gradients, axis=1))

    def total(rest: np.ndarray) -> np.ndarray:
        facts = PerRow(losses[rest], norms[rest], torch.ones(int(rest.sum()), dtype=torch.bool))
        return gradients[rest].T @ bound.weights(facts, cells[rest]).numpy()

    whole = total(np.ones(rows, dtype=bool))
    for row in range(rows):
        other = total(np.arange(rows) != row)
        assert np.linalg.norm(whole - other) <= limits[int(cells[row])] * SLACK


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.integers(50, 400), st.floats(5, 200), st.sampled_from([(1.0, 1.0), (4.0, 0.5)]), st.integers(0, 2**32 - 1))
def test_weights_in_single_precision_keep_the_limits_exactly(
    rows: int, length: float, shape: tuple[float, float], seed: int
) -> None:
    """The vectors are taken at exactly their thresholds and in one line, where rounding of weights adds up."""
    generator = np.random.default_rng(seed)
    limits = (0.1, 1.0)
    bound = Ordered(Clip(limits), BetaTail(length, *shape))
    cells = torch.from_numpy(generator.integers(0, 2, rows))
    norms = torch.tensor(limits, dtype=torch.float32)[cells]
    losses = torch.from_numpy(generator.random(rows).astype(np.float32))

    def total(rest: np.ndarray) -> float:
        facts = PerRow(losses[rest], norms[rest], torch.ones(int(rest.sum()), dtype=torch.bool))
        weights = bound.weights(facts, cells[rest])
        assert weights.dtype == torch.float32
        return float((weights.double() * torch.tensor(limits, dtype=torch.float64)[cells[rest]]).sum())

    whole = total(np.ones(rows, dtype=bool))
    for row in range(0, rows, 7):
        assert abs(whole - total(np.arange(rows) != row)) <= limits[int(cells[row])] * SLACK


@settings(max_examples=200, deadline=None, derandomize=True)
@given(batches(), tails())
def test_the_mechanism_without_a_model_keeps_the_bounds_too(
    batch: tuple[np.ndarray, np.ndarray, np.ndarray], tail: Tail
) -> None:
    vectors, thresholds, scores = batch
    vectors = 4.0 * vectors
    whole = ordered_sum(vectors, scores, thresholds, tail, 0.0)
    for row in range(len(scores)):
        rest = np.arange(len(scores)) != row
        other = ordered_sum(vectors[rest], scores[rest], thresholds[rest], tail, 0.0)
        assert np.linalg.norm(whole - other) <= thresholds[row] * SLACK


def test_a_batch_can_use_up_a_threshold_so_the_bound_is_not_vacuous() -> None:
    thresholds, scores = np.ones(40), np.arange(40.0)
    vectors = np.ones((40, 1))
    tail = BetaTail(10.0)
    whole = weighted(vectors, thresholds, scores, tail)
    rest = np.arange(40) != 0  # the row with the lowest score, at the very end of the tail
    assert abs(float((whole - weighted(vectors[rest], thresholds[rest], scores[rest], tail))[0])) == pytest.approx(1.0)


def test_keeping_the_top_rows_would_break_the_bound_that_the_tail_keeps() -> None:
    """The obvious rule, full weight to the hardest half, moves a sum by a richer neighbour's threshold."""
    thresholds, scores, vectors = np.array([0.1, 5.0]), np.array([1.0, 2.0]), np.array([[0.1], [5.0]])
    top_half = vectors[[1]].sum()
    alone = 0.0  # with one row left, half of it rounds down to nobody
    assert abs(top_half - alone) > thresholds[0]
    tail = BetaTail(2.0)
    moved = weighted(vectors, thresholds, scores, tail) - weighted(vectors[1:], thresholds[1:], scores[1:], tail)
    assert np.linalg.norm(moved) <= thresholds[0] * SLACK
