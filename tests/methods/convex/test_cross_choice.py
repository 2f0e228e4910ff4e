"""Which columns are crossed, and how long their levels are, follows from one charged release and from nothing else."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from veil.accounting import Relation
from veil.foundation.randomness import Seed
from veil.methods.convex.cross_choice import LONGEST, SENSITIVITY, CrossRelease
from veil.models.crosses import Crosses
from veil.models.knots import Knots
from veil.noise import GaussianNoise
from veil.problem import Problem
from veil.problem.sums import sums_of

ROWS = 4_000


class Answered(GaussianNoise):
    """Gives the same answer whatever the sums are, and remembers the noise that was asked for."""

    answer: Tensor | None
    asked: dict[str, float]

    def __init__(self, answer: Tensor | None = None) -> None:
        super().__init__(Seed.from_int(0))
        object.__setattr__(self, "answer", answer)
        object.__setattr__(self, "asked", {})

    def add(self, step: int, values: Mapping[str, Tensor], std: float, purpose: str = "gradient") -> dict[str, Tensor]:
        self.asked[purpose] = std
        return {name: value if self.answer is None else self.answer for name, value in values.items()}


def crossed(shares: list[float], noise: Answered, sigma: float = 1e-6, seed: int = 0) -> Tensor:
    """The levels of two columns: a category with these shares and another of two values; the target follows both."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.multinomial(torch.tensor(shares), ROWS, replacement=True, generator=generator)
    other = torch.randint(2, (ROWS,), generator=generator)
    rows = torch.cat([torch.nn.functional.one_hot(values, len(shares)), torch.nn.functional.one_hot(other, 2)], dim=1)
    layer = Crosses([list(range(len(shares))), [len(shares), len(shares) + 1]], chosen=2, first=(0,))
    targets = (values == 0).long() ^ other
    problem = Problem.from_arrays(rows.float(), targets.numpy(), ["all"] * ROWS, classes=[0, 1])
    CrossRelease(sigma, Relation.ADD_REMOVE).make(layer, Knots([], 2), sums_of(problem), 2, noise)
    return layer.levels


def test_a_group_that_few_rows_have_is_longer_in_products() -> None:
    levels = crossed([0.6, 0.3, 0.08, 0.02], Answered())
    lengths = levels[:4, 0].amax(dim=0)
    assert lengths[:2].tolist() == [1.0, 1.0]
    assert lengths[2] == pytest.approx(0.25**0.5 / 0.08**0.5, rel=0.1)
    assert lengths[2] < lengths[3] <= LONGEST


def test_noise_is_not_taken_for_a_rare_level() -> None:
    """Where a mean may be off by an eighth, a share of two percent counts as a quarter."""
    noise = ROWS / 8 / 2**0.5 / SENSITIVITY
    assert crossed([0.6, 0.3, 0.08, 0.02], Answered(), noise).amax() == pytest.approx(1.0)


def test_crosses_depend_on_rows_by_what_is_released_and_by_nothing_else() -> None:
    """A choice that looked at the rows themselves would differ between these two tables, and be charged to nobody."""
    answer = torch.randn(3, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 100 + 500
    noise = Answered(answer)
    ours, theirs = crossed([0.6, 0.3, 0.08, 0.02], noise, 3.0), crossed([0.1, 0.1, 0.4, 0.4], noise, 3.0, seed=5)
    assert torch.equal(ours, theirs)
    assert noise.asked == {"crosses": 3.0 * SENSITIVITY}


def with_answer(answer: Tensor, blocks: list[list[int]], knots: Knots) -> Tensor:
    """The levels of all columns where sums come out like this, whoever the rows are."""
    layer = Crosses(blocks, chosen=len(blocks))
    rows = torch.zeros(20, sum(map(len, blocks)) - knots.added)
    problem = Problem.from_arrays(rows, [0, 1] * 10, ["all"] * 20, classes=[0, 1])
    CrossRelease(1e-6, Relation.ADD_REMOVE).make(layer, knots, sums_of(problem), 2, Answered(answer))
    return layer.levels


def test_values_with_similar_targets_share_a_level() -> None:
    """Eight values, each an eighth of the rows; those with an even number have the second class more often."""
    often = torch.tensor([0.2, 0.9, 0.3, 0.8, 0.2, 0.9, 0.3, 0.8], dtype=torch.float64)
    held = torch.full((8,), 1000.0, dtype=torch.float64)
    moved = torch.stack([0.5 - often, often - 0.5]) * held
    totals = torch.cat([torch.tensor([[8000.0]], dtype=torch.float64), moved.sum(dim=1, keepdim=True)])
    levels = with_answer(torch.cat([torch.cat([held[None], moved]), totals], dim=1), [list(range(8))], Knots([], 2))
    of = levels[:, 0].argmax(dim=1).tolist()
    assert of in ([0, 3, 1, 2, 0, 3, 1, 2], [3, 0, 2, 1, 3, 0, 2, 1])


def test_levels_of_a_number_hold_rows_where_its_knots_are_uneven() -> None:
    """Of nine knots the middle one holds nearly all rows: by the places of knots, two levels would share it."""
    held = torch.tensor([10.0, 10, 10, 10, 4000, 10, 10, 10, 10], dtype=torch.float64)
    answer = torch.cat([torch.zeros(1), held, held.sum()[None]])[None].repeat(3, 1)
    levels = with_answer(answer, [list(range(10))], Knots([0], 9))[1:, 0]
    rows = held.float() @ levels
    assert rows.sum() == pytest.approx(held.sum())
    assert levels[4].tolist() == pytest.approx([0.0, 0.5, 0.5, 0.0], abs=1e-6)
    assert levels[3, 0] > 0.9, "what lies left of the middle is told apart from it"
    assert levels[5, 3] > 0.9
